"""Numbers over episodes, seeds and tasks: means with sample deviations, bootstrap intervals, interquartile means,
coverage, goodness of fit; and over sets of returns `[n, objectives]`, all of them maximised: hypervolume, what is not
dominated, spacing, expected utility, coverage of a known front."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from qdfm.errors import QDFMError


@dataclass(frozen=True)
class Summary:
    """A mean over seeds with its sample standard deviation (0 for a single seed)."""

    mean: float
    std: float
    n: int

    def __str__(self) -> str:
        return format(self)

    def __format__(self, form: str) -> str:
        """Mean and deviation, each in the given form of a float (by default two decimals)."""
        mean, std = (format(value, form or ".2f") for value in (self.mean, self.std))
        return mean if self.n == 1 else f"{mean} ± {std}"


def summarise(values: np.ndarray | list[float]) -> Summary:
    """Mean and sample standard deviation (n − 1)."""
    x = np.asarray(values, np.float64)
    return Summary(float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else 0.0, len(x))


def bootstrap_interval(
    values: np.ndarray | list[float], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean."""
    x = np.asarray(values, np.float64)
    rows = np.random.default_rng(seed).integers(len(x), size=(resamples, len(x)))
    low, high = np.quantile(x[rows].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def interquartile_mean(scores: np.ndarray) -> float:
    """The mean of the middle half of all scores, a quarter cut off at either end (as rliable has it)."""
    x = np.sort(np.asarray(scores, np.float64).ravel())
    cut = len(x) // 4
    return float(x[cut : len(x) - cut].mean())


def interquartile_interval(
    scores: np.ndarray, level: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """The bootstrap interval of the interquartile mean of scores `[seeds, tasks]`, seeds redrawn within each task."""
    x = np.asarray(scores, np.float64)
    rows = np.random.default_rng(seed).integers(len(x), size=(resamples, *x.shape))
    drawn = np.take_along_axis(np.broadcast_to(x, rows.shape), rows, 1)
    low, high = np.quantile([interquartile_mean(d) for d in drawn], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def total_variation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """½ Σ |p − q| `[...]` between laws `[..., K]`."""
    return np.abs(np.asarray(p, np.float64) - np.asarray(q, np.float64)).sum(-1) / 2


def mode_coverage(outcomes: np.ndarray, modes: int) -> float:
    """The share of modes 0..modes−1 that occur at least once among the outcomes of one policy's episodes."""
    return len(set(np.asarray(outcomes).tolist()) & set(range(modes))) / modes


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """The p-value of counts under a law; a draw of something impossible has p-value 0."""
    counts, law = np.asarray(counts, np.float64).ravel(), np.asarray(law, np.float64).ravel()
    if counts[law <= 0].sum() > 0:
        return 0.0
    expected = counts.sum() * law / law.sum()
    order = np.argsort(expected)
    # Cells too rare for the approximation are pooled, rarest first, until 10 are expected of the pool.
    pooled = int(np.searchsorted(np.cumsum(expected[order]), 10)) + 1
    seen = np.r_[counts[order[:pooled]].sum(), counts[order[pooled:]]]
    due = np.r_[expected[order[:pooled]].sum(), expected[order[pooled:]]]
    return chi_square_tail(float(np.sum((seen - due) ** 2 / due)), len(seen) - 1)


def chi_square_tail(x: float, degrees: int) -> float:
    """P(χ² > x), 1 for no degrees of freedom.

    Adds up Q(a + 1, y) = Q(a, y) + y^a e^(−y) / Γ(a + 1) in double precision: no term is negative, so none cancels.
    """
    y = x / 2
    if degrees < 1 or y <= 0:
        return 1.0
    odd = degrees % 2 == 1
    a, tail = (0.5, math.erfc(math.sqrt(y))) if odd else (1.0, math.exp(-y))
    while a < degrees / 2:
        tail += math.exp(a * math.log(y) - y - math.lgamma(a + 1))
        a += 1
    return min(tail, 1.0)


def holm(p_values: Sequence[float] | np.ndarray, level: float) -> list[int]:
    """The places of the p-values that Holm's step-down rejects at a family error of `level`, smallest first."""
    order = np.argsort(np.asarray(p_values, np.float64), kind="stable").tolist()
    for i, place in enumerate(order):
        if p_values[place] > level / (len(order) - i):
            return order[:i]
    return order


def hypervolume(points: np.ndarray, reference: np.ndarray | Sequence[float]) -> float:
    """The volume between the reference and the points `[n, objectives]`, 0 for no points.

    A point that does not beat the reference in every objective counts nothing.
    """
    import moocore

    points, reference = np.asarray(points, np.float64), np.asarray(reference, np.float64)
    if not (np.isfinite(points).all() and np.isfinite(reference).all()):  # moocore can crash on them
        raise QDFMError("The hypervolume of NaN or infinite values is not defined; leave such returns out.")
    if points.shape[1:] != reference.shape:
        raise QDFMError(
            f"The reference has shape {reference.shape} where points have {points.shape[1:]}; give one value each."
        )
    return float(moocore.hypervolume(points, ref=reference, maximise=True))


def non_dominated(points: np.ndarray, tolerance: float = 1e-9) -> np.ndarray:
    """Which of the points `[n, objectives]` no other one dominates, as a mask `[n]`.

    Of points equal within the tolerance one is kept, so the sum of the mask is the number of distinct ones. A point
    counts as dominated where another falls behind it in no objective by more than the tolerance.
    """
    points = np.asarray(points, np.float64)
    keep = np.zeros(len(points), bool)
    # What dominates a point has a greater sum, so the first that is left is never dominated by one that comes later.
    left = np.argsort(-points.sum(1), kind="stable")
    while len(left):
        best = left[0]
        keep[best] = True
        left = left[(points[left] > points[best] + tolerance).any(1)]
    return keep


def spacing(points: np.ndarray) -> float:
    """Schott's spacing of points `[n, objectives]`: the sample deviation (n − 1) of dᵢ = minⱼ Σₖ |fᵢₖ − fⱼₖ|.

    Every objective is first scaled to [0, 1] over the points, one without range to 0. Smaller is more even. Fewer than
    three points have equal distances and 0 by convention, so compare it only beside the number of points.
    """
    points = np.asarray(points, np.float64)
    if len(points) < 3:
        return 0.0
    low, extent = points.min(0), np.ptp(points, 0)
    scaled = (points - low) / np.where(extent > 0, extent, 1.0)
    distance = np.abs(scaled[:, None] - scaled).sum(-1)  # [n, n]
    np.fill_diagonal(distance, np.inf)
    return float(distance.min(1).std(ddof=1))


def sparsity(points: np.ndarray) -> float:
    """D4MORL's sparsity of a front `[n, objectives]`: the mean squared distance of neighbours in each objective.

    Smaller is denser; a front of one point has 0. It has the units of the returns squared.
    """
    points = np.asarray(points, np.float64)
    if len(points) < 2:
        return 0.0
    return float(np.sum(np.diff(np.sort(points, 0), axis=0) ** 2) / (len(points) - 1))


def expected_utility(points: np.ndarray, preferences: np.ndarray) -> float:
    """The mean over preferences ω `[m, objectives]` of the best ⟨ω, point⟩ among the points `[n, objectives]`."""
    return float((np.asarray(preferences, np.float64) @ np.asarray(points, np.float64).T).max(1).mean())


def front_coverage(points: np.ndarray, front: np.ndarray, tolerance: float) -> float:
    """The share of the points of a front `[m, objectives]` that some of the points `[n, objectives]` comes near.

    Near means within the tolerance in every objective.
    """
    gap = np.abs(np.asarray(front, np.float64)[:, None] - np.asarray(points, np.float64)).max(-1)  # [m, n]
    return float((gap <= tolerance).any(1).mean())


def simplex(objectives: int, count: int) -> np.ndarray:
    """At most `count` evenly spread preferences `[n, objectives]`, the single objectives among them.

    Two objectives have exactly `count`, from (0, 1) to (1, 0). More have the finest lattice, all vectors of multiples
    of 1/h that sum to 1, with no more than `count` points. One has the preference 1 only.
    """
    if count < objectives:
        raise QDFMError(f"{count} preferences cannot hold the {objectives} single objectives; ask for more.")
    if objectives == 1:
        return np.ones((1, 1))
    h = 1
    while math.comb(h + objectives, objectives - 1) <= count:
        h += 1
    # A vector is objectives − 1 bars among h stars: its parts are the stars between neighbouring bars.
    places = range(h + objectives - 1)
    bars = np.array([(-1, *bar, len(places)) for bar in combinations(places, objectives - 1)])
    return (np.diff(bars, axis=1) - 1) / h
