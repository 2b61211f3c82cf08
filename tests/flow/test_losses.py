"""Theorem 1 and what follows from it, by enumeration: guided marginals and the collapsed objective."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.flow import losses
from qdfm.flow.losses import TIME_WEIGHTS, Matching

DIVERGENCES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "l2": losses.squared_l2,
    "l2 without diagonal": lambda y, v: losses.squared_l2(y, v, diagonal=False),
    "kl": losses.generalised_kl,
    "cross_entropy": lambda y, v: losses.cross_entropy(y, jax.nn.log_softmax(v, -1)),
}
MATCHINGS = [
    ("posterior", "cross_entropy", True),
    ("posterior", "l2", True),
    ("posterior", "l2", False),
    ("posterior", "kl", True),
    ("softplus", "l2", True),
    ("softplus", "l2", False),
    ("softplus", "kl", True),
]


def test_divergences_are_their_formulas(x64):
    rng = np.random.default_rng(0)
    y, v = rng.gamma(1, size=(2, 4, 2, 5))
    y[:, :, 1] = 0
    gap = y - v
    diagonal = -y.sum(-1) + v.sum(-1)
    np.testing.assert_allclose(losses.squared_l2(y, v, False), (gap**2).sum(-1), rtol=1e-13)
    np.testing.assert_allclose(losses.squared_l2(y, v), (gap**2).sum(-1) + diagonal**2, rtol=1e-13)
    positive = y > 0
    kl = np.where(positive, y * np.log(np.where(positive, y, 1) / v), 0) - y + v
    np.testing.assert_allclose(losses.generalised_kl(jnp.asarray(y), jnp.asarray(v)), kl.sum(-1), rtol=1e-12)
    np.testing.assert_allclose(losses.generalised_kl(jnp.asarray(v), jnp.asarray(v)), 0, atol=1e-14)
    np.testing.assert_allclose(losses.cross_entropy(y, np.log(v)), -(y * np.log(v)).sum(-1), rtol=1e-13)


def test_time_weights_are_their_formulas(x64):
    t = np.array([0, 0.3, 0.9, 0.99])
    np.testing.assert_array_equal(TIME_WEIGHTS["none"](t), 1)
    np.testing.assert_allclose(TIME_WEIGHTS["squared"](t), (1 - t) ** 2, rtol=1e-15)
    np.testing.assert_allclose(TIME_WEIGHTS["inverse"](t), [1, 1 / 0.7, 10, 20], rtol=1e-13)
    assert set(TIME_WEIGHTS) == {"none", "squared", "inverse"}


@pytest.mark.parametrize("name", DIVERGENCES)
def test_bregman_gradient_of_a_random_target_is_that_of_its_mean(x64, name):
    rng = np.random.default_rng(1)
    targets = jnp.asarray(rng.gamma(0.5, size=(7, 3, 4)) * (rng.random((7, 3, 4)) < 0.7))  # [outcome, D, K]
    if name == "cross_entropy":
        targets = jnp.asarray(rng.dirichlet(np.ones(4), (7, 3)))
    p = jnp.asarray(rng.dirichlet(np.ones(7)))
    v = jnp.asarray(rng.gamma(2, size=(3, 4)))
    gradient = jax.grad(lambda v, y: jnp.sum(DIVERGENCES[name](y, v)), 0)
    mean_of_gradients = jnp.einsum("n,ndk->dk", p, jnp.stack([gradient(v, y) for y in targets]))
    gradient_at_mean = gradient(v, jnp.einsum("n,ndk->dk", p, targets))
    assert float(jnp.abs(mean_of_gradients - gradient_at_mean).max()) < 1e-12
    assert float(jnp.abs(gradient_at_mean).max()) > 1e-2


@pytest.mark.parametrize(("rates", "loss", "diagonal"), MATCHINGS)
@pytest.mark.parametrize(("tokens", "k", "masked"), [(1, 4, False), (2, 3, False), (2, 2, True)])
def test_weighted_conditional_gradient_is_the_guided_marginal_one(x64, rates, loss, diagonal, tokens, k, masked):
    """Theorem 1, with a free table of scores for every state and time as the parameters."""
    rng = np.random.default_rng(2)
    ends = np.array(list(itertools.product(range(k), repeat=tokens)))
    starts = np.full((1, tokens), k) if masked else ends
    side = k + masked
    states = np.array(list(itertools.product(range(side), repeat=tokens)))
    pi = rng.dirichlet(np.ones(len(starts) * len(ends))).reshape(len(starts), len(ends))
    w = np.exp(rng.normal(size=len(ends)))
    w /= pi.sum(0) @ w  # E w(A1) = 1
    times = np.array([0.0, 0.4, 0.9])
    table = jnp.asarray(rng.normal(size=(len(times), len(states), tokens, k)))
    legal = jnp.ones((1, tokens, k), bool)

    # Every (A0, A1, which tokens have arrived), with its probability, and the posterior that follows
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, int, float]] = []
    p = np.zeros((len(times), len(states)))
    posterior = np.zeros((len(times), len(states), tokens, k))
    index = lambda a: int(np.ravel_multi_index(a, (side,) * tokens))  # noqa: E731
    for (i, a0), (j, a1), (n, t) in itertools.product(enumerate(starts), enumerate(ends), enumerate(times)):
        for arrived in itertools.product([False, True], repeat=tokens):
            chance = pi[i, j] * w[j] * np.prod(np.where(arrived, t, 1 - t))
            if chance == 0:
                continue
            here = index(np.where(arrived, a1, a0))
            p[n, here] += chance
            posterior[n, here, np.arange(tokens), a1] += chance
            rows.append((a0, a1, np.where(arrived, 0.0, 1.0), n, chance))
    a0, a1, uniforms, n, chance = (jnp.asarray(np.array(x)) for x in zip(*rows))
    t = jnp.asarray(times)[n]
    posterior /= np.maximum(p, 1e-300)[..., None, None]
    every = jnp.asarray(np.broadcast_to(states, (len(times), *states.shape)))
    grid = jnp.asarray(np.broadcast_to(times[:, None], p.shape))

    for time_weight in TIME_WEIGHTS:
        matching = Matching(rates, loss, diagonal, time_weight, masked)

        def conditional(table: jax.Array, matching: Matching = matching) -> jax.Array:
            def scores(current: jax.Array, _: jax.Array) -> jax.Array:
                here = jnp.ravel_multi_index(tuple(current.T), (side,) * tokens, mode="clip")
                return table[n, here]

            return chance @ losses.conditional(matching, scores, a0, a1, t, uniforms, legal)

        def guided(table: jax.Array, matching: Matching = matching) -> jax.Array:
            point = matching.point(jnp.asarray(posterior), table, every, grid, legal)
            return jnp.sum(jnp.asarray(p) * point)

        first, second = jax.jit(lambda s, f=conditional, g=guided: (jax.grad(f)(s), jax.grad(g)(s)))(table)
        if masked and loss != "cross_entropy":  # a token that has arrived has rates of its own nowhere
            arrived = every[..., None] != k
            assert float(jnp.abs(jnp.where(arrived, first, 0)).max()) == 0
        assert float(jnp.abs(first - second).max()) < 1e-12
        assert float(jnp.abs(first).max()) > 1e-3


@pytest.mark.parametrize(("rates", "loss", "diagonal"), MATCHINGS)
@pytest.mark.parametrize("masked", [False, True])
def test_collapsed_gradient_is_the_literal_one_in_expectation(x64, rates, loss, diagonal, masked):
    """One state, M = 5 endpoints with repeats; every outcome of either objective's uniforms by its chance."""
    k, m = 4, 5
    rng = np.random.default_rng(4)
    matching = Matching(rates, loss, diagonal, "squared", masked)
    table = jnp.asarray(rng.normal(size=(k + 1, 1, k)))
    start = k if masked else 1
    ends = jnp.asarray([2, 1, 2, 0, 1])[None, :, None]
    weights = jnp.asarray(rng.dirichlet(np.ones(m)))[None]

    def scores(table: jax.Array) -> losses.Scores:
        return lambda current, _: table[current[..., 0]]

    branches = np.array(list(itertools.product([0.0, 1.0], repeat=m)))  # uniform 0: arrived, 1: not

    def literal(table: jax.Array, t: jax.Array) -> jax.Array:
        rows = len(branches)
        chance = jnp.prod(jnp.where(branches == 0, t, 1 - t), 1)
        each = losses.literal(
            matching,
            scores(table),
            jnp.full((rows, 1), start),
            jnp.tile(ends, (rows, 1, 1)),
            jnp.tile(weights, (rows, 1)),
            jnp.full((rows, m), t),
            jnp.asarray(branches)[..., None],
            jnp.ones((rows, 1, k), bool),
        )
        return chance @ each

    law = np.zeros(k)
    np.add.at(law, np.asarray(ends)[0, :, 0], np.asarray(weights)[0])
    drawn = np.flatnonzero(law)  # one uniform in the middle of each endpoint's share
    middle = jnp.asarray((np.cumsum(law) - law / 2)[drawn])

    def collapsed(table: jax.Array, t: jax.Array) -> jax.Array:
        rows = len(drawn)
        endpoint = losses.endpoint_law(jnp.tile(ends, (rows, 1, 1)), jnp.tile(weights, (rows, 1)), k)
        each = losses.collapsed(
            matching,
            scores(table),
            jnp.full((rows, 1), start),
            endpoint,
            jnp.full(rows, t),
            middle,
            jnp.ones((rows, 1, k), bool),
        )
        return jnp.asarray(law[drawn]) @ each

    both = jax.jit(lambda s, t: (jax.grad(literal)(s, t), jax.grad(collapsed)(s, t)))
    for t in (0.0, 0.35, 0.9):
        first, second = both(table, t)
        assert float(jnp.abs(first - second).max()) < 1e-12
        assert float(jnp.abs(first).max()) > 1e-4


