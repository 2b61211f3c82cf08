"""The skeleton of IQL and AWBC: values from the logged actions only, then imitation weighted by the advantage.

V(s, ω) fits an expectile of Q over the logged actions, Q fits r + γ V(s'), and the policy imitates logged actions
weighted by exp((Q − V) / λ), bounded. What differs are three numbers, which each baseline's file gives.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Metrics, sampled
from qdfm.algorithms.critic import CriticConfig, init_critic, regress, vector_values
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import imitate, init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import MLP, context, feature_size, preference_size


class State(eqx.Module):
    """The policy, the critic and the state value."""

    policy: Learner
    critic: Learner
    value: Learner


def advantage_algorithm(
    config: CriticConfig, spec: Spec, steps: int, expectile: float, temperature: float, weight_max: float
) -> Algorithm:
    """The algorithm for one expectile, one temperature λ and one bound of the weights."""

    def init(key: jax.Array) -> State:
        k1, k2, k3 = jax.random.split(key, 3)
        inputs = feature_size(spec) + preference_size(spec)
        value = MLP(inputs, config.hidden, spec.objectives, bool(config.layer_norm), k3)
        return State(
            policy=init_softmax(config, spec, k1),
            critic=init_critic(config, spec, k2),
            value=learner.start(value, config.critic_learning_rate),
        )

    def step(state: State, batch: Dataset, preference: jax.Array) -> tuple[State, Metrics]:
        target = state.critic.average
        q = vector_values(config, spec, target, batch.observation, preference, batch.action[:, None])[:, 0, 0]
        value, value_loss = fit_value(config, spec, state.value, batch, preference, q, expectile)
        here, there = (value.net(context(spec, x, preference)) for x in (batch.observation, batch.next_observation))
        advantage = jnp.sum(preference * (q - here), -1)
        weights = advantage_weights(advantage, temperature, weight_max)
        policy, policy_loss = imitate(config, spec, state.policy, batch, preference, weights)
        critic, metrics = regress(config, spec, state.critic, batch, preference, there)
        metrics |= {"value_loss": value_loss, "policy_loss": policy_loss, "advantage": jnp.mean(advantage)}
        return State(policy, critic, value), metrics

    return tokenwise(
        spec,
        init=init,
        phases=(sampled(config, spec, "train", steps, step),),
        policy=lambda state: state.policy.average,
        log_law=partial(log_softmax_of, spec),
    )


def fit_value(
    config: CriticConfig, spec: Spec, value: Learner, batch: Dataset, preference: jax.Array, q: jax.Array,
    expectile: float,
) -> tuple[Learner, jax.Array]:  # fmt: skip
    """One step of V towards the expectile of the logged actions' values `q` `[B, objectives]`; also the loss.

    A sample is weighted by the side on which it lies under the preference, all its objectives alike: ⟨ω, V⟩ is then
    the expectile of ⟨ω, Q⟩, and V the vector that belongs to it.
    """
    x = context(spec, batch.observation, preference)

    def loss(net: MLP) -> jax.Array:
        error = q - net(x)
        below = jnp.sum(preference * error, -1) < 0
        return jnp.mean(jnp.where(below, 1 - expectile, expectile) * jnp.mean(error**2, -1))

    lost, gradient = jax.value_and_grad(loss)(value.net)
    new = learner.descend(value, gradient, config.critic_learning_rate, 1 - config.target_rate)
    return new, lost


def check_weights(config: CriticConfig, temperature: float, largest: float) -> None:
    """Refuse weights that make no sense."""
    if temperature <= 0:
        raise QDFMError(f"{config.name}: temperature is {temperature}; it must be positive.")
    if largest < 1:
        raise QDFMError(f"{config.name}: weight_max is {largest}; it must be at least 1.")


def advantage_weights(advantage: jax.Array, temperature: float, largest: float) -> jax.Array:
    """exp(A / temperature) `[B]`, at most `largest`; the bound comes first, so that nothing overflows."""
    return jax.lax.stop_gradient(jnp.exp(jnp.minimum(advantage / temperature, jnp.log(largest))))
