"""Rate parameterisations against their formulas; never an illegal choice, never a NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.flow.rates import PARAMETERISATIONS, log_posterior, off_diagonal
from qdfm.flow.samplers import jump_law

SCORES = np.random.default_rng(3).normal(0, 2, (6, 2, 4))
LEGAL = np.array([[1, 1, 1, 1], [1, 0, 1, 0]], bool)
CURRENT = np.array([[0, 0], [1, 2], [2, 0], [3, 2], [0, 2], [1, 0]])
ARRIVED = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [0, 1], [1, 0]], bool)
TIMES = np.array([0, 0.1, 0.5, 0.9, 0.95, 0.99])


def reference(name: str, masked: bool, current: np.ndarray) -> np.ndarray:
    """The formulas, entry by entry."""
    out = np.zeros(SCORES.shape)
    for b, d, a in np.ndindex(*SCORES.shape):
        stays = current[b, d] != 4 if masked else current[b, d] == a
        if not LEGAL[d, a] or stays:
            continue
        g = SCORES[b, d]
        out[b, d, a] = np.log1p(np.exp(g[a]))
        if name in ("posterior", "energy"):
            out[b, d, a] = np.exp(g[a]) / np.exp(g[LEGAL[d]]).sum() / (1 - TIMES[b])
    return out


@pytest.mark.parametrize("name", PARAMETERISATIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_rates_are_their_formulas(x64, name, masked):
    current = np.where(ARRIVED, CURRENT, 4) if masked else CURRENT
    scores, t, legal = jnp.asarray(SCORES), jnp.asarray(TIMES), jnp.asarray(LEGAL)
    rates = off_diagonal(name, scores, jnp.asarray(current), t, legal, masked)
    assert rates.dtype == jnp.float64
    np.testing.assert_allclose(rates, reference(name, masked, current), rtol=1e-12, atol=0)
    assert np.all(np.asarray(rates)[:, 1, ~LEGAL[1]] == 0)


def test_posterior_rates_never_need_the_clamp(x64):
    scores, current, legal = jnp.asarray(SCORES), jnp.asarray(CURRENT), jnp.asarray(LEGAL)
    for steps in (1, 5, 20):
        for n in range(steps):
            t = jnp.full(6, n / steps)
            rates = off_diagonal("posterior", scores, current, t, legal)
            assert float(rates.sum(-1).max()) / steps <= 1 + 1e-12
            np.testing.assert_allclose(jump_law(rates, 1 / steps), rates / steps, rtol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", PARAMETERISATIONS)
def test_every_parameterisation_gives_a_generator(x64, name, masked):
    """Columns of a whole generator: with minus their sum on the diagonal, nothing else is negative."""
    states, k = 4 + masked, 4
    current = np.stack([np.arange(states)] * 2, -1)
    scores = jnp.asarray(np.random.default_rng(4).normal(0, 2, (states, 2, k)))
    args = jnp.asarray(current), jnp.full(states, 0.3), jnp.asarray(LEGAL)
    rates = np.asarray(off_diagonal(name, scores, *args, masked))  # [x, D, y]
    assert rates.min() >= 0
    assert np.all(rates[:, 1, ~LEGAL[1]] == 0)
    for d in range(2):
        u = np.zeros((states, states))
        u[:k] = rates[:, d].T
        assert np.all(np.diag(u) == 0)
        u -= np.diag(u.sum(0))
        np.testing.assert_allclose(u.sum(0), 0, atol=1e-12)
        assert np.array_equal(np.diag(u) < 0, np.arange(states) == 4 if masked else np.ones(4, bool))


@pytest.mark.parametrize("choices", [2, 7, 256, 1024])
def test_fresh_softplus_rates_leave_at_rate_one(choices):
    for name in ("softplus", "diffuse"):
        bias = PARAMETERISATIONS[name].bias(choices)
        assert (choices - 1) * np.log1p(np.exp(bias)) == pytest.approx(1, rel=1e-12)
    assert PARAMETERISATIONS["posterior"].bias(choices) == PARAMETERISATIONS["energy"].bias(choices) == 0


def test_a_single_choice_has_a_finite_bias():
    assert np.isfinite(PARAMETERISATIONS["softplus"].bias(1))


@pytest.mark.parametrize("name", PARAMETERISATIONS)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_gradients_stay_finite_with_illegal_choices_and_large_scores(name, size):
    scores = jnp.asarray(size * SCORES, jnp.float32)
    args = jnp.asarray(CURRENT), jnp.asarray(TIMES, jnp.float32), jnp.asarray(LEGAL)
    value, gradient = jax.value_and_grad(lambda s: jnp.sum(off_diagonal(name, s, *args)))(scores)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert np.all(np.asarray(gradient)[:, 1, ~LEGAL[1]] == 0)


def test_log_posterior_normalises_over_the_legal_choices(x64):
    p = np.exp(log_posterior(jnp.asarray(SCORES), jnp.asarray(LEGAL)))
    assert np.all(p[:, 1, ~LEGAL[1]] == 0)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-14)
    shifted = np.exp(log_posterior(jnp.asarray(SCORES) + 1e3, jnp.asarray(LEGAL)))
    np.testing.assert_allclose(shifted, p, rtol=1e-9)
