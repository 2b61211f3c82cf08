"""Data from Gymnasium environments: a known walk row by row, legal random behaviour, and the same data again."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from qdfm.collect.gymnasium import collect_gymnasium
from qdfm.data.dataset import Dataset
from qdfm.errors import QDFMError

DOWN, RIGHT = 1, 3


def test_a_known_walk_in_the_deep_sea():
    def walk(observation: np.ndarray, info: dict[str, Any], generator: np.random.Generator) -> int:
        return RIGHT if observation[1] == 0 else DOWN

    data = collect_gymnasium("deep-sea-treasure-v0", transitions=7, policy=walk)
    assert data.spec.objectives == 2
    assert data.spec.choices == (4,)
    assert data.mask is None
    np.testing.assert_array_equal(data.action[:, 0], [RIGHT, DOWN, DOWN] * 2 + [RIGHT])
    np.testing.assert_array_equal(data.observation[:4], [[0, 0], [0, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(data.next_observation[:4], [[0, 1], [1, 1], [2, 1], [0, 1]])
    np.testing.assert_allclose(data.reward[:4], [[0, -1], [0, -1], [8.2, -1], [0, -1]])
    np.testing.assert_array_equal(data.terminated, [False, False, True] * 2 + [False])
    np.testing.assert_array_equal(data.truncated, [False] * 6 + [True])  # where the transitions are used up
    np.testing.assert_array_equal(data.episode, [0, 0, 0, 1, 1, 1, 2])


class Halls(gymnasium.Env):
    """Rooms 0 to 2, one after the other, with parts of three and two choices; a room's number is forbidden to part 0.

    It writes every mask into the same array, and ends by truncation.
    """

    observation_space = spaces.Discrete(4)
    action_space = spaces.MultiDiscrete([3, 2])

    def __init__(self, masked: bool = True):
        self.masked, self.flags = masked, np.zeros((2, 3), np.int8)

    def report(self) -> tuple[int, dict[str, Any]]:
        self.flags[:] = [[self.room != k for k in range(3)], [1, 1, 0]]
        return self.room, {"action_mask": self.flags} if self.masked else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.room = 0
        return self.report()

    def step(self, action: Any) -> tuple[Any, ...]:
        self.room += 1
        room, info = self.report()
        return room, float(self.room), False, self.room == 3, info


@pytest.fixture(scope="module")
def halls() -> Dataset:
    return collect_gymnasium(Halls(), transitions=3_000, seed=2)


def test_masks_and_flattened_observations(halls):
    room = np.tile([0, 1, 2], 1_000)
    np.testing.assert_array_equal(halls.observation, np.eye(4)[room])
    np.testing.assert_array_equal(halls.next_observation, np.eye(4)[room + 1])
    np.testing.assert_array_equal(halls.reward[:, 0], room + 1)
    np.testing.assert_array_equal(halls.mask[:, 0], np.arange(3) != room[:, None])
    np.testing.assert_array_equal(halls.next_mask[:, 0], np.arange(3) != room[:, None] + 1)
    np.testing.assert_array_equal(halls.mask[:, 1], [[True, True, False]] * 3_000)
    assert not halls.terminated.any()
    np.testing.assert_array_equal(halls.truncated, room == 2)


def test_random_behaviour_is_uniform_over_what_is_legal(halls, rejected):
    room, first, second = halls.observation.argmax(1), halls.action[:, 0], halls.action[:, 1]
    cases = {}
    for r in range(3):
        counts = np.zeros((3, 3))
        np.add.at(counts, (first[room == r], second[room == r]), 1)
        cases[f"room {r}"] = (counts, np.outer(np.arange(3) != r, [1, 1, 0]) / 4)
    assert rejected(cases) == {}


def test_the_seed_decides_even_where_an_environment_draws_from_the_global_generator():
    np.random.seed(7)  # noqa: NPY002 - the generator that minecart-v0 draws its ore from
    one = collect_gymnasium("minecart-v0", transitions=150, seed=3)
    np.testing.assert_equal(np.random.random(), np.random.RandomState(7).random_sample())  # noqa: NPY002 - left alone
    again, other = (collect_gymnasium("minecart-v0", transitions=150, seed=seed) for seed in (3, 4))
    assert one.spec.objectives == 3
    for name in ("observation", "action", "reward"):
        np.testing.assert_array_equal(getattr(one, name), getattr(again, name))
    assert not np.array_equal(one.action, other.action)
    assert (one.observation[:, 3:] > 0).any()  # ore was mined


def test_refusals():
    with pytest.raises(QDFMError, match="0 transitions cannot be collected"):
        collect_gymnasium("CartPole-v1", transitions=0)
    with pytest.raises(QDFMError, match="neither Discrete nor MultiDiscrete"):
        collect_gymnasium("Pendulum-v1")
    with pytest.raises(QDFMError, match="GiB, more than half of this machine's"):
        collect_gymnasium("CartPole-v1", transitions=10**12)

    class Closed(Halls):
        def report(self) -> tuple[int, dict[str, Any]]:
            return self.room, {"action_mask": np.zeros((2, 3), np.int8)}

    with pytest.raises(QDFMError, match="forbids every choice in a step"):
        collect_gymnasium(Closed())


def test_categories_are_passed_on():
    data = collect_gymnasium("deep-sea-treasure-v0", transitions=30, seed=0, categories=(11, 11))
    assert data.spec.categories == (11, 11)
    assert data.spec.normalisation.observation_std == (1.0, 1.0)
