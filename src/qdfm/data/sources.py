"""Sources: one function from a name or a file to a Dataset.

A source of another kind becomes one more step of `load_dataset`, between the built-in generators and the error for an
unknown name, with its reader in a file of its own, as Gymnasium ids are.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from qdfm.data.actions import discretise
from qdfm.data.arraylogs import is_log, read_log, read_npz
from qdfm.data.arrays import hdf5_names
from qdfm.data.builtin import GENERATORS
from qdfm.data.chaining import NumActions
from qdfm.data.columns import Columns
from qdfm.data.d4morl import read_d4morl
from qdfm.data.dataset import Dataset, Discretise
from qdfm.data.minari import LIKE_A_SET, read_minari
from qdfm.data.smac import read_smac
from qdfm.data.tables import columns_of, read_table
from qdfm.errors import QDFMError
from qdfm.seeds import check_seed

TABLES = (".parquet", ".csv")
HDF5 = (".h5", ".hdf5")
SUFFIXES = (".npz", *TABLES, *HDF5, ".pkl")


def load_dataset(
    name_or_path: str | Path,
    *,
    columns: Columns | Mapping[str, Any] | None = None,
    num_actions: NumActions = None,
    normalise: bool = True,
    bins: int | None = None,
    codebook: int | None = None,
    actions: Discretise | None = None,
    transitions: int | None = None,
    seed: int | None = None,
) -> Dataset:
    """The data of a built-in name, of a `.npz`, `.parquet` or `.csv` file, of D4RL's or SMAC's (`.h5`, `.hdf5`) or
    D4MORL's (`.pkl`), of a Minari id, or of a Gymnasium id.

    A relative path that does not exist here is looked for under the folder that the environment variable
    QDFM_DATA names. `columns` names the columns of a table (a `Columns`, or a dictionary of its fields); `num_actions`
    and `normalise` are those of `Dataset.from_arrays`: the first is for tables and arrays, the second for all files but
    those of `Dataset.save`, for Minari sets, and for MuJoCo, MO-Hopper and SMAX tasks. Continuous actions of files,
    Minari sets and MuJoCo or MO-Hopper tasks become so many `bins` per dimension, or the nearest of so many actions of
    a `codebook`, or what `actions` says: an action space of before (`agent.spec.actions`, with which a file that keeps
    one must agree), or a function that finds one for the raw actions. A Gymnasium or MO-Gymnasium id with discrete
    actions gives the random behaviour of `collect_gymnasium(id)`. What does not concern a source is refused.

    `transitions` are the first of a Minari set, or those that are collected in a Gymnasium id, a MuJoCo, MO-Hopper or
    SMAX task or the matrix game, with `seed`. A MuJoCo task is read from its Minari set (`qdfm data make` writes it);
    without `transitions` and without the set, a million are collected, which takes minutes, and kept as that set.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise QDFMError(f"The data to load is {name_or_path!r}; give the name of a task or the path of a file.")
    if sum(way is not None for way in (bins, codebook, actions)) > 1:
        raise QDFMError("bins, codebook and actions are ways to discretise actions; give one.")
    own, actions = actions, actions or discretise(bins, codebook)
    if actions is not None and num_actions is not None:
        raise QDFMError(
            "num_actions counts discrete actions, bins, codebook and actions make them of others; give one."
        )
    name, path = str(name_or_path), Path(name_or_path).expanduser()
    options = {
        "columns": columns, "num_actions": num_actions, "bins": bins, "codebook": codebook, "actions": own,
        "transitions": transitions,
        "seed": None if seed is None else check_seed(seed), "normalise": None if normalise else False,
    }  # fmt: skip
    given = {option: value for option, value in options.items() if value is not None}
    if is_file(name_or_path):
        if path.suffix.lower() in HDF5:
            found = _find(path)
            if is_log(hdf5_names(found)):
                _only(given, name, "num_actions", "bins", "codebook", "actions", "normalise")
                return read_log(found, num_actions, normalise, actions)
            _only(given, name, "normalise")
            return read_smac(found, normalise)
        if path.suffix.lower() == ".pkl":
            _only(given, name, "bins", "codebook", "actions", "normalise")
            return read_d4morl(_find(path), actions, normalise)
        _only(given, name, "columns", "num_actions", "bins", "codebook", "actions", "normalise")
        found = _find(path)
        if path.suffix.lower() != ".npz":
            return read_table(found, columns, num_actions, normalise, actions)
        if columns is not None:
            raise QDFMError(f"{found} holds arrays, not columns; leave out columns.")
        return read_npz(found, num_actions, normalise, actions)
    if name in GENERATORS:
        generator = GENERATORS[name]
        _only(given, name, *generator.options)
        return generator.make(**given)
    if path.is_file():
        raise _of_no_kind(path)
    if _is_set(name):
        _only(given, name, "bins", "codebook", "actions", "transitions", "normalise")
        return read_minari(name, actions, normalise, transitions)
    _refuse_path(name, path)
    return collected("task or data file", name, **given)


