"""Data of the MuJoCo tasks: the shipped policies rolled out in worker processes, and kept as Minari sets.

A data set is made of lanes, each of so many transitions of one environment with random numbers of its own; the last
episode of a lane is cut off. Lanes are stepped a few at a time, so that the policy sees them as one batch, always of
the same size: the data depends on the seed alone, not on the number of workers, and fewer transitions are the first
ones of more.
"""

import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium
import numpy as np

from qdfm.collect.actor import POLICIES, Actor
from qdfm.collect.workers import in_processes
from qdfm.data.actions import ActionSpace
from qdfm.data.dataset import Dataset, Discretise
from qdfm.data.minari import local_set, minari_for, read_minari, set_folder
from qdfm.envs.mujoco import Task, find_task, make_mujoco, normalised, quiet
from qdfm.errors import QDFMError
from qdfm.progress import open_count

MILLION = 1_000_000

LANE = 5_000  # transitions, so that few of the episodes of 1,000 steps are cut off
TOGETHER = 4  # lanes that are stepped at a time


class Trajectories(NamedTuple):
    """Transitions with continuous actions, in time order, one episode after the other."""

    observation: np.ndarray  # [n, observation]
    action: np.ndarray  # [n, action]
    reward: np.ndarray  # [n]
    next_observation: np.ndarray  # [n, observation]
    terminated: np.ndarray  # [n]
    truncated: np.ndarray  # [n], at the time limit or where the lane ends
    episode: np.ndarray  # [n], numbered from 0


@dataclass(frozen=True)
class Job:
    """Some lanes to be played: their numbers and lengths. `once` ends a lane with its first episode."""

    task: Task
    seed: int
    lanes: tuple[int, ...]
    lengths: tuple[int, ...]
    quantiser: ActionSpace | None
    once: bool = False


def collect_mujoco(
    task: str,
    transitions: int = MILLION,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
    quantiser: ActionSpace | None = None,
) -> Trajectories:
    """So many transitions of a task's policy, by so many processes (None: one for each core).

    With a `quantiser` every action is executed, and recorded, as what encoding and decoding make of it.
    """
    known = find_task(task)
    if transitions < 1:
        raise QDFMError(f"{transitions} transitions cannot be collected; give at least 1.")
    lengths = [min(LANE, transitions - start) for start in range(0, transitions, LANE)]
    jobs = [
        Job(known, seed, tuple(range(len(lengths))[i : i + TOGETHER]), tuple(lengths[i : i + TOGETHER]), quantiser)
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
    limit = _limit(known)
    lanes = [
        lane
        for i in range(0, episodes, TOGETHER)
        for numbers in [tuple(range(episodes)[i : i + TOGETHER])]
        for lane in play(Job(known, seed, numbers, (limit,) * len(numbers), quantiser, once=True))
    ]
    return np.array([lane.reward.sum() for lane in lanes])


def whole_returns(task: str, data: Trajectories) -> np.ndarray:
    """Returns of the episodes that ended or reached the time limit; those that were cut off earlier are left out."""
    last = np.flatnonzero(np.r_[data.episode[1:] != data.episode[:-1], True])
    lengths = np.diff(np.r_[-1, last])
    whole = data.terminated[last] | (lengths == _limit(find_task(task)))
    returns: np.ndarray = np.bincount(data.episode, data.reward)[whole]
    return returns


def make_minari(
    task: str,
    transitions: int = MILLION,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
    replace: bool = False,
) -> str:
    """Collect, write the Minari set of the task and give its id; a set that is there is replaced on request only.

    Beside what Minari itself records, its metadata holds `policy`, `seed`, `mean_return` and `normalised_score`, the
    last two over whole episodes (null where there is none).
    """
    known = find_task(task)
    folder = set_folder(known.minari)
    if folder.exists() and not replace:
        raise QDFMError(
            f"The Minari set {known.minari} is already at {folder}; give --replace (replace=True) to renew it."
        )
    data = collect_mujoco(task, transitions, seed, workers, progress)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        _write(known, seed, data)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)  # half a set would be taken for a whole one
        if isinstance(error, OSError):
            raise QDFMError(f"Cannot write {folder} ({error}); set MINARI_DATASETS_PATH to a writable place.") from None
        raise
    return known.minari


