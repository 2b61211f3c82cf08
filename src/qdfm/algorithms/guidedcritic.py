"""The critic of the methods guided by exp(βQ) (paper: Phase 2, and the appendix on the critic backup).

Backups over in-support candidates at s': `boltzmann` Σ softmax(βQ)·Q (paper), `soft` (1/β) log E_μ exp(βQ), `mean`
E_μ Q, which is the behaviour's own value, `max` the best candidate's. β may be given in units of the values, and then
follows them. A nonlinear utility wants `max`: the mean of two vectors can be worth more than either, and a critic that
averages would be drawn to states where the policy draws lots.

Candidates are either joint actions (T = 1), or all choices of every token (T = D): with values that add up and a
behaviour that is independent over tokens, μ·exp(βQ) factorises, and each backup is the sum of the tokens' own.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from qdfm.algorithms import guidance
from qdfm.algorithms.base import Metrics, check_choice
from qdfm.algorithms.critic import (
    CriticConfig,
    Seen,
    conservative,
    critic_context,
    expected,
    greedy_law,
    preferred_values,
    read,
    regress,
)
from qdfm.algorithms.learner import Learner, Rate, falling
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow.samplers import inverse_cdf
from qdfm.valuenets import Critic

STURDY = {"critics": 4, "pessimism": "mean-std", "layer_norm": True}  # where the critic is all that can fail
BETA = 10.0  # where it is in given units
BETA_ROWS = 4096  # rows on which β is fitted to the finished critic
RATIO_MAX = 20.0  # weight of a logged action, so that no single row decides a step
VALUE_SIZE = 10.0  # of values that are scaled
AUGMENTED = 0.01  # weight of the summed shortfalls in the Chebyshev utility
BETA_MEMORY = 0.99  # decay of the running scale of β during the critic phase
BETA_RATE = 0.1  # at which log β follows the excess of the effective share over its target, in the same phase


@dataclass(frozen=True)
class GuidedConfig(CriticConfig):
    """What the guided methods share. None: chosen by `resolve` from the spec."""

    critic_steps: int = 40_000
    """Gradient steps of the critic."""
    value_scale: bool = False
    """Whether critics see rewards in a unit in which the data's returns have the mean size 10: far larger values take
    many steps to reach, smaller ones drown in what a fresh network says."""
    critic_decay: bool = False
    """Whether the critic's step size falls linearly to 0 over its steps, which leaves less noise in its values."""
    beta: float | None = None
    """Guidance strength, in the units that beta_scale says; 0: none, whatever the scale (None: 10, or what
    beta_scale="share" finds)."""
    beta_scale: str | None = None
    """none: β as it is; mean_abs: divided by the data's mean |Q|; share: found so that share_target holds (None:
    share for several tokens and for continuous actions where beta is left open, else mean_abs)."""
    share_target: float = 0.6
    """Effective sample share that beta_scale="share" aims at."""
    state_share: float = 0.0
    """Effective sample share that no state falls below, about: where its values spread so far that it would, β is
    smaller (0: one β for all states)."""
    caution: float | None = None
    """Standard deviations of the ensemble's advantages by which guidance discounts an action; 0: values as `pessimism`
    reads them (None: 2 for several tokens and for continuous actions, else 0)."""
    conservatism: float = 0.0
    """Weight of CQL's penalty on the values of actions that were not logged, for one token (0: none)."""
    targets: str = "shared"
    """What the members of the ensemble regress to: shared, the value as the ensemble is read; own, each to its own, so
    that they differ by what the data leaves open."""
    backup: str | None = None
    """boltzmann, soft, mean or max (None: max for the Chebyshev utility, mean for several tokens and for
    continuous actions, else boltzmann)."""
    backup_samples: int | None = None
    """Support actions drawn for a backup; 0 sums over all of them exactly (None: 0 where that is possible, else 2)."""
    support_share: float = 0.01
    """Actions that the behaviour gives less than this share of a state's largest probability are dropped."""
    utility: str = "linear"
    """linear: ⟨ω, Q⟩; chebyshev: minus the largest weighted shortfall of accumulated returns, for concave fronts."""

    def resolve(self, spec: Spec) -> Self:
        """Fill in what depends on the number of tokens, and check the words."""
        sturdy = spec.tokens > 1 or spec.continuous
        filled: dict[str, Any] = {
            "backup": "max" if self.utility == "chebyshev" else "mean" if sturdy else "boltzmann",
            "backup_samples": 0,
            "beta_scale": "share" if sturdy and self.beta is None else "mean_abs",
            "caution": 2.0 if sturdy else 0.0,
            **(STURDY if sturdy else {}),
        }
        config = replace(self, **{k: v for k, v in filled.items() if getattr(self, k) is None})
        config = super(GuidedConfig, config).resolve(spec)
        check_choice(config, "backup", ("boltzmann", "soft", "mean", "max"))
        check_choice(config, "beta_scale", ("none", "mean_abs", "share"))
        check_choice(config, "targets", ("shared", "own"))
        if config.beta_scale == "share":
            if config.beta:
                raise QDFMError(
                    f'{self.name}: beta_scale="share" finds β by share_target, so that beta={config.beta:g} would have '
                    "no effect; leave beta out, or give another beta_scale."
                )
        elif config.beta is None:
            config = replace(config, beta=BETA)
        if (config.beta or 0) < 0:
            raise QDFMError(f"{self.name}: beta is {config.beta}; it must be at least 0.")
        if not 0 <= config.support_share <= 1:
            raise QDFMError(f"{self.name}: support_share is {config.support_share}; it must lie between 0 and 1.")
        if (config.backup_samples or 0) < 0:
            raise QDFMError(f"{self.name}: backup_samples is {config.backup_samples}; it must be at least 0.")
        if (config.caution or 0) < 0:
            raise QDFMError(f"{self.name}: caution is {config.caution}; it must be at least 0.")
        if config.conservatism < 0:
            raise QDFMError(f"{self.name}: conservatism is {config.conservatism}; it must be at least 0.")
        if config.conservatism > 0 and not config.single(spec):
            raise QDFMError(
                f"{self.name}: conservatism is for decisions of one token; leave it at 0, or let the agents of a team "
                "learn apart where the method can."
            )
        if not 0 < config.share_target <= 1:
            raise QDFMError(f"{self.name}: share_target is {config.share_target}; it must lie in (0, 1].")
        if not 0 <= config.state_share < 1:
            raise QDFMError(f"{self.name}: state_share is {config.state_share}; it must be at least 0 and below 1.")
        check_choice(config, "utility", ("linear", "chebyshev"))
        if config.utility == "chebyshev":
            for wrong, sentence in (
                (spec.accumulation is None, "returns so far in the observation; use config.adapt(data)"),
                (config.critic != "vector", 'critic="vector"'),
                (config.backup == "soft", 'another backup than "soft", which is a scalar'),
                (spec.tokens > 1, "a single token"),
            ):
                if wrong:
                    raise QDFMError(f"{self.name}: the Chebyshev utility needs {sentence}.")
            assert spec.accumulation is not None
            if config.gamma != spec.accumulation.gamma:
                raise QDFMError(
                    f"{self.name}: gamma is {config.gamma} but the data's returns were accumulated with "
                    f"{spec.accumulation.gamma}; use one discount for both."
                )
        return config

    def single(self, spec: Spec) -> bool:
        """Whether a decision is one token, so that all of its choices can be enumerated."""
        return spec.tokens == 1

    def critic_rate(self) -> Rate:
        """Constant, or falling."""
        rate = self.critic_learning_rate
        return falling(rate, self.critic_steps) if self.critic_decay else rate

    def adapt(self, dataset: Dataset) -> Dataset:
        """A nonlinear utility sees accumulated returns; elsewhere rewards may be scaled, all objectives alike."""
        dataset = super().adapt(dataset)
        if self.utility == "chebyshev":
            return dataset if dataset.spec.accumulation is not None else dataset.with_accumulated(self.gamma)
        spec = dataset.spec
        if not self.value_scale or spec.normalisation.reward_scale:
            return dataset
        scale = (dataset.value_scale(self.gamma) / VALUE_SIZE,) * spec.objectives
        return replace(dataset, spec=replace(spec, normalisation=replace(spec.normalisation, reward_scale=scale)))

    def worth(self, spec: Spec, values: jax.Array, preference: jax.Array, observation: jax.Array | Seen) -> jax.Array:
        """⟨ω, Q⟩, or the Chebyshev utility of the return so far plus γ^t Q."""
        if self.utility == "linear":
            return super().worth(spec, values, preference, observation)
        observation = observation.observation if isinstance(observation, Seen) else observation
        paid, weight = spec.so_far(observation)  # [B, objectives], [B, 1]
        return chebyshev(spec, paid[:, None, None] + weight[:, None, None] * values, preference[:, None, None])


