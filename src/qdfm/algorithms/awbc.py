"""AWBC: advantage-weighted behaviour cloning (AWR, Peng et al., 2019), one step of improvement over the behaviour.

V and Q are the behaviour's own values, and the policy imitates logged actions weighted by exp((Q − V) / λ), at most 20:
its fixed point is μ·exp(A^μ / λ)/C.
Deviations: AWR weights by the return that followed an action; Q^μ is that return's mean, and needs no whole episodes.
λ is in units of the reward, not of normalised advantages. For several tokens Q adds up over them (DecQN).
"""

from dataclasses import dataclass

from qdfm.algorithms.advantage import advantage_algorithm, check_weights
from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.critic import CriticConfig
from qdfm.data.spec import Spec


@dataclass(frozen=True)
class AWBC(CriticConfig):
    """Advantage-weighted behaviour cloning."""

    train_steps: int = 60_000
    """Gradient steps."""
    temperature: float = 1.0
    """λ of the weights exp((Q − V) / λ) (AWR: 1)."""
    weight_max: float = 20.0
    """The largest weight (AWR: 20)."""
    critics: int | None = 1
    """Size of the ensemble: the behaviour's own values need no pessimism (AWR: 1)."""
    pessimism: str | None = "mean"
    """How an ensemble is read: min, mean or mean-std."""

    name = "awbc"
    about = "behaviour cloning weighted by the behaviour's own advantages"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        check_weights(config, config.temperature, config.weight_max)
        return advantage_algorithm(config, spec, config.train_steps, 0.5, config.temperature, config.weight_max)
