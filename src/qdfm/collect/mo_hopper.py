"""Data of MO-Hopper in the manner of D4MORL's: trajectories of 500 steps, each under a preference of its own.

As there, `expert` plays the policy's mean action, and `amateur` multiplies that in 65 % of the steps by a number drawn
from [.35, 1.65]. Where we differ: one actor of our own (`qdfm.collect.sac`) that sees the preference takes the place of
PGMORL's 96 policies; it was trained for ⟨preference, return⟩, while D4MORL gives a trajectory the preference that its
policy's returns are proportional to. Ours are uniform on the simplex, D4MORL's lie between .32 and .68. The actor falls
in some episodes and is slower: its expert data have about two fifths of the hypervolume of PGMORL's.

Lanes play ten trajectories each: the data depends on the seed alone, and fewer transitions are the first ones of more.
"""

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdfm.checkpoint import check_writable
from qdfm.collect.actor import POLICIES, Actor
from qdfm.collect.rollouts import TOGETHER, Job, Trajectories, join, play, time_limit
from qdfm.collect.workers import in_processes
from qdfm.data.d4morl import write_trajectories
from qdfm.data.dataset import Dataset, Discretise
from qdfm.envs.mujoco import MO_HOPPER, make_plain
from qdfm.errors import QDFMError, unknown
from qdfm.progress import open_count
from qdfm.tasks import MO_TASKS

TRAJECTORIES = 1_000
IN_A_LANE = 10  # trajectories
SHAKEN, LEAST, MOST = 0.65, 0.35, 1.65  # how often an amateur's action is multiplied, and by what


@dataclass(frozen=True)
class Habit:
    """How an actor plays when the data is made. An amateur's lots are the shares of the normal distribution that lie
    below two of the step's normal numbers, which are uniform."""

    actor: Actor
    amateur: bool

    @property
    def high(self) -> np.ndarray:
        """The largest action `[A]`."""
        return self.actor.high

    def act(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions `[B, A]` for observations `[B, n]` and standard normal noise `[B, A]`."""
        action = self.actor.act(observation, np.zeros_like(noise))
        if not self.amateur:
            return action
        lots = np.array([[(1 + math.erf(z / math.sqrt(2))) / 2 for z in row[:2]] for row in noise.tolist()])
        factor = np.where(lots[:, 0] < SHAKEN, LEAST + (MOST - LEAST) * lots[:, 1], 1.0)
        return np.clip(factor[:, None] * action, -self.high, self.high).astype(np.float32)


def habit_of(task: str) -> Habit:
    """How the shipped actor plays for a task."""
    if task not in MO_TASKS:
        raise unknown("MO-Hopper task", task, MO_TASKS)
    with closing(make_plain(MO_HOPPER)) as world:
        actor = Actor.read(POLICIES / "mo_hopper.npz", world.action_space.high)  # type: ignore[attr-defined]
    return Habit(actor, task.endswith("amateur"))


def collect_mo_hopper(
    task: str, transitions: int | None = None, seed: int = 0, workers: int | None = None, progress: bool = False
) -> dict[str, np.ndarray]:
    """So many transitions (None: a thousand trajectories) as the arguments of `Dataset.from_arrays`.

    They are played by so many processes (None: one for each core).
    """
    if transitions is not None and transitions < 1:
        raise QDFMError(f"{transitions} transitions cannot be collected; give at least 1.")
    habit, lanes, played = habit_of(task), list[Trajectories](), 0
    total = transitions or TRAJECTORIES * time_limit(MO_HOPPER)
    with open_count(f"{task} transitions", total, progress) as tell:
        while not lanes or played < (transitions or 0):  # robots fall, so that lanes may be shorter than they could
            mean = played / len(lanes) if lanes else IN_A_LANE * time_limit(MO_HOPPER)
            count = math.ceil((total - played) / mean)
            for lane in _lanes(habit, seed, range(len(lanes), len(lanes) + count), workers):
                lanes.append(lane)
                played += len(lane.reward)
                tell(min(played, total))
    rows = Trajectories(*(x[:transitions] for x in join(lanes)))
    rows.truncated[-1] |= not rows.terminated[-1]
    own = rows.observation.shape[1] - rows.reward.shape[1]  # what is not the preference
    seen, preference = np.split(rows.observation, [own], 1)
    parts = rows._replace(observation=seen, next_observation=rows.next_observation[:, :own])
    return {**parts._asdict(), "preference": preference}


def _lanes(habit: Habit, seed: int, numbers: range, workers: int | None) -> Iterator[Trajectories]:
    longest = IN_A_LANE * time_limit(MO_HOPPER)
    batches = [tuple(numbers[i : i + TOGETHER]) for i in range(0, len(numbers), TOGETHER)]
    jobs = [Job(MO_HOPPER, habit, seed, some, (longest,) * len(some), episodes=IN_A_LANE) for some in batches]
    for played in in_processes(play, jobs, workers):
        yield from played


def load_mo_hopper(
    task: str, actions: Discretise, transitions: int | None = None, seed: int = 0, normalise: bool = True
) -> Dataset:
    """The data of a task, collected for now."""
    rows = collect_mo_hopper(task, transitions, seed, progress=True)
    return Dataset.from_arrays(**rows, actions=actions, normalise=normalise)  # type: ignore[arg-type]


def make_mo_hopper(task: str, path: Path, transitions: int | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Collect and write the trajectories to a .npz file that `qdfm.load_dataset` reads; also what was collected."""
    check_writable(path)
    rows = collect_mo_hopper(task, transitions, seed, progress=True)
    write_trajectories(path, rows)
    return rows
