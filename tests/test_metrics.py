"""Metrics against the standard library, SciPy, closed forms and hand counts."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from qdfm.metrics import (
    bootstrap_interval,
    chi_square,
    chi_square_tail,
    holm,
    interquartile_interval,
    interquartile_mean,
    mode_coverage,
    summarise,
)


def test_summary_is_the_mean_and_the_sample_deviation():
    values = [3.0, -1.0, 4.0, 1.5, -9.0]
    summary = summarise(values)
    assert summary.mean == pytest.approx(statistics.mean(values))
    assert summary.std == pytest.approx(statistics.stdev(values))
    assert summary.n == 5
    assert str(summarise(np.array([1.0, 2.0]))) == "1.50 ± 0.71"


def test_a_single_seed_has_no_deviation():
    summary = summarise([2.345])
    assert summary.std == 0
    assert str(summary) == "2.35"


def test_a_summary_is_written_with_as_many_digits_as_asked_for():
    summary = summarise([0.00512, 0.00496])
    assert f"{summary:.4f}" == "0.0050 ± 0.0001"
    assert f"{summary}" == str(summary) == "0.01 ± 0.00"
    assert format(summarise([0.00512]), ".4f") == "0.0051"


def test_bootstrap_of_two_points_is_a_binomial():
    # The mean of two draws from {0, 1} is 0, ½, 1 with probability ¼, ½, ¼.
    assert bootstrap_interval([0.0, 1.0], level=0.95) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], level=0.4) == (0.5, 0.5)


def test_bootstrap_of_many_points_is_the_normal_interval():
    x = np.random.default_rng(0).normal(3, 2, 400)
    low, high = bootstrap_interval(x)
    half = 1.96 * x.std() / math.sqrt(len(x))
    assert low == pytest.approx(x.mean() - half, abs=0.05 * half)
    assert high == pytest.approx(x.mean() + half, abs=0.05 * half)
    assert (low, high) == bootstrap_interval(x, seed=0)
    assert (low, high) != bootstrap_interval(x, seed=1)


@pytest.mark.parametrize("shape", [(5, 4), (3, 1), (10, 6), (1, 1), (7, 3)])
def test_interquartile_mean_is_the_trimmed_mean(shape):
    scores = np.random.default_rng(0).normal(size=shape) ** 3
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None), rel=1e-12)


def test_interquartile_interval_redraws_seeds_within_tasks():
    # Every seed of a task is alike: nothing can change, though the tasks are far apart.
    alike = np.tile([1.0, 5.0, 9.0], (4, 1))
    assert interquartile_interval(alike) == (5.0, 5.0)
    # One task, two seeds: the mean of two draws from {0, 1}, of which a quarter, half a value, is not cut.
    assert interquartile_interval(np.array([[0.0], [1.0]])) == (0.0, 1.0)
    x = np.random.default_rng(1).uniform(size=(200, 2))
    low, high = interquartile_interval(x)
    # The trimmed mean's own standard error: that of the winsorised sample over the share that is kept.
    flat = np.clip(x, *np.quantile(x, [0.25, 0.75]))
    half = 1.96 * flat.std() / (0.5 * math.sqrt(x.size))
    assert high - low == pytest.approx(2 * half, rel=0.15)
    assert low < interquartile_mean(x) < high


@pytest.mark.parametrize(
    ("outcomes", "modes", "share"),
    [([0, 0, 3], 4, 0.5), ([4, 4, -1], 4, 0.0), ([2, 1, 0, 3, 4, -1], 4, 1.0), ([], 2, 0.0)],
)
def test_mode_coverage_counts_the_goals_that_occur(outcomes, modes, share):
    assert mode_coverage(np.array(outcomes, int), modes) == share


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 17, 256, 1001])
def test_chi_square_tail_is_scipys(degrees):
    for x in (0.0, 1e-3, 0.7, 1.0, 5.0, degrees - 0.5, 2.0 * degrees, degrees + 60.0, 900.0):
        assert chi_square_tail(x, degrees) == pytest.approx(stats.chi2.sf(x, degrees), rel=1e-9, abs=1e-300)


def test_chi_square_is_scipys_where_nothing_is_rare():
    law = np.array([0.2, 0.5, 0.3])
    counts = np.random.default_rng(0).multinomial(1000, law)
    assert chi_square(counts, 7 * law) == pytest.approx(stats.chisquare(counts, 1000 * law).pvalue, rel=1e-9)
    shifted = np.array([0.25, 0.45, 0.3])
    assert chi_square(counts, shifted) == pytest.approx(stats.chisquare(counts, 1000 * shifted).pvalue, rel=1e-9)


def test_chi_square_pools_what_is_rare_and_refuses_what_is_impossible():
    law = np.array([0.6, 0.38, 0.016, 0.003, 0.001])  # 1 + 3 + 16 of 1000 expected: one cell of 20
    pooled = stats.chisquare([590, 386, 24], [600, 380, 20]).pvalue
    assert chi_square(np.array([590, 386, 10, 7, 7]), law) == pytest.approx(pooled, rel=1e-9)
    assert chi_square(np.array([999, 1]), np.array([1 - 1e-5, 1e-5])) == 1.0  # too few to say anything
    assert chi_square(np.array([5, 1]), np.array([1.0, 0.0])) == 0.0
    assert chi_square(np.array([5, 0]), np.array([1.0, 0.0])) == 1.0


def test_holm_steps_down_until_the_first_that_stays():
    p = [0.04, 0.001, 0.02, 0.012, 0.9]
    assert holm(p, 0.05) == [1, 3]  # .001 ≤ .05/5, .012 ≤ .05/4, but .02 > .05/3
    assert holm(p[:2], 0.05) == [1, 0]  # ≤ .05/2, then ≤ .05/1
    assert holm([0.03, 0.04], 0.05) == []
    assert holm([], 0.05) == []
