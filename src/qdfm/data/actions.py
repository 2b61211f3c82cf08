"""Action spaces as tokens: every action is a vector of D categorical tokens, token d with K_d choices.

`encode` turns a user's actions into tokens `[n, D]`, `decode` turns tokens back. Both work on NumPy arrays at
the border of the library; inside it only tokens exist. A new kind of action is one more class in `KINDS`.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from qdfm.errors import QDFMError


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
        return integral(actions).reshape(-1, len(self.nvec))

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens `[..., D]` as actions `[..., D]`."""
        return tokens


ActionSpace = Discrete | MultiDiscrete
KINDS: dict[str, type[Discrete] | type[MultiDiscrete]] = {c.kind: c for c in (Discrete, MultiDiscrete)}


def to_json(space: ActionSpace) -> dict[str, Any]:
    """A plain dictionary from which `from_json` rebuilds the space."""
    return {"kind": space.kind, **asdict(space)}


def from_json(fields: dict[str, Any]) -> ActionSpace:
    """The space that `to_json` wrote down."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return KINDS[values.pop("kind")](**values)


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
            f"action is not a whole number in row {bad[0]}; give whole numbers from 0, or discretise first."
        )
    return array.astype(np.int32)