@pytest.mark.parametrize(("rates", "loss", "diagonal"), MATCHINGS)
def test_collapsed_at_start_is_collapsed_at_time_zero(x64, rates, loss, diagonal):
    rng = np.random.default_rng(5)
    matching = Matching(rates, loss, diagonal)
    table = jnp.asarray(rng.normal(size=(4, 1, 4)))
    a0 = jnp.asarray([[0], [3], [2]])
    law = jnp.asarray(rng.dirichlet(np.ones(4), (3, 1)))
    legal = jnp.ones((3, 1, 4), bool)
    u = jnp.asarray(rng.random(3))

    def whole(table: jax.Array) -> jax.Array:
        return losses.collapsed(matching, lambda a, _: table[a[..., 0]], a0, law, jnp.zeros(3), u, legal)

    def start(table: jax.Array) -> jax.Array:
        return losses.collapsed_at_start(matching, lambda a, _: table[a[..., 0]], a0, law, legal)

    np.testing.assert_allclose(start(table), whole(table), rtol=1e-14)
    first, second = jax.jit(lambda s: (jax.jacobian(start)(s), jax.jacobian(whole)(s)))(table)
    np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-14)
    if loss == "cross_entropy":
        log_p = np.log(np.exp(table) / np.exp(table).sum(-1, keepdims=True))[[0, 3, 2]]
        np.testing.assert_allclose(start(table), -(law * log_p).sum((1, 2)), rtol=1e-13)


