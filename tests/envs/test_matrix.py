"""The matrix game against its description: every step, and the law of the behaviour."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.envs.matrix import Matrix, behaviour


def pay(a: int, b: int) -> tuple[float, float]:
    return (8.0, -3.35) if a == b else (-2.0, 0.0)


def law(s: int, a: int, b: int) -> float:
    """The behaviour told again: a preferred pair, then each agent on its own."""

    def alone(part: int, action: int) -> float:
        return 0.905 if action == part else 0.0475

    return 0.945 * alone(s, a) * alone(s, b) + 0.055 * alone(1 - s, a) * alone(1 - s, b)


def test_every_step_and_what_is_seen():
    env, key = Matrix(), jax.random.key(0)
    spec = env.spec
    assert (spec.agents, spec.choices, spec.objectives, env.horizon) == (2, (3, 3), 2, 1)
    assert (spec.observation_shape, spec.state_shape) == ((2, 2), (2,))
    step = jax.jit(env.step)
    for s in range(2):
        assert env.observation(jnp.int32(s)).tolist() == [[s == 0, s == 1]] * 2
        assert env.global_state(jnp.int32(s)).tolist() == [s == 0, s == 1]
        assert np.asarray(env.mask(jnp.int32(s))).tolist() == [[True] * 3] * 2
        for a in range(3):
            for b in range(3):
                after = step(jnp.int32(s), jnp.array([a, b]), key)
                np.testing.assert_allclose(after.reward, pay(a, b), rtol=1e-6)
                assert bool(after.terminated)
    contexts = jax.vmap(env.reset)(jax.random.split(key, 2000))
    assert abs(int(contexts.sum()) - 1000) < 4 * math.sqrt(500)
    assert set(contexts.tolist()) == {0, 1}


def test_the_law_of_the_behaviour():
    told = [[[law(s, a, b) for b in range(3)] for a in range(3)] for s in range(2)]
    np.testing.assert_allclose(behaviour(), told, rtol=1e-12)
    np.testing.assert_allclose(behaviour().sum((1, 2)), 1, rtol=1e-12)
