"""QDFM: Q-weighted discrete flow matching (the paper's Algorithm 1; sampling by its Algorithm 2).

Three phases. `warmup` fits a flow to the behaviour, `critic` fits Q over its support, `improve` refits the flow to
endpoints reweighted by exp(βQ), whose terminal law is then the KL-regularised optimum μ·exp(βQ)/C. `QDFM.paper()` is
the algorithm as printed, with the repairs that docs/deviations.md lists; `QDFM()` is the same method with the choices
that served best: posterior rates by cross-entropy, endpoints from the frozen behaviour (enumerated where possible, so
without sampling bias), and the collapsed objective.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms import guidance, learner
from qdfm.algorithms.base import Algorithm, Metrics, Phase, check_choice, draw_preference, legal_choices
from qdfm.algorithms.bc import clone_phase
from qdfm.algorithms.critic import init_critic, preferred_values
from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.algorithms.guidedcritic import (
    BETA_ROWS,
    CriticState,
    GuidedConfig,
    Support,
    drawn_support,
    first_beta,
    fit_beta,
    support_of,
    update_critic,
)
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import init_softmax, log_softmax_of
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow import losses
from qdfm.flow.path import draw_times, one_hot
from qdfm.flow.rates import PARAMETERISATIONS
from qdfm.flow.samplers import inverse_cdf
from qdfm.nets import context
from qdfm.ratenets import RateNet

ENUMERATED_MAX = 1024  # choices of one token up to which endpoints are enumerated by default
CACHE_ROWS = 4096  # rows whose support is drawn at a time


@dataclass(frozen=True)
class QDFM(GuidedConfig):
    """Q-weighted discrete flow matching. None: chosen by `resolve` from the spec."""

    warmup_steps: int = 20_000
    """Gradient steps of phase 1."""
    improve_steps: int = 20_000
    """Gradient steps of phase 3."""
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
    """Euler steps N of the sampler; training times follow (None: 1 for one token, D for several)."""
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
    """enumerated, behaviour or model (paper). None: enumerated for one token of up to 1024 choices, else behaviour."""
    samples: int = 32
    """M, endpoints per state where they are drawn."""
    renew_every: int = 1000
    """K_renew: steps after which the proposal of model endpoints is refreshed."""

    name = "qdfm"
    about = "Q-weighted discrete flow matching"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The algorithm as printed, for one token."""
        printed: dict[str, Any] = {
            "clone_steps": 1_000_000,
            "warmup_steps": 150_000, "critic_steps": 500_000, "improve_steps": 350_000, "rates": "softplus",
            "loss": "l2", "objective": "literal", "source": "uniform", "steps": 20, "behaviour": "network",
            "warmup_endpoint": "behaviour", "improve_start": "data", "act_start": "behaviour", "endpoints": "model",
            "samples": 64, "support_share": 0.0, "backup": "boltzmann", "backup_samples": 64, "critics": 1,
            "pessimism": "mean", "critic": "scalarised", "beta": 20.0, "beta_scale": "none", "ema": 0.0,
            "layer_norm": False, "learning_rate": 3e-4,
        }  # fmt: skip
        return cls(**{**printed, **changes})

    def resolve(self, spec: Spec) -> Self:
        """Fill in what depends on the number of tokens and choices, and check what does not go together."""
        single = spec.tokens == 1
        small = single and spec.num_choices <= ENUMERATED_MAX
        filled: dict[str, Any] = {
            "source": "uniform" if single else "mask",
            "steps": 1 if single else spec.tokens,
            "endpoints": "enumerated" if small else "behaviour",
            "backup_samples": 0 if single else 8,
        }
        config = replace(super().resolve(spec), **{k: v for k, v in filled.items() if getattr(self, k) is None})
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
            ("endpoints", ("enumerated", "behaviour", "model")),
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
            (config.source == "mask" and config.act_start == "behaviour", 'the mask source needs act_start="source"'),
            (
                config.source == "mask" and config.improve_start == "data",
                'the mask source needs improve_start="source"',
            ),
            ((config.steps or 0) < 1, f"steps is {config.steps}; it must be at least 1"),
            (config.alpha <= 0, f"alpha is {config.alpha}; it must be positive"),
            (config.samples < 1 or config.renew_every < 1, "samples and renew_every must be at least 1"),
        ):
            if wrong:
                raise QDFMError(f"qdfm: {sentence}.")
        return config

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        return _Build(self.resolve(spec), spec).algorithm()


