"""Rows of a log as transitions: what it does not say of their successors, the episode's next row says of itself.

The last row of an episode that was cut short has no such row: what followed it is not in the log, so it is dropped,
with a warning, and the row before it becomes the truncated end.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qdfm.data.checks import warn
from qdfm.data.columns import FOLLOWS, Columns
from qdfm.data.dataset import Dataset
from qdfm.data.episodes import borders
from qdfm.errors import QDFMError

NumActions = int | tuple[int, ...] | None
SUCCESSORS = FOLLOWS | {"next_state": "state"}  # fields that may be those of the next row


def last_rows(number: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Whether a row is the last of its episode."""
    last = np.zeros(len(number), bool)
    last[order[borders(number[order])[1]]] = True
    return last


def chained(
    path: str | Path,
    called: Mapping[str, str],
    rows: dict[str, Any],
    number: np.ndarray,
    order: np.ndarray,
    terminated: np.ndarray,
    cut: np.ndarray,
    normalise: bool,
    options: dict[str, Any],
) -> Dataset:
    """The data of rows in file order: what the log does not say of their successors is what the next row of the episode
    says of itself, in the given order. `called` has the names of fields in the file, where they are others."""
    last = last_rows(number, order)
    # A last row stands in for its own successor: where that is wrong the row is dropped below.
    following = np.arange(len(order))
    following[order[:-1]] = np.where(last[order[:-1]], order[:-1], order[1:])
    absent = [after for after, of in SUCCESSORS.items() if of in rows and after not in rows]
    unknown_end = last & ~terminated & bool(absent)
    kept = order[~unknown_end[order]]
    if absent:
        remedy = (
            f"add {called.get(absent[0], absent[0])}, or mark {called.get('terminated', 'terminated')} where an "
            "episode really ends."
        )
    if kept.size == 0:
        raise QDFMError(f"{path} has no row whose next observation is known; {remedy}")
    # A row whose successor is dropped is where the recording now ends.
    cut = cut | (unknown_end[following] & ~last)
    shifted = {after: np.asarray(rows[SUCCESSORS[after]])[following] for after in absent}
    # In file order and with every row, so that errors name rows of the file.
    everything = Dataset.from_arrays(**rows | shifted | options, terminated=terminated, truncated=cut, normalise=False)
    data = everything[kept]
    data = replace(data, episode=np.unique(number[kept], return_inverse=True)[1].astype(np.int32))
    if left := len(order) - len(kept):
        rest = "1 last row of an episode was" if left == 1 else f"{left:,} last rows of episodes were"
        what = absent[0].replace("_", " ")
        warn(f"{rest} left out of {path}, with the reward, for lack of a {what}; {remedy}")
    return data.with_normalisation(observation=True) if normalise else data


def refuse_going_on(columns: Columns, ended: np.ndarray, last: np.ndarray) -> None:
    """Refuse an episode that has rows after its end."""
    early = np.flatnonzero(ended & ~last)
    if early.size:
        raise QDFMError(
            f"The episode of row {early[0]} goes on after that row, which is marked {columns.terminated} or "
            f"{columns.truncated}; give every episode its own {columns.episode}."
        )
