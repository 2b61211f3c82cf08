"""The critic that QDFM and the value baselines share (paper: Phase 2, and the appendix on the critic backup).

Repairs to the printed algorithm: no value beyond a terminated step (truncation does bootstrap), an EMA target network,
an ensemble with a pessimistic reading as an option. Backups over in-support candidates at s':
`boltzmann` Σ softmax(βQ)·Q (paper), `soft` (1/β) log E_μ exp(βQ), `mean` E_μ Q, which is the behaviour's own value.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms import guidance, learner
from qdfm.algorithms.base import Config, Metrics, check_choice
from qdfm.algorithms.learner import Learner
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow.samplers import inverse_cdf
from qdfm.nets import Critic, context

BETA_ROWS = 4096  # rows on which β is fitted to the finished critic
BETA_MEMORY = 0.99  # decay of the running scale of β during the critic phase


@dataclass(frozen=True)
class CriticConfig(Config):
    """What every algorithm with this critic has. None: chosen by `resolve` from the spec."""

    critic_steps: int = 40_000
    """Gradient steps of the critic."""
    critic_learning_rate: float = 3e-4
    """Adam's step size for the critic, whose targets move."""
    gamma: float = 0.99
    """Discount factor."""
    beta: float = 10.0
    """Guidance strength, in the units that beta_scale says."""
    beta_scale: str = "mean_abs"
    """none: β as it is; mean_abs: divided by the data's mean |Q|; share: found so that share_target holds."""
    share_target: float = 0.8
    """Effective sample share that beta_scale="share" aims at."""
    backup: str | None = None
    """boltzmann, soft or mean (None: boltzmann for one token, mean for several)."""
    backup_samples: int | None = None
    """Support actions drawn for a backup; 0 sums over all of them exactly (None: 0 for one token, 8 else)."""
    critic: str = "vector"
    """vector: Q(s, a, ω), one target per objective; scalarised: the paper's Q(s, a), trained on ⟨ω, Q⟩."""
    critics: int | None = None
    """Size of the ensemble (None: 2 for one token, 4 for several)."""
    pessimism: str | None = None
    """How the ensemble is read: min, mean or mean-std (None: min for one token, mean-std for several)."""
    target_rate: float = 0.005
    """Rate at which the target network follows."""
    support_share: float = 0.01
    """Actions that the behaviour gives less than this share of a state's largest probability are dropped."""
    layer_norm: bool | None = None
    """Layer norm in flow and critic (None: for several tokens only)."""

    def resolve(self, spec: Spec) -> Self:
        """Fill in what depends on the number of tokens, and check the words."""
        single = spec.tokens == 1
        filled: dict[str, Any] = {
            "backup": "boltzmann" if single else "mean",
            "backup_samples": 0 if single else 8,
            "critics": 2 if single else 4,
            "pessimism": "min" if single else "mean-std",
            "layer_norm": not single,
        }
        config = replace(super().resolve(spec), **{k: v for k, v in filled.items() if getattr(self, k) is None})
        check_choice(config, "backup", ("boltzmann", "soft", "mean"))
        check_choice(config, "beta_scale", ("none", "mean_abs", "share"))
        check_choice(config, "critic", ("vector", "scalarised"))
        check_choice(config, "pessimism", ("min", "mean", "mean-std"))
        if not 0 <= config.gamma <= 1:
            raise QDFMError(f"{self.name}: gamma is {config.gamma}; it must lie between 0 and 1.")
        if config.beta < 0:
            raise QDFMError(f"{self.name}: beta is {config.beta}; it must be at least 0.")
        if not 0 < config.share_target <= 1:
            raise QDFMError(f"{self.name}: share_target is {config.share_target}; it must lie in (0, 1].")
        if not single and config.backup_samples == 0:
            raise QDFMError(f"{self.name}: an exact backup needs a single token; set backup_samples.")
        return config


class Support(NamedTuple):
    """Candidates at a batch of states: log-weights `[B, M]` and actions `[B, M, D]` (None: all K choices)."""

    log_mu: jax.Array
    actions: jax.Array | None = None


class CriticState(eqx.Module):
    """The ensemble in training and the guidance strength in units of its values."""

    learner: Learner  # its average is the target network
    beta: jax.Array


def init_critic(config: CriticConfig, spec: Spec, key: jax.Array) -> CriticState:
    """A fresh critic."""
    assert config.critics is not None and config.layer_norm is not None  # resolved
    net = Critic(spec, config.hidden, config.critics, config.critic == "vector", config.layer_norm, key)
    beta = 1.0 if config.beta_scale == "share" else config.beta
    return CriticState(learner.start(net, config.critic_learning_rate), jnp.float32(beta))


def read(config: CriticConfig, values: jax.Array, preference: jax.Array) -> jax.Array:
    """One vector of values `[B, M, objectives]` from an ensemble `[E, B, M, objectives]`."""
    if config.pessimism == "mean-std":
        return jnp.mean(values, 0) - jnp.std(values, 0)
    if config.pessimism == "mean":
        return jnp.mean(values, 0)
    worst = jnp.argmin(scalarise(values, preference), 0)  # the member that is worst under the preference
    return jnp.take_along_axis(values, worst[None, ..., None], 0)[0]


def scalarise(values: jax.Array, preference: jax.Array) -> jax.Array:
    """⟨ω, Q⟩ for values `[..., B, M, objectives]` and preferences `[B, objectives]`."""
    return jnp.einsum("...bmr,br->...bm", values, preference)


def critic_context(config: CriticConfig, spec: Spec, observation: jax.Array, preference: jax.Array) -> jax.Array:
    """The input of the critic: a scalarised critic does not see the preference."""
    return context(spec, observation, preference if config.critic == "vector" else None)


