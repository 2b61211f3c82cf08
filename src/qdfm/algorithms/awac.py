"""AWAC: advantage-weighted actor-critic (Nair et al., 2020), offline, with a softmax per token for its Gaussian.

Q fits r + γ E_π Q̄(s', ·), the policy imitates logged actions weighted by exp((Q − E_π Q) / λ): its fixed point is
π ∝ μ·exp(Q^π / λ). All expectations over the policy are exact sums.
Deviations: the weights are bounded, by 100 as in CORL's version; for several tokens Q adds up over them (DecQN).
"""

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms.advantage import advantage_weights, check_weights
from qdfm.algorithms.base import Algorithm, Metrics, sampled
from qdfm.algorithms.critic import CriticConfig, expected, init_critic, preferred_values, regress, vector_values
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import imitate, init_softmax, log_likelihood, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec


@dataclass(frozen=True)
class AWAC(CriticConfig):
    """Advantage-weighted actor-critic."""

    train_steps: int = 60_000
    """Gradient steps."""
    temperature: float = 1.0
    """λ of the weights exp(A / λ) (the paper: 1 for locomotion, .3 for manipulation)."""
    weight_max: float = 100.0
    """The largest weight (CORL: 100)."""

    name = "awac"
    about = "advantage-weighted actor-critic"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        check_weights(config, config.temperature, config.weight_max)

        def init(key: jax.Array) -> State:
            k1, k2 = jax.random.split(key)
            return State(init_softmax(config, spec, k1), init_critic(config, spec, k2))

        def step(state: State, batch: Dataset, preference: jax.Array) -> tuple[State, Metrics]:
            net = state.policy.net
            next_law = jnp.exp(log_softmax_of(spec, net, batch.next_observation, preference, batch.next_mask))
            next_q = vector_values(config, spec, state.critic.average, batch.next_observation, preference)
            critic, metrics = regress(config, spec, state.critic, batch, preference, expected(next_law, next_q))

            law = jnp.exp(log_softmax_of(spec, net, batch.observation, preference, batch.mask))
            q = preferred_values(config, spec, critic.net, batch.observation, preference)  # [B, D, K]
            advantage = log_likelihood(q, batch.action) - jnp.sum(law * q, (1, 2))
            weights = advantage_weights(advantage, config.temperature, config.weight_max)
            policy, policy_loss = imitate(config, spec, state.policy, batch, preference, weights)
            return State(policy, critic), metrics | {"policy_loss": policy_loss, "advantage": jnp.mean(advantage)}

        return tokenwise(
            spec,
            init=init,
            phases=(sampled(config, spec, "train", config.train_steps, step),),
            policy=lambda state: state.policy.average,
            log_law=partial(log_softmax_of, spec),
        )


class State(eqx.Module):
    """The policy and the critic."""

    policy: Learner
    critic: Learner