def chebyshev(spec: Spec, returns: jax.Array, preference: jax.Array) -> jax.Array:
    """−(max_i + AUGMENTED · Σ_i) ω_i (best_i − z_i) / (best_i − worst_i) for returns z `[..., objectives]`.

    The sum breaks ties among returns whose worst shortfall is the same, as far as their objectives have any weight.
    """
    assert spec.accumulation is not None
    best, worst = (spec.normalise_reward(jnp.asarray(v)) for v in (spec.accumulation.best, spec.accumulation.worst))
    shortfall = preference * (best - returns) / (best - worst)
    return -(jnp.max(shortfall, -1) + AUGMENTED * jnp.sum(shortfall, -1))


class Support(NamedTuple):
    """Candidates at a batch of states: log-weights `[B, T, M]` and actions `[B, M, D]` (None: all K choices)."""

    log_mu: jax.Array
    actions: jax.Array | None = None


class CriticState(eqx.Module):
    """The ensemble in training and the guidance strength in units of its values."""

    learner: Learner  # its average is the target network
    beta: jax.Array


def first_beta(config: GuidedConfig) -> jax.Array:
    """β before anything is known of the values."""
    return jnp.float32(1.0 if config.beta is None else config.beta)


def backup(kind: str | None, q: jax.Array, q_omega: jax.Array, log_mu: jax.Array, beta: jax.Array) -> jax.Array:
    """The value `[B, objectives]` of a state: candidates have values `[B, T, M, objectives]`, worth `[B, T, M]`."""
    if kind == "max":
        weights = greedy_law(q_omega, log_mu > -jnp.inf)
    else:
        weights = jnp.exp(log_mu) if kind == "mean" else guidance.tilt(log_mu, q_omega, beta)
    value = expected(weights, q)
    if kind != "soft":
        return value
    # The KL penalty is a scalar; taken off every objective alike it is taken off ⟨ω, V⟩ once, since ω sums to 1.
    beta = jnp.maximum(beta, 1 / guidance.BETA_MAX)  # at β = 0 this is the mean
    top = jnp.max(jnp.where(log_mu > -jnp.inf, q_omega, -jnp.inf), -1, keepdims=True)
    gain = jnp.expm1(beta * jnp.minimum(q_omega - top, 0))
    soft = top[..., 0] + jnp.log1p(jnp.sum(jnp.exp(log_mu) * gain, -1)) / beta  # [B, T]
    return value - jnp.sum(jnp.sum(weights * q_omega, -1) - soft, -1)[:, None]


