"""The skeleton of the baselines that read a policy straight off μ̂ and the shared critic, with nothing trained after.

Phase `clone` fits μ̂ (as BC), phase `critic` fits Q over the support of μ̂ (as QDFM). What differs is one function,
`log_policy(log_mu, q, beta)`, which each baseline's file gives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Algorithm, Metrics, Phase, draw_preference
from qdfm.algorithms.bc import clone_phase, init_behaviour, log_behaviour
from qdfm.algorithms.critic import (
    BETA_ROWS,
    CriticConfig,
    CriticState,
    fit_beta,
    init_critic,
    preferred_values,
    support_of,
    update_critic,
)
from qdfm.algorithms.learner import Learner
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow.samplers import inverse_cdf, joint_states

COMPARED_MAX = 1024  # joint actions that are still compared one by one
LogPolicy = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class ValueConfig(CriticConfig):
    """What these baselines share."""

    clone_steps: int = 20_000
    """Gradient steps of the behaviour network."""


class ValueState(eqx.Module):
    """The behaviour network and the critic."""

    behaviour: Learner
    critic: CriticState


def value_algorithm(config: ValueConfig, spec: Spec, log_policy: LogPolicy) -> Algorithm:
    """The algorithm whose policy over all joint actions is `log_policy(log_mu [B, J], q [B, J], β)`, normalised."""
    if spec.num_joint > COMPARED_MAX:
        raise QDFMError(
            f"{config.name} compares all joint actions, and {spec.num_choices}**{spec.tokens} of them are more than "
            f"{COMPARED_MAX}; use qdfm or bc for this action space."
        )
    every = joint_states(spec.tokens, spec.num_choices)  # [J, D]

    def init(key: jax.Array) -> ValueState:
        k1, k2 = jax.random.split(key)
        return ValueState(init_behaviour(config, spec, k1), init_critic(config, spec, k2))

    def update(state: ValueState, dataset: Dataset, cache: None, key: jax.Array) -> tuple[ValueState, Metrics]:
        rows, omega, draws = jax.random.split(key, 3)
        batch = dataset.sample(rows, config.batch_size)
        preference = draw_preference(omega, spec, config.batch_size)
        log_mu = log_behaviour(spec, state.behaviour.average, batch.next_observation, preference, batch.next_mask)
        support = support_of(config, draws, log_mu, config.backup_samples or 0)
        critic, metrics = update_critic(config, spec, state.critic, batch, preference, support)
        return ValueState(state.behaviour, critic), metrics

    def calibrate(state: ValueState, dataset: Dataset, key: jax.Array) -> ValueState:
        rows, omega, draws = jax.random.split(key, 3)
        batch = dataset.sample(rows, min(BETA_ROWS, len(dataset)))
        preference = draw_preference(omega, spec, len(batch))
        log_mu = log_behaviour(spec, state.behaviour.average, batch.observation, preference, batch.mask)
        support = support_of(config, draws, log_mu, config.backup_samples or 0)
        beta = fit_beta(config, spec, state.critic, batch, preference, support)
        return ValueState(state.behaviour, CriticState(state.critic.learner, beta))

    def law(policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
        behaviour, critic, beta = policy
        log_mu = log_behaviour(spec, behaviour, observation, preference, mask)
        joint = jnp.sum(log_mu[:, jnp.arange(spec.tokens), every], -1)  # [B, J], −inf where illegal
        actions = None if spec.tokens == 1 else jnp.broadcast_to(every, (len(observation), *every.shape))
        q = preferred_values(config, spec, critic, observation, preference, actions)
        return jnp.exp(log_policy(joint, q, beta))

    def act(
        policy: Any, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
        carry: Any, greedy: bool = False,
    ) -> tuple[jax.Array, Any]:  # fmt: skip
        p = law(policy, observation, preference, mask)
        index = jnp.argmax(p, -1) if greedy else inverse_cdf(noise, p)[:, 0]
        return jnp.asarray(every)[index], carry

    def probs(policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
        p = law(policy, observation, preference, mask)
        return p.reshape(len(p), *(spec.num_choices,) * spec.tokens)

    return Algorithm(
        init=init,
        phases=(
            clone_phase(
                config, spec, config.clone_steps, lambda s: s.behaviour, lambda s, new: ValueState(new, s.critic)
            ),
            Phase("critic", config.critic_steps, update),
            Phase("calibrate", 0, update, prepare=calibrate),  # β in units of the finished critic, as QDFM has it
        ),
        policy=lambda state: (state.behaviour.average, state.critic.learner.average, state.critic.beta),
        act=act,
        noise=1,
        probs=probs,
    )
