"""Data of the MuJoCo tasks: the shipped policies rolled out in worker processes, and written as Minari sets.

A data set is made of lanes, each of so many transitions of one environment with random numbers of its own; the last
episode of a lane is cut off. Lanes are stepped a few at a time, so that the policy sees them as one batch, always of
the same size: the data depends on the seed alone, not on the number of workers, and fewer transitions are the first
ones of more.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

import gymnasium
import numpy as np

from qdfm.collect.actor import POLICIES, Actor
from qdfm.data.actions import ActionSpace
from qdfm.envs.mujoco import Task, find_task, make_mujoco
from qdfm.errors import QDFMError
from qdfm.progress import open_count

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
    transitions: int = 1_000_000,
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
        for played in _by_workers(jobs, min(workers or os.cpu_count() or 1, len(jobs))):
            lanes += played
            tell(sum(len(lane.reward) for lane in lanes))
    return join(lanes)


def replayed(task: str, quantiser: ActionSpace | None, episodes: int = 20, seed: int = 0) -> np.ndarray:
    """Returns `[episodes]` of the task's policy with its actions through the quantiser (None: as they are)."""
    known = find_task(task)
    limit = gymnasium.spec(known.env).max_episode_steps or 0
    lanes = [
        lane
        for i in range(0, episodes, TOGETHER)
        for numbers in [tuple(range(episodes)[i : i + TOGETHER])]
        for lane in play(Job(known, seed, numbers, (limit,) * len(numbers), quantiser, once=True))
    ]
    return np.array([lane.reward.sum() for lane in lanes])


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


# Workers are plain Python processes that are sent jobs, not those of `multiprocessing`: these would run the user's
# script again, which breaks every script without a guard around its main part.


def _by_workers(jobs: Sequence[Job], workers: int) -> Iterator[list[Trajectories]]:
    """What each job gives, in order."""
    if workers == 1:
        yield from map(play, jobs)
        return
    start = f"import sys; sys.path = {sys.path!r}; from qdfm.collect.mujoco import serve; serve()"
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # the cores are taken by the others
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(workers):
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", start], env=alone, **pipes))
            free.put(process)

        def ask(job: Job) -> list[Trajectories]:
            process = free.get()
            try:
                assert process.stdin and process.stdout
                _send(process.stdin, job)
                lanes: list[Trajectories] = pickle.load(process.stdout)
                return lanes
            except (OSError, EOFError):
                raise RuntimeError("A process that collects data has died; its error stands above.") from None
            finally:
                free.put(process)

        yield from stack.enter_context(ThreadPoolExecutor(workers)).map(ask, jobs)


def serve() -> None:
    """What a worker does: play the jobs that come in, until there are no more."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the results
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _send(results, play(job))


def _send(pipe: IO[bytes], message: object) -> None:
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()