def _only(given: dict[str, Any], name: str, *allowed: str) -> None:
    """Refuse an option that means nothing to a source."""
    for option in given:
        if option not in allowed:
            raise QDFMError(f"{option} does not concern {name}; leave it out.")


def collected(kind: str, name: str, **options: Any) -> Dataset:
    """Random behaviour in a Gymnasium id with discrete actions; `kind` is what else the name could have been."""
    from qdfm.envs.gymnasium import make, registered, unknown_id

    if not registered(name):
        raise unknown_id(kind, name, GENERATORS)
    if "bins" in options or "codebook" in options:
        make(name).close()  # which tells of continuous actions where to find data with such
    _only(options, name, "transitions", "seed")
    from qdfm.collect.gymnasium import collect_gymnasium

    return collect_gymnasium(name, **options)


def table_columns(name_or_path: str | Path, columns: Columns | Mapping[str, Any] | None = None) -> dict[str, list[str]]:
    """Which columns of a table become which field, in order, and any that are not used; nothing of another source."""
    path = Path(name_or_path).expanduser()
    return columns_of(_find(path), columns) if path.suffix.lower() in TABLES else {}


def is_file(name_or_path: str | Path) -> bool:
    """Whether the name is that of a file, by its ending."""
    return Path(name_or_path).suffix.lower() in SUFFIXES


def takes_actions(name: str) -> bool:
    """Whether a source is read with the `actions` of before."""
    if is_file(name):
        return Path(name).suffix.lower() not in HDF5 or is_log(hdf5_names(_find(Path(name).expanduser())))
    return "actions" in GENERATORS[name].options if name in GENERATORS else _is_set(name)


def _is_set(name: str) -> bool:
    """Whether a name that is neither a file's nor a task's is that of a Minari set: Gymnasium's ids look alike."""
    from qdfm.envs.gymnasium import registered

    return LIKE_A_SET.fullmatch(name) is not None and not registered(name)


def _refuse_path(name: str, path: Path) -> None:
    """Refuse a folder, and what looks like a file that is not there: its owner needs no list of all tasks."""
    from qdfm.envs.gymnasium import registered

    if (path.is_dir() or path.suffix or len(path.parts) > 1) and not registered(name):
        raise _of_no_kind(_find(path))


def _of_no_kind(path: Path) -> QDFMError:
    return QDFMError(f"{path} is of no known kind; write it as one of {', '.join(SUFFIXES)}.")


def _find(path: Path) -> Path:
    """The file, here or under QDFM_DATA."""
    folder = os.environ.get("QDFM_DATA")
    places = [path, Path(folder).expanduser() / path] if folder and not path.is_absolute() else [path]
    for place in places:
        if place.is_dir():
            raise QDFMError(f"{place} is a folder; give a file.")
        if place.exists():
            return place
    searched = f"here nor under QDFM_DATA ({folder})" if folder else "here, and QDFM_DATA is not set"
    for place in places:
        there = [file.name for file in place.parent.glob("*") if is_file(file)]
        if near := get_close_matches(path.name, there, n=1):
            raise QDFMError(f"There is no file {path} {searched}; did you mean {str(place.with_name(near[0]))!r}?")
    raise QDFMError(f"There is no file {path} {searched}; check the path.")
