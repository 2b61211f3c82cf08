"""BoltzBC: behaviour cloning reweighted by exp(βQ), π ∝ μ̂ · exp(βQ).

The honest yardstick for one categorical token, where a softmax is as expressive as a flow: it has the same optimum as
QDFM and no third phase. Actions outside the support of μ̂ are dropped, as in QDFM.
"""

from dataclasses import dataclass

import jax

from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.guidance import keep_supported
from qdfm.algorithms.valuebased import ValueConfig, value_algorithm
from qdfm.data.spec import Spec


@dataclass(frozen=True)
class BoltzBC(ValueConfig):
    """π ∝ μ̂ exp(βQ)."""

    name = "boltzbc"
    about = "behaviour cloning reweighted by exp(βQ)"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)

        def log_policy(log_mu: jax.Array, q: jax.Array, beta: jax.Array) -> jax.Array:
            return jax.nn.log_softmax(keep_supported(log_mu, config.support_share) + beta * q, -1)

        return value_algorithm(config, spec, log_policy)
