"""BRAC: behaviour-regularised actor-critic (Wu et al., 2019), with value penalty and the KL divergence.

The behaviour μ̂ is cloned first. Then Q fits r + γ (E_π Q̄ − α KL(π‖μ̂)) at s', and the policy ascends E_π Q − α KL(π‖μ̂):
its fixed point is π ∝ μ̂·exp(Q / α). All expectations over the policy are exact sums.
Deviations: a softmax per token for its Gaussian; a fixed α; the minimum of twin critics, into which BRAC mixes the
maximum; for several tokens Q adds up over them (DecQN).
"""

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Metrics, sampled
from qdfm.algorithms.bc import clone_phase
from qdfm.algorithms.critic import CriticConfig, expected, init_critic, preferred_values, regress, vector_values
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import divergence, init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import MLP


@dataclass(frozen=True)
class BRAC(CriticConfig):
    """Behaviour-regularised actor-critic."""

    clone_steps: int = 20_000
    """Gradient steps of the behaviour network."""
    train_steps: int = 60_000
    """Gradient steps of actor and critic."""
    penalty: float = 1.0
    """α, the weight of the divergence (the paper tries .03 to 10 per task; 1 lies in the middle)."""

    name = "brac"
    about = "behaviour-regularised actor-critic, KL value penalty"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if config.penalty < 0:
            raise QDFMError(f"brac: penalty is {config.penalty}; it must be at least 0.")

        def init(key: jax.Array) -> State:
            k1, k2, k3 = jax.random.split(key, 3)
            return State(
                behaviour=init_softmax(config, spec, k1),
                policy=init_softmax(config, spec, k2),
                critic=init_critic(config, spec, k3),
            )

        def step(state: State, batch: Dataset, preference: jax.Array) -> tuple[State, Metrics]:
            behaviour = state.behaviour.average

            seen, mask = batch.next_observation, batch.next_mask
            log_pi = log_softmax_of(spec, state.policy.net, seen, preference, mask)
            away = jnp.sum(divergence(log_pi, log_softmax_of(spec, behaviour, seen, preference, mask)), -1)
            next_q = vector_values(config, spec, state.critic.average, seen, preference)
            # The penalty is a scalar; taken off every objective alike it is taken off ⟨ω, V⟩ once, since ω sums to 1.
            value = expected(jnp.exp(log_pi), next_q) - config.penalty * away[:, None]
            critic, metrics = regress(config, spec, state.critic, batch, preference, value)

            q = preferred_values(config, spec, critic.net, batch.observation, preference)  # [B, D, K]
            log_mu = log_softmax_of(spec, behaviour, batch.observation, preference, batch.mask)

            def loss(net: MLP) -> tuple[jax.Array, jax.Array]:
                log_pi = log_softmax_of(spec, net, batch.observation, preference, batch.mask)
                away = jnp.mean(jnp.sum(divergence(log_pi, log_mu), -1))
                return config.penalty * away - jnp.mean(jnp.sum(jnp.exp(log_pi) * q, (1, 2))), away

            (policy_loss, away_here), gradient = jax.value_and_grad(loss, has_aux=True)(state.policy.net)
            policy = learner.descend(state.policy, gradient, config.learning_rate, config.ema)
            metrics |= {"policy_loss": policy_loss, "divergence": away_here}
            return State(state.behaviour, policy, critic), metrics

        clone = clone_phase(config, spec, config.clone_steps)
        return tokenwise(
            spec,
            init=init,
            phases=(clone, sampled(config, spec, "train", config.train_steps, step)),
            policy=lambda state: state.policy.average,
            log_law=partial(log_softmax_of, spec),
        )


class State(eqx.Module):
    """The cloned behaviour, the policy and the critic."""

    behaviour: Learner
    policy: Learner
    critic: Learner
