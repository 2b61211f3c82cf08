"""Episodes side by side and the rows they make, against a walk that is written out by hand."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.data.actions import Discrete
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.envs.base import JaxEnv, Step
from qdfm.envs.simulate import Record, record, steps_taken

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Walk:
    """So many steps forward from 0 as the action says, which pays as many; it ends at 4 or beyond."""

    horizon: int = 3

    @property
    def spec(self) -> Spec:
        return Spec((1,), Discrete(4))

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def step(self, state, action, key) -> Step:
        after = state + action[0]
        return Step(after, action.astype(jnp.float32), after >= 4)

    def observation(self, state):
        return state[None].astype(jnp.float32)

    def mask(self, state):
        return jnp.ones((1, 4), bool)


def act(uniforms, observation, mask, carry):
    """Three walkers: one that stays, one of steps 1, 2, …, and one of 3s."""
    assert uniforms.shape == (3, 2)
    at = observation[:, 0].astype(jnp.int32)
    return jnp.where(jnp.arange(3) == 0, 0, jnp.where(jnp.arange(3) == 1, jnp.minimum(at + 1, 2), 3))[:, None], carry


@pytest.fixture(scope="module")
def played() -> Record:
    assert isinstance(Walk(), JaxEnv)
    return jax.device_get(jax.jit(lambda key: record(Walk(), act, 2, 3, key))(KEY))


def test_a_record_by_hand(played):
    # The second walker goes 1, 2, 2 and ends with the third step, which is the last one; the third 3, 3.
    np.testing.assert_array_equal(played.states.T, [[0, 0, 0, 0], [0, 1, 3, 5], [0, 3, 6, 6]])
    np.testing.assert_array_equal(played.reward[..., 0].T, [[0, 0, 0], [1, 2, 2], [3, 3, 0]])
    np.testing.assert_array_equal(played.running.T, [[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(played.terminated, [False, True, True])
    assert played.action.shape == (3, 3, 1)
    np.testing.assert_array_equal(played.action[..., 0].T[:2], [[0, 0, 0], [1, 2, 2]])
    np.testing.assert_array_equal(played.action[:2, 2, 0], 3)


def test_the_rows_by_hand(played):
    rows = steps_taken(played._replace(states={"observation": played.states[..., None], "state": -played.states}))
    assert {name: values.ravel().tolist() for name, values in rows.items()} == {
        "observation": [0, 0, 0, 0, 1, 3, 0, 3],
        "next_observation": [0, 0, 0, 1, 3, 5, 3, 6],
        "state": [0, 0, 0, 0, -1, -3, 0, -3],
        "next_state": [0, 0, 0, -1, -3, -5, -3, -6],
        "action": [0, 0, 0, 1, 2, 2, 3, 3],
        "reward": [0, 0, 0, 1, 2, 2, 3, 3],
        "terminated": [0, 0, 0, 0, 0, 1, 0, 1],
        "truncated": [0, 0, 1, 0, 0, 0, 0, 0],
        "episode": [0, 0, 0, 1, 1, 1, 2, 2],
    }
    del rows["state"], rows["next_state"]
    np.testing.assert_array_equal(Dataset.from_arrays(**rows, num_actions=4).returns(), [[0], [5], [6]])
