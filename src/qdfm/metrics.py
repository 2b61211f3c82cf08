"""Numbers over episodes and seeds: means with sample deviations, bootstrap intervals, mode coverage."""

from dataclasses import dataclass

import numpy as np


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


def mode_coverage(outcomes: np.ndarray, modes: int) -> float:
    """The share of modes 0..modes−1 that occur at least once among the outcomes of one policy's episodes."""
    return len(set(np.asarray(outcomes).tolist()) & set(range(modes))) / modes
