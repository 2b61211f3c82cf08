"""What an agent reaches as its preference varies: mean returns for many preferences, played side by side.

The episodes of all preferences are one evaluation: in a built-in environment one compiled rollout, elsewhere the copies
of the environment take whichever episode is next.
"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdfm.agent import Agent
from qdfm.checkpoint import write_file
from qdfm.data.checks import check_preference
from qdfm.envs.base import JaxEnv
from qdfm.errors import QDFMError
from qdfm.evaluate import evaluate
from qdfm.metrics import non_dominated

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class Sweep:
    """Returns in the units of the reward, one row per preference."""

    preferences: np.ndarray  # [P, objectives]
    returns: np.ndarray  # [P, objectives], means over episodes
    std: np.ndarray  # [P, objectives], sample deviations over episodes, 0 for a single one

    def non_dominated(self) -> np.ndarray:
        """The rows whose mean return no other row dominates `[P]`; of equal ones, one."""
        return non_dominated(self.returns)

    def mean_utility(self) -> float:
        """The mean of ⟨ω, return⟩, each return at its own preference: high only where the agent heeds ω."""
        return float(np.mean(np.sum(self.preferences * self.returns, 1)))

    def write_csv(self, path: str | Path) -> None:
        """One line per preference: preference_1.., return_1.., std_1.., non_dominated (0 or 1)."""
        parts = {"preference": self.preferences, "return": self.returns, "std": self.std}
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([f"{name}_{i + 1}" for name in parts for i in range(self.returns.shape[1])] + ["non_dominated"])
        for values, kept in zip(np.hstack(list(parts.values())).tolist(), self.non_dominated(), strict=True):
            lines.writerow([*values, int(kept)])
        write_file(Path(path), text.getvalue().encode())


def sweep(
    agent: Agent,
    env: "str | JaxEnv | gymnasium.Env",
    preferences: Any,
    episodes: int = 1,
    seed: int = 0,
    greedy: bool = True,
    gamma: float = 1.0,
    progress: bool = True,
) -> Sweep:
    """Play so many episodes under each of the preferences `[P, objectives]`; the rest is as in `evaluate`.

    One greedy episode is enough where neither the environment nor the policy draws lots.
    """
    objectives, trained = agent.spec.objectives, agent.config.preference
    if objectives == 1:
        raise QDFMError("This agent has one objective, so no preference changes what it does; evaluate it instead.")
    if trained is not None:
        raise QDFMError(f"This agent was trained for the preference {list(trained)} only; evaluate it instead.")
    if episodes < 1:
        raise QDFMError(f"{episodes} episodes cannot be evaluated; give at least 1.")
    omega = np.atleast_2d(check_preference(preferences, objectives))
    played = evaluate(agent, env, len(omega) * episodes, seed, greedy, np.repeat(omega, episodes, 0), gamma, progress)
    returns = played.returns.reshape(len(omega), episodes, objectives)
    std = returns.std(1, ddof=1) if episodes > 1 else np.zeros_like(returns[:, 0])
    return Sweep(np.atleast_2d(np.asarray(preferences, np.float64)), returns.mean(1), std)


def worst_corner(returns: np.ndarray) -> np.ndarray:
    """A point below all returns `[P, objectives]`: in each objective the worst minus 10 % of the range (or of 1)."""
    extent = np.ptp(returns, 0)
    return returns.min(0) - 0.1 * np.where(extent > 0, extent, 1.0)
