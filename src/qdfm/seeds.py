"""Seeds at the door: whole numbers that NumPy takes and that JAX tells apart."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qdfm.errors import QDFMError

BEYOND = 2**32  # JAX keeps no more bits


def check_seed(seed: Any) -> int:
    """The seed as an integer, or one sentence."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < BEYOND:
        raise QDFMError(f"The seed is {seed!r}; give a whole number from 0 and below {BEYOND:,}.")
    return int(seed)


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Different seeds, at least one."""
    if not isinstance(seeds, Iterable):
        raise QDFMError(f"The seeds are {seeds!r}; give several in a list, as seeds=[0, 1, 2].")
    checked = tuple(check_seed(seed) for seed in seeds)
    if len(set(checked)) != len(checked) or not checked:
        raise QDFMError(f"The seeds {checked} repeat or are none; give different integers.")
    return checked
