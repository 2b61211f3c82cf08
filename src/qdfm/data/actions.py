"""Action spaces as tokens: every action is a vector of D categorical tokens, token d with K_d choices.

`encode` turns a user's actions into tokens `[n, D]`, `decode` turns tokens back. Both work on NumPy arrays at
the border of the library; inside it only tokens exist. A new kind of action is one more class in `KINDS`.

Continuous actions become tokens in two ways: `Bins` has one token per dimension, `Codebook` one token for the whole
action. Decoding what was encoded gives the nearest action that can be expressed.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from qdfm.errors import QDFMError, unknown

CHUNK = 8192  # rows that are compared with a codebook at a time


@dataclass(frozen=True)
class Discrete:
    """One choice out of n: D = 1."""

    n: int
    kind: ClassVar[str] = "discrete"

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of choices of each token."""
        return (self.n,)

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[n]` or `[n, 1]` as tokens `[n, 1]`."""
        return integral(actions).reshape(-1, 1)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens `[..., 1]` as actions `[...]`."""
        return tokens[..., 0]


@dataclass(frozen=True)
class MultiDiscrete:
    """A decision of several parts, part d with nvec[d] choices."""

    nvec: tuple[int, ...]
    kind: ClassVar[str] = "multi_discrete"

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of choices of each token."""
        return self.nvec

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[n, D]` as tokens `[n, D]`."""
        tokens = integral(actions)
        if tokens.shape[-1:] != (len(self.nvec),):
            raise QDFMError(f"action has shape {tokens.shape}; give [n, {len(self.nvec)}], one choice for each part.")
        return tokens.reshape(-1, len(self.nvec))

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens `[..., D]` as actions `[..., D]`."""
        return tokens


