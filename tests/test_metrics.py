"""Metrics against the standard library, SciPy, closed forms and hand counts."""

import itertools
import math
import statistics

import numpy as np
import pytest
from scipy import stats

from qdfm.errors import QDFMError
from qdfm.metrics import (
    bootstrap_interval,
    chi_square,
    chi_square_tail,
    expected_utility,
    front_coverage,
    holm,
    hypervolume,
    interquartile_interval,
    interquartile_mean,
    mode_coverage,
    non_dominated,
    simplex,
    spacing,
    sparsity,
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


def volume_of_boxes(points: np.ndarray, reference: np.ndarray) -> float:
    """The volume of the union of the boxes from the reference up to each point, by inclusion and exclusion."""
    total = 0.0
    for size in range(1, len(points) + 1):
        for some in itertools.combinations(points, size):
            total -= (-1) ** size * np.prod(np.maximum(np.min(some, axis=0) - reference, 0))
    return total


@pytest.mark.parametrize("objectives", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_hypervolume_is_inclusion_and_exclusion_of_boxes(count, objectives):
    rng = np.random.default_rng(10 * objectives + count)
    reference = np.linspace(-1, 0.2, objectives)
    for _ in range(20):
        points = rng.normal(0.5, 1, (count, objectives))  # some below the reference, in some objectives or in all
        assert hypervolume(points, reference) == pytest.approx(volume_of_boxes(points, reference), abs=1e-12)


def test_hypervolume_by_hand():
    points = np.array([[3.0, 1.0], [1.0, 2.0], [2.0, 1.0], [5.0, 0.0], [-1.0, 9.0]])
    assert hypervolume(points, [0.0, 0.0]) == 4.0  # 3 × 1 and the 1 × 1 above it; the last two touch the axis or miss
    assert hypervolume(points[3:], [0.0, 0.0]) == 0.0
    assert hypervolume(points, np.array([0.0, -1.0])) == 5 * 1 + 3 * 1 + 1 * 1
    for bad in (np.inf, np.nan):
        with pytest.raises(QDFMError, match="NaN or infinite"):
            hypervolume(np.full((1, 3), bad), np.zeros(3))


def test_non_dominated_keeps_one_of_equals():
    points = np.array([[0, 3], [1, 1], [2, 2], [2, 2], [3, 0], [2, 1], [2 + 1e-12, 2 - 1e-12], [0, 3 - 1e-6]])
    mask = non_dominated(points)
    assert mask.dtype == bool
    assert mask[[0, 4]].all() and not mask[[1, 5, 7]].any()
    assert mask[[2, 3, 6]].sum() == 1
    assert non_dominated(np.array([[1.0, 0.0], [0.7, 0.1], [0.0, 1.0]]), tolerance=0.2).tolist() == [True, False, True]
    assert non_dominated(np.empty((0, 3))).shape == (0,)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_non_dominated_is_what_no_other_dominates(objectives):
    points = np.unique(np.random.default_rng(objectives).integers(0, 5, (60, objectives)), axis=0)
    alone = [not any((q >= p).all() and (q > p).any() for q in points) for p in points]
    assert non_dominated(points).tolist() == alone


def test_sparsity_by_hand():
    assert sparsity(np.array([[0.0, 5.0], [3.0, 4.0], [1.0, 1.0]])) == pytest.approx((1 + 4 + 9 + 1) / 2)
    assert sparsity(np.array([[2.0, 3.0]])) == 0.0


def test_spacing_by_hand():
    # Scaled to (0, 1), (.1, .5), (.4, .25), (1, 0), the third objective to 0: dᵢ = .6, .55, .55, .85.
    points = np.array([[0, 400, 7], [1, 200, 7], [4, 100, 7], [10, 0, 7]])
    assert spacing(points) == pytest.approx(statistics.stdev([0.6, 0.55, 0.55, 0.85]))
    assert spacing(points[[0, 3]]) == 0.0
    assert spacing(np.array([[0.0, 8.0], [5.0, 4.0], [10.0, 0.0]])) == pytest.approx(0.0, abs=1e-15)
    assert spacing(np.array([[2.0], [2.0], [2.0]])) == 0.0


def test_expected_utility_takes_the_best_point_for_each_preference():
    points = np.array([[4.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    preferences = np.array([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]])
    assert expected_utility(points, preferences) == pytest.approx((4 + 1.5 + 2) / 3)
    assert expected_utility(points[2:], preferences) == pytest.approx(1.0)


def test_front_coverage_counts_the_points_that_are_met():
    front = np.array([[0.0, 3.0], [1.0, 2.0], [2.0, 1.0], [3.0, 0.0]])
    points = np.array([[0.1, 2.9], [1.0, 1.8], [0.05, 3.0], [9.0, 9.0], [3.0, 0.0]])
    assert front_coverage(points, front, 0.11) == 0.5  # the second misses by .2 in one objective; near twice is once
    assert front_coverage(points, front, 0.21) == 0.75
    assert front_coverage(points, front, 0.0) == 0.25
    assert front_coverage(np.empty((0, 2)), front, 1.0) == 0.0


def test_simplex_of_two_objectives_is_a_line():
    w = np.linspace(0, 1, 11)
    np.testing.assert_allclose(simplex(2, 11), np.stack([w, 1 - w], 1), atol=1e-15)
    assert simplex(2, 2).tolist() == [[0, 1], [1, 0]]
    assert simplex(1, 4).tolist() == [[1]]


@pytest.mark.parametrize(("objectives", "count", "h"), [(3, 3, 1), (3, 14, 3), (3, 15, 4), (4, 4, 1), (4, 40, 4)])
def test_simplex_of_more_objectives_is_the_finest_lattice(objectives, count, h):
    whole = [parts for parts in itertools.product(range(h + 1), repeat=objectives) if sum(parts) == h]
    finer = sum(sum(parts) == h + 1 for parts in itertools.product(range(h + 2), repeat=objectives))
    assert len(whole) <= count < finer
    np.testing.assert_allclose(simplex(objectives, count), np.array(whole) / h, atol=1e-15)


def test_simplex_refuses_fewer_preferences_than_objectives():
    with pytest.raises(QDFMError, match="2 preferences cannot hold the 3"):
        simplex(3, 2)
