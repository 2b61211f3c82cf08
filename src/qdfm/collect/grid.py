"""Expert data for the grid worlds: shortest walks to each goal among those that meet no trap and no other goal.

The distance to the goal is found by breadth-first search over the open cells, then each step draws uniformly
among the moves that decrease it. So the walks are uniform over moves, not over paths. Above multigoal's trap column
that makes experts for a goal at x = 5 go round it, one column aside, and enter the goal from (4, 10) or (6, 10); on
fork each expert stays on its goal's side.
"""

import numpy as np

from qdfm.collect.tabular import shortest_ways
from qdfm.data.dataset import Dataset
from qdfm.envs.grid import MOVES, Grid
from qdfm.envs.tabular import Tabular


def collect_experts(env: Grid, goals: int, per_goal: int, seed: int = 0) -> Dataset:
    """`per_goal` expert walks to each of the outcomes 0 to goals − 1, goal after goal, the same for the same seed."""
    rng, table = np.random.default_rng(seed), env.table()
    walks = [_walks(table, env.plan.ravel(), goal, per_goal, rng) for goal in range(goals)]
    cell, action = (np.concatenate([part.ravel() for part in parts]) for parts in zip(*walks))
    return Dataset.from_arrays(
        observation=table.observations[cell],
        action=action,
        reward=table.reward[cell, action, 0],
        next_observation=table.observations[table.next_state[cell, action, 0]],
        terminated=table.terminated[cell, action, 0],
        num_actions=len(MOVES),
    )


def _walks(
    table: Tabular, plan: np.ndarray, goal: int, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cells and moves of `count` walks from the start, each `[count, length]`: all have the same length."""
    after = table.next_state[..., 0]
    closer, length = shortest_ways(table, plan[after] == goal)
    cell = np.full(count, table.start)
    cells, actions = [], []
    for _ in range(length[table.start]):
        action = np.where(closer[cell], rng.random((count, len(MOVES))), -1.0).argmax(1)
        cells.append(cell)
        actions.append(action)
        cell = after[cell, action]
    return np.stack(cells, 1), np.stack(actions, 1)
