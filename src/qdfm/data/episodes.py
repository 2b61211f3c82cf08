"""Where episodes begin and end in rows that hold them one after the other."""

from typing import Any

import numpy as np


def borders(episode: Any) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last row of each episode `[episodes]`, of every row's episode `[n]`."""
    numbers = np.asarray(episode)
    first = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    return first, np.r_[first[1:], len(numbers)] - 1
