"""Exact Pareto fronts against enumeration of all policies, hand calculation and scalar value iteration."""

import itertools

import numpy as np
import pytest

from qdfm.envs.pareto import pareto_front
from qdfm.envs.tabular import Tabular


def process(next_state, reward, terminated=None, probability=None, horizon=100, start=0) -> Tabular:
    """A process from nested lists; without probabilities every action has the one outcome."""
    next_state, reward = np.array(next_state), np.array(reward, float)
    if probability is None:
        next_state, reward, probability = next_state[..., None], reward[..., None, :], np.ones((*next_state.shape, 1))
        terminated = None if terminated is None else np.array(terminated)[..., None]
    ends = np.zeros(next_state.shape, bool) if terminated is None else np.array(terminated, bool)
    observations = np.arange(len(next_state), dtype=np.float32)[:, None]
    return Tabular(observations, start, next_state, np.array(probability, float), reward, ends, horizon)


def random_process(seed: int, states: int, actions: int, objectives: int, horizon: int) -> Tabular:
    rng = np.random.default_rng(seed)
    shape = (states, actions, 2)
    probability = rng.dirichlet([1, 1], shape[:2])
    probability[rng.uniform(size=shape[:2]) < 0.2] = [0.0, 1.0]
    terminated = rng.uniform(size=shape) < 0.2
    reward = rng.normal(size=(*shape, objectives))
    return process(
        rng.integers(states, size=shape), reward, terminated, probability, horizon, int(rng.integers(states))
    )


def returns_of_all_policies(env: Tabular, gamma: float) -> np.ndarray:
    """The return of every mapping from histories (what came out so far) to actions, by forward simulation."""
    outcomes = range(env.next_state.shape[2])
    histories = [h for length in range(env.horizon) for h in itertools.product(outcomes, repeat=length)]
    returns = []
    for actions in itertools.product(range(env.next_state.shape[1]), repeat=len(histories)):
        policy = dict(zip(histories, actions))
        total, alive = np.zeros(env.objectives), [((), env.start, 1.0)]
        for t in range(env.horizon):
            later = []
            for history, state, chance in alive:
                for o in outcomes:
                    at = (state, policy[history], o)
                    p = chance * env.probability[at]
                    total += gamma**t * p * env.reward[at]
                    if p > 0 and not env.terminated[at]:
                        later.append(((*history, o), int(env.next_state[at]), p))
            alive = later
        returns.append(total)
    return np.array(returns)


def undominated(points: np.ndarray) -> np.ndarray:
    points = np.unique(np.round(points, 9), axis=0)
    worse = (points[:, None] <= points).all(-1) & (points[:, None] < points).any(
        -1
    )  # [n, n]: the first than the second
    return points[~worse.any(1)]


@pytest.mark.parametrize("gamma", [1.0, 0.8])
@pytest.mark.parametrize(
    ("states", "actions", "objectives", "horizon"), [(3, 2, 2, 3), (3, 2, 3, 3), (4, 3, 2, 2), (2, 3, 3, 3)]
)
def test_front_is_that_of_all_policies(states, actions, objectives, horizon, gamma):
    sizes = []
    for seed in range(2):
        env = random_process(seed, states, actions, objectives, horizon)
        front = pareto_front(env, gamma)
        expected = undominated(returns_of_all_policies(env, gamma))
        assert front.shape == expected.shape
        np.testing.assert_allclose(front, expected, atol=1e-8)  # both sorted by the first objective
        sizes.append(len(front))
    assert max(sizes) > 3


@pytest.mark.parametrize(("objectives", "horizon"), [(2, 4), (3, 3)])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_best_of_the_front_is_scalar_value_iteration(objectives, horizon, gamma):
    env = random_process(7, 5, 3, objectives, horizon)
    front = pareto_front(env, gamma)
    for w in np.random.default_rng(0).dirichlet(np.ones(objectives), 20):
        value = np.zeros(5)
        for _ in range(horizon):
            onward = np.where(env.terminated, 0.0, value[env.next_state])
            value = (env.probability * (env.reward @ w + gamma * onward)).sum(-1).max(1)
        assert (front @ w).max() == pytest.approx(value[env.start], abs=1e-8)


APART = [[1.0, 0.0], [0.0, 1.0]]


def chain(horizon: int) -> Tabular:
    """Three states in a row, in each of which one of two objectives is served."""
    return process([[1, 1], [2, 2], [0, 0]], [APART] * 3, [[0, 0], [0, 0], [1, 1]], horizon=horizon)


def test_chain_by_hand():
    # The first objective has any sum of some of 1, ½, ¼, the second the rest.
    first = np.arange(8) / 4
    np.testing.assert_array_equal(pareto_front(chain(100), 0.5), np.stack([first, 1.75 - first], 1))
    np.testing.assert_array_equal(pareto_front(chain(100), 1.0), [[0, 3], [1, 2], [2, 1], [3, 0]])
    np.testing.assert_array_equal(pareto_front(chain(2), 1.0), [[0, 2], [1, 1], [2, 0]])
    np.testing.assert_array_equal(pareto_front(chain(1), 1.0), [[0, 1], [1, 0]])


def test_going_round_for_nothing_adds_nothing():
    # Two states, from each of which one can go to the other, stay, or leave with a reward.
    next_state = [[0, 1, 0], [1, 0, 1]]
    reward = [[[0, 0], [0, 0], [1, 0]], [[0, 0], [0, 0], [0, 1]]]
    env = process(next_state, reward, [[0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(pareto_front(env, 1.0), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(pareto_front(env, 0.5), [[0, 0.5], [1, 0]])


def test_going_round_for_something_ends_at_the_horizon():
    # Six steps: all of them waiting, or five and then leaving.
    env = process([[0, 0]], [[[0, 1], [10, 0]]], [[0, 1]], horizon=6)
    np.testing.assert_array_equal(pareto_front(env, 1.0), [[0, 6], [10, 5]])
    # Every step waited trades one objective for the other: none to six of them.
    grows = process([[0, 0]], [[[1, -1], [0, 0]]], [[0, 1]], horizon=6)
    np.testing.assert_array_equal(pareto_front(grows, 1.0), [[k, -k] for k in range(7)])


def test_a_policy_tells_apart_what_it_saw():
    # From state 0 chance leads to state 1 twice over; there one of two objectives is served.
    def front(rewards):
        reward = np.array([[rewards] * 2, [[[1, 0]] * 2, [[0, 1]] * 2]])
        probability = [[[0.5, 0.5]] * 2, [[1.0, 0.0]] * 2]
        terminated = [[[0, 0]] * 2, [[1, 1]] * 2]
        return pareto_front(process([[[1, 1]] * 2, [[0, 0]] * 2], reward, terminated, probability), 1.0)

    np.testing.assert_array_equal(front([[0, 0], [0, 0]]), [[0, 1], [1, 0]])
    # With a reward that says which way it was, the two ways can be served differently.
    np.testing.assert_array_equal(front([[2, 2], [0, 0]]), [[1, 2], [1.5, 1.5], [2, 1]])
