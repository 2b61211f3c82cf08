"""The heuristic mixtures: seekers by hand on a corridor, and what the data of MO-Gymnasium's tasks must contain."""

import numpy as np
import pytest

from qdfm.collect.tabular import (
    Seeker,
    collect_deep_sea,
    collect_mixture,
    collect_resource,
    deep_sea_behaviours,
    resource_behaviours,
)
from qdfm.envs.exact import carry
from qdfm.envs.mogym import deep_sea_treasure, resource_gathering
from qdfm.envs.pareto import pareto_front
from qdfm.envs.tabular import Tabular


def corridor() -> Tabular:
    """States 0..4 in a row, start 1; action 0 goes left, 1 right; reaching 0 or 4 ends; two steps lead to 4 by a jump:
    action 2 jumps from 1 to 4 and is dangerous, elsewhere it stays."""
    after = np.array([[0, 0, 0], [0, 2, 4], [1, 3, 2], [2, 4, 3], [4, 4, 4]])
    ended = np.isin(after, (0, 4))
    reward = np.where(after == 4, 1.0, 0.0)
    return Tabular(
        np.arange(5, dtype=np.float32)[:, None], 1, after[..., None], np.ones((5, 3, 1)), reward[..., None, None],
        ended[..., None], 10,
    )  # fmt: skip


def test_a_seeker_takes_the_shortest_way_that_it_does_not_refuse():
    table = corridor()
    goal = table.reward[..., 0, 0] > 0
    bold = Seeker("bold", 1, goal, noise=0.3).law(table)
    np.testing.assert_allclose(bold[1], [0.1, 0.1, 0.8])
    danger = np.zeros((5, 3), bool)
    danger[1, 2] = True
    careful = Seeker("careful", 1, goal, danger, noise=0.0).law(table)
    np.testing.assert_allclose(careful[1:4], [[0, 1, 0]] * 3)
    np.testing.assert_allclose(Seeker("random", 1).law(table), 1 / 3)


def test_episodes_follow_the_table_and_the_law():
    table = corridor()
    goal = table.reward[..., 0, 0] > 0
    data = collect_mixture(table, (Seeker("noisy", 4_000, goal, noise=0.6),), (0,), seed=1)
    here, there = data.observation[:, 0].astype(int), data.next_observation[:, 0].astype(int)
    action = data.action[:, 0]
    np.testing.assert_array_equal(there, table.next_state[here, action, 0])
    np.testing.assert_array_equal(data.terminated, np.isin(there, (0, 4)))
    lengths = np.bincount(data.episode)
    last = np.cumsum(lengths) - 1
    assert lengths.max() <= 10
    np.testing.assert_array_equal(data.truncated[last], ~data.terminated[last])
    assert not np.delete(data.truncated | data.terminated, last).any()
    np.testing.assert_array_equal(here[np.r_[0, last[:-1] + 1]], 1)
    exact = carry(table, Seeker("noisy", 1, goal, noise=0.6).law(table)).expected_return[0]
    assert abs(data.returns().mean() - exact) < 4 * np.sqrt(exact * (1 - exact) / 4_000)


@pytest.mark.parametrize("map_name", ["convex", "concave"])
def test_deep_sea_data_shows_every_treasure(map_name):
    data = collect_deep_sea(map_name)
    found = np.unique(data.reward[data.terminated, 0])
    np.testing.assert_allclose(found, np.sort(pareto_front(deep_sea_treasure(map_name), 1.0)[:, 0]), atol=1e-5)
    assert data.spec.categories == (11, 11)
    assert (collect_deep_sea(map_name, seed=0).action == data.action).all()
    assert len(collect_deep_sea(map_name, seed=1)) != len(data)
    assert [b.name for b in deep_sea_behaviours(map_name)][:3] == ["largest", "nearest", f"treasure {found[0]:g}"]


def test_resource_behaviours_do_what_they_are_called():
    table = resource_gathering()
    quiet = {b.name: Seeker(b.name, 1, b.goal, b.refuses, noise=0.0) for b in resource_behaviours()}
    returns = {name: carry(table, b.law(table)).expected_return for name, b in quiet.items()}
    np.testing.assert_allclose(returns["safe both"], [0, 1, 1], atol=1e-12)
    np.testing.assert_allclose(returns["safe gold"], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(returns["safe diamond"], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(returns["gold"], [-0.19, 0.81, 0], atol=1e-12)  # past one enemy, there and back
    assert returns["both"][0] < -0.1
    data = collect_resource()
    assert data.spec.categories == (5, 5, 2, 2)
    assert {tuple(r) for r in data.reward[data.terminated]} >= {(-1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 0)}
