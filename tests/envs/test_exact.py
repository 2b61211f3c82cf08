"""Exact returns and the KL optimum against hand calculation and recursion."""

import functools
import itertools
import math

import numpy as np
import pytest

from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset
from qdfm.envs import exact
from qdfm.envs.multigoal import MultiGoal
from qdfm.envs.tabular import Tabular
from qdfm.errors import QDFMError
from qdfm.experiments.grid_exact import behaviour, propagate

UP, DOWN, LEFT, RIGHT = range(4)
STEP = [(0, 1), (0, -1), (-1, 0), (1, 0)]


def collect_multigoal(goals: int) -> Dataset:
    return load_dataset(f"multigoal-{goals}")


def kl_optimum(data: Dataset, env: MultiGoal, beta: float, gamma: float, backup: str = "boltzmann") -> np.ndarray:
    return exact.kl_optimum(env.table(), behaviour(env, data), beta, gamma, backup)


def move(x: int, y: int, action: int) -> tuple[int, int]:
    """The grid's rule, told again."""
    return min(max(x + STEP[action][0], 0), 10), min(max(y + STEP[action][1], 0), 10)


def log(*walks: list[int]) -> Dataset:
    """A dataset of walks from the start, given as moves; the last one is taken to end at a goal."""
    rows = []
    for walk in walks:
        cell = (5, 0)
        for i, action in enumerate(walk):
            after, done = move(*cell, action), i == len(walk) - 1
            rows.append((cell, action, 10.0 * done, after, done))
            cell = after
    cell, action, reward, after, done = zip(*rows)
    one_hot = [np.eye(11)[np.array(c)].reshape(-1, 22) for c in (cell, after)]
    return Dataset.from_arrays(one_hot[0], action, reward, one_hot[1], done, num_actions=4, normalise=False)


def test_observations_are_numbered_row_by_row():
    seen = MultiGoal(2).table().observations
    assert seen.shape == (121, 22)
    assert np.flatnonzero(seen[8 * 11 + 3]).tolist() == [3, 11 + 8]
    assert len(np.unique(seen, axis=0)) == 121


def test_table_agrees_with_the_rule_told_again():
    table = MultiGoal(3).table()
    for x, y, action in itertools.product(range(11), range(11), range(4)):
        after = move(x, y, action)
        goal, trap = after in [(1, 10), (5, 10), (9, 10)], after[0] == 5 and 3 <= after[1] <= 9
        row = y * 11 + x, action, 0
        assert table.next_state[row] == after[1] * 11 + after[0]
        assert table.reward[row] == 10 * goal - 10 * trap
        assert table.terminated[row] == (goal or trap)


@pytest.mark.parametrize("backup", ["boltzmann", "soft", "mean"])
@pytest.mark.parametrize("beta", [0.5, 5.0])
def test_hand_computed_optimum(backup, beta):
    # At the start, "left" leads to the goal at x = 3 in 12 moves. "Up" leads to (5, 1), where "left" needs 11
    # more to the same goal and "right" 13 more to the goal at x = 9. All else is forced.
    g = 0.99
    left = [LEFT, LEFT] + [UP] * 10
    up_left = [UP, LEFT, LEFT] + [UP] * 9
    up_right = [UP] + [RIGHT] * 4 + [UP] * 9
    data = log(left, left, left, up_left, up_right, up_right)

    near, far = 10 * g**10, 10 * g**12  # Q at (5, 1)
    weights = [1 / 3 * math.exp(beta * near), 2 / 3 * math.exp(beta * far)]
    tilt = weights[0] / sum(weights)
    value = {
        "boltzmann": tilt * near + (1 - tilt) * far,
        "soft": math.log(sum(weights)) / beta,
        "mean": near / 3 + 2 * far / 3,
    }[backup]
    start = 1 / (1 + math.exp(beta * (g * value - 10 * g**11)))  # both moves are logged three times

    p = kl_optimum(data, MultiGoal(5), beta, g, backup)
    np.testing.assert_allclose(p[5], [1 - start, 0, start, 0], atol=1e-12)
    np.testing.assert_allclose(p[11 + 5], [0, 0, tilt, 1 - tilt], atol=1e-12)
    np.testing.assert_allclose(p[6], 0.25)  # (6, 0) is not in the data
    out = propagate(MultiGoal(5), p)
    far_share = (1 - start) * (1 - tilt)
    np.testing.assert_allclose(out.shares, [0, 1 - far_share, 0, 0, far_share, 0], atol=1e-12)


@pytest.mark.parametrize("backup", ["boltzmann", "soft", "mean"])
def test_optimum_agrees_with_a_recursion_over_the_logged_rows(backup):
    # The logged walks contain no cycle, so the fixed point is a plain recursion over the rows themselves.
    beta, gamma, data = 5.0, 0.99, collect_multigoal(5)
    rows: dict[bytes, dict[int, tuple[int, float, bytes]]] = {}
    for seen, a, r, after, end in zip(
        data.observation, data.action[:, 0], data.reward[:, 0], data.next_observation, data.terminated
    ):
        there = rows.setdefault(seen.tobytes(), {})
        there[int(a)] = (there.get(int(a), (0,))[0] + 1, float(r), b"" if end else after.tobytes())

    @functools.cache
    def solve(cell: bytes) -> tuple[float, dict[int, float]]:
        if not cell:
            return 0.0, {}
        total = sum(n for n, _, _ in rows[cell].values())
        mu = {a: n / total for a, (n, _, _) in rows[cell].items()}
        q = {a: r + gamma * solve(after)[0] for a, (_, r, after) in rows[cell].items()}
        weight = {a: mu[a] * math.exp(beta * q[a]) for a in mu}
        c = sum(weight.values())
        p = {a: w / c for a, w in weight.items()}
        value = {
            "boltzmann": sum(p[a] * q[a] for a in p),
            "soft": math.log(c) / beta,
            "mean": sum(mu[a] * q[a] for a in mu),
        }
        return value[backup], p

    env = MultiGoal(5)
    result = kl_optimum(data, env, beta, gamma, backup)
    for cell, seen in enumerate(env.table().observations):
        expected = solve(seen.tobytes())[1] if seen.tobytes() in rows else dict.fromkeys(range(4), 0.25)
        np.testing.assert_allclose(result[cell], [expected.get(a, 0.0) for a in range(4)], atol=1e-11)