class State(eqx.Module):
    """Everything that training moves. `behaviour` is the frozen warm-up flow, or the network μ̂ in training."""

    flow: Learner
    behaviour: Any
    critic: CriticState
    proposal: RateNet  # where model endpoints come from
    step: jax.Array  # of phase 3


class Endpoints(NamedTuple):
    """Endpoints of a batch: their law `[B, 1, K]` for one token, or drawn ones `[B, M, D]` with weights `[B, M]`."""

    actions: jax.Array | None
    weights: jax.Array


class _Build:
    """The pure functions of one config and spec."""

    def __init__(self, config: QDFM, spec: Spec):
        assert config.source is not None and config.steps is not None  # resolved
        self.config, self.spec, self.single = config, spec, spec.tokens == 1
        self.steps = config.steps
        self.policy = FlowPolicy(spec, config.rates, config.source, config.steps, config.alpha)
        self.matching = losses.Matching(
            config.rates, config.loss, config.diagonal, config.time_weight, config.source == "mask"
        )

    def algorithm(self) -> Algorithm:
        config, spec = self.config, self.spec
        network = config.behaviour == "network"
        warmup = Phase("warmup", config.warmup_steps, self.warmup)
        critic = Phase("critic", config.critic_steps, self.critic, None if network else self.freeze, self.cache_next)
        improve = Phase("improve", config.improve_steps, self.improve, self.fit_guidance, self.cache)
        clone = clone_phase(
            config, spec, config.clone_steps, lambda s: s.behaviour, lambda s, b: replace(s, behaviour=b)
        )
        return Algorithm(
            init=self.init,
            phases=(clone, warmup, critic, improve) if network else (warmup, critic, improve),
            policy=lambda s: (s.flow.average, s.behaviour.average if config.act_start == "behaviour" else None),
            act=self.act,
            noise=self.policy.noise,
            probs=self.probs,
        )

    def init(self, key: jax.Array) -> State:
        config, spec = self.config, self.spec
        k1, k2, k3 = jax.random.split(key, 3)
        net = self.policy.network(config.hidden, bool(config.layer_norm), k1)
        network = config.behaviour == "network"
        return State(
            flow=learner.start(net, config.learning_rate),
            behaviour=init_softmax(config, spec, k2) if network else jax.tree.map(jnp.copy, net),
            critic=CriticState(init_critic(config, spec, k3, decomposed=False), first_beta(config)),
            proposal=jax.tree.map(jnp.copy, net),
            step=jnp.int32(0),
        )

    # Phase 1

    def warmup(self, state: State, dataset: Dataset, cache: None, key: jax.Array) -> tuple[State, Metrics]:
        """The unweighted flow-matching loss."""
        rows, omega, start, end, path = jax.random.split(key, 5)
        batch = dataset.sample(rows, self.config.batch_size)
        preference = draw_preference(self.config, self.spec, omega, self.config.batch_size)
        legal = legal_choices(self.spec, batch.mask, len(batch))
        a1 = batch.action
        if self.config.warmup_endpoint == "behaviour":
            mu = jnp.exp(log_softmax_of(self.spec, state.behaviour.average, batch.observation, preference, batch.mask))
            a1 = inverse_cdf(jax.random.uniform(end, (*a1.shape, 1)), mu)[..., 0]
        a0 = self.policy.start(jax.random.uniform(start, a1.shape), legal)
        endpoints = Endpoints(None, one_hot(a1, self.spec.num_choices))
        if not self.single:
            endpoints = Endpoints(a1[:, None], jnp.ones((len(batch), 1)))
        return self.fit(state, batch, preference, legal, a0, endpoints, path)

    # Phase 2

    def freeze(self, state: State, dataset: Dataset, key: jax.Array) -> State:
        """The behaviour is the warm-up flow as it stands."""
        return replace(state, behaviour=jax.tree.map(jnp.copy, state.flow.average))

    def critic(self, state: State, dataset: Dataset, cache: Any, key: jax.Array) -> tuple[State, Metrics]:
        """Bellman regression over the behaviour's support at the next observations."""
        rows, omega, draws = jax.random.split(key, 3)
        index = jax.random.randint(rows, (self.config.batch_size,), 0, len(dataset))
        batch = dataset[index]
        preference = draw_preference(self.config, self.spec, omega, self.config.batch_size)
        samples = self.config.backup_samples or 0
        if self.single:
            log_mu = self.log_mu(state, batch.next_observation, preference, batch.next_mask)
            support = support_of(self.config, draws, log_mu, samples)
        else:
            support = drawn_support(cache[index].astype(jnp.int32))
        critic, metrics = update_critic(self.config, self.spec, state.critic, batch, preference, support)
        return replace(state, critic=critic), metrics

    def log_mu(
        self, state: State, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
    ) -> jax.Array:  # fmt: skip
        """log μ̂ `[B, 1, K]` of one token."""
        if self.config.behaviour == "network":
            return log_softmax_of(self.spec, state.behaviour.average, observation, preference, mask)
        legal = legal_choices(self.spec, mask, len(observation))
        x = context(self.spec, observation, preference)
        if self.policy.posterior:  # one evaluation instead of K · N
            return jnp.where(legal, self.policy.first_law(state.behaviour, x, legal), -jnp.inf)
        return jnp.log(self.policy.law(state.behaviour, x, legal))[:, None]

    # Phase 3

    def fit_guidance(self, state: State, dataset: Dataset, key: jax.Array) -> State:
        """β in units of the finished critic; the proposal starts at the warm-up flow."""
        state = replace(state, proposal=jax.tree.map(jnp.copy, state.flow.average), step=jnp.int32(0))
        rows, omega, draws = jax.random.split(key, 3)
        batch = dataset.sample(rows, min(BETA_ROWS, len(dataset)))
        preference = draw_preference(self.config, self.spec, omega, len(batch))
        support = self.support(state, batch, preference, draws, None)
        beta = fit_beta(self.config, self.spec, state.critic, batch, preference, support)
        return replace(state, critic=CriticState(state.critic.learner, beta))

    def support(
        self, state: State, batch: Dataset, preference: jax.Array, key: jax.Array, cached: jax.Array | None
    ) -> Support:
        """Candidate endpoints at a batch, as the switch `endpoints` says."""
        config = self.config
        if config.endpoints == "model":
            x = context(self.spec, batch.observation, preference)
            return drawn_support(self.draw(state.proposal, state, x, batch, preference, key))
        if self.single:
            log_mu = self.log_mu(state, batch.observation, preference, batch.mask)
            return support_of(config, key, log_mu, 0 if config.endpoints == "enumerated" else config.samples)
        if cached is not None:
            return drawn_support(cached.astype(jnp.int32))
        x = context(self.spec, batch.observation, preference)
        return drawn_support(self.draw(state.behaviour, state, x, batch, preference, key))

    def draw(
        self, net: RateNet, state: State, x: jax.Array, batch: Dataset, preference: jax.Array, key: jax.Array
    ) -> jax.Array:
        """M endpoints per row `[B, M, D]` by simulating a flow network."""
        legal = legal_choices(self.spec, batch.mask, len(batch))
        noise, start = jax.random.split(key)
        uniforms = jax.random.uniform(noise, (len(batch), self.config.samples, self.policy.noise))
        a0 = None
        if self.config.act_start == "behaviour":
            mu = jnp.exp(log_softmax_of(self.spec, state.behaviour.average, batch.observation, preference, batch.mask))
            a0 = inverse_cdf(jax.random.uniform(start, (len(batch), self.config.samples)), mu[:, 0])[..., None]
        return self.policy.sample(net, x, legal, uniforms, a0, self.config.support_share)

    def improve(self, state: State, dataset: Dataset, cache: Any, key: jax.Array) -> tuple[State, Metrics]:
        """The Q-weighted flow-matching loss."""
        config = self.config
        rows, omega, draws, start, path = jax.random.split(key, 5)
        index = jax.random.randint(rows, (config.batch_size,), 0, len(dataset))
        batch = dataset[index]
        preference = draw_preference(self.config, self.spec, omega, config.batch_size)
        legal = legal_choices(self.spec, batch.mask, len(batch))
        renew = state.step % config.renew_every == 0
        if config.endpoints == "model":
            proposal = jax.tree.map(lambda new, old: jnp.where(renew, new, old), state.flow.average, state.proposal)
            state = replace(state, proposal=proposal)
        support = self.support(state, batch, preference, draws, None if cache is None else cache[index])
        q = preferred_values(
            config, self.spec, state.critic.learner.average, batch.observation, preference, support.actions
        )
        weights = jax.lax.stop_gradient(guidance.tilt(support.log_mu, q, state.critic.beta))
        share = jnp.mean(guidance.effective_share(support.log_mu, q, state.critic.beta))
        a0 = batch.action
        if config.improve_start == "source":
            a0 = self.policy.start(jax.random.uniform(start, a0.shape), legal)
        endpoints = Endpoints(support.actions, weights if support.actions is None else weights[:, 0])
        state, metrics = self.fit(state, batch, preference, legal, a0, endpoints, path)
        metrics |= {"effective_share": share, "beta": state.critic.beta}
        if config.endpoints == "model":  # the fixed point after k renewals is μ·exp(kβQ)
            metrics["renewals"] = (state.step // config.renew_every + 1).astype(jnp.float32)
        return replace(state, step=state.step + 1), metrics

    def fit(
        self, state: State, batch: Dataset, preference: jax.Array, legal: jax.Array, a0: jax.Array,
        endpoints: Endpoints, key: jax.Array,
    ) -> tuple[State, Metrics]:  # fmt: skip
        """One gradient step of the flow towards weighted endpoints."""
        config = self.config
        x = context(self.spec, batch.observation, preference)

        def loss(net: RateNet) -> jax.Array:
            return jnp.mean(self.objective(self.policy.scores(net, x), a0, endpoints, legal, key))

        value, gradient = jax.value_and_grad(loss)(state.flow.net)
        flow, norm = learner.descend(state.flow, gradient, config.learning_rate, config.ema)
        return replace(state, flow=flow), {"loss": value, "grad_norm": norm}

    def objective(
        self, scores: losses.Scores, a0: jax.Array, endpoints: Endpoints, legal: jax.Array, key: jax.Array
    ) -> jax.Array:
        """The loss of each row `[B]`: the literal sum, or what has the same gradient in expectation."""
        rows, choices = len(a0), self.spec.num_choices
        times, path, pick = jax.random.split(key, 3)
        actions, weights = endpoints
        if self.config.objective == "literal":
            if actions is None:  # draws from an enumerated law need no weights
                uniforms = jax.random.uniform(pick, (rows, self.config.samples))
                actions = inverse_cdf(uniforms, weights[:, 0])[..., None]
                weights = jnp.full(actions.shape[:2], 1 / self.config.samples)
            t = draw_times(jax.random.uniform(times, weights.shape), self.steps)
            uniforms = jax.random.uniform(path, actions.shape)
            return losses.literal(self.matching, scores, a0, actions, weights, t, uniforms, legal)
        if self.single:
            law = weights if actions is None else losses.endpoint_law(actions, weights, choices)
            if self.steps == 1:
                return losses.collapsed_at_start(self.matching, scores, a0, law, legal)
            t = draw_times(jax.random.uniform(times, (rows,)), self.steps)
            return losses.collapsed(self.matching, scores, a0, law, t, jax.random.uniform(path, (rows,)), legal)
        assert actions is not None  # several tokens have drawn endpoints only
        one = inverse_cdf(jax.random.uniform(pick, (rows, 1)), weights)  # [B, 1]
        a1 = jnp.take_along_axis(actions, one[..., None], 1)[:, 0]
        t = draw_times(jax.random.uniform(times, (rows,)), self.steps)
        return losses.conditional(self.matching, scores, a0, a1, t, jax.random.uniform(path, a1.shape), legal)

    # Support actions of several tokens, drawn once per row

    def cache(self, state: State, dataset: Dataset, key: jax.Array) -> jax.Array | None:
        """M support actions at each row's observation, `[n, M, D]`."""
        if self.single or self.config.endpoints == "model":
            return None
        return self.draw_rows(state, dataset.observation, dataset.mask, self.config.samples, key)

    def cache_next(self, state: State, dataset: Dataset, key: jax.Array) -> jax.Array | None:
        """Support actions at each row's next observation."""
        if self.single:
            return None
        samples = self.config.backup_samples or 0
        return self.draw_rows(state, dataset.next_observation, dataset.next_mask, samples, key)

    def draw_rows(
        self, state: State, observation: jax.Array, mask: jax.Array | None, samples: int, key: jax.Array
    ) -> jax.Array:
        """Draws from the frozen behaviour for every row, a block of rows at a time, in the smallest integer type."""
        n = len(observation)
        block = min(CACHE_ROWS, n)
        dtype = jnp.int8 if self.spec.num_choices <= 127 else jnp.int16

        def draw(i: jax.Array) -> jax.Array:
            rows = jnp.minimum(i * block + jnp.arange(block), n - 1)
            omega, noise = jax.random.split(jax.random.fold_in(key, i))
            legal = legal_choices(self.spec, None if mask is None else mask[rows], block)
            x = context(self.spec, observation[rows], draw_preference(self.config, self.spec, omega, block))
            uniforms = jax.random.uniform(noise, (block, samples, self.policy.noise))
            return self.policy.sample(state.behaviour, x, legal, uniforms, cut=self.config.support_share).astype(dtype)

        drawn = jax.lax.map(draw, jnp.arange(-(-n // block)))
        return drawn.reshape(-1, *drawn.shape[2:])[:n]

    # Acting

    def act(
        self, policy: Any, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
        carry: Any, greedy: bool = False,
    ) -> tuple[jax.Array, Any]:  # fmt: skip
        """Simulate the chain, or take its most likely endpoint."""
        net, behaviour = policy
        x = context(self.spec, observation, preference)
        legal = legal_choices(self.spec, mask, len(observation))
        mu = None if behaviour is None else jnp.exp(log_softmax_of(self.spec, behaviour, observation, preference, mask))
        if greedy:
            return self.policy.greedy(net, x, legal, None if mu is None else mu[:, 0]), carry
        a0 = None if mu is None else inverse_cdf(noise[:, :1], mu[:, 0])
        return self.policy.sample(net, x, legal, noise, a0), carry

    def probs(
        self, policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
    ) -> jax.Array:  # fmt: skip
        """The exact law of `act`."""
        net, behaviour = policy
        x = context(self.spec, observation, preference)
        legal = legal_choices(self.spec, mask, len(observation))
        p0 = None
        if behaviour is not None:
            p0 = jnp.exp(log_softmax_of(self.spec, behaviour, observation, preference, mask))[:, 0]
        return self.policy.law(net, x, legal, p0)
