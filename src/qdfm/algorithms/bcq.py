"""BCQ: batch-constrained Q-learning for discrete actions (Fujimoto et al., 2019, "Benchmarking batch deep RL").

Double Q-learning over the actions that the behaviour network gives at least a share τ of the most likely one's
probability: y = r + γ Q̄(s', argmax over those of Q). The policy is that filtered argmax; it has no other law to sample.
Several tokens: filter and values per token (DecQN), so that the best joint action is the best choice of every token.
Deviations: behaviour and values have networks of their own instead of a shared trunk, without its penalty on logits;
squared error instead of Huber's; a target network that follows at every step, by which the agent also acts.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Algorithm, Metrics, sampled
from qdfm.algorithms.critic import CriticConfig, double_q, greedy_law, init_critic, preferred_values, regress
from qdfm.algorithms.guidance import keep_supported
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import imitate, init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import MLP


@dataclass(frozen=True)
class BCQ(CriticConfig):
    """Discrete batch-constrained Q-learning."""

    train_steps: int = 60_000
    """Gradient steps."""
    threshold: float = 0.3
    """τ: an action needs this share of the most likely one's probability (the paper: .3)."""
    critics: int | None = 1
    """Size of the ensemble (the paper: 1)."""
    pessimism: str | None = "mean"
    """How an ensemble is read: min, mean or mean-std."""

    name = "bcq"
    about = "batch-constrained Q-learning: argmax Q over likely actions"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if not 0 <= config.threshold <= 1:
            raise QDFMError(f"bcq: threshold is {config.threshold}; it must lie between 0 and 1.")

        def likely(behaviour: MLP, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
            log_mu = log_softmax_of(spec, behaviour, observation, preference, mask)
            return jnp.isfinite(keep_supported(log_mu, config.threshold))

        def init(key: jax.Array) -> State:
            k1, k2 = jax.random.split(key)
            return State(init_softmax(config, spec, k1), init_critic(config, spec, k2))

        def step(state: State, batch: Dataset, preference: jax.Array) -> tuple[State, Metrics]:
            behaviour, clone_loss = imitate(config, spec, state.behaviour, batch, preference)
            seen = batch.next_observation
            allowed = likely(behaviour.net, seen, preference, batch.next_mask)
            value = double_q(config, spec, state.critic, seen, preference, allowed)
            critic, metrics = regress(config, spec, state.critic, batch, preference, value)
            return State(behaviour, critic), metrics | {"clone_loss": clone_loss}

        def log_law(policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
            behaviour, critic = policy
            q = preferred_values(config, spec, critic, observation, preference)
            return jnp.log(greedy_law(q, likely(behaviour, observation, preference, mask)))

        return tokenwise(
            spec,
            init=init,
            phases=(sampled(config, spec, "train", config.train_steps, step),),
            policy=lambda state: (state.behaviour.average, state.critic.average),
            log_law=log_law,
        )


class State(eqx.Module):
    """The behaviour network and the critic."""

    behaviour: Learner
    critic: Learner