def _follow_beta(
    config: GuidedConfig, beta: jax.Array, mean_abs: jax.Array, log_mu: jax.Array, q: jax.Array
) -> jax.Array:
    """β in units of the current values, following them as they grow, where the backup asks for it."""
    if config.backup in ("mean", "max") or config.beta_scale == "none" or config.beta == 0:
        return beta
    if config.beta is not None:  # in units of the mean |Q|
        scale = BETA_MEMORY * config.beta / beta + (1 - BETA_MEMORY) * mean_abs
        return config.beta / jnp.maximum(scale, 1 / guidance.BETA_MAX)
    excess = guidance.mean_share(log_mu, q, beta) - config.share_target
    return jnp.clip(beta * jnp.exp(BETA_RATE * excess), 1 / guidance.BETA_MAX, guidance.sharpest(log_mu, q))


def update_critic(
    config: GuidedConfig, spec: Spec, state: CriticState, batch: Dataset, preference: jax.Array, support: Support
) -> tuple[CriticState, Metrics]:
    """One step of Bellman regression; `support` holds the candidates at the next observations."""
    seen, target = config.seen_next(batch), state.learner.average
    every = target.values(critic_context(config, spec, seen, preference), support.actions)
    each = config.worth(spec, every, preference, seen)  # [E, B, T, M]
    next_q = read(config, every, each)
    worth = config.worth(spec, next_q, preference, seen)
    if config.targets == "own":
        value = jax.vmap(lambda q, w: backup(config.backup, q, w, support.log_mu, state.beta))(every, each)
    else:
        value = backup(config.backup, next_q, worth, support.log_mu, state.beta)
    penalty = conservative(config, spec, batch, preference, config.conservatism) if config.conservatism else None
    new, metrics = regress(config, spec, state.learner, batch, preference, value, penalty)
    beta = _follow_beta(config, state.beta, metrics["q_abs"], support.log_mu, worth)
    return CriticState(new, beta), metrics | {"beta": beta}


def follow_beta(
    config: GuidedConfig, spec: Spec, state: CriticState, batch: Dataset, preference: jax.Array, support: Support,
    mean_abs: jax.Array,
) -> CriticState:  # fmt: skip
    """The critic with a β that has followed what guidance weighs the candidates at a batch by, and the mean |Q|."""
    q = guiding_values(config, spec, state.learner.average, config.seen(batch), preference, support)
    return CriticState(state.learner, _follow_beta(config, state.beta, mean_abs, support.log_mu, q))


def fit_beta(
    config: GuidedConfig, spec: Spec, state: CriticState, batch: Dataset, preference: jax.Array, support: Support
) -> jax.Array:
    """β for the finished critic, from a large batch and the candidates at its observations."""
    if config.beta_scale == "none" or config.beta == 0:
        return first_beta(config)
    critic = state.learner.average
    if config.beta is not None:  # in units of the mean |Q|
        q = preferred_values(config, spec, critic, config.seen(batch), preference, batch.action[:, None])
        return config.beta / jnp.maximum(jnp.mean(jnp.abs(q)), 1 / guidance.BETA_MAX)
    q = guiding_values(config, spec, critic, config.seen(batch), preference, support)
    return guidance.beta_for_share(support.log_mu, q, config.share_target)


