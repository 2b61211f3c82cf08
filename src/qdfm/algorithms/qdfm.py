"""QDFM: Q-weighted discrete flow matching (the paper's Algorithm 1; sampling by its Algorithm 2).

Three phases. `warmup` fits a flow to the behaviour, `critic` fits Q over its support, `improve` refits the flow to
endpoints reweighted by exp(βQ), whose terminal law is then the KL-regularised optimum μ·exp(βQ)/C. `QDFM.paper()` is
the algorithm as printed, with the repairs that docs/deviations.md lists; `QDFM()` is the same method with the choices
that served best: posterior rates by cross-entropy, endpoints from the frozen behaviour (enumerated where possible, so
without sampling bias), and the collapsed objective.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from qdfm.algorithms.apart import apart
from qdfm.algorithms.base import Algorithm, check_choice, check_noise
from qdfm.algorithms.guidedcritic import GuidedConfig
from qdfm.algorithms.learner import Rate, falling
from qdfm.algorithms.qdfm_phases import Phases
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow import losses
from qdfm.flow.rates import PARAMETERISATIONS

ENUMERATED_MAX = 1024  # choices of one token up to which endpoints are enumerated by default


@dataclass(frozen=True)
class QDFM(GuidedConfig):
    """Q-weighted discrete flow matching. None: chosen by `resolve` from the spec."""

    warmup_steps: int = 20_000
    """Gradient steps of phase 1."""
    improve_steps: int = 20_000
    """Gradient steps of phase 3."""
    members: int = 1
    """Flows that are trained side by side, each by itself, and act by the mean of their scores: steadier where the data
    says little, and as many times the work."""
    decay: bool = False
    """Whether the flow's step size falls linearly to 0 in phase 1, and again in phase 3, for a closer fit."""
    observation_noise: float = 0.0
    """Standard deviations by which the flow's (normalised) observations are disturbed in training, for behaviours that
    keep to narrow paths."""
    rates: str = "posterior"
    """posterior, softplus (paper), energy or diffuse."""
    loss: str = "cross_entropy"
    """cross_entropy (posterior and energy rates only), l2 (paper) or kl."""
    diagonal: bool = True
    """Whether the squared loss counts the diagonal rate."""
    time_weight: str = "none"
    """none, squared: (1−t)², or inverse: 1/max(1−t, .05)."""
    objective: str = "collapsed"
    """collapsed, or literal: the paper's sum over all endpoints."""
    source: str | None = None
    """uniform or mask (None: uniform for one token, mask for several)."""
    steps: int | None = None
    """Euler steps N of the sampler; training times follow (None: 1 for one token, D for several). At 1, posterior rates
    have a network that reads the context only: an agent trained with 1 is played with 1, and no other is."""
    alpha: float = 1.0
    """Scale of the rates when sampling."""
    behaviour: str = "flow"
    """What μ̂ is: flow (the warm-up flow) or network (a separate softmax, paper)."""
    clone_steps: int = 20_000
    """Gradient steps of the separate network, where there is one."""
    warmup_endpoint: str = "data"
    """A1 in phase 1: data or behaviour (drawn from μ̂, paper)."""
    improve_start: str = "source"
    """A0 in phase 3: source or data (paper)."""
    act_start: str = "source"
    """A0 when acting: source or behaviour (drawn from μ̂, paper)."""
    endpoints: str | None = None
    """enumerated, behaviour, data (the logged actions, weighted by exp(βQ)/C) or model (paper). None: enumerated for
    one token of up to 1024 choices, data for decentralised teams, else behaviour."""
    samples: int = 32
    """M, endpoints per state where they are drawn."""
    renew_every: int = 1000
    """K_renew: steps after which the proposal of model endpoints is refreshed."""
    together: bool = False
    """Whether the second phase trains the flow beside the critic, for one token with enumerated endpoints: a state is
    worth what the flow makes of it, and the flow follows the tilt by these values from step to step. The fixed point is
    that of the Boltzmann backup; on the way a policy that lags behind the values is not drawn to their errors."""
    worthwhile: float = 0.0
    """Share of the mean |Q| that guidance must promise over 1/(1 − γ) steps to be given at all: where the tilt
    expects no more of the values it reads, β is 0 and the flow stays that of the warm-up (0: always given)."""
    guidance: str = "direct"
    """What weighs the endpoints: direct (exp(βQ) itself) or energy (a network that was taught to, MO-CEP)."""
    energy_steps: int = 20_000
    """Gradient steps of the energy network, where there is one."""

    execution: str | None = None
    """What the rates of a team's agent read: decentralised (its own observation and current action) or centralised
    (those of all). None: decentralised for teams, else centralised."""
    mixing: str = "none"
    """Where a team's values come from: none (one network reads state and joint action) or qmix (the agents' own values,
    mixed so that more of one is never less of all). apart: every agent learns as if it were alone, from its own rows
    and the team's reward, values and all; each one's law is then exact, but nothing coordinates them, and the global
    state is not read. What is said here of one token holds, but the defaults of critics, pessimism, layer_norm, backup,
    beta_scale and caution are those of several."""
    candidates: int = 1
    """Actions to draw for a decision, of which the critic's best is taken (1: the flow's own draw; a greedy decision
    draws none). More than 1 in a team: centralised execution, and a critic without the global state."""

    averaged: bool = False
    """Whether the action taken is the mean of the policy's law, of actions that were continuous: finer than the bins or
    the codebook, one evaluation, nothing drawn; for behaviours without alternatives."""

    name = "qdfm"
    about = "Q-weighted discrete flow matching"
    only_with: ClassVar[dict[str, tuple[str, str]]] = {
        "clone_steps": ("behaviour", "network"),
        "energy_steps": ("guidance", "energy"),
        "renew_every": ("endpoints", "model"),
    }
    """Fields that have an effect only where another has this value; the command line refuses them elsewhere. In Python
    they may stand idle, so that variants of one method can share their settings."""

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The algorithm as printed, for one token."""
        printed: dict[str, Any] = {
            "clone_steps": 1_000_000,
            "warmup_steps": 150_000, "critic_steps": 500_000, "improve_steps": 350_000, "rates": "softplus",
            "loss": "l2", "objective": "literal", "source": "uniform", "steps": 20, "behaviour": "network",
            "warmup_endpoint": "behaviour", "improve_start": "data", "act_start": "behaviour", "endpoints": "model",
            "samples": 64, "support_share": 0.0, "backup": "boltzmann", "backup_samples": 64, "critics": 1,
            "pessimism": "mean", "critic": "scalarised", "beta": 20.0, "beta_scale": "none", "caution": 0.0,
            "ema": 0.0, "layer_norm": False, "learning_rate": 3e-4,
        }  # fmt: skip
        return cls(**{**printed, **changes})

    def resolve(self, spec: Spec) -> Self:
        """Fill in what depends on the number of tokens and choices, and check what does not go together."""
        check_noise(self, spec, self.observation_noise)
        single = self.single(spec)
        small = single and spec.num_choices <= ENUMERATED_MAX
        team = spec.agents > 1
        local = team and self.execution != "centralised"
        filled: dict[str, Any] = {
            "source": "uniform" if single else "mask",
            "steps": 1 if single else spec.tokens,
            "execution": "decentralised" if local else "centralised",
            "endpoints": "enumerated" if small else "data" if local and self.guidance == "direct" else "behaviour",
            "backup_samples": 0 if single else 2,
        }
        asked = replace(self, backup=self.backup or "boltzmann") if self.together else self
        config = super(QDFM, asked).resolve(spec)
        config = replace(config, **{k: v for k, v in filled.items() if getattr(self, k) is None})
        for field, known in (
            ("rates", tuple(PARAMETERISATIONS)),
            ("loss", losses.LOSSES),
            ("time_weight", tuple(losses.TIME_WEIGHTS)),
            ("objective", ("collapsed", "literal")),
            ("source", ("uniform", "mask")),
            ("behaviour", ("flow", "network")),
            ("warmup_endpoint", ("data", "behaviour")),
            ("improve_start", ("source", "data")),
            ("act_start", ("source", "behaviour")),
            ("endpoints", ("enumerated", "behaviour", "data", "model")),
            ("guidance", ("direct", "energy")),
            ("execution", ("decentralised", "centralised")),
            ("mixing", ("none", "qmix", "apart")),
        ):
            check_choice(config, field, known)
        for wrong, sentence in (
            (
                config.loss == "cross_entropy" and not PARAMETERISATIONS[config.rates].posterior,
                "cross_entropy needs posterior or energy rates",
            ),
            (config.endpoints == "enumerated" and not single, "enumerated endpoints need a single token"),
            (config.backup_samples == 0 and not single, "an exact backup needs a single token; set backup_samples"),
            (config.behaviour == "network" and not single, "a behaviour network needs a single token"),
            (
                config.behaviour == "flow" and "behaviour" in (config.warmup_endpoint, config.act_start),
                'warmup_endpoint and act_start "behaviour" need behaviour="network"',
            ),
            (
                config.guidance == "energy" and config.endpoints in ("data", "model"),
                f'the energy network weighs endpoints of the behaviour; endpoints="{config.endpoints}" needs '
                'guidance="direct"',
            ),
            (
                config.together
                and (
                    config.endpoints != "enumerated"
                    or config.guidance != "direct"
                    or config.behaviour != "flow"
                    or not PARAMETERISATIONS[config.rates].posterior
                ),
                "together needs one token, enumerated endpoints, direct guidance, a flow as behaviour and posterior or "
                "energy rates",
            ),
            (
                config.together and (config.backup != "boltzmann" or config.backup_samples != 0),
                "together values states by the flow itself; leave backup and backup_samples out",
            ),
            (config.source == "mask" and config.act_start == "behaviour", 'the mask source needs act_start="source"'),
            (
                config.source == "mask" and config.improve_start == "data",
                'the mask source needs improve_start="source"',
            ),
            (not team and config.execution == "decentralised", "decentralised execution needs several agents"),
            (not team and config.mixing != "none", f'mixing="{config.mixing}" needs several agents; leave mixing out'),
            (
                config.mixing == "apart" and config.execution == "centralised",
                'agents that learn apart need execution="decentralised"',
            ),
            (
                config.mixing == "apart" and (config.candidates > 1 or config.averaged),
                "agents that learn apart act by their laws; leave candidates and averaged out",
            ),
            (
                config.execution == "decentralised"
                and config.mixing != "apart"
                and config.rates in ("energy", "diffuse"),
                'energy and diffuse rates need execution="centralised"',
            ),
            (
                config.execution == "decentralised" and config.candidates > 1,
                'candidates are compared by all that the team sees, which needs execution="centralised"',
            ),
            (
                config.averaged and not spec.continuous,
                "averaged actions need actions that were continuous; leave averaged out",
            ),
            (config.averaged and config.candidates > 1, "averaged actions and candidates exclude each other"),
            (
                config.averaged and (not PARAMETERISATIONS[config.rates].posterior or config.act_start == "behaviour"),
                'averaged actions need posterior or energy rates and act_start="source"',
            ),
            (config.worthwhile < 0, f"worthwhile is {config.worthwhile}; it must be at least 0"),
            (
                config.worthwhile > 0 and (config.gamma == 1 or config.together or config.utility != "linear"),
                "worthwhile needs gamma below 1, the linear utility and a flow that is trained after its critic; leave "
                "it at 0",
            ),
            ((config.steps or 0) < 1, f"steps is {config.steps}; it must be at least 1"),
            (config.alpha <= 0, f"alpha is {config.alpha}; it must be positive"),
            *(
                (getattr(config, field) < 1, f"{field} is {getattr(config, field)}; it must be at least 1")
                for field in ("samples", "renew_every", "candidates", "members")
            ),
        ):
            if wrong:
                raise QDFMError(f"qdfm: {sentence}.")
        return config

    def single(self, spec: Spec) -> bool:
        """One token, or agents who each decide by themselves."""
        return super().single(spec) or self.mixing == "apart"

    def mixed(self, spec: Spec) -> bool:
        """Whether the critic is QMIX."""
        return self.mixing == "qmix"

    def state_size(self, spec: Spec) -> int:
        """All of the global state, unless the critic has a say when the team acts and sees no state."""
        return 0 if self.candidates > 1 else spec.state_size

    def flow_rate(self) -> Rate:
        """Constant, or falling in each phase that trains the flow."""
        steps = (self.warmup_steps, *(self.critic_steps,) * self.together, self.improve_steps)
        return falling(self.learning_rate, *steps) if self.decay else self.learning_rate

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if config.mixing != "apart":
            return Phases(config, spec).algorithm()
        rows = config.batch_size * spec.agents  # as many as a batch of the team has
        alone = replace(config, mixing="none", execution="centralised", batch_size=rows)
        return apart(spec, lambda own: Phases(alone.resolve(own), own).algorithm())