def preferred_values(
    config: CriticConfig,
    spec: Spec,
    critic: Critic,
    observation: jax.Array,
    preference: jax.Array,
    actions: jax.Array | None = None,
) -> jax.Array:
    """Q_ω(s, a) `[B, M]` as the ensemble is read, of given actions or of all K choices."""
    values = critic.values(critic_context(config, spec, observation, preference), actions)
    return scalarise(read(config, values, preference), preference)


def backup(kind: str | None, q: jax.Array, preference: jax.Array, log_mu: jax.Array, beta: jax.Array) -> jax.Array:
    """The value `[B, objectives]` of a state whose candidates have values `q` `[B, M, objectives]`."""
    q_omega = scalarise(q, preference)
    weights = jnp.exp(log_mu) if kind == "mean" else guidance.tilt(log_mu, q_omega, beta)
    value = jnp.einsum("bm,bmr->br", weights, q)
    if kind != "soft":
        return value
    # The KL penalty is a scalar; taken off every objective alike it is taken off ⟨ω, V⟩ once, since ω sums to 1.
    beta = jnp.maximum(beta, 1 / guidance.BETA_MAX)  # at β = 0 this is the mean
    top = jnp.max(jnp.where(log_mu > -jnp.inf, q_omega, -jnp.inf), -1, keepdims=True)
    gain = jnp.expm1(beta * jnp.minimum(q_omega - top, 0))
    soft = top[:, 0] + jnp.log1p(jnp.sum(jnp.exp(log_mu) * gain, -1)) / beta
    return value - (jnp.sum(weights * q_omega, -1) - soft)[:, None]


def _follow_beta(
    config: CriticConfig, beta: jax.Array, data_q: jax.Array, log_mu: jax.Array, q: jax.Array
) -> jax.Array:
    """β in units of the current values, following them as they grow."""
    if config.beta_scale == "none" or (config.beta_scale == "mean_abs" and config.beta == 0):
        return beta
    if config.beta_scale == "mean_abs":
        scale = BETA_MEMORY * config.beta / beta + (1 - BETA_MEMORY) * jnp.mean(jnp.abs(data_q))
        return config.beta / jnp.maximum(scale, 1 / guidance.BETA_MAX)
    found = guidance.beta_for_share(log_mu[:64], q[:64], config.share_target)  # a slice of the batch is enough
    return jnp.exp(BETA_MEMORY * jnp.log(beta) + (1 - BETA_MEMORY) * jnp.log(found))


def update_critic(
    config: CriticConfig, spec: Spec, state: CriticState, batch: Dataset, preference: jax.Array, support: Support
) -> tuple[CriticState, Metrics]:
    """One step of Bellman regression; `support` holds the candidates at the next observations."""
    x = critic_context(config, spec, batch.observation, preference)
    next_x = critic_context(config, spec, batch.next_observation, preference)
    next_q = read(config, state.learner.average.values(next_x, support.actions), preference)
    value = backup(config.backup, next_q, preference, support.log_mu, state.beta)
    target = batch.reward + config.gamma * (1 - batch.terminated.astype(value.dtype))[:, None] * value

    def loss(net: Critic) -> tuple[jax.Array, jax.Array]:
        q = net.values(x, batch.action[:, None])[:, :, 0]  # [E, B, objectives]
        error = q - target
        if config.critic == "scalarised":
            error = jnp.einsum("ebr,br->eb", error, preference)[..., None]
        return jnp.sum(jnp.mean(error**2, (1, 2))), q

    (value_loss, q), gradient = jax.value_and_grad(loss, has_aux=True)(state.learner.net)
    new, norm = learner.descend(state.learner, gradient, config.critic_learning_rate, 1 - config.target_rate)
    data_q = jnp.einsum("ebr,br->eb", q, preference)
    beta = _follow_beta(config, state.beta, data_q, support.log_mu, scalarise(next_q, preference))
    metrics = {"loss": value_loss, "grad_norm": norm, "q": jnp.mean(data_q), "beta": beta}
    return CriticState(new, beta), metrics


def fit_beta(
    config: CriticConfig, spec: Spec, state: CriticState, batch: Dataset, preference: jax.Array, support: Support
) -> jax.Array:
    """β for the finished critic, from a large batch and the candidates at its observations."""
    if config.beta_scale == "none":
        return jnp.float32(config.beta)
    critic = state.learner.average
    if config.beta_scale == "mean_abs":
        q = preferred_values(config, spec, critic, batch.observation, preference, batch.action[:, None])
        return config.beta / jnp.maximum(jnp.mean(jnp.abs(q)), 1 / guidance.BETA_MAX)
    q = preferred_values(config, spec, critic, batch.observation, preference, support.actions)
    return guidance.beta_for_share(support.log_mu, q, config.share_target)


def support_of(config: CriticConfig, key: jax.Array, log_mu: jax.Array, samples: int) -> Support:
    """Candidates from independent laws `[B, D, K]` of the tokens: all K choices (samples = 0), or drawn ones."""
    log_mu = guidance.keep_supported(log_mu, config.support_share)
    if samples == 0:
        return Support(log_mu[:, 0])
    uniforms = jax.random.uniform(key, (*log_mu.shape[:2], samples))
    return drawn_support(jnp.moveaxis(inverse_cdf(uniforms, jnp.exp(log_mu)), 1, 2))


def drawn_support(actions: jax.Array) -> Support:
    """Candidates `[B, M, D]` that were drawn from the behaviour; multiplicity carries μ, so none is dropped."""
    return Support(jnp.full(actions.shape[:2], -jnp.log(actions.shape[1])), actions)
