"""BoltzQ: the categorical policy π ∝ exp(βQ) over all legal actions, on the same critic as QDFM.

The paper's baseline for what the generative policy adds to the critic. It ignores how often the data took an action,
so values that were never trained are as good as any.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.valuebased import ValueConfig, value_algorithm
from qdfm.data.spec import Spec


@dataclass(frozen=True)
class BoltzQ(ValueConfig):
    """π ∝ exp(βQ)."""

    caution: float | None = 0.0
    """As in QDFM; here values are taken as they are read."""

    name = "boltzq"
    about = "softmax of βQ over all legal actions"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)

        def log_policy(log_mu: jax.Array, q: jax.Array, beta: jax.Array) -> jax.Array:
            return jax.nn.log_softmax(jnp.where(jnp.isfinite(log_mu), beta * q, -jnp.inf), -1)

        return value_algorithm(config, spec, log_policy)
