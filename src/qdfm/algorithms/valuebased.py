"""The skeleton of the baselines that read a policy straight off μ̂ and the guided critic, with nothing trained after.

Phase `clone` fits μ̂ (as BC), phase `critic` fits Q over the support of μ̂ (as QDFM; for several tokens with values that
add up, as DecQN). What differs is one function, `log_policy(log_mu, q, beta)`, which each baseline's file gives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax

from qdfm.algorithms import guidance
from qdfm.algorithms.base import Algorithm, Metrics, draw_batch, draw_preference, halved
from qdfm.algorithms.bc import clone_phase
from qdfm.algorithms.critic import init_critic
from qdfm.algorithms.guidedcritic import (
    BETA_ROWS,
    CriticState,
    GuidedConfig,
    Support,
    first_beta,
    fit_beta,
    guiding_values,
    support_of,
    update_critic,
)
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec

LogPolicy = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class ValueConfig(GuidedConfig):
    """What these baselines share."""

    clone_steps: int = 20_000
    """Gradient steps of the behaviour network."""


class ValueState(eqx.Module):
    """The behaviour network and the critic."""

    behaviour: Learner
    critic: CriticState


def value_algorithm(config: ValueConfig, spec: Spec, log_policy: LogPolicy) -> Algorithm:
    """The algorithm whose policy is `log_policy(log_mu, q, β)`, for each token's choices `[B, D, K]`, normalised."""

    def init(key: jax.Array) -> ValueState:
        k1, k2 = jax.random.split(key)
        critic = CriticState(init_critic(config, spec, k2), first_beta(config))
        return ValueState(init_softmax(config, spec, k1), critic)

    def draw(dataset: Dataset, cache: None, key: jax.Array) -> tuple[Dataset, jax.Array, jax.Array]:
        rows, draws = jax.random.split(key)
        return *draw_batch(config, spec, dataset, rows), draws

    def step(state: ValueState, drawn: tuple[Dataset, jax.Array, jax.Array]) -> tuple[ValueState, Metrics]:
        batch, preference, draws = drawn
        log_mu = log_softmax_of(spec, state.behaviour.average, batch.next_observation, preference, batch.next_mask)
        support = support_of(config, draws, log_mu, config.backup_samples or 0)
        critic, metrics = update_critic(config, spec, state.critic, batch, preference, support)
        return ValueState(state.behaviour, critic), metrics

    def calibrate(state: ValueState, dataset: Dataset, key: jax.Array) -> ValueState:
        rows, omega, draws = jax.random.split(key, 3)
        batch = dataset.sample(rows, min(BETA_ROWS, len(dataset)))
        preference = draw_preference(config, spec, omega, batch)
        log_mu = log_softmax_of(spec, state.behaviour.average, batch.observation, preference, batch.mask)
        support = support_of(config, draws, log_mu, config.backup_samples or 0)
        beta = fit_beta(config, spec, state.critic, batch, preference, support)
        return ValueState(state.behaviour, CriticState(state.critic.learner, beta))

    def log_law(policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
        behaviour, critic, beta = policy
        log_mu = log_softmax_of(spec, behaviour, observation, preference, mask)
        support = Support(guidance.keep_supported(log_mu, config.support_share))
        q = guiding_values(config, spec, critic, observation, preference, support)
        return log_policy(log_mu, q, guidance.state_beta(support.log_mu, q, beta, config.state_share))

    return tokenwise(
        spec,
        init=init,
        phases=(
            clone_phase(config, spec, config.clone_steps),
            halved("critic", config.critic_steps, draw, step),
            halved("calibrate", 0, draw, step, prepare=calibrate),  # β in units of the finished critic, as QDFM has it
        ),
        policy=lambda state: (state.behaviour.average, state.critic.learner.average, state.critic.beta),
        log_law=log_law,
    )
