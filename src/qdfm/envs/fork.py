"""Fork: two goals, each good for one objective only, and a trap between them.

9×7 cells, start (4, 0). Goal A at (0, 6) pays (10, 0), goal B at (8, 6) pays (0, 10); the column x = 4, y = 2..6 is a
trap that pays (−10, −10). All three end the episode. The paper does not print its grid; this one is ours.
"""

from dataclasses import dataclass

import numpy as np

from qdfm.envs.grid import Grid


@dataclass(frozen=True)
class Fork(Grid):
    """Two goals for two objectives, a trap between: outcomes 0 (A), 1 (B), 2 (the trap)."""

    horizon: int = 40

    width = 9
    height = 7
    first = (4, 0)

    @property
    def plan(self) -> np.ndarray:
        """Goals in the upper corners, the trap in the middle column."""
        plan = np.full((7, 9), -1)
        plan[6, [0, 8]] = 0, 1
        plan[2:, 4] = 2
        return plan

    @property
    def payoffs(self) -> np.ndarray:
        """Each goal pays in its own objective."""
        return np.array([[10.0, 0.0], [0.0, 10.0], [-10.0, -10.0]])
