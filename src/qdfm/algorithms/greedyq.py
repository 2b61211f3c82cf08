"""GreedyQ: argmax of the critic over all legal actions, on the same critic as QDFM.

The paper's greedy baseline. Nothing keeps it on the data's support, which is how it finds the trap in `multigoal`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.critic import greedy_law
from qdfm.algorithms.valuebased import ValueConfig, value_algorithm
from qdfm.data.spec import Spec


@dataclass(frozen=True)
class GreedyQ(ValueConfig):
    """argmax Q."""

    caution: float | None = 0.0
    """As in QDFM; here values are taken as they are read."""

    name = "greedyq"
    about = "argmax of the critic over all legal actions"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)

        def log_policy(log_mu: jax.Array, q: jax.Array, beta: jax.Array) -> jax.Array:
            return jnp.log(greedy_law(q, jnp.isfinite(log_mu)))

        return value_algorithm(config, spec, log_policy)
