"""The tilt μ·exp(βQ)/C: its weights, what the flow trained on them ends in, and its bias at finite M."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdfm.algorithms.guidance import SHARP, beta_for_share, effective_share, keep_supported, state_beta, tilt
from qdfm.flow import losses
from qdfm.flow.losses import Matching
from qdfm.flow.rates import off_diagonal
from qdfm.flow.samplers import exact_law

MU = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
Q = np.array([0.2, 1.0, -0.5, 1.4, 0.9])
BETA = 1.3
STEPS = 5


def boltzmann(mu: np.ndarray, strength: float) -> np.ndarray:
    """μ·exp(strength·Q)/C from the definition."""
    w = mu * np.exp(strength * Q)
    return w / w.sum()


# What training on weighted endpoints ends in, by enumeration


def weighted_loss(matching: Matching, endpoint: jax.Array, p0: np.ndarray, table: jax.Array) -> jax.Array:
    """The expected loss over starts, times n/N and endpoints of a law; the scores `[N, K, K]` are free."""
    k = len(p0)
    n, start, drawn = (x.ravel() for x in jnp.indices((STEPS, k, k)))
    each = losses.collapsed(
        matching,
        lambda current, t: table[jnp.round(t * STEPS).astype(int), current[:, 0]][:, None],
        start[:, None],
        jnp.broadcast_to(endpoint, (len(n), 1, k)),
        n / STEPS,
        (jnp.cumsum(endpoint) - endpoint / 2)[drawn],  # the uniform that draws this endpoint
        jnp.ones((len(n), 1, k), bool),
    )
    return jnp.sum(jnp.asarray(p0)[start] * endpoint[drawn] * each)


def minimiser(rates: str, endpoint: np.ndarray, p0: np.ndarray) -> jax.Array:
    """The scores whose rates are the posterior of the weighted endpoints over 1 − t, at each time n/N."""
    k = len(p0)
    t = np.arange(STEPS)[:, None, None] / STEPS
    posterior = ((1 - t) * p0[:, None] + t * np.eye(k)) * endpoint  # [N, A_t, A_1], independent A0 and A1
    posterior /= posterior.sum(-1, keepdims=True)
    if rates == "posterior":
        return jnp.asarray(np.log(posterior))
    return jnp.asarray(np.log(np.expm1(posterior / (1 - t))))  # softplus(g) is the rate


def terminal_law(rates: str, table: jax.Array, p0: np.ndarray) -> np.ndarray:
    """The exact law of the Euler chain with these scores."""
    k = len(p0)

    def rate(current: jax.Array, t: jax.Array) -> jax.Array:
        scores = table[jnp.round(t * STEPS).astype(int)][current[:, 0]][:, None]
        return off_diagonal(rates, scores, current, jnp.full(k, t), jnp.ones((k, 1, k), bool))

    return np.asarray(exact_law(rate, jnp.asarray(p0), 1, STEPS))


KINDS = [("posterior", "cross_entropy"), ("posterior", "l2"), ("softplus", "l2"), ("softplus", "kl")]


@pytest.mark.parametrize(("rates", "loss"), KINDS)
def test_the_minimiser_ends_in_the_boltzmann_law(x64, rates, loss):
    p0 = np.full(5, 0.2)
    endpoint = tilt(jnp.log(jnp.asarray(MU)), jnp.asarray(Q), BETA)
    table = minimiser(rates, np.asarray(endpoint), p0)
    gradient = jax.jit(jax.grad(lambda s: weighted_loss(Matching(rates, loss), endpoint, p0, s)))
    # Each loss is convex in the logits or in the rates, so that a stationary point is the minimum.
    assert float(jnp.abs(gradient(table)).max()) < 1e-12
    elsewhere = table + 0.1 * jnp.sin(jnp.arange(125.0)).reshape(table.shape)
    assert float(jnp.abs(gradient(elsewhere)).max()) > 1e-3
    assert np.abs(terminal_law(rates, table, p0) - boltzmann(MU, BETA)).max() < 1e-12


@pytest.mark.parametrize("rates", ["posterior", "softplus"])
def test_renewals_stay_with_behaviour_endpoints_and_sharpen_with_model_endpoints(x64, rates):
    p0 = np.full(5, 0.2)
    law = MU
    for k in range(1, 6):
        frozen = tilt(jnp.log(jnp.asarray(MU)), jnp.asarray(Q), BETA)
        stays = terminal_law(rates, minimiser(rates, np.asarray(frozen), p0), p0)
        assert np.abs(stays - boltzmann(MU, BETA)).max() < 1e-12
        renewed = tilt(jnp.log(jnp.asarray(law)), jnp.asarray(Q), BETA)
        law = terminal_law(rates, minimiser(rates, np.asarray(renewed), p0), p0)
        assert np.abs(law - boltzmann(MU, k * BETA)).max() < 1e-12
    assert law[3] > 0.8  # greedy in the best action, though μ gave it 0.1


def finite_law(mu: np.ndarray, q: np.ndarray, beta: float, m: int) -> np.ndarray:
    """E of the self-normalised law over all multisets of M endpoints drawn from μ."""
    k = len(mu)
    first = np.array([c for c in itertools.product(range(m + 1), repeat=k - 1) if sum(c) <= m])
    counts = np.c_[first, m - first.sum(1)]
    chance = stats.multinomial(m, mu).pmf(counts)
    actions = np.array([np.repeat(np.arange(k), c) for c in counts])  # [multisets, M]
    weights = tilt(jnp.full(actions.shape, -math.log(m)), jnp.asarray(q)[actions], beta)
    law = losses.endpoint_law(jnp.asarray(actions)[..., None], weights, k)[:, 0]
    assert chance.sum() == pytest.approx(1, abs=1e-10)
    return chance @ np.asarray(law)


def test_the_bias_of_self_normalised_weights_falls_as_one_over_m(x64):
    mu, q, beta = np.array([0.5, 0.3, 0.2]), np.array([0.0, 0.6, 1.0]), 1.5
    exact = mu * np.exp(beta * q) / np.sum(mu * np.exp(beta * q))
    sizes = np.array([4, 8, 16, 32, 64])
    bias = [np.abs(finite_law(mu, q, beta, int(m)) - exact).sum() / 2 for m in sizes]
    assert np.all(np.diff(bias) < 0)
    slope = np.polyfit(np.log(sizes[-3:]), np.log(bias[-3:]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.1)


def test_a_rare_action_is_bounded_by_the_chance_of_seeing_it(x64):
    law = finite_law(np.array([1 / 256, 255 / 256]), np.array([1.0, 0.0]), 1e4, 64)
    assert law[0] == pytest.approx(1 - (255 / 256) ** 64, abs=1e-12)  # .22, however large β is


# Weights


def test_tilt_is_its_formula(x64):
    got = tilt(jnp.log(jnp.asarray(MU)), jnp.asarray(Q), BETA)
    np.testing.assert_allclose(got, boltzmann(MU, BETA), rtol=1e-13)
    drawn = tilt(jnp.full(5, -math.log(5)), jnp.asarray(Q), BETA)
    w = np.exp(BETA * Q)
    np.testing.assert_allclose(drawn, w / w.sum(), rtol=1e-13)  # the paper's w_j


def test_weights_sum_to_one_and_ignore_a_shift(x64):
    q = jnp.asarray(np.random.default_rng(0).normal(size=(20, 64)))
    log_mu = jnp.full((20, 64), -math.log(64))
    w = tilt(log_mu, q, 5.0)
    assert np.abs(w.sum(-1) - 1).max() < 1e-14
    assert np.abs(tilt(log_mu, q + 37.0, 5.0) - w).max() < 1e-12


@pytest.mark.parametrize("sign", [-1, 1])
def test_weights_are_safe_where_beta_q_is_ten_thousand(sign):
    q = jnp.asarray([[1.0, 0.999, 0.0, -1.0], [1.0, 1.0, 0.5, 0.5]], jnp.float32) * sign
    w = np.asarray(tilt(jnp.full((2, 4), -math.log(4)), q, 1e4))
    assert w.dtype == np.float32
    best = {1: [[1, math.exp(-10), 0, 0], [0.5, 0.5, 0, 0]], -1: [[0, 0, 0, 1], [0, 0, 0.5, 0.5]]}[sign]
    np.testing.assert_allclose(w, np.array(best) / np.sum(best, -1, keepdims=True), atol=2e-7)
    np.testing.assert_allclose(w.sum(-1), 1, atol=1e-6)


def test_beta_zero_gives_equal_weights():
    q = jnp.asarray(np.random.default_rng(2).normal(size=(3, 32)))
    w = np.asarray(tilt(jnp.full((3, 32), -math.log(32)), q, 0.0))
    np.testing.assert_allclose(w, 1 / 32, rtol=1e-6)


def test_dropped_candidates_have_no_weight_however_good():
    log_mu = jnp.asarray([math.log(0.5), -jnp.inf, math.log(0.5)])
    w = np.asarray(tilt(log_mu, jnp.asarray([0.0, 1e4, 0.0]), 10.0))
    np.testing.assert_array_equal(w, [0.5, 0, 0.5])


# Support


def test_keep_supported_by_hand(x64):
    mu = jnp.asarray([[0.6, 0.3, 0.1 - 0.006, 0.006], [0.25, 0.25, 0.25, 0.25]])
    same = keep_supported(jnp.log(mu), 0.0)
    np.testing.assert_array_equal(same, jnp.log(mu))
    whole = np.exp(keep_supported(jnp.log(mu), 0.0099))  # .006 is 1 % of .6
    np.testing.assert_allclose(whole, mu, rtol=1e-13)
    kept = np.exp(keep_supported(jnp.log(mu), 0.0101))
    np.testing.assert_allclose(kept[0], np.array([0.6, 0.3, 0.094, 0]) / 0.994, rtol=1e-13)
    np.testing.assert_allclose(kept[1], 0.25, rtol=1e-13)
    only = np.exp(keep_supported(jnp.log(mu), 1.0))
    np.testing.assert_allclose(only[0], [1, 0, 0, 0], atol=0)


def test_illegal_candidates_stay_dropped():
    log_mu = jnp.asarray([math.log(0.5), -jnp.inf, math.log(0.5)])
    np.testing.assert_allclose(np.exp(keep_supported(log_mu, 0.01)), [0.5, 0, 0.5], rtol=1e-6)


# Effective share


@pytest.mark.parametrize(
    ("mu", "w", "share"),
    [
        ((0.5, 0.5), (1, 1), 1.0),
        ((0.5, 0.5), (1, 3), 0.8),  # 2² / 5
        ((0.25, 0.75), (2, 1), 1.25**2 / 1.75),
        ((0.1, 0.9), (1, 0), 0.1),  # greedy: μ(best)
        ((0.25, 0.25, 0.25, 0.25), (1, 1, 0, 0), 0.5),
    ],
)
def test_effective_share_by_hand(x64, mu, w, share):
    q, log_mu = jnp.asarray([[math.log(x) if x else -1e3 for x in w]]), jnp.log(jnp.asarray([mu]))  # [T, M]
    assert float(effective_share(log_mu, q, 1.0)) == pytest.approx(share, rel=1e-12)
    assert float(effective_share(log_mu, q, 0.0)) == pytest.approx(1, rel=1e-12)
    two = jnp.concatenate([log_mu, log_mu]), jnp.concatenate([q, q])  # two tokens whose values add up
    assert float(effective_share(*two, 1.0)) == pytest.approx(share**2, rel=1e-12)


def share_by_hand(mu: np.ndarray, q: np.ndarray, beta: float) -> float:
    """The mean over rows of (E w)² / E w²."""
    w = np.exp(beta * (q - q.max(-1, keepdims=True)))
    return float(np.mean((mu * w).sum(-1) ** 2 / (mu * w**2).sum(-1)))


@pytest.mark.parametrize("target", [0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_beta_for_share_hits_its_target_at_any_scale_of_q(target, scale):
    rng = np.random.default_rng(1)
    mu = rng.dirichlet(np.ones(16), 50)
    q = scale * rng.normal(size=(50, 16))
    log_mu = jnp.log(jnp.asarray(mu, jnp.float32))[:, None]
    beta = float(beta_for_share(log_mu, jnp.asarray(q, jnp.float32)[:, None], target))
    assert share_by_hand(mu, q, beta) == pytest.approx(target, abs=1e-3)


def test_states_without_a_choice_say_nothing_of_beta():
    rng = np.random.default_rng(2)
    mu, q = rng.dirichlet(np.ones(16), 50), rng.normal(size=(50, 16))
    forced = np.concatenate([mu, np.eye(16), np.eye(16)])  # where one choice is left, its share is 1 at any β
    with np.errstate(divide="ignore"):
        log_mu = jnp.asarray(np.log(forced), jnp.float32)[:, None]
    beta = float(beta_for_share(log_mu, jnp.asarray(np.concatenate([q, q[:32]]), jnp.float32)[:, None], 0.3))
    assert share_by_hand(mu, q, beta) == pytest.approx(0.3, abs=1e-3)


def test_beta_ends_at_its_largest_where_even_the_greedy_share_is_above_the_target(x64):
    mu = jnp.log(jnp.asarray([[[0.9, 0.1]]]))
    beta = beta_for_share(mu, jnp.asarray([[[1.0, 0.0]]]), 0.5)
    assert float(beta) == pytest.approx(SHARP / 0.3, rel=1e-6)  # √(.9 · .1) is the deviation of Q


def test_effective_share_ignores_a_shift_in_single_precision():
    log_mu = jnp.full((1, 1, 3), -math.log(3), jnp.float32)
    q = jnp.asarray([[[100.0, 100.5, 99.5]]], jnp.float32)  # exact in float32, as is the shift
    for beta in (1.0, 1e2, 1e4, 1e6):
        share = float(effective_share(log_mu, q, beta)[0])
        assert share == pytest.approx(share_by_hand(np.full(3, 1 / 3), np.asarray(q), beta), rel=1e-3)


def test_a_state_whose_values_spread_far_has_a_smaller_beta():
    """Normal values, σ = .5 and 4 at two states: exp(−β²σ²) is .78 and far below .3; the second is held at .3."""
    x = np.random.default_rng(0).standard_normal(200_000)
    q = jnp.asarray(np.stack([0.5 * x, 4 * x])[:, None], jnp.float32)
    log_mu = jnp.full(q.shape, -np.log(len(x)))
    beta = state_beta(log_mu, q, jnp.float32(1.0), 0.3)
    np.testing.assert_allclose(beta[:, 0, 0], [1, np.sqrt(-np.log(0.3)) / 4], rtol=0.01)
    np.testing.assert_allclose(effective_share(log_mu, q, beta), [np.exp(-0.25), 0.3], rtol=0.03)
    assert state_beta(log_mu, q, jnp.float32(1.0), 0.0) == 1
