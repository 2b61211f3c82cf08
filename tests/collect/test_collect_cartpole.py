"""The data of cartpole-2obj: switches counted again from the actions, the table of its docstring, the same by seed."""

import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.collect import cartpole
from qdfm.collect.cartpole import BEHAVIOURS, collect_cartpole_2obj, push
from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset

# The docstring's means of R1 and R2, and the deviations of single episodes, over 4,000 episodes.
MEANS = {
    "eager": (500, 0, -331, 46),
    "steady": (500, 0, -75, 1.3),
    "patient": (500, 0, -37, 0.7),
    "careless": (94, 107, -6, 6.6),
    "shaken": (464, 101, -304, 69),
    "steady, shaken": (391, 157, -92, 36),
    "slow": (148, 127, -43, 39),
    "drowsy": (24, 18, -3, 3.0),
    "stubborn": (9, 0.7, 0, 0),
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load_dataset("cartpole-2obj")


def test_rewards_are_steps_and_switches_of_the_datas_own_actions(data):
    action, episode = data.action[:, 0], data.episode
    first = np.r_[True, episode[1:] != episode[:-1]]
    switched = np.r_[False, action[1:] != action[:-1]] & ~first
    np.testing.assert_array_equal(data.reward[:, 0], 1)
    np.testing.assert_array_equal(data.reward[:, 1], -switched.astype(float))
    starts = np.flatnonzero(first)
    np.testing.assert_array_equal(data.returns()[:, 1], -np.add.reduceat(switched.astype(float), starts))


def test_rows_are_contiguous_and_end_as_cartpole_does(data):
    last = np.r_[data.episode[1:] != data.episode[:-1], True]
    np.testing.assert_array_equal(data.next_observation[~last], data.observation[1:][~last[:-1]])
    np.testing.assert_array_equal(data.next_observation[:, 4:], np.eye(2)[data.action[:, 0]])
    x, theta = data.next_observation[:, 0], data.next_observation[:, 2]
    fallen = (np.abs(x) > 2.4) | (np.abs(theta) > 12 * np.pi / 180)
    np.testing.assert_array_equal(data.terminated, fallen)
    np.testing.assert_array_equal(data.terminated | data.truncated, last)
    lengths = np.bincount(data.episode)
    assert set(lengths[data.episode[data.truncated]]) == {500}
    first = np.r_[True, last[:-1]]
    np.testing.assert_array_equal(data.observation[first, 4:], 0)
    assert 50_000 < len(data) < 100_000


def test_every_behaviour_returns_what_the_table_says(data):
    names = np.repeat(list(BEHAVIOURS), [b.episodes for b in BEHAVIOURS.values()])
    returns = data.returns()
    assert len(names) == len(returns)
    assert MEANS.keys() == BEHAVIOURS.keys()
    for name, (r1, r1_spread, r2, r2_spread) in MEANS.items():
        mine = returns[names == name]
        error = 4 * np.array([r1_spread, r2_spread]) / np.sqrt(len(mine)) + 0.5  # .5: the table is rounded
        assert (np.abs(mine.mean(0) - [r1, r2]) <= error).all(), (name, mine.mean(0))


def test_the_table_of_the_docstring_is_the_one_that_is_played():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in cartpole.__doc__.splitlines()]
    table = {row[0]: [float(cell.replace("−", "-")) for cell in row[1:]] for row in rows[2:] if row[0] in BEHAVIOURS}
    assert table.keys() == BEHAVIOURS.keys()
    for name, (band, attention, noise, r1, r2, episodes) in table.items():
        assert BEHAVIOURS[name] == (band, attention, noise, episodes)
        assert MEANS[name][::2] == (r1, r2)


def test_the_controller_by_hand():
    def at(lean: float, previous: int | None, uniforms: tuple[float, float, float], *temper: float) -> int:
        memory = [0.0, 0.0] if previous is None else np.eye(2)[previous]
        observation = jnp.array([[0, 0, lean - 0.1, 0.4, *memory]])  # θ + θ̇/4 is the lean
        return int(push(*temper, jnp.array([uniforms]), observation)[0])

    for expected, *case in (
        (1, 0.2, 0, (0.0, 0.9, 0.9), 0.15, 1, 0),  # beyond the band
        (0, -0.2, 1, (0.0, 0.9, 0.0), 0.15, 1, 0),
        (0, 0.1, 0, (0.0, 0.9, 0.0), 0.15, 1, 0),  # within it: as before
        (1, -0.1, 1, (0.0, 0.9, 0.9), 0.15, 1, 0),
        (1, 0.1, None, (0.0, 0.9, 0.4), 0.15, 1, 0),  # nothing before: the coin
        (0, 0.1, None, (0.0, 0.9, 0.6), 0.15, 1, 0),
        (0, 0.2, 0, (0.6, 0.9, 0.0), 0.0, 0.5, 0),  # does not look
        (1, 0.2, 0, (0.4, 0.9, 0.9), 0.0, 0.5, 0),  # looks
        (0, 0.2, 1, (0.4, 0.1, 0.9), 0.0, 1, 0.2),  # shaken: the coin
        (1, 0.2, 0, (0.4, 0.3, 0.9), 0.0, 1, 0.2),  # not shaken
    ):
        assert at(*case) == expected, case


def test_the_seed_decides(data):
    again, other = collect_cartpole_2obj(0), collect_cartpole_2obj(1)
    np.testing.assert_array_equal(again.observation, data.observation)
    np.testing.assert_array_equal(again.action, data.action)
    assert len(other) != len(data)
