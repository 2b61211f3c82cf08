"""Data of the MuJoCo tasks: the shipped policies rolled out in worker processes, and kept as Minari sets.

A data set is made of lanes (`rollouts`) of a fixed length, the last of which may be shorter: the data depends on the
seed alone, not on the number of workers, and fewer transitions are the first ones of more.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
import numpy as np

from qdfm.collect.actor import POLICIES, Actor
from qdfm.collect.rollouts import TOGETHER, Job, Trajectories, episode_returns, join, play, time_limit
from qdfm.collect.workers import in_processes
from qdfm.data.actions import ActionSpace
from qdfm.data.dataset import Dataset, Discretise
from qdfm.data.episodes import borders
from qdfm.data.minari import local_set, minari_for, read_minari, set_folder
from qdfm.envs.mujoco import make_plain, quiet
from qdfm.errors import QDFMError
from qdfm.progress import open_count
from qdfm.tasks import Task, find_task, normalised

MILLION = 1_000_000
LANE = 5_000  # transitions, so that few of the episodes of 1,000 steps are cut off


def actor_of(task: Task) -> Actor:
    """The task's policy."""
    with closing(make_plain(task.env)) as world:
        return Actor.read(POLICIES / f"{task.policy}.npz", world.action_space.high)  # type: ignore[attr-defined]


def collect_mujoco(
    task: str,
    transitions: int = MILLION,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
) -> Trajectories:
    """So many transitions of a task's policy, by so many processes (None: one for each core)."""
    known = find_task(task)
    if transitions < 1:
        raise QDFMError(f"{transitions} transitions cannot be collected; give at least 1.")
    lengths = [min(LANE, transitions - start) for start in range(0, transitions, LANE)]
    numbers, actor = range(len(lengths)), actor_of(known)
    jobs = [
        Job(known.env, actor, seed, tuple(numbers[i : i + TOGETHER]), tuple(lengths[i : i + TOGETHER]))
        for i in range(0, len(lengths), TOGETHER)
    ]
    lanes: list[Trajectories] = []
    with open_count(f"{task} transitions", transitions, progress) as tell:
        for played in in_processes(play, jobs, workers):
            lanes += played
            tell(sum(len(lane.reward) for lane in lanes))
    return join(lanes)


def replayed(task: str, quantiser: ActionSpace | None, episodes: int = 20, seed: int = 0) -> np.ndarray:
    """Returns `[episodes]` of the task's policy with its actions through the quantiser (None: as they are)."""
    known = find_task(task)
    return episode_returns(known.env, actor_of(known), episodes, seed, quantiser)


def whole_returns(task: str, data: Trajectories | Dataset) -> np.ndarray:
    """Returns of the episodes that ended or reached the time limit; those that were cut off earlier are left out."""
    first, last = borders(data.episode)
    lengths = last - first + 1
    whole = np.asarray(data.terminated)[last] | (lengths == time_limit(find_task(task).env))
    reward = np.asarray(data.reward, np.float64).reshape(-1)  # of the one objective
    returns: np.ndarray = np.add.reduceat(reward, first)[whole]
    return returns


def make_minari(
    task: str,
    transitions: int = MILLION,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
    replace: bool = False,
) -> str:
    """Collect, write the Minari set of the task and give its id; a set that is there is replaced on request only, once
    the new one is complete.

    Beside what Minari itself records, its metadata holds `policy`, `seed`, `mean_return` and `normalised_score`, the
    last two over whole episodes (null where there is none).
    """
    known = find_task(task)
    folder = set_folder(known.minari)
    if folder.exists() and not replace:
        stands = "incomplete" if local_set(known.minari) is None else "already there"
        raise QDFMError(
            f"The Minari set {known.minari} at {folder} is {stands}; renew it with qdfm data make {task} --replace "
            "(replace=True)."
        )
    data = collect_mujoco(task, transitions, seed, workers, progress)
    try:
        _create_namespace(known.minari)
        # Beside the place where it belongs, because half a set would be taken for a whole one; hidden from Minari.
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
            with _sets_in(beside):
                _write(known, seed, data)
            if folder.exists():
                folder.rename(Path(beside) / "old")
            (Path(beside) / known.minari).rename(folder)
    except OSError as error:
        raise QDFMError(f"Cannot write {folder} ({error}); set MINARI_DATASETS_PATH to a writable place.") from None
    return known.minari


def load_mujoco(
    task: str, actions: Discretise, transitions: int | None = None, seed: int | None = None, normalise: bool = True
) -> Dataset:
    """The data of a task, from its Minari set where that is long enough and, if a seed is given, was made with it.

    Otherwise so many transitions are collected for now. Without a number it is all of the set, which is made first, of
    a million transitions, if there is none.
    """
    name = find_task(task).minari
    present = local_set(name)
    if present is None and transitions is None:
        make_minari(task, seed=seed or 0, progress=True)
        return read_minari(name, actions, normalise)
    if present and seed in (None, present.get("seed")) and (transitions or 1) <= present["total_steps"]:
        return read_minari(name, actions, normalise, transitions)
    data = collect_mujoco(task, MILLION if transitions is None else transitions, seed or 0, progress=True)
    return Dataset.from_arrays(**data._asdict(), actions=actions, normalise=normalise)


def _create_namespace(name: str) -> None:
    """The folder that a set lies in, as Minari wants it."""
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = name.rpartition("/")[0]
    if namespace not in list_local_namespaces():
        create_namespace(namespace)


@contextmanager
def _sets_in(folder: str) -> Iterator[None]:
    """Another folder of all sets for Minari, for a while."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = folder
    try:
        yield
    finally:
        del os.environ["MINARI_DATASETS_PATH"]
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before


def _write(task: Task, seed: int, data: Trajectories) -> None:
    import mujoco
    from minari.data_collector.episode_buffer import EpisodeBuffer

    episodes = [
        EpisodeBuffer(
            id=number,
            observations=np.concatenate([data.observation[rows], data.next_observation[rows][-1:]]),
            actions=data.action[rows],
            rewards=data.reward[rows],
            terminations=data.terminated[rows],
            truncations=data.truncated[rows],
        )
        for number, rows in enumerate(slice(first, last + 1) for first, last in zip(*borders(data.episode)))
    ]
    returns = whole_returns(task.name, data)
    mean = float(returns.mean()) if len(returns) else None
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")  # about a permanent link and an address, which it has none of
        made = minari_for(task.minari).create_dataset_from_buffers(
            task.minari,
            buffer=episodes,
            env=task.env,
            algorithm_name="SAC",
            author="qdfm",
            description=f"{task.env} played by qdfm's policy {task.policy}; neither D4RL's nor Minari's data.",
            ref_min_score=task.low,
            ref_max_score=task.high,
            requirements=[f"mujoco=={mujoco.__version__}", f"gymnasium=={gymnasium.__version__}"],
            data_format="hdf5",
        )
    score = None if mean is None else float(normalised(task.name, mean))
    made.storage.update_metadata({"policy": task.policy, "seed": seed, "mean_return": mean, "normalised_score": score})
