"""The mixture path: its target generator, the Kolmogorov equation by enumeration, and its draws."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.flow.path import draw_source, draw_times, interpolate, one_hot, target_rates

TIMES = (0.0, 0.3, 0.75, 0.99)
BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def joint_generator(rates: np.ndarray) -> np.ndarray:
    """G[to, from] of the joint chain, token by token, from off-diagonal rates `[J, D, K]` of all states."""
    size, tokens, k = rates.shape
    states = list(itertools.product(range(k), repeat=tokens))
    generator = np.zeros((size, size))
    for i, here in enumerate(states):
        for d in range(tokens):
            for to in set(range(k)) - {here[d]}:
                there = (*here[:d], to, *here[d + 1 :])
                generator[states.index(there), i] += rates[i, d, to]
                generator[i, i] -= rates[i, d, to]
    return generator


def path_law(a: tuple[int, ...], a0: tuple[int, ...], a1: tuple[int, ...], t: float) -> tuple[float, float]:
    """p_t(a | a0, a1) of independent tokens and its derivative in t, from the definition."""
    each = [(1 - t) * (x == y) + t * (x == z) for x, y, z in zip(a, a0, a1)]
    slope = [float(x == z) - float(x == y) for x, y, z in zip(a, a0, a1)]
    change = sum(s * np.prod(each[:d] + each[d + 1 :]) for d, s in enumerate(slope))
    return float(np.prod(each)), float(change)


@pytest.mark.parametrize("t", TIMES)
def test_target_generator(x64, t):
    k = 5
    states = jnp.arange(k)[:, None]
    for a1 in range(k):
        endpoint = one_hot(jnp.full((k, 1), a1), k, jnp.float64)
        rates = np.asarray(target_rates(endpoint, states, jnp.full(k, t)))
        assert rates.dtype == np.float64
        generator = joint_generator(rates)
        assert np.all(rates >= 0)
        assert np.all(rates[np.arange(k), 0, np.arange(k)] == 0)  # what is returned is off-diagonal
        assert np.abs(generator.sum(0)).max() < 1e-12
        assert np.all(generator[:, a1] == 0)  # the endpoint absorbs
        expected = (np.outer(np.eye(k)[a1], np.ones(k)) - np.eye(k)) / (1 - t)
        assert np.abs(generator - expected).max() < 1e-12
        for a0 in range(k):
            p = (1 - t) * np.eye(k)[a0] + t * np.eye(k)[a1]
            assert np.abs(generator @ p - (np.eye(k)[a1] - np.eye(k)[a0])).max() < 1e-12


def couplings(size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Joint laws of (A0, A1) over `size` joint states."""
    p0, p1 = rng.dirichlet(np.ones(size), 2)
    return {
        "independent": np.outer(p0, p1),
        "dependent": rng.dirichlet(np.full(size * size, 0.3)).reshape(size, size),
        "uniform start": np.outer(np.full(size, 1 / size), p1),
    }


@pytest.mark.parametrize(("tokens", "k"), [(1, 5), (2, 3), (3, 2)])
@pytest.mark.parametrize("coupling", ["independent", "dependent", "uniform start"])
@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_marginal_rate_satisfies_the_forward_equation(x64, tokens, k, coupling, t):
    states = list(itertools.product(range(k), repeat=tokens))
    size = len(states)
    pi = couplings(size, np.random.default_rng(7))[coupling]
    p, change = np.zeros(size), np.zeros(size)
    posterior = np.zeros((size, tokens, k))  # of each token's endpoint, given the whole current action
    enumerated = np.zeros((size, tokens, k))  # the conditional rates averaged by hand
    for (i, a0), (j, a1) in itertools.product(enumerate(states), repeat=2):
        for n, a in enumerate(states):
            q, dq = path_law(a, a0, a1, t)
            p[n] += pi[i, j] * q
            change[n] += pi[i, j] * dq
            for d in range(tokens):
                posterior[n, d, a1[d]] += pi[i, j] * q
                enumerated[n, d, a1[d]] += pi[i, j] * q * (a[d] != a1[d]) / (1 - t)
    posterior /= p[:, None, None]
    enumerated /= p[:, None, None]
    rates = np.asarray(target_rates(jnp.asarray(posterior), jnp.asarray(states), jnp.full(size, t)))
    assert np.abs(rates - enumerated).max() < 1e-12
    assert np.abs(joint_generator(rates) @ p - change).max() < 1e-12
    assert np.abs(change).max() > 1e-3


def test_a_masked_token_is_nowhere_and_may_jump_anywhere():
    law = jnp.asarray([[0.2, 0.8]])
    assert np.array_equal(one_hot(jnp.asarray([2, 1]), 2), [[0, 0], [0, 1]])
    rates = target_rates(law, jnp.asarray([2]), jnp.asarray(0.5))
    np.testing.assert_allclose(rates, [[0.4, 1.6]], rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_times_stop_one_step_before_the_end(steps):
    t = np.asarray(draw_times(jnp.asarray([0.0, 0.5, BELOW_ONE]), steps))
    np.testing.assert_allclose(t, np.array([0, 0.5, 1]) * (1 - 1 / steps), atol=1e-7)
    assert t.max() <= np.float32(1 - 1 / steps)


def test_source_is_uniform_over_the_legal_choices():
    legal = jnp.asarray([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]], bool)
    u = (jnp.arange(60) + 0.5) / 60  # a grid divides exactly by 1, 3 and 6 choices
    tokens = np.asarray(draw_source(jnp.tile(u[:, None], 3), legal))
    counts = np.stack([np.bincount(tokens[:, d], minlength=6) for d in range(3)])
    assert np.array_equal(counts, [[0, 20, 20, 0, 20, 0], [10] * 6, [0, 0, 0, 60, 0, 0]])


def test_source_at_the_ends_of_the_unit_interval():
    legal = jnp.asarray([[0, 1, 1, 0], [1, 0, 0, 1]], bool)
    assert np.array_equal(draw_source(jnp.zeros(2), legal), [1, 0])
    assert np.array_equal(draw_source(jnp.full(2, BELOW_ONE), legal), [2, 3])
    many = jnp.asarray(np.arange(1000) < 999)[None]
    assert draw_source(jnp.full(1, BELOW_ONE), many)[0] == 998


def test_interpolation_arrives_token_by_token_with_probability_t():
    a0, a1 = jnp.asarray([[0, 1]]), jnp.asarray([[2, 3]])
    u = jnp.asarray([[0.2, 0.9], [0.9, 0.2], [0.2, 0.2], [0.9, 0.9]])
    at = interpolate(u, jnp.full(4, 0.5), a0, a1)
    assert np.array_equal(at, [[2, 1], [0, 3], [2, 3], [0, 1]])
    assert np.array_equal(interpolate(jnp.zeros((1, 2)), jnp.zeros(1), a0, a1), a0)  # at t = 0 nothing has
    grid = (jnp.arange(100)[:, None] + 0.5) / 100
    arrived = interpolate(grid, jnp.full(100, 0.37), jnp.zeros((100, 1), int), jnp.ones((100, 1), int))
    assert int(arrived.sum()) == 37
