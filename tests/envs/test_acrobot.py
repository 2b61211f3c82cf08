"""Acrobot beside Gymnasium's Acrobot-v1: from the same states, the same actions lead to the same states."""

import gymnasium
import jax
import numpy as np

from qdfm.envs.acrobot import Acrobot

KEY = jax.random.key(0)


def test_every_step_is_gymnasiums():
    theirs = gymnasium.make("Acrobot-v1").unwrapped
    theirs.reset(seed=0)
    ours, generator, ends, fast = Acrobot(), np.random.default_rng(0), 0, 0
    reset, step, observe = jax.jit(ours.reset), jax.jit(ours.step), jax.jit(ours.observation)
    state = reset(KEY)
    for t in range(600):
        # Pumping swings it up again and again; every tenth state is anywhere, to meet every limit.
        action = int(generator.integers(3)) if generator.random() < 0.3 else int(1 + np.sign(state[3]))
        if t % 10 == 9:
            state = generator.uniform([-np.pi, -np.pi, -12, -28], [np.pi, np.pi, 12, 28]).astype(np.float32)
        theirs.state = np.asarray(state, np.float64)
        seen, reward, ended, _, _ = theirs.step(action)
        moved = step(state, np.array([action]), KEY)
        np.testing.assert_allclose(observe(moved.state), seen, atol=3e-4)
        np.testing.assert_allclose(moved.state[2:], theirs.state[2:], atol=3e-4)
        assert np.abs(moved.state[:2]).max() <= np.pi + 1e-6
        assert (moved.reward.tolist(), bool(moved.terminated)) == ([reward], ended)
        ends += ended
        fast += bool(np.any(np.abs(theirs.state[2:]) == [theirs.MAX_VEL_1, theirs.MAX_VEL_2]))
        state = reset(jax.random.fold_in(KEY, t)) if ended else moved.state
    assert ends > 5
    assert fast > 2


def test_first_states_spec_and_horizon():
    env, theirs = Acrobot(), gymnasium.make("Acrobot-v1")
    first = np.asarray(jax.vmap(env.reset)(jax.random.split(KEY, 2000)))
    assert np.abs(first).max() <= 0.1
    np.testing.assert_allclose(first.mean(0), 0, atol=0.008)
    np.testing.assert_allclose(first.std(0), 0.1 / np.sqrt(3), rtol=0.05)
    assert env.spec.observation_shape == theirs.observation_space.shape
    assert env.spec.choices == (theirs.action_space.n,)
    assert env.mask(first[0]).tolist() == [[True, True, True]]
    assert env.horizon == theirs.spec.max_episode_steps