@dataclass(frozen=True)
class Bins:
    """Continuous actions, one token per dimension: the nearest of K_d values."""

    values: tuple[tuple[float, ...], ...]  # [D][K_d], increasing
    kind: ClassVar[str] = "bins"

    @classmethod
    def fit(cls, actions: np.ndarray, count: int, spread: str = "uniform") -> "Bins":
        """`count` values per dimension from data `[n, D]`: evenly between its extremes, or its own at even quantiles.

        Where quantiles coincide, as at the bound of a motor, the dimension has fewer values.
        """
        rows = continuous(actions)
        if spread not in ("uniform", "quantile"):
            raise unknown("spread", spread, ("uniform", "quantile"))
        check_count("bins per dimension", count)
        if spread == "uniform":
            values = np.linspace(rows.min(0), rows.max(0), count)
        else:
            values = np.quantile(rows, np.linspace(0, 1, count), axis=0, method="inverted_cdf")
        return cls(tuple(tuple(float(v) for v in np.unique(column)) for column in values.T))

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of choices of each token."""
        return tuple(len(v) for v in self.values)

    @property
    def dimensions(self) -> int:
        """Of an action."""
        return len(self.values)

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[n, D]` as tokens `[n, D]`."""
        rows = continuous(actions, len(self.values))
        values = [np.asarray(v) for v in self.values]
        between = [(v[1:] + v[:-1]) / 2 for v in values]  # where the nearest value changes; nowhere if there is one
        return np.stack([np.searchsorted(m, rows[:, d]) for d, m in enumerate(between)], 1).astype(np.int32)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens `[..., D]` as actions `[..., D]`."""
        return np.stack([np.asarray(v, np.float32)[tokens[..., d]] for d, v in enumerate(self.values)], -1)

    def mean(self, law: Any) -> Any:
        """The mean action `[..., D]` under laws `[..., D, K]` of the tokens, as arrays of NumPy or of JAX."""
        padded = np.zeros((len(self.values), max(self.choices)), np.float32)
        for row, values in zip(padded, self.values):
            row[: len(values)] = values
        return (law * padded).sum(-1)


@dataclass(frozen=True)
class Codebook:
    """Continuous actions as one token: the nearest of K whole actions."""

    centres: tuple[tuple[float, ...], ...]  # [K][dimensions]
    kind: ClassVar[str] = "codebook"

    @classmethod
    def fit(cls, actions: np.ndarray, count: int, seed: int = 0, rows: int = 50_000) -> "Codebook":
        """`count` centres of k-means on the data `[n, dimensions]`, or on so many rows of it drawn at random."""
        from scipy.cluster.vq import kmeans2

        points, rng = continuous(actions), np.random.default_rng(seed)
        check_count("actions of a codebook", count)
        distinct = np.unique(points, axis=0)
        if len(distinct) <= count:
            return cls(tuple(tuple(float(v) for v in row) for row in distinct))
        drawn = points[rng.choice(len(points), min(rows, len(points)), replace=False)]
        centres, _ = kmeans2(drawn.astype(np.float64), count, iter=25, minit="++", missing="warn", seed=rng)
        return cls(tuple(tuple(float(v) for v in row) for row in np.unique(centres, axis=0)))

    @cached_property
    def table(self) -> np.ndarray:
        """The centres as an array `[K, dimensions]`."""
        return np.asarray(self.centres, np.float32)

    @property
    def dimensions(self) -> int:
        """Of an action."""
        return self.table.shape[1]

    @property
    def choices(self) -> tuple[int, ...]:
        """One token."""
        return (len(self.centres),)

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[n, dimensions]` as tokens `[n, 1]`."""
        rows = continuous(actions, self.table.shape[1])
        tokens = np.empty((len(rows), 1), np.int32)
        square = (self.table**2).sum(1)
        for start in range(0, len(rows), CHUNK):  # a block at a time, since all distances may not fit
            some = rows[start : start + CHUNK]
            tokens[start : start + CHUNK, 0] = (square - 2 * some @ self.table.T).argmin(1)
        return tokens

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens `[..., 1]` as actions `[..., dimensions]`."""
        return self.table[tokens[..., 0]]

    def mean(self, law: Any) -> Any:
        """The mean action `[..., dimensions]` under laws `[..., 1, K]`, as arrays of NumPy or of JAX."""
        return law[..., 0, :] @ self.table


ActionSpace = Discrete | MultiDiscrete | Bins | Codebook
KINDS: dict[str, Any] = {c.kind: c for c in (Discrete, MultiDiscrete, Bins, Codebook)}


def check_count(what: str, count: int) -> None:
    """Refuse a division into fewer than two, which leaves nothing to choose, or into no whole number of them."""
    if not isinstance(count, int | np.integer):
        raise QDFMError(f"{count!r} {what} cannot be had; give a whole number from 2.")
    if count < 2:
        raise QDFMError(f"{count} {what} say nothing; give at least 2.")


def discretise(bins: int | None, codebook: int | None) -> Callable[[np.ndarray], ActionSpace] | None:
    """How actions become tokens, checked here because collecting the data may take minutes."""
    if bins is not None:
        check_count("bins per dimension", bins)
        return partial(Bins.fit, count=bins)
    if codebook is None:
        return None
    check_count("actions of a codebook", codebook)
    return partial(Codebook.fit, count=codebook)


def quantisation_error(space: ActionSpace, actions: np.ndarray) -> float:
    """The root mean square of what encoding and decoding changes, in units of the actions' standard deviation.

    Over all dimensions; one without any spread counts in its own units.
    """
    rows = continuous(actions)
    spread = rows.std(0)
    error = (space.decode(space.encode(rows)) - rows) / np.where(spread > 0, spread, 1)
    return float(np.sqrt(np.mean(error**2)))


def told_apart(one: ActionSpace, other: ActionSpace) -> tuple[str, str]:
    """Two different action spaces in a few words, however many values they hold."""
    first, second = _in_words(one), _in_words(other)
    return first, second if second != first else "others, as many"


def _in_words(space: ActionSpace) -> str:
    if isinstance(space, Codebook):
        return f"{len(space.centres)} actions of a codebook"
    kind = "bins" if isinstance(space, Bins) else "choices"
    many = " or ".join(str(n) for n in sorted(set(space.choices)))
    return f"{many} {kind}" if len(space.choices) == 1 else f"{len(space.choices)} parts of {many} {kind}"


def to_json(space: ActionSpace) -> dict[str, Any]:
    """A plain dictionary from which `from_json` rebuilds the space."""
    return {"kind": space.kind, **asdict(space)}


def from_json(fields: dict[str, Any]) -> ActionSpace:
    """The space that `to_json` wrote down."""
    values = {k: _tuples(v) for k, v in fields.items()}
    space: ActionSpace = KINDS[values.pop("kind")](**values)
    return space


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def continuous(actions: np.ndarray, dimensions: int | None = None) -> np.ndarray:
    """Actions as finite float32 `[n, dimensions]`; a value that is none is refused by its row."""
    array = np.asarray(actions)
    if array.dtype.kind not in "iuf" or array.ndim != 2 or 0 in array.shape:
        raise QDFMError(f"action has type {array.dtype} and shape {array.shape}; give numbers [n, dimensions].")
    if dimensions is not None and array.shape[1] != dimensions:
        raise QDFMError(f"action has {array.shape[1]} dimensions but {dimensions} are needed; give each of them.")
    bad = np.flatnonzero(~np.isfinite(array).all(1))
    if bad.size:
        raise QDFMError(f"action is NaN or infinite in row {bad[0]}; drop or repair such rows first.")
    return array.astype(np.float32)


def integral(actions: np.ndarray) -> np.ndarray:
    """Actions as int32; a value that is no whole number is refused by its row."""
    array = np.asarray(actions)
    if array.dtype.kind not in "iufb":
        raise QDFMError(f"action has type {array.dtype}; give whole numbers from 0.")
    limit = np.iinfo(np.int32).max
    # Comparisons with NaN are false, so that NaN is bad here without a test of its own.
    good = (array == np.round(array)) & (array >= -limit) & (array <= limit)
    bad = np.flatnonzero(~good.all(axis=tuple(range(1, array.ndim))))
    if bad.size:
        raise QDFMError(
            f"action is not a whole number in row {bad[0]}; give whole numbers from 0, or say how to discretise: "
            "bins=21 (--bins 21) of a file, actions=qdfm.Bins.fit(action, 21) of arrays."
        )
    return array.astype(np.int32)
