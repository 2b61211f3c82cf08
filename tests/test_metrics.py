"""Metrics against the standard library, closed forms and hand counts."""

import math
import statistics

import numpy as np
import pytest

from qdfm.metrics import bootstrap_interval, mode_coverage, summarise


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


@pytest.mark.parametrize(
    ("outcomes", "modes", "share"),
    [([0, 0, 3], 4, 0.5), ([4, 4, -1], 4, 0.0), ([2, 1, 0, 3, 4, -1], 4, 1.0), ([], 2, 0.0)],
)
def test_mode_coverage_counts_the_goals_that_occur(outcomes, modes, share):
    assert mode_coverage(np.array(outcomes, int), modes) == share