def promise(
    config: GuidedConfig, spec: Spec, state: CriticState, batch: Dataset, preference: jax.Array, support: Support
) -> jax.Array:
    """What guidance by the state's β would gain, as a share of the mean |Q| of the logged actions: what the tilt
    expects above the behaviour of the values that it reads, over 1/(1 − γ) steps. With caution it is also a gain to
    avoid what the members disagree on."""
    at = (config, spec, state.learner.average, config.seen(batch), preference)
    q = guiding_values(*at, support)
    beta = guidance.state_beta(support.log_mu, q, state.beta, config.state_share)
    gain = guidance.mean_gain(support.log_mu, q, beta)
    size = jnp.mean(jnp.abs(preferred_values(*at, batch.action[:, None])))
    return gain / jnp.maximum((1 - config.gamma) * size, 1 / guidance.BETA_MAX)


def guiding_values(
    config: GuidedConfig,
    spec: Spec,
    net: Critic,
    observation: jax.Array | Seen,
    preference: jax.Array,
    support: Support,
) -> jax.Array:
    """What guidance weighs candidates by, `[B, T, M]`: their values, or with `caution` what they are surely better by.

    The latter is the mean of the members' advantages over the behaviour, less `caution` of their standard deviations.
    Members that disagree on the value of a state but not on its actions are no reason for caution, so the deviation
    is that of the advantages. On data of a narrow behaviour it is as large as they are, and guidance stays quiet.
    """
    if not config.caution:
        return preferred_values(config, spec, net, observation, preference, support.actions)
    values = net.values(critic_context(config, spec, observation, preference), support.actions)
    worth = config.worth(spec, values, preference, observation)  # [E, B, T, M]
    # A contraction, because XLA's CPU compiler (jaxlib 0.10) gets the same sum of broadcast products wrong.
    advantage = worth - jnp.einsum("btm,ebtm->ebt", jnp.exp(support.log_mu), worth)[..., None]
    return jnp.mean(advantage, 0) - config.caution * jnp.std(advantage, 0)


def ratio_to_behaviour(
    config: GuidedConfig, spec: Spec, state: CriticState, observation: jax.Array | Seen, preference: jax.Array,
    support: Support, action: jax.Array,
) -> jax.Array:  # fmt: skip
    """exp(βQ(s, a)) / E_μ̂ exp(βQ(s, ·)) `[B, 1]` of logged joint actions `[B, D]`, at most RATIO_MAX.

    Logged actions are draws of the behaviour itself, so that with these weights a policy tends to μ·exp(βQ)/C for the
    true μ, and goes on learning it.
    """
    every = support
    if support.actions is not None:  # the logged action is valued beside the candidates, and weighs nothing among them
        none = jnp.full_like(support.log_mu[..., :1], -jnp.inf)
        both = jnp.concatenate([support.actions, action[:, None]], 1)
        every = Support(jnp.concatenate([support.log_mu, none], -1), both)
    q = guiding_values(config, spec, state.learner.average, observation, preference, every)
    q = (guidance.state_beta(every.log_mu, q, state.beta, config.state_share) * q)[:, 0]  # [B, M]
    taken = jnp.take_along_axis(q, action, -1) if support.actions is None else q[:, -1:]
    log_ratio = taken - logsumexp(every.log_mu[:, 0] + q, -1, keepdims=True)
    return jnp.exp(jnp.minimum(log_ratio, jnp.log(RATIO_MAX)))


def support_of(config: GuidedConfig, key: jax.Array, log_mu: jax.Array, samples: int) -> Support:
    """Candidates among what independent laws `[B, D, K]` of the tokens support, as `candidates_of` has them."""
    return candidates_of(key, guidance.keep_supported(log_mu, config.support_share), samples)


def candidates_of(key: jax.Array, log_mu: jax.Array, samples: int) -> Support:
    """Candidates from independent laws `[B, D, K]` of the tokens: all K choices (samples = 0), or drawn ones."""
    if samples == 0:
        return Support(log_mu)
    uniforms = jax.random.uniform(key, (*log_mu.shape[:2], samples))
    return drawn_support(jnp.moveaxis(inverse_cdf(uniforms, jnp.exp(log_mu)), 1, 2))


def drawn_support(actions: jax.Array) -> Support:
    """Candidates `[B, M, D]` that were drawn from the behaviour; multiplicity carries μ, so none is dropped."""
    rows, count = actions.shape[:2]
    return Support(jnp.full((rows, 1, count), -jnp.log(count)), actions)
