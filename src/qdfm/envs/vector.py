"""Copies of an environment behind Gymnasium's vector environments, each episode begun with a seed of its own.

A vector environment takes one number for a reward, stacks infos key by key, and steps every copy, also one that has
nothing left to play. So a copy is wrapped: it never tells the vector environment that an episode ended, but stands
still until it is reset, and all that a step gave travels as one `Report` in its info. Rewards of several objectives,
masks and seeds per episode then go through Gymnasium's own code, in this process or in others.
"""

from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TransformObservation

from qdfm.data.spec import Spec
from qdfm.envs.gymnasium import Accumulating, adapted, box, kept_of, make, registered, seed_globals
from qdfm.envs.registry import game_of
from qdfm.errors import QDFMError

PARALLEL = 64  # copies of an environment that share one batch of decisions, in one process


class Report(NamedTuple):
    """What the step of a copy gave, or its reset."""

    reward: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]  # the "action_mask" and "won" where the environment has them, and nothing else


NOTHING = Report(0.0, False, False, {})


class Copy(gymnasium.Wrapper):
    """One copy. After an episode's end it shows the last observation before it until it is reset."""

    def __init__(self, env: gymnasium.Env, dtype: str, borrowed: bool) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        if np.dtype(dtype).kind != "f" and env.observation_space.dtype != dtype:
            raise QDFMError(
                f"The agent was trained on observations of type {dtype} but the environment's are of type "
                f"{env.observation_space.dtype}; evaluate it where its data came from."
            )
        self.observation_space = box(env.observation_space.shape, dtype)
        self.dtype, self.borrowed, self.over = dtype, borrowed, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new episode."""
        observation, info = self.env.reset(seed=seed)
        self.over, self.seen = False, np.array(observation, self.dtype)
        return self.seen, {"report": NOTHING._replace(info=kept_of(info))}

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """One step, or none where the episode is over."""
        if self.over:
            return self.seen, 0.0, False, False, {"report": NOTHING}
        observation, reward, terminated, truncated, info = self.env.step(action if np.ndim(action) else int(action))
        self.over = bool(terminated or truncated)
        if not self.over:
            self.seen = np.array(observation, self.dtype)  # copied: the environment may write into its own again
        return self.seen, 0.0, False, False, {"report": Report(reward, terminated, truncated, kept_of(info))}

    def close(self) -> None:
        """Except one that was only borrowed."""
        if not self.borrowed:
            self.env.close()


def copies_of(env: str | gymnasium.Env, episodes: int, workers: int) -> int:
    """How many copies play so many episodes: one of an environment itself, one per worker, else as many as share a
    batch, or as a game allows."""
    if not isinstance(env, str):
        return 1
    if workers > 1:
        return min(episodes, workers)
    found = game_of(env)
    return min(episodes, PARALLEL if found is None else found[0].copies)


def vectorised(
    env: str | gymnasium.Env, spec: Spec, copies: int, workers: int, seed: int
) -> SyncVectorEnv | AsyncVectorEnv:
    """Copies of a Gymnasium id for an agent of this spec; an environment itself is its only copy.

    With several workers each copy has a process of its own, whose global generators are seeded too.
    """
    if not isinstance(env, str):
        return SyncVectorEnv([lambda: _copy(adapted(env, spec.actions), spec, borrowed=True)], copy=False)
    if workers == 1:
        return SyncVectorEnv([lambda: _copy(make(env, spec.actions), spec)] * copies, copy=False)
    known = gymnasium.registry[env] if registered(env) else None
    makers = [partial(_elsewhere, env, known, spec, seed + i) for i in range(copies)]
    return AsyncVectorEnv(makers, copy=False, context="spawn")  # not forked, because JAX has threads in this process


def _copy(env: gymnasium.Env, spec: Spec, borrowed: bool = False) -> Copy:
    if spec.history > 1:
        env = remembering(env, spec.history)
    if (so_far := spec.accumulation) is not None:
        env = Accumulating(env, spec.objectives, so_far.gamma)
    return Copy(env, spec.observation_dtype, borrowed)


def remembering(env: gymnasium.Env, history: int) -> gymnasium.Env:
    """The same task with its last observations side by side, as `Dataset.with_history` has them."""
    assert env.observation_space.shape is not None
    *shape, last = env.observation_space.shape
    wider = box((*shape, history * last), str(env.observation_space.dtype))
    stacked = FrameStackObservation(env, history, padding_type="reset")
    return TransformObservation(stacked, lambda seen: np.concatenate([*seen], -1), wider)


def _elsewhere(name: str, known: Any, spec: Spec, seed: int) -> Copy:
    """A copy in a process that may not know an id which its user registered."""
    if known is not None:
        gymnasium.registry.setdefault(name, known)
    seed_globals(seed)
    return _copy(make(name, spec.actions), spec)
