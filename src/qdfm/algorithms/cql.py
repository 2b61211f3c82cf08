"""CQL: conservative Q-learning (Kumar et al., 2020), its CQL(H) for discrete actions on double DQN.

Q minimises ½ (Q − y)² + α (log Σ_a exp Q(s, a) − Q(s, a_data)) with y = r + γ Q̄(s', argmax_a Q(s', a)). Played greedily
as published; sampled, it is softmax(Q), the policy whose entropy the log-sum-exp counts. Several tokens: values add up
(DecQN), so that the sum over all joint actions and the maximum are sums over tokens, exactly.
Deviations: one value per action instead of quantiles, a fixed α, and a target network that follows at every step, by
which the agent also acts.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Algorithm, Metrics, legal_choices, sampled
from qdfm.algorithms.critic import CriticConfig, conservative, double_q, init_critic, preferred_values, regress
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError


@dataclass(frozen=True)
class CQL(CriticConfig):
    """Conservative Q-learning."""

    train_steps: int = 60_000
    """Gradient steps."""
    penalty: float = 1.0
    """α, the weight of the conservative term (d3rlpy's discrete CQL: 1; the paper: .5 to 4 on Atari)."""
    temperature: float = 1.0
    """Of the softmax over values when sampling (1: the policy of the log-sum-exp)."""
    critics: int | None = 1
    """Size of the ensemble (the paper: 1)."""
    pessimism: str | None = "mean"
    """How an ensemble is read: min, mean or mean-std."""

    name = "cql"
    about = "conservative Q-learning"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if config.penalty < 0:
            raise QDFMError(f"cql: penalty is {config.penalty}; it must be at least 0.")
        if config.temperature <= 0:
            raise QDFMError(f"cql: temperature is {config.temperature}; it must be positive.")

        def step(critic: Learner, batch: Dataset, preference: jax.Array) -> tuple[Learner, Metrics]:
            next_legal = legal_choices(spec, batch.next_mask, len(batch))
            value = double_q(config, spec, critic, batch.next_observation, preference, next_legal)
            penalty = conservative(config, spec, batch, preference, config.penalty)
            return regress(config, spec, critic, batch, preference, value, penalty)

        def log_law(critic: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
            q = preferred_values(config, spec, critic, observation, preference)
            legal = legal_choices(spec, mask, len(observation))
            return jax.nn.log_softmax(jnp.where(legal, q / config.temperature, -jnp.inf), -1)

        return tokenwise(
            spec,
            init=partial(init_critic, config, spec),
            phases=(sampled(config, spec, "train", config.train_steps, step),),
            policy=lambda critic: critic.average,
            log_law=log_law,
        )
