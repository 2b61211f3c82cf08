"""Rollouts of an actor with continuous actions, in lanes: each one environment with random numbers of its own.

Lanes are stepped a few at a time, so that the actor sees them as one batch, always of the same size: what happens in a
lane depends on its number and the seed, not on the lanes beside it. With several objectives, each episode has a
preference, which the actor sees after the observation.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import gymnasium
import numpy as np

from qdfm.collect.actor import Actor
from qdfm.data.actions import ActionSpace
from qdfm.envs.gymnasium import Preferring, objectives_of
from qdfm.envs.mujoco import make_plain

TOGETHER = 4  # lanes that are stepped at a time


class Trajectories(NamedTuple):
    """Transitions with continuous actions, in time order, one episode after the other."""

    observation: np.ndarray  # [n, observation]
    action: np.ndarray  # [n, action]
    reward: np.ndarray  # [n], or [n, objectives] where there are several
    next_observation: np.ndarray  # [n, observation]
    terminated: np.ndarray  # [n]
    truncated: np.ndarray  # [n], at the time limit or where the recording stops
    episode: np.ndarray  # [n], numbered from 0


class Lane:
    """One environment, its random numbers, and where it stands."""

    def __init__(self, env: str, *seeds: int) -> None:
        world = make_plain(env)
        self.world = Preferring(world) if objectives_of(world) > 1 else world
        self.generator = np.random.default_rng(seeds)
        self.episode = 0
        self.now = self._reset()

    def _reset(self) -> np.ndarray:
        observation: np.ndarray = self.world.reset(seed=int(self.generator.integers(2**31)))[0]
        return observation

    def step(self, action: np.ndarray, rows: Trajectories, i: int) -> None:
        """Act, record that as row i, and begin anew after the last step of an episode."""
        rows.observation[i], rows.action[i], rows.episode[i] = self.now, action, self.episode
        self.now, reward, terminated, truncated, _ = self.world.step(action)
        rows.next_observation[i], rows.reward[i] = self.now, reward
        rows.terminated[i], rows.truncated[i] = terminated, truncated
        if terminated or truncated:
            self.episode += 1
            self.now = self._reset()

    def close(self) -> None:
        """Let go of the environment."""
        self.world.close()


class Acting(Protocol):
    """What plays: an `Actor`, or something that does as it does."""

    @property
    def high(self) -> np.ndarray:
        """The largest action `[A]`."""
        ...

    def act(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions `[B, A]` for observations `[B, n]` and standard normal noise `[B, A]`."""
        ...


@dataclass(frozen=True)
class Job:
    """Some lanes to be played: their numbers and lengths. `episodes` ends a lane after so many."""

    env: str
    actor: Acting
    seed: int
    lanes: tuple[int, ...]
    lengths: tuple[int, ...]
    quantiser: ActionSpace | None = None
    episodes: int | None = None


def play(job: Job) -> list[Trajectories]:
    """The lanes of a job, stepped together in this process; the last episode of a lane is cut off."""
    with ExitStack() as stack:
        lanes = [stack.enter_context(closing(Lane(job.env, job.seed, number))) for number in job.lanes]
        rows, done = _stepped(job, lanes)
    played = [Trajectories(*(x[:n] for x in row)) for row, n in zip(rows, done)]
    for lane_rows in played:
        lane_rows.truncated[-1] |= not lane_rows.terminated[-1]
    return played


def _stepped(job: Job, lanes: Sequence[Lane]) -> tuple[list[Trajectories], list[int]]:
    """Room for what each lane of a job may record, and how many rows of it were filled."""
    rows = [empty_rows(lane.world, length) for lane, length in zip(lanes, job.lengths)]
    seen = np.zeros((TOGETHER, *lanes[0].now.shape), np.float32)
    noise = np.zeros((TOGETHER, *job.actor.high.shape), np.float32)
    done = [0 for _ in lanes]
    while playing := [i for i, lane in enumerate(lanes) if done[i] < job.lengths[i] and lane.episode != job.episodes]:
        for i in playing:
            seen[i], noise[i] = lanes[i].now, lanes[i].generator.standard_normal(noise.shape[1], np.float32)
        action = job.actor.act(seen, noise)
        if job.quantiser is not None:
            action = job.quantiser.decode(job.quantiser.encode(action))
        for i in playing:
            lanes[i].step(action[i], rows[i], done[i])
            done[i] += 1
    return rows, done


def episode_returns(
    env: str, actor: Actor, episodes: int, seed: int, quantiser: ActionSpace | None = None
) -> np.ndarray:
    """Returns `[episodes]` of whole episodes, of several objectives ⟨preference, return⟩."""
    returns = []
    for i in range(0, episodes, TOGETHER):
        lanes = tuple(range(i, min(i + TOGETHER, episodes)))
        job = Job(env, actor, seed, lanes, (time_limit(env),) * len(lanes), quantiser, episodes=1)
        returns += [gains(rows).sum() for rows in play(job)]
    return np.array(returns)


def gains(rows: Trajectories) -> np.ndarray:
    """The reward as one number `[n]`: of several objectives ⟨preference, reward⟩."""
    if rows.reward.ndim == 1:
        return rows.reward
    return np.sum(rows.observation[:, -rows.reward.shape[1] :] * rows.reward, 1)


def empty_rows(world: gymnasium.Env, length: int) -> Trajectories:
    """Room for so many transitions."""
    seen, acted, objectives = world.observation_space, world.action_space, objectives_of(world)
    return Trajectories(
        observation=np.empty((length, *seen.shape), seen.dtype),  # type: ignore[misc]
        action=np.empty((length, *acted.shape), acted.dtype),  # type: ignore[misc]
        reward=np.empty((length, objectives) if objectives > 1 else length),
        next_observation=np.empty((length, *seen.shape), seen.dtype),  # type: ignore[misc]
        terminated=np.zeros(length, bool),
        truncated=np.zeros(length, bool),
        episode=np.empty(length, np.int64),
    )


def join(lanes: Sequence[Trajectories]) -> Trajectories:
    """Lanes one after the other, their episodes numbered on."""
    firsts = np.cumsum([0, *(lane.episode[-1] + 1 for lane in lanes)])
    numbered = [lane._replace(episode=lane.episode + first) for lane, first in zip(lanes, firsts)]
    return Trajectories(*(np.concatenate(parts) for parts in zip(*numbered, strict=True)))


def time_limit(env: str) -> int:
    """The longest episode of an environment."""
    return gymnasium.spec(env).max_episode_steps or 0
