"""CartPole beside Gymnasium's CartPole-v1: from the same states, the same actions lead to the same states."""

import gymnasium
import jax
import numpy as np

from qdfm.envs.cartpole import CartPole

KEY = jax.random.key(0)


def test_every_step_is_gymnasiums():
    theirs = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    ours, generator, ends = CartPole(), np.random.default_rng(0), 0
    reset, step = jax.jit(ours.reset), jax.jit(ours.step)
    state = reset(KEY)
    for t in range(400):
        action = int(generator.integers(2))
        theirs.state = np.asarray(state, np.float64)
        theirs.steps_beyond_terminated = None
        seen, reward, ended, _, _ = theirs.step(action)
        moved = step(state, np.array([action]), KEY)
        np.testing.assert_allclose(moved.state, theirs.state, atol=1e-5)
        np.testing.assert_allclose(ours.observation(moved.state), seen, atol=1e-5)
        assert (moved.reward.tolist(), bool(moved.terminated)) == ([reward], ended)
        ends += ended
        state = reset(jax.random.fold_in(KEY, t)) if ended else moved.state
    assert ends > 5


def test_either_end_of_the_track_and_either_side_end_it():
    step = jax.jit(CartPole().step)
    for state, ended in (
        ((2.41, 0, 0, 0), True),
        ((-2.41, 0, 0, 0), True),
        ((2.39, 0, 0, 0), False),
        ((0, 0, 0.21, 0), True),
        ((0, 0, -0.21, 0), True),
        ((0, 0, -0.209, 0), False),
    ):
        assert bool(step(np.array(state, np.float32), np.array([0]), KEY).terminated) == ended


def test_first_states_spec_and_horizon():
    env, theirs = CartPole(), gymnasium.make("CartPole-v1")
    first = np.asarray(jax.vmap(env.reset)(jax.random.split(KEY, 2000)))
    assert np.abs(first).max() <= 0.05
    np.testing.assert_allclose(first.mean(0), 0, atol=0.004)
    np.testing.assert_allclose(first.std(0), 0.05 / np.sqrt(3), rtol=0.05)
    assert env.spec.observation_shape == theirs.observation_space.shape
    assert env.spec.choices == (theirs.action_space.n,)
    assert env.mask(first[0]).tolist() == [[True, True]]
    assert env.horizon == theirs.spec.max_episode_steps
