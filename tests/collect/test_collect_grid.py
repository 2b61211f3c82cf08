"""The experts against the grids told again: shortest, trap-free, one goal each, random as said."""

import numpy as np
import pytest

from qdfm.collect.grid import collect_experts
from qdfm.data.dataset import Dataset
from qdfm.envs.fork import Fork
from qdfm.envs.multigoal import MultiGoal

GOALS = {2: [1, 9], 3: [1, 5, 9], 4: [1, 3, 7, 9], 5: [1, 3, 5, 7, 9]}
STEP = np.array([[0, 1], [0, -1], [-1, 0], [1, 0]])


def collect_multigoal(goals: int, per_goal: int = 250, seed: int = 0) -> Dataset:
    return collect_experts(MultiGoal(goals), goals, per_goal, seed)


def states(observation: np.ndarray) -> np.ndarray:
    return np.stack([observation[:, :11].argmax(1), observation[:, 11:].argmax(1)], 1)


def length(x: int) -> int:
    """Closed form: Manhattan from (5, 0) to (x, 10); above the trap column one step aside and one back."""
    return 12 if x == 5 else abs(x - 5) + 10


@pytest.mark.parametrize("goals", GOALS)
def test_every_episode_is_a_shortest_trap_free_walk_to_its_goal(goals):
    data = collect_multigoal(goals)
    assert len(data) == 250 * sum(length(x) for x in GOALS[goals])
    here, there = states(data.observation), states(data.next_observation)
    np.testing.assert_array_equal(there, here + STEP[data.action[:, 0]])  # so no expert runs into a wall
    assert not ((there[:, 0] == 5) & (there[:, 1] >= 3) & (there[:, 1] <= 9)).any()

    goal_cell = (there[:, 1] == 10) & np.isin(there[:, 0], GOALS[goals])
    np.testing.assert_array_equal(data.terminated, goal_cell)
    np.testing.assert_array_equal(data.reward[:, 0], np.where(goal_cell, 10.0, 0.0))
    assert not data.truncated.any()

    last = np.flatnonzero(np.diff(data.episode, append=-1))
    first = np.r_[0, last[:-1] + 1]
    np.testing.assert_array_equal(last, np.flatnonzero(goal_cell))
    np.testing.assert_array_equal(here[first], np.tile([5, 0], (250 * goals, 1)))
    np.testing.assert_array_equal(there[last, 0], np.repeat(GOALS[goals], 250))
    np.testing.assert_array_equal(last - first + 1, np.repeat([length(x) for x in GOALS[goals]], 250))
    inside = np.setdiff1d(np.arange(len(data)), last)
    np.testing.assert_array_equal(there[inside], here[inside + 1])


def test_spec():
    data = collect_multigoal(2, per_goal=1)
    assert data.spec.choices == (4,)
    assert data.spec.observation_shape == (22,)
    np.testing.assert_allclose(data.spec.normalisation.observation_mean, data.observation.mean(0), atol=1e-6)
    assert data.observation.dtype == np.float32


def test_seed_decides_the_walks():
    first, again, other = (collect_multigoal(3, seed=s).action for s in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert first.shape == other.shape
    assert (first != other).any()


def test_moves_are_drawn_uniformly_among_those_that_come_closer():
    data = collect_multigoal(3, per_goal=4000)
    here, action = states(data.observation), data.action[:, 0]
    goal = data.episode // 4000

    def shares(g: int, cell: tuple[int, int]) -> tuple[np.ndarray, int]:
        chosen = action[(goal == g) & (here == cell).all(1)]
        return np.bincount(chosen, minlength=4) / len(chosen), len(chosen)

    for g, cell, expected in [
        (0, (5, 0), [1 / 2, 0, 1 / 2, 0]),  # goal at x = 1: up and left
        (0, (5, 2), [0, 0, 1, 0]),  # the trap is above
        (0, (4, 3), [1 / 2, 0, 1 / 2, 0]),
        (1, (5, 0), [1 / 3, 0, 1 / 3, 1 / 3]),  # goal at x = 5: both ways round the trap
        (1, (4, 5), [1, 0, 0, 0]),
        (1, (6, 10), [0, 0, 1, 0]),
        (2, (9, 4), [1, 0, 0, 0]),
    ]:
        share, count = shares(g, cell)
        p = np.array(expected)
        assert (np.abs(share - p) <= 4 * np.sqrt(p * (1 - p) / count)).all(), (g, cell, share)


def test_the_fork_s_experts_stay_on_their_side():
    data = collect_experts(Fork(), 2, per_goal=500)
    x, y = (part.argmax(1) for part in np.split(data.next_observation, [9], 1))
    goal_b = data.episode >= 500
    assert len(data) == 1000 * (4 + 6)  # Manhattan from (4, 0) to either upper corner
    assert (x[~goal_b] <= 4).all()
    assert (x[goal_b] >= 4).all()
    assert not ((x == 4) & (y >= 2)).any()
    np.testing.assert_array_equal(data.reward[data.terminated], np.repeat([[10, 0], [0, 10]], 500, 0))
    assert not data.reward[~data.terminated].any()
