"""Propagation through a grid against enumeration, rollouts and the counts of the data."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.data.sources import load_dataset
from qdfm.envs.exact import kl_optimum
from qdfm.envs.multigoal import MultiGoal
from qdfm.experiments.grid_exact import behaviour, propagate

STEP = [(0, 1), (0, -1), (-1, 0), (1, 0)]


def move(x: int, y: int, action: int) -> tuple[int, int]:
    """The grid's rule, told again."""
    return min(max(x + STEP[action][0], 0), 10), min(max(y + STEP[action][1], 0), 10)


def test_short_horizon_agrees_with_enumeration():
    p = np.random.default_rng(0).dirichlet(np.ones(4), 121)
    visits, trap, timeout = np.zeros((11, 11)), 0.0, 0.0

    def go(x: int, y: int, left: int, weight: float) -> None:
        nonlocal trap, timeout
        visits[y, x] += weight
        if x == 5 and 3 <= y <= 9:
            trap += weight
        elif left == 0:
            timeout += weight
        else:
            for action in range(4):
                go(*move(x, y, action), left - 1, weight * p[y * 11 + x, action])

    go(5, 0, 6, 1.0)
    out = propagate(MultiGoal(2, horizon=6), p)
    assert trap > 0.01  # else the comparison says little
    assert out.shares[-1] == pytest.approx(trap, abs=1e-14)
    assert out.timeout == pytest.approx(timeout, abs=1e-14)
    assert out.expected_return == pytest.approx(-10 * trap, abs=1e-13)
    np.testing.assert_array_equal(out.shares[:-1], 0.0)
    np.testing.assert_allclose(out.visits, visits, atol=1e-14)


@pytest.mark.parametrize("goals", [3, 5])
def test_agrees_with_rollouts(goals):
    env, episodes = MultiGoal(goals), 20_000
    mu = behaviour(env, load_dataset(f"multigoal-{goals}"))
    p = 0.95 * kl_optimum(env.table(), mu, 5.0, 0.99) + 0.05 / 4
    log_p = jnp.log(jnp.asarray(p))

    def episode(key):
        def body(carry, step_key):
            state, over = carry
            action = jax.random.categorical(step_key, log_p[state[1] * 11 + state[0]])
            step = env.step(state, action[None], step_key)
            state = jnp.where(over, state, step.state)
            return (state, over | step.terminated), jnp.where(over, 0.0, step.reward[0])

        (state, _), rewards = jax.lax.scan(body, (env.reset(key), False), jax.random.split(key, env.horizon))
        return env.outcome(state), rewards.sum()

    outcome, returns = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1), episodes))
    sampled = np.bincount(np.asarray(outcome) + 1, minlength=goals + 2) / episodes
    out = propagate(env, p)
    law = np.r_[out.timeout, out.shares]
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert out.shares[-1] > 0.005
    assert (np.abs(sampled - law) <= 4 * np.sqrt(law * (1 - law) / episodes) + 1e-9).all()
    assert abs(np.mean(returns) - out.expected_return) <= 4 * np.std(returns) / math.sqrt(episodes)


@pytest.mark.parametrize("goals", [2, 3, 4, 5])
def test_behaviour_reproduces_the_data(goals):
    # What flows into a cell flows out again, so the counted policy visits every cell as often as the data.
    data = load_dataset(f"multigoal-{goals}")
    out = propagate(MultiGoal(goals), behaviour(MultiGoal(goals), data))
    np.testing.assert_allclose(out.shares, [1 / goals] * goals + [0], atol=1e-12)
    assert out.shares[-1] == out.timeout == 0
    assert out.expected_return == pytest.approx(10.0, abs=1e-12)
    assert out.visits.sum() == pytest.approx(1 + len(data) / (250 * goals), abs=1e-11)
    x, y = data.observation[:, :11].argmax(1), data.observation[:, 11:].argmax(1)
    counted = np.bincount(y * 11 + x, minlength=121).reshape(11, 11) / (250 * goals)
    inner = counted > 0
    np.testing.assert_allclose(out.visits[inner], counted[inner], atol=1e-12)
