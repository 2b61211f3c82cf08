"""Expert data for multigoal: shortest walks to each goal among those that meet no trap and no other goal.

The distance to the goal is found by breadth-first search over the open cells, then each step draws uniformly
among the moves that decrease it. So the walks are uniform over moves, not over paths. The trap column makes
experts for a goal at x = 5 go round it, one column aside, and enter the goal from (4, 10) or (6, 10).
"""

import numpy as np

from qdfm.data.dataset import Dataset
from qdfm.envs.exact import CELLS, START_CELL, Table, all_observations, transition_table
from qdfm.envs.multigoal import MOVES, MultiGoal


def collect_multigoal(goals: int, per_goal: int = 250, seed: int = 0) -> Dataset:
    """`per_goal` expert trajectories for each of the goals, goal after goal, the same for the same seed."""
    env, rng = MultiGoal(goals), np.random.default_rng(seed)
    table, observations = transition_table(env), all_observations(env)
    walks = [_walks(table, goal, per_goal, rng) for goal in range(goals)]
    cell, action = (np.concatenate([part.ravel() for part in parts]) for parts in zip(*walks))
    return Dataset.from_arrays(
        observation=observations[cell],
        action=action,
        reward=table.reward[cell, action],
        next_observation=observations[table.next_cell[cell, action]],
        terminated=table.terminated[cell, action],
        num_actions=len(MOVES),
    )


def distances(table: Table, goal: int) -> np.ndarray:
    """Moves from every cell to the goal `[121]` through cells that end no episode; −1 where no way."""
    distance = np.where(table.outcome == goal, 0, -1)
    for d in range(CELLS):
        reached = (table.outcome < 0) & (distance < 0) & (distance[table.next_cell] == d).any(1)
        distance[reached] = d + 1
    return distance


def _walks(table: Table, goal: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cells and moves of `count` walks from the start, each `[count, length]`: all have the same length."""
    distance = distances(table, goal)
    cell = np.full(count, START_CELL)
    cells, actions = [], []
    for left in range(distance[START_CELL], 0, -1):
        closer = distance[table.next_cell[cell]] == left - 1
        action = np.where(closer, rng.random(closer.shape), -1.0).argmax(1)
        cells.append(cell)
        actions.append(action)
        cell = table.next_cell[cell, action]
    return np.stack(cells, 1), np.stack(actions, 1)
