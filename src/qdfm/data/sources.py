"""Sources: one function from a name or a file to a Dataset.

A source of another kind becomes one more step of `load_dataset`, between the built-in generators and the error for an
unknown name, with its reader in a file of its own, as Gymnasium ids are.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from qdfm.data.actions import Bins, Codebook, check_count
from qdfm.data.d4morl import read_d4morl
from qdfm.data.dataset import Dataset, Discretise
from qdfm.data.minari import LIKE_A_SET, local_set, read_minari
from qdfm.data.smac import read_smac
from qdfm.data.tables import Columns, NumActions, read_npz, read_table
from qdfm.envs.mujoco import MO_HOPPER, MO_TASKS, TASKS
from qdfm.envs.smax import TASKS as BATTLES
from qdfm.errors import QDFMError
from qdfm.seeds import check_seed

DEFAULT_BINS = 41  # per dimension of the built-in MuJoCo tasks
QUICK_TRANSITIONS = 100_000  # of robots, where a quick run has to collect them
SUFFIXES = (".npz", ".parquet", ".csv", ".h5", ".hdf5", ".pkl")


@dataclass(frozen=True)
class Generator:
    """Built-in data: how to make it, a line about it for `qdfm list`, and which options of `load_dataset` it takes.

    The rest is for data that the command line treats in another way than most.
    """

    make: Callable[..., Dataset]
    about: str
    options: tuple[str, ...] = ()
    quick: Callable[[], int | None] | None = None
    """The `transitions` of a quick run (None: as in another)."""
    facts: Callable[[Dataset], tuple[str, dict[str, float]]] | None = None
    """What is to be said of the data besides its returns, also as numbers, which its file keeps."""
    write: Callable[[Path, int | None, int], str] | None = None
    """Write so many transitions, with a seed, to a file in another way than `Dataset.save`, and say what they are."""
    keep: Callable[[int | None, int, bool], str] | None = None
    """The same as a Minari set in place of a file; the last argument is whether one that is there is renewed."""


# Imported where they are needed, because the generators pull in the environments, which reading a file does not.


def _multigoal(goals: int) -> Dataset:
    from qdfm.collect.grid import collect_experts
    from qdfm.envs.multigoal import MultiGoal

    return collect_experts(MultiGoal(goals), goals, per_goal=250)


def _fork() -> Dataset:
    from qdfm.collect.grid import collect_experts
    from qdfm.envs.fork import Fork

    return collect_experts(Fork(), 2, per_goal=500)


def _deep_sea(map_name: str) -> Dataset:
    from qdfm.collect.tabular import collect_deep_sea

    return collect_deep_sea(map_name)


def _resource() -> Dataset:
    from qdfm.collect.tabular import collect_resource

    return collect_resource()


def _matrix(**options: int) -> Dataset:
    from qdfm.collect.matrix import collect_matrix

    return collect_matrix(**options)


def _cartpole_2obj() -> Dataset:
    from qdfm.collect.cartpole import collect_cartpole_2obj

    return collect_cartpole_2obj(seed=0)


def _mujoco(
    task: str, bins: int | None = None, codebook: int | None = None, transitions: int | None = None,
    seed: int | None = None, normalise: bool = True,
) -> Dataset:  # fmt: skip
    from qdfm.collect.mujoco import load_mujoco

    actions = _discretise(bins, codebook) or partial(Bins.fit, count=DEFAULT_BINS)
    return load_mujoco(task, actions, transitions, seed, normalise)


def _quick_mujoco(task: str) -> int | None:
    return QUICK_TRANSITIONS if local_set(TASKS[task].minari) is None else None


def _keep_mujoco(task: str, transitions: int | None, seed: int, replace: bool) -> str:
    from qdfm.collect.mujoco import MILLION, make_minari

    steps = MILLION if transitions is None else transitions
    name = make_minari(task, steps, seed, progress=True, replace=replace)
    made = local_set(name)
    assert made is not None
    mean, score = made["mean_return"], made["normalised_score"]
    played = "no whole episode" if mean is None else f"mean return {mean:.1f}, normalised score {score:.1f}"
    return f"{made['total_steps']} transitions, {played}, to the Minari set {name}"


def _mo_hopper(
    task: str, bins: int | None = None, codebook: int | None = None, transitions: int | None = None,
    seed: int | None = None, normalise: bool = True,
) -> Dataset:  # fmt: skip
    from qdfm.collect.mo_hopper import load_mo_hopper

    actions = _discretise(bins, codebook) or partial(Bins.fit, count=DEFAULT_BINS)
    return load_mo_hopper(task, actions, transitions, seed or 0, normalise)


def _write_mo_hopper(task: str, path: Path, transitions: int | None, seed: int) -> str:
    from qdfm.collect.mo_hopper import make_mo_hopper

    rows = make_mo_hopper(task, path, transitions, seed)
    count = int(rows["episode"][-1]) + 1
    mean = [round(float(r), 1) for r in rows["reward"].sum(0) / count]
    return f"{len(rows['reward'])} transitions of {count} trajectories, mean return {mean}"


def _smax(task: str, transitions: int | None = None, seed: int | None = None, normalise: bool = True) -> Dataset:
    from qdfm.collect.smax import collect_smax

    return collect_smax(task, transitions, seed or 0, normalise)


def _battles(data: Dataset) -> tuple[str, dict[str, float]]:
    from qdfm.collect.smax import statistics

    known = statistics(data)
    return f"{known['episodes']} episodes, win rate {known['win_rate']:.3f}", known


GENERATORS: dict[str, Generator] = {
    **{
        f"multigoal-{goals}": Generator(
            partial(_multigoal, goals), f"A grid world with {goals} equally good goals; 250 demonstrations of each"
        )
        for goals in (2, 3, 4, 5)
    },
    "fork": Generator(_fork, "Two objectives, a goal for each and a trap between; 500 demonstrations of each goal"),
    "cartpole-2obj": Generator(
        _cartpole_2obj, "CartPole that also counts switches of the push; controllers of nine different habits"
    ),
    "deep-sea-treasure": Generator(
        partial(_deep_sea, "convex"), "Treasure or time: seekers of each treasure, and random walks"
    ),
    "deep-sea-treasure-concave": Generator(partial(_deep_sea, "concave"), "The same with a concave front"),
    "resource-gathering": Generator(
        _resource, "Gold, a diamond and safety: bold and careful seekers, and random walks"
    ),
    "matrix": Generator(
        _matrix, "Two agents, one step, two objectives: a habit of acting alike", options=("transitions", "seed")
    ),
    **{
        name: Generator(
            partial(_mujoco, name),
            f"{task.env}, played by our policy {task.policy}; actions as {DEFAULT_BINS} bins per dimension",
            options=("bins", "codebook", "transitions", "seed", "normalise"),
            quick=partial(_quick_mujoco, name),
            keep=partial(_keep_mujoco, name),
        )
        for name, task in TASKS.items()
    },
    **{
        name: Generator(
            partial(_mo_hopper, name),
            f"Running or jumping in {MO_HOPPER}, played under many preferences by our {name.rpartition('-')[2]}; "
            f"actions as {DEFAULT_BINS} bins per dimension",
            options=("bins", "codebook", "transitions", "seed", "normalise"),
            quick=lambda: QUICK_TRANSITIONS,
            write=partial(_write_mo_hopper, name),
        )
        for name in MO_TASKS
    },
    **{
        name: Generator(
            partial(_smax, name),
            f"Battles of a team in {env}, played by our policy {name.removeprefix(env + '-')}",
            options=("transitions", "seed", "normalise"),
            facts=_battles,
        )
        for name, env in BATTLES.items()
    },
}


def load_dataset(
    name_or_path: str | Path,
    *,
    columns: Columns | None = None,
    num_actions: NumActions = None,
    normalise: bool = True,
    bins: int | None = None,
    codebook: int | None = None,
    transitions: int | None = None,
    seed: int | None = None,
) -> Dataset:
    """The data of a built-in name, of a `.npz`, `.parquet` or `.csv` file, of SMAC's (`.h5`, `.hdf5`) or D4MORL's
    (`.pkl`), of a Minari id, or of a Gymnasium id.

    A relative path that does not exist here is looked for under the folder that the environment variable
    QDFM_DATA names. `columns` names the columns of a table; `num_actions` and `normalise` are those of
    `Dataset.from_arrays`: the first is for tables and arrays, the second for all files but those of `Dataset.save`, for
    Minari sets, and for MuJoCo, MO-Hopper and SMAX tasks. Continuous actions of files, Minari sets and MuJoCo or
    MO-Hopper tasks become so many `bins` per dimension, or the nearest of so many actions of a `codebook`. A Gymnasium
    or MO-Gymnasium id with discrete actions gives the random behaviour of `collect_gymnasium(id)`. What does not
    concern a source is refused.

    `transitions` are the first of a Minari set, or those that are collected in a Gymnasium id, a MuJoCo, MO-Hopper or
    SMAX task or the matrix game, with `seed`. A MuJoCo task is read from its Minari set (`qdfm data make` writes it);
    without `transitions` and without the set, a million are collected, which takes minutes, and kept as that set.
    """
    if bins is not None and codebook is not None:
        raise QDFMError("bins and codebook are two ways to discretise actions; give one.")
    actions = _discretise(bins, codebook)
    if actions is not None and num_actions is not None:
        raise QDFMError(
            "num_actions counts discrete actions, bins and codebook make them of continuous ones; give one."
        )
    name, path = str(name_or_path), Path(name_or_path).expanduser()
    options = {
        "columns": columns, "num_actions": num_actions, "bins": bins, "codebook": codebook, "transitions": transitions,
        "seed": None if seed is None else check_seed(seed), "normalise": None if normalise else False,
    }  # fmt: skip
    given = {option: value for option, value in options.items() if value is not None}
    if is_file(name_or_path):
        if path.suffix.lower() in (".h5", ".hdf5"):
            _only(given, name, "normalise")
            return read_smac(_find(path), normalise)
        if path.suffix.lower() == ".pkl":
            _only(given, name, "bins", "codebook", "normalise")
            return read_d4morl(_find(path), actions, normalise)
        _only(given, name, "columns", "num_actions", "bins", "codebook", "normalise")
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
        raise QDFMError(f"{path} is of no known kind; write it as one of {', '.join(SUFFIXES)}.")
    if LIKE_A_SET.fullmatch(name):
        from qdfm.envs.gymnasium import registered

        if not registered(name):
            _only(given, name, "bins", "codebook", "transitions", "normalise")
            return read_minari(name, actions, normalise, transitions)
    return collected("task or data file", name, **given)


def _only(given: dict[str, Any], name: str, *allowed: str) -> None:
    """Refuse an option that means nothing to a source."""
    for option in given:
        if option not in allowed:
            raise QDFMError(f"{option} does not concern {name}; leave it out.")


def _discretise(bins: int | None, codebook: int | None) -> Discretise | None:
    """How actions become tokens, checked here because collecting the data may take minutes."""
    if bins is not None:
        check_count("bins per dimension", bins)
        return partial(Bins.fit, count=bins)
    if codebook is None:
        return None
    check_count("actions of a codebook", codebook)
    return partial(Codebook.fit, count=codebook)


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


def is_file(name_or_path: str | Path) -> bool:
    """Whether the name is that of a file, by its ending."""
    return Path(name_or_path).suffix.lower() in SUFFIXES


def _find(path: Path) -> Path:
    if path.exists():
        return path
    folder = os.environ.get("QDFM_DATA")
    if folder and not path.is_absolute() and (elsewhere := Path(folder).expanduser() / path).exists():
        return elsewhere
    searched = f"here nor under QDFM_DATA ({folder})" if folder else "here, and QDFM_DATA is not set"
    raise QDFMError(f"There is no file {path} {searched}; check the path.")
