"""IQL: implicit Q-learning (Kostrikov et al., 2021), with a softmax per token in place of its Gaussian.

V fits the τ-expectile of Q over the logged actions, Q fits r + γ V(s'), and the policy imitates logged actions weighted
by exp(β (Q − V)), at most 100. No action outside the data is ever asked for.
Deviations: for several tokens Q adds up over them (DecQN); no learning-rate schedule for the policy.
"""

from dataclasses import dataclass

from qdfm.algorithms.advantage import advantage_algorithm, check_weights
from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.critic import CriticConfig
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError


@dataclass(frozen=True)
class IQL(CriticConfig):
    """Implicit Q-learning."""

    train_steps: int = 60_000
    """Gradient steps."""
    expectile: float = 0.7
    """τ (the paper: .7 for locomotion, .9 for mazes)."""
    inverse_temperature: float = 3.0
    """β of the weights exp(β (Q − V)) (the paper: 3 for locomotion, 10 for mazes)."""
    weight_max: float = 100.0
    """The largest weight (the paper: 100)."""

    name = "iql"
    about = "implicit Q-learning: expectile values, advantage-weighted imitation"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        if not 0 < config.expectile < 1:
            raise QDFMError(f"iql: expectile is {config.expectile}; it must lie between 0 and 1.")
        if config.inverse_temperature <= 0:
            raise QDFMError(f"iql: inverse_temperature is {config.inverse_temperature}; it must be positive.")
        temperature = 1 / config.inverse_temperature
        check_weights(config, temperature, config.weight_max)
        return advantage_algorithm(config, spec, config.train_steps, config.expectile, temperature, config.weight_max)