def test_equal_goals_leave_the_behaviour_as_it_is():
    # With two goals every logged way from a cell is equally long, so exp(βQ) cancels whatever β is.
    data, env = collect_multigoal(2), MultiGoal(2)
    mu = behaviour(env, data)
    seen = mu.any(1)
    for beta in (0.1, 5.0, 1e6):
        np.testing.assert_allclose(kl_optimum(data, env, beta, 0.99)[seen], mu[seen], atol=1e-6)


@pytest.mark.parametrize("backup", ["boltzmann", "soft"])
def test_large_beta_takes_a_shortest_way_only(backup):
    out = propagate(MultiGoal(3), kl_optimum(collect_multigoal(3), MultiGoal(3), 1e5, 0.99, backup))
    np.testing.assert_allclose(out.shares, [0, 1, 0, 0], atol=1e-9)
    assert out.visits.sum() == pytest.approx(13.0)  # 12 moves


def test_cycles_in_the_data_converge_to_the_solution_of_the_linear_equation():
    # Two of five moves at the start run into the wall below: for "mean", V = 2/5 γ V + 3/5 · 10 γ^11.
    g, beta = 0.9, 2.0
    way = [LEFT, LEFT] + [UP] * 10
    p = kl_optimum(log([DOWN, *way], [DOWN, *way], way), MultiGoal(5), beta, g, "mean")
    value = 0.6 * 10 * g**11 / (1 - 0.4 * g)
    weight = [0.4 * math.exp(beta * g * value), 0.6 * math.exp(beta * 10 * g**11)]
    np.testing.assert_allclose(p[5], [0, weight[0] / sum(weight), weight[1] / sum(weight), 0], atol=1e-11)


def test_no_value_is_taken_from_beyond_a_goal():
    # Rows logged past the goal at x = 3, on to the one at x = 1, give the goal's cell a value of no account.
    near, far = [LEFT, LEFT] + [UP] * 10, [RIGHT] * 4 + [UP] * 10
    p = kl_optimum(log([*near, LEFT, LEFT], far), MultiGoal(5), 1.0, 0.99)
    left = 1 / (1 + math.exp(10 * 0.99**13 - 10 * 0.99**11))
    np.testing.assert_allclose(p[5], [0, 0, left, 1 - left], atol=1e-12)


def test_bad_arguments_are_refused_in_a_sentence():
    data, env = log([LEFT, LEFT] + [UP] * 10), MultiGoal(5)
    with pytest.raises(QDFMError, match="did you mean 'boltzmann'"):
        kl_optimum(data, env, 5.0, 0.99, "boltzman")
    with pytest.raises(QDFMError, match="beta is 0"):
        kl_optimum(data, env, 0.0, 0.99)
    with pytest.raises(QDFMError, match="The task has 1 objectives; give a preference with a weight for each"):
        exact.kl_optimum(env.table(), behaviour(env, data), 1.0, 0.99, preference=np.array([0.5, 0.5]))


def test_stochastic_outcomes_discounts_and_a_preference_by_hand():
    # From state 0, action 0 pays (1, 0) and ends with probability .25, else comes back; action 1 pays (0, 2), moves on
    # to state 1, where everything pays (0, 1) and ends.
    next_state = np.array([[[0, 0], [1, 1]], [[1, 1], [1, 1]]])
    probability = np.array([[[0.25, 0.75], [1, 0]], [[1, 0], [1, 0]]])
    reward = np.zeros((2, 2, 2, 2))
    reward[0, 0], reward[0, 1], reward[1] = (1, 0), (0, 2), (0, 1)
    ended = np.array([[[True, False], [False, False]], [[True, True], [True, True]]])
    table = Tabular(np.eye(2), 0, next_state, probability, reward, ended, horizon=400)
    g, p = 0.9, np.array([[0.5, 0.5], [0.5, 0.5]])
    back = 0.5 * 0.75  # the probability of being in state 0 once more
    out = exact.carry(table, p)
    np.testing.assert_allclose(out.expected_return, np.array([0.5, 0.5 * 3]) / (1 - back), atol=1e-12)
    assert out.running == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(out.visits, [1 / (1 - back) + 0.5 * 0.25 / (1 - back), 2 * 0.5 / (1 - back)], atol=1e-12)

    other = np.array([[0.2, 0.8], [0.5, 0.5]])
    together = exact.expected_returns(table, np.stack([p, other]), g)
    by_hand = [np.array([a, (1 - a) * (2 + g)]) / (1 - g * a * 0.75) for a in (0.5, 0.2)]  # a: how often action 0
    np.testing.assert_allclose(together, by_hand, atol=1e-12)

    beta, omega = 2.0, np.array([0.4, 0.6])
    value, last = 0.0, 0.6
    for _ in range(2000):
        q = np.array([0.4 + g * 0.75 * value, 1.2 + g * last])
        law = np.exp(beta * q) / np.exp(beta * q).sum()
        value = law @ q
    np.testing.assert_allclose(exact.kl_optimum(table, p, beta, g, preference=omega)[0], law, atol=1e-11)
