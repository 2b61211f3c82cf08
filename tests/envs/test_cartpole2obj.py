"""The two-objective CartPole: switches counted by hand, and the cart itself beside the one of a single objective."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import BC
from qdfm.envs.base import JaxEnv
from qdfm.envs.cartpole import CartPole
from qdfm.envs.cartpole2obj import CartPole2Obj, State
from qdfm.envs.simulate import record

KEY = jax.random.key(0)
PUSHES = (1, 1, 0, 1, 0, 0, 0, 1, 1)


@pytest.fixture(scope="module")
def episode() -> tuple[list[State], list[np.ndarray]]:
    """The states and rewards of PUSHES."""
    env = CartPole2Obj()
    step = jax.jit(env.step)
    states, rewards = [env.reset(KEY)], []
    for push in PUSHES:
        moved = step(states[-1], np.array([push]), KEY)
        assert not moved.terminated
        states.append(moved.state)
        rewards.append(np.asarray(moved.reward))
    return states, rewards


def test_switches_by_hand(episode):
    _, rewards = episode
    # 1 1 0 1 0 0 0 1 1: the first push is free, then the third, fourth, fifth and eighth differ from the one before.
    assert np.stack(rewards).tolist() == [[1, -cost] for cost in (0, 0, 1, 1, 1, 0, 0, 1, 0)]


def test_the_cart_moves_as_with_one_objective(episode):
    states, _ = episode
    one = CartPole()
    step, state = jax.jit(one.step), one.reset(KEY)
    np.testing.assert_array_equal(states[0].cart, state)
    for push, seen in zip(PUSHES, states[1:], strict=True):
        state = step(state, np.array([push]), KEY).state
        np.testing.assert_allclose(seen.cart, state, rtol=1e-6)


def test_the_observation_remembers_the_last_push(episode):
    states, _ = episode
    env = CartPole2Obj()
    for state, expected in zip(states, ([0, 0], *([1 - push, push] for push in PUSHES)), strict=True):
        np.testing.assert_array_equal(env.observation(state), [*np.asarray(state.cart), *expected])


def test_it_ends_where_the_cart_ends():
    step = jax.jit(CartPole2Obj().step)
    for theta, ended in ((0.21, True), (-0.21, True), (0.2, False)):
        state = State(jnp.array([0, 0, theta, 0]), jnp.int32(1))
        assert bool(step(state, np.array([0]), KEY).terminated) == ended


def test_whole_episodes():
    """Always right: no switch, and a fall. Left and right in turn: a switch at every step but the first."""
    env = CartPole2Obj()
    assert isinstance(env, JaxEnv)
    rows = jnp.arange(20) < 10

    def act(uniforms, observation, mask, carry):
        assert mask.shape == (20, 1, 2)
        return jnp.where(rows, 1, observation[:, 4])[:, None].astype(jnp.int32), carry

    _, reward, running, terminated, _ = jax.jit(lambda key: record(env, act, 1, 20, key))(KEY)
    returns, lengths = np.asarray(reward.sum(0)), np.asarray(running.sum(0))
    assert terminated.all()
    np.testing.assert_array_equal(returns[:, 0], lengths)
    np.testing.assert_array_equal(returns[:, 1], np.where(rows, 0, 1 - lengths))
    assert 8 <= lengths[:10].min() <= lengths[:10].max() <= 11  # 12 degrees at about 14.6 rad/s², 20 ms a step: 9 or 10


def test_by_name():
    env = CartPole2Obj()
    assert (env.spec.objectives, env.spec.choices, env.horizon) == (2, (2,), 500)
    config = BC(hidden=(4,))
    algorithm = config.build(env.spec)
    agent = Agent(config, env.spec, algorithm.policy(algorithm.init(KEY)))
    played = qdfm.evaluate(agent, "cartpole-2obj", episodes=3, preference=[0.5, 0.5])
    np.testing.assert_array_equal(played.returns[:, 0], played.lengths)
