"""Exact figures of the matrix game against closed forms and plain loops."""

import math

import numpy as np
import pytest

from qdfm.envs.matrix import behaviour
from qdfm.experiments.matrix_exact import (
    coordination,
    deterministic_front,
    expected_returns,
    front_hypervolume,
    independent,
    kl_front,
    kl_optimal,
    stochastic_front,
)
from qdfm.metrics import hypervolume

BETA = 0.737


def pay(a: int, b: int) -> tuple[float, float]:
    return (8.0, -3.35) if a == b else (-2.0, 0.0)


def law(s: int, a: int, b: int) -> float:
    """The behaviour told again: a preferred pair, then each agent on its own."""

    def alone(part: int, action: int) -> float:
        return 0.905 if action == part else 0.0475

    return 0.945 * alone(s, a) * alone(s, b) + 0.055 * alone(1 - s, a) * alone(1 - s, b)


@pytest.mark.parametrize("omega", [(0.0, 1.0), (0.3, 0.7), (1.0, 0.0)])
def test_kl_optimum_marginals_and_returns_against_loops(omega):
    policy = kl_optimal(behaviour(), BETA, np.array(omega))
    apart = independent(policy)
    total, equal = [0.0, 0.0], 0.0
    for s in range(2):
        gain = {(a, b): sum(w * r for w, r in zip(omega, pay(a, b))) for a in range(3) for b in range(3)}
        weight = {pair: law(s, *pair) * math.exp(BETA * g) for pair, g in gain.items()}
        p = {pair: w / sum(weight.values()) for pair, w in weight.items()}
        for (a, b), value in p.items():
            assert policy[s, a, b] == pytest.approx(value, rel=1e-10)
            first, second = sum(p[a, c] for c in range(3)), sum(p[c, b] for c in range(3))
            assert apart[s, a, b] == pytest.approx(first * second, rel=1e-10)
            total = [t + value * r / 2 for t, r in zip(total, pay(a, b))]
            equal += (a == b) * value / 2
    np.testing.assert_allclose(expected_returns(policy), total, rtol=1e-10)
    assert coordination(policy) == pytest.approx(equal, rel=1e-10)


def test_returns_follow_from_coordination():
    policies = np.random.default_rng(0).dirichlet(np.ones(9), (5, 2)).reshape(5, 2, 3, 3)
    p = coordination(policies)
    np.testing.assert_allclose(expected_returns(policies), np.stack([10 * p - 2, -3.35 * p], 1), rtol=1e-12)


def test_no_beta_is_the_behaviour_and_a_large_one_agrees():
    np.testing.assert_allclose(kl_optimal(behaviour(), 0.0, [0.5, 0.5]), behaviour(), rtol=1e-12)
    assert coordination(kl_optimal(behaviour(), 1e4, [1.0, 0.0])) == pytest.approx(1)


def test_the_figures_of_the_experiment():
    mu = behaviour()
    front = kl_front(mu, BETA)
    assert front.shape == (101, 2, 3, 3)
    np.testing.assert_allclose(front[0], kl_optimal(mu, BETA, [0, 1]))
    np.testing.assert_allclose(front[100], kl_optimal(mu, BETA, [1, 0]))
    for policies, volume, agreed in (
        (front, 47.58, 0.283),
        (mu, 32.68, 0.824),
        (independent(mu), 30.08, 0.747),
    ):
        assert front_hypervolume(policies) == pytest.approx(volume, abs=0.005)
        assert np.ravel(coordination(policies))[0] == pytest.approx(agreed, abs=0.0005)
    # At β with ω = (0, 1) equal actions weigh exp(−3.35 β) times as much as in the data.
    odds = coordination(mu) / (1 - coordination(mu)) * math.exp(-3.35 * BETA)
    assert coordination(front[0]) == pytest.approx(odds / (1 + odds))
    # One point is one rectangle over the reference (0, −8).
    p = coordination(mu)
    assert front_hypervolume(mu) == pytest.approx((10 * p - 2) * (8 - 3.35 * p))


def test_the_fronts():
    front = deterministic_front()
    np.testing.assert_allclose(expected_returns(front), [[-2, 0], [3, -1.675], [8, -3.35]], atol=1e-12)
    assert (np.sort(front.reshape(3, 2, 9), -1)[..., -1] == 1).all()
    # Steps of 3 and 5 wide, 8 − 1.675 and 8 − 3.35 high; what does not beat the reference counts nothing.
    assert front_hypervolume(front) == pytest.approx(3 * 6.325 + 5 * 4.65)
    lotteries = stochastic_front()
    assert front_hypervolume(lotteries) == pytest.approx(8 * 8 - 0.335 * (8 * 8 / 2 + 2 * 8), abs=0.002)  # ∫ over r₁
    assert front_hypervolume(lotteries) == pytest.approx(47.92, abs=0.005)
    assert hypervolume(expected_returns(stochastic_front(2)), (0, -8)) == pytest.approx(8 * 4.65)
