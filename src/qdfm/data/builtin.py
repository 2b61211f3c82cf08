"""Built-in data: what a name stands for. A new data set is one more entry of GENERATORS."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qdfm.data.actions import Bins, discretise
from qdfm.data.dataset import Dataset, Discretise
from qdfm.data.minari import local_set
from qdfm.envs.mujoco import MO_HOPPER
from qdfm.tasks import BATTLES, MO_TASKS, TASKS

DEFAULT_BINS = 41  # per dimension of the built-in MuJoCo tasks
QUICK_TRANSITIONS = 100_000  # of robots, at most
ROBOT_OPTIONS = ("bins", "codebook", "actions", "transitions", "seed", "normalise")


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


def _divided(bins: int | None, codebook: int | None, actions: Discretise | None) -> Discretise:
    """How a robot's actions become tokens."""
    return actions or discretise(bins, codebook) or partial(Bins.fit, count=DEFAULT_BINS)


def _mujoco(
    task: str, bins: int | None = None, codebook: int | None = None, actions: Discretise | None = None,
    transitions: int | None = None, seed: int | None = None, normalise: bool = True,
) -> Dataset:  # fmt: skip
    from qdfm.collect.mujoco import load_mujoco

    return load_mujoco(task, _divided(bins, codebook, actions), transitions, seed, normalise)


def _quick_mujoco(task: str) -> int:
    present = local_set(TASKS[task].minari)
    return QUICK_TRANSITIONS if present is None else min(QUICK_TRANSITIONS, int(present["total_steps"]))


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
    task: str, bins: int | None = None, codebook: int | None = None, actions: Discretise | None = None,
    transitions: int | None = None, seed: int | None = None, normalise: bool = True,
) -> Dataset:  # fmt: skip
    from qdfm.collect.mo_hopper import load_mo_hopper

    return load_mo_hopper(task, _divided(bins, codebook, actions), transitions, seed or 0, normalise)


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
            options=ROBOT_OPTIONS,
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
            options=ROBOT_OPTIONS,
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
