"""Multigoal: a grid where several goals are equally good and the mean of two good moves is a trap.

11×11 cells, start (5, 0). The column x = 5, y = 3..9 is a trap (−10, ends); K goals lie on the row y = 10
(+10, ends). A policy that averages experts to the left and to the right walks straight up, into the trap.
"""

from dataclasses import dataclass

import numpy as np

from qdfm.envs.grid import Grid
from qdfm.errors import QDFMError

GOAL_X = {2: (1, 9), 3: (1, 5, 9), 4: (1, 3, 7, 9), 5: (1, 3, 5, 7, 9)}


@dataclass(frozen=True)
class MultiGoal(Grid):
    """The grid with `goals` goals: outcomes 0 to goals − 1, from left to right, then the trap."""

    goals: int
    horizon: int = 60

    width = 11
    height = 11
    first = (5, 0)

    def __post_init__(self) -> None:
        if self.goals not in GOAL_X:
            raise QDFMError(f"multigoal has no layout with {self.goals} goals; choose 2, 3, 4 or 5.")

    @property
    def plan(self) -> np.ndarray:
        """Goals on the top row, the trap below its middle."""
        plan = np.full((11, 11), -1)
        plan[10, list(GOAL_X[self.goals])] = np.arange(self.goals)
        plan[3:10, 5] = self.goals
        return plan

    @property
    def payoffs(self) -> np.ndarray:
        """All goals pay alike."""
        return np.array([[10.0]] * self.goals + [[-10.0]])
