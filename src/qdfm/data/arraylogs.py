"""Logs of arrays: `.npz` and HDF5 files with the names of `Dataset.from_arrays`, or D4RL's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from qdfm.data.actions import ActionSpace, told_apart
from qdfm.data.arrays import read_arrays, read_hdf5
from qdfm.data.chaining import SUCCESSORS, NumActions, chained, last_rows, refuse_going_on
from qdfm.data.checks import as_array, as_flags, as_matrix, check_lengths, number_episodes, one_per_row
from qdfm.data.columns import Columns
from qdfm.data.d4morl import from_trajectories, is_d4morl
from qdfm.data.dataset import Dataset, Discretise, saved_header
from qdfm.errors import QDFMError, unknown

ARRAYS_NEEDED = ("observation", "action", "reward", "next_observation", "terminated")
ARRAYS_OPTIONAL = ("truncated", "mask", "next_mask", "episode", "preference", "state", "next_state")
ABOUT_ROWS = ("agents", "categories", "num_actions")  # small arrays that hold for all rows
ARRAYS = (*ARRAYS_NEEDED, *ARRAYS_OPTIONAL, *ABOUT_ROWS)
D4RL = {
    "observations": "observation", "actions": "action", "rewards": "reward", "next_observations": "next_observation",
    "terminals": "terminated", "timeouts": "truncated",
}  # fmt: skip


def read_npz(
    path: str | Path, num_actions: NumActions = None, normalise: bool = True, actions: Discretise | None = None
) -> Dataset:
    """What `Dataset.save` wrote, just as it was; arrays under the names of `Dataset.from_arrays` or D4RL's, also
    `agents`, `categories` and `num_actions`; or trajectories, as `qdfm.data.d4morl` tells."""
    arrays = read_arrays(path)
    if saved_header(arrays) is not None:
        if num_actions is not None or not isinstance(actions, ActionSpace | None):
            raise QDFMError(
                f"{path} was written by Dataset.save with its actions; leave out num_actions, bins and codebook."
            )
        if not normalise:
            raise QDFMError(f"{path} was written by Dataset.save with its normalisation; leave out normalise.")
        data = Dataset.load(path)
        if actions is not None and data.spec.actions != actions:
            kept, asked = told_apart(data.spec.actions, actions)
            raise QDFMError(
                f"{path} keeps the actions it was written with ({kept}), not those asked for ({asked}); write it anew "
                "with these."
            )
        return data
    if is_d4morl(arrays):
        if num_actions is not None:
            raise QDFMError(f"{path} has continuous actions; leave out num_actions and give bins or codebook.")
        return from_trajectories(path, arrays, actions, normalise)
    return _from_arrays(path, arrays, num_actions, normalise, actions)


def is_log(names: Iterable[str]) -> bool:
    """Whether an HDF5 file with datasets of these names is a log that `read_log` reads."""
    return not {"observation", "observations"}.isdisjoint(names)


def read_log(
    path: str | Path, num_actions: NumActions = None, normalise: bool = True, actions: Discretise | None = None
) -> Dataset:
    """The transitions of an HDF5 file whose top level has the arrays of `read_npz`, as D4RL's; the rest is passed
    over."""
    return _from_arrays(path, read_hdf5(path, (*ARRAYS, *D4RL)), num_actions, normalise, actions)


def _from_arrays(
    path: str | Path, arrays: dict[str, Any], num_actions: NumActions, normalise: bool, actions: Discretise | None
) -> Dataset:
    theirs = {ours: name for name, ours in D4RL.items() if name in arrays and ours not in arrays}
    arrays = {(D4RL[name] if name in theirs.values() else name): array for name, array in arrays.items()}
    for name in arrays:
        if name not in ARRAYS and not name.startswith(("infos/", "metadata/")):  # of D4RL's
            raise unknown(f"array in {path}", name, (*ARRAYS, *(other for other in D4RL if other != name)))
    arrays = {name: array for name, array in arrays.items() if name in ARRAYS}
    missing = [name for name in ARRAYS_NEEDED if name not in arrays and name not in SUCCESSORS]
    if missing:
        raise QDFMError(f"{path} lacks {', '.join(missing)}; save one array of each name.")
    if actions is not None:
        arrays["action"] = as_matrix("action", arrays["action"])
    about = {name: arrays.pop(name).tolist() for name in ABOUT_ROWS if name in arrays}
    stated = about.get("num_actions")  # one number is that of every part
    if isinstance(actions, ActionSpace) and (stated == [*actions.choices] or [stated] == [*{*actions.choices}]):
        del about["num_actions"]  # which they agree with
    if "num_actions" in about and (num_actions is not None or actions is not None):
        raise QDFMError(f"{path} says num_actions itself; leave out num_actions, bins and codebook.")
    options = {"num_actions": num_actions, "actions": actions, **about}
    if "next_observation" in arrays:
        return Dataset.from_arrays(**arrays, **options, normalise=normalise)
    check_lengths({name: as_array(name, array) for name, array in arrays.items()})
    if len(arrays["observation"]) == 0:
        raise QDFMError(f"{path} has no rows; give at least one transition.")
    flags = {name: one_per_row(name, arrays.pop(name)) for name in ("terminated", "truncated") if name in arrays}
    episode = one_per_row("episode", arrays.pop("episode")) if "episode" in arrays else None
    terminated = as_flags("terminated", flags["terminated"])
    cut = as_flags("truncated", flags.get("truncated", np.zeros(len(terminated), bool)))
    number, order = number_episodes(episode, terminated | cut)
    refuse_going_on(Columns(), terminated | cut, last_rows(number, order))
    return chained(path, theirs, arrays, number, order, terminated, cut, normalise, options)