def test_endpoint_law_counts_multiplicity(x64):
    a1 = jnp.asarray([[[2], [0], [2]], [[1], [1], [1]]])
    w = jnp.asarray([[0.2, 0.5, 0.3], [0.25, 0.25, 0.5]])
    law = losses.endpoint_law(a1, w, 4)
    np.testing.assert_allclose(law, [[[0.5, 0, 0.5, 0]], [[0, 1, 0, 0]]], atol=1e-15)


def test_illegal_choices_cost_nothing_and_stay_finite():
    legal = jnp.asarray([[[True, False, True]]])
    for rates, loss, diagonal in MATCHINGS:
        matching = Matching(rates, loss, diagonal)

        def value(scores: jax.Array, matching: Matching = matching) -> jax.Array:
            law = jnp.asarray([[[0.25, 0.0, 0.75]]])
            return matching.point(law, scores, jnp.asarray([[0]]), jnp.asarray([0.5]), legal)[0]

        one, other = jnp.asarray([[[0.3, -2.0, 1.0]]]), jnp.asarray([[[0.3, 50.0, 1.0]]])
        assert float(value(one)) == float(value(other))
        assert np.isfinite(jax.grad(value)(other)).all()
        assert float(jax.grad(value)(other)[0, 0, 1]) == 0
