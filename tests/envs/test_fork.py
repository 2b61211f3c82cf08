"""The fork against its description."""

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.envs.fork import Fork


def test_outcome_and_payoff_of_every_cell():
    env = Fork()
    for x in range(9):
        for y in range(7):
            ending = {(0, 6): (10, 0), (8, 6): (0, 10)}.get((x, y), (-10, -10) if x == 4 and y >= 2 else None)
            outcome = int(env.outcome(jnp.array([x, y])))
            assert (outcome < 0) == (ending is None)
            assert ending is None or tuple(env.payoffs[outcome]) == ending


def test_start_horizon_and_a_few_moves():
    env, key = Fork(), jax.random.key(0)
    assert env.reset(key).tolist() == [4, 0]
    assert env.horizon == 40
    assert env.spec.objectives == 2
    assert env.spec.observation_shape == (16,)
    up, down, left, right = ([a] for a in range(4))
    for cell, action, expected in (
        ((4, 1), up, ((4, 2), [-10, -10], True)),
        ((3, 6), left, ((2, 6), [0, 0], False)),
        ((1, 6), left, ((0, 6), [10, 0], True)),
        ((7, 6), right, ((8, 6), [0, 10], True)),
        ((8, 0), right, ((8, 0), [0, 0], False)),
        ((4, 0), down, ((4, 0), [0, 0], False)),
    ):
        step = env.step(jnp.array(cell), jnp.array(action), key)
        assert (tuple(step.state.tolist()), step.reward.tolist(), bool(step.terminated)) == expected
    seen = np.asarray(env.observation(jnp.array([3, 5])))
    assert np.flatnonzero(seen).tolist() == [3, 9 + 5]