def load_mujoco(
    task: str, actions: Discretise, transitions: int | None = None, seed: int = 0, normalise: bool = True
) -> Dataset:
    """The data of a task, from its Minari set where that was made with this seed and is long enough.

    Otherwise so many transitions are collected for now. Without a number it is all of the set, which is made first, of
    a million transitions, if there is none.
    """
    name = find_task(task).minari
    present = local_set(name)
    if present is None and transitions is None:
        make_minari(task, seed=seed, progress=True)
        return read_minari(name, actions, normalise)
    if present and present.get("seed") == seed and (transitions or 1) <= present["total_steps"]:
        return read_minari(name, actions, normalise, transitions)
    data = collect_mujoco(task, MILLION if transitions is None else transitions, seed, progress=True)
    return Dataset.from_arrays(**data._asdict(), actions=actions, normalise=normalise)


def join(lanes: Sequence[Trajectories]) -> Trajectories:
    """Lanes one after the other, their episodes numbered on."""
    firsts = np.cumsum([0, *(lane.episode[-1] + 1 for lane in lanes)])
    numbered = [lane._replace(episode=lane.episode + first) for lane, first in zip(lanes, firsts)]
    return Trajectories(*(np.concatenate(parts) for parts in zip(*numbered, strict=True)))


def play(job: Job) -> list[Trajectories]:
    """The lanes of a job, stepped together in this process."""
    worlds = [make_mujoco(job.task.env) for _ in job.lanes]
    high = worlds[0].action_space.high  # type: ignore[attr-defined]
    actor = Actor.read(POLICIES / f"{job.task.policy}.npz", high)
    lanes = [_Lane(w, np.random.default_rng([job.seed, n]), k) for w, n, k in zip(worlds, job.lanes, job.lengths)]
    seen = np.zeros((TOGETHER, *worlds[0].observation_space.shape), np.float32)  # type: ignore[misc]
    noise = np.zeros((TOGETHER, len(high)), np.float32)
    while playing := [i for i, lane in enumerate(lanes) if not lane.over(job.once)]:
        for i in playing:
            seen[i], noise[i] = lanes[i].now, lanes[i].generator.standard_normal(len(high), np.float32)
        action = actor.act(seen, noise)
        if job.quantiser is not None:
            action = job.quantiser.decode(job.quantiser.encode(action))
        for i in playing:
            lanes[i].step(action[i])
    for world in worlds:
        world.close()
    return [lane.rows() for lane in lanes]


class _Lane:
    """One environment, its random numbers, and what it has seen so far."""

    def __init__(self, world: gymnasium.Env, generator: np.random.Generator, length: int) -> None:
        self.world, self.generator = world, generator
        size, moves = world.observation_space, world.action_space
        self.done, self.number, self.length = 0, 0, length
        self.data = Trajectories(
            observation=np.empty((length, *size.shape), size.dtype),  # type: ignore[misc]
            action=np.empty((length, *moves.shape), moves.dtype),  # type: ignore[misc]
            reward=np.empty(length),
            next_observation=np.empty((length, *size.shape), size.dtype),  # type: ignore[misc]
            terminated=np.zeros(length, bool),
            truncated=np.zeros(length, bool),
            episode=np.empty(length, np.int64),
        )
        self.now = self._reset()

    def _reset(self) -> np.ndarray:
        observation: np.ndarray = self.world.reset(seed=int(self.generator.integers(2**31)))[0]
        return observation

    def over(self, once: bool) -> bool:
        """Whether it is full, or has played its one episode."""
        return self.done == self.length or (once and self.number > 0)

    def step(self, action: np.ndarray) -> None:
        """Record one transition, and begin anew after the last of an episode."""
        data, i = self.data, self.done
        then, reward, terminated, truncated, _ = self.world.step(action)
        data.observation[i], data.action[i], data.next_observation[i] = self.now, action, then
        data.reward[i], data.terminated[i], data.episode[i] = float(reward), terminated, self.number
        self.done += 1
        data.truncated[i] = truncated or (self.done == self.length and not terminated)
        self.now = then
        if terminated or truncated:
            self.number += 1
            self.now = self._reset()

    def rows(self) -> Trajectories:
        """The transitions that were played."""
        return Trajectories(*(x[: self.done] for x in self.data))


def _limit(task: Task) -> int:
    """The longest episode."""
    return gymnasium.spec(task.env).max_episode_steps or 0


def _write(task: Task, seed: int, data: Trajectories) -> None:
    import mujoco
    from minari.data_collector.episode_buffer import EpisodeBuffer

    firsts = np.flatnonzero(np.r_[True, data.episode[1:] != data.episode[:-1]])
    episodes = [
        EpisodeBuffer(
            id=number,
            observations=np.concatenate([data.observation[rows], data.next_observation[rows][-1:]]),
            actions=data.action[rows],
            rewards=data.reward[rows],
            terminations=data.terminated[rows],
            truncations=data.truncated[rows],
        )
        for number, rows in enumerate(map(slice, firsts, [*firsts[1:], len(data.reward)]))
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
