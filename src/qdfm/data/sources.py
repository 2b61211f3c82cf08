"""Sources: one function from a name or a file to a Dataset.

A source of another kind (Minari ids, D4MORL) becomes one more step of `load_dataset`, between the built-in
generators and the error for an unknown name, with its reader in a file of its own.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qdfm.data.dataset import Dataset
from qdfm.data.tables import Columns, NumActions, read_npz, read_table
from qdfm.errors import QDFMError, unknown

SUFFIXES = (".npz", ".parquet", ".csv")


@dataclass(frozen=True)
class Generator:
    """Built-in data: how to make it, and a line about it for `qdfm list`."""

    make: Callable[[], Dataset]
    about: str


def _multigoal(goals: int) -> Dataset:
    # Imported here because the generators pull in the environments, which reading a file does not need.
    from qdfm.collect.multigoal import collect_multigoal

    return collect_multigoal(goals, per_goal=250, seed=0)


def _cartpole_2obj() -> Dataset:
    from qdfm.collect.cartpole import collect_cartpole_2obj

    return collect_cartpole_2obj(seed=0)


GENERATORS: dict[str, Generator] = {
    **{
        f"multigoal-{goals}": Generator(
            make=partial(_multigoal, goals),
            about=f"A grid world with {goals} equally good goals; 250 demonstrations of each",
        )
        for goals in (2, 3, 4, 5)
    },
    "cartpole-2obj": Generator(
        make=_cartpole_2obj,
        about="CartPole that also counts switches of the push; controllers of nine different habits",
    ),
}


def load_dataset(
    name_or_path: str | Path,
    *,
    columns: Columns | None = None,
    num_actions: NumActions = None,
    normalise: bool = True,
) -> Dataset:
    """The data of a built-in name or of a `.npz`, `.parquet` or `.csv` file.

    A relative path that does not exist here is looked for under the folder that the environment variable
    QDFM_DATA names. `columns` names the columns of a table; `num_actions` and `normalise` are those of
    `Dataset.from_arrays` and concern files only, because built-in data knows both.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix.lower() in SUFFIXES:
        found = _find(path)
        if path.suffix.lower() != ".npz":
            return read_table(found, columns, num_actions, normalise)
        if columns is not None:
            raise QDFMError(f"{found} holds arrays, not columns; leave out columns.")
        return read_npz(found, num_actions, normalise)
    if str(name_or_path) in GENERATORS:
        return GENERATORS[str(name_or_path)].make()
    if path.is_file():
        raise QDFMError(f"{path} is of no known kind; write it as one of {', '.join(SUFFIXES)}.")
    raise unknown("task or data file", str(name_or_path), GENERATORS)


def _find(path: Path) -> Path:
    if path.exists():
        return path
    folder = os.environ.get("QDFM_DATA")
    if folder and not path.is_absolute() and (elsewhere := Path(folder).expanduser() / path).exists():
        return elsewhere
    searched = f"here nor under QDFM_DATA ({folder})" if folder else "here, and QDFM_DATA is not set"
    raise QDFMError(f"There is no file {path} {searched}; check the path.")
