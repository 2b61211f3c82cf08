"""The multigoal grid against its description, cell by cell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.envs.multigoal import MultiGoal
from qdfm.errors import QDFMError

UP, DOWN, LEFT, RIGHT = range(4)
GOALS = {2: [1, 9], 3: [1, 5, 9], 4: [1, 3, 7, 9], 5: [1, 3, 5, 7, 9]}
KEY = jax.random.key(0)


def move(env: MultiGoal, cell: tuple[int, int], action: int) -> tuple[tuple[int, ...], float, bool]:
    step = env.step(jnp.array(cell, jnp.int32), jnp.array([action]), KEY)
    assert step.reward.shape == (1,)
    assert step.state.dtype == jnp.int32
    return tuple(step.state.tolist()), float(step.reward[0]), bool(step.terminated)


@pytest.mark.parametrize(
    ("cell", "action", "expected"),
    [
        ((5, 0), UP, ((5, 1), 0.0, False)),
        ((5, 0), DOWN, ((5, 0), 0.0, False)),
        ((5, 0), LEFT, ((4, 0), 0.0, False)),
        ((5, 0), RIGHT, ((6, 0), 0.0, False)),
        ((0, 4), LEFT, ((0, 4), 0.0, False)),
        ((10, 4), RIGHT, ((10, 4), 0.0, False)),
        ((2, 10), UP, ((2, 10), 0.0, False)),
        ((5, 2), UP, ((5, 3), -10.0, True)),
        ((4, 9), RIGHT, ((5, 9), -10.0, True)),
        ((4, 10), RIGHT, ((5, 10), 0.0, False)),
        ((1, 9), UP, ((1, 10), 10.0, True)),
        ((10, 10), LEFT, ((9, 10), 10.0, True)),
        ((3, 9), UP, ((3, 10), 0.0, False)),
    ],
)
def test_hand_computed_moves_with_two_goals(cell, action, expected):
    assert move(MultiGoal(2), cell, action) == expected


def test_the_cell_above_the_trap_is_a_goal_with_three_goals():
    assert move(MultiGoal(3), (4, 10), RIGHT) == ((5, 10), 10.0, True)


@pytest.mark.parametrize("goals", GOALS)
def test_outcome_of_every_cell(goals):
    expected = np.full((11, 11), -1)
    expected[5, 3:10] = goals
    expected[GOALS[goals], 10] = np.arange(goals)
    cells = jnp.stack(jnp.meshgrid(jnp.arange(11), jnp.arange(11), indexing="ij"), -1)
    np.testing.assert_array_equal(MultiGoal(goals).outcome(cells), expected)


def test_observation_mask_start_and_spec():
    env = MultiGoal(4)
    start = env.reset(KEY)
    assert start.tolist() == [5, 0]
    seen = np.asarray(env.observation(jnp.array([3, 8], jnp.int32)))
    assert seen.dtype == np.float32
    assert np.flatnonzero(seen).tolist() == [3, 11 + 8]
    assert seen.sum() == 2.0
    assert seen.shape == env.spec.observation_shape == (22,)
    assert env.mask(start).tolist() == [[True] * 4]
    assert env.spec.choices == (4,)
    assert env.horizon == 60


@pytest.mark.parametrize("goals", [1, 6])
def test_unknown_layout_is_refused(goals):
    with pytest.raises(QDFMError, match=f"no layout with {goals} goals"):
        MultiGoal(goals)
