"""Data from any Gymnasium or MO-Gymnasium environment with discrete actions, by whatever behaviour it is given."""

import os
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from qdfm.data.actions import ActionSpace, Discrete
from qdfm.data.dataset import Dataset
from qdfm.envs.gymnasium import action_masks, action_space_of, adapted, kept_of, make, seeded
from qdfm.errors import QDFMError

Policy = Callable[[np.ndarray, dict[str, Any], np.random.Generator], Any]
"""(observation, info, generator) -> action"""


def collect_gymnasium(
    env: str | gymnasium.Env,
    transitions: int = 10_000,
    seed: int = 0,
    policy: Policy | None = None,
    categories: tuple[int, ...] = (),
) -> Dataset:
    """So many transitions of a policy (without one: uniform over the legal actions), the same for the same seed.

    The last episode is truncated where the transitions are used up. Masks are kept if the environment reports
    info["action_mask"]. `categories` is that of `Dataset.from_arrays`.
    """
    if transitions < 1:
        raise QDFMError(f"{transitions} transitions cannot be collected; give at least 1.")
    with seeded(seed):
        world = make(env) if isinstance(env, str) else adapted(env)
        data = _roll_out(world, transitions, np.random.default_rng(seed), policy, categories)
        if isinstance(env, str):
            world.close()
    return data


def _roll_out(
    world: gymnasium.Env, transitions: int, generator: np.random.Generator, policy: Policy | None,
    categories: tuple[int, ...],
) -> Dataset:  # fmt: skip
    actions, seen = action_space_of(world), world.observation_space
    behave = policy or _uniform(actions)
    _check_memory(transitions, seen.shape, seen.dtype)
    observation = np.empty((transitions, *seen.shape), seen.dtype)  # type: ignore[misc]
    following = np.empty_like(observation)
    rows = []
    over, number = True, -1
    for i in range(transitions):
        if over:
            now, info = world.reset(seed=int(generator.integers(2**31)))
            number += 1
        # Copies, because an environment may write what it reports next into the same arrays.
        observation[i], legal = now, kept_of(info)
        action = behave(observation[i], info, generator)
        now, reward, terminated, truncated, then = world.step(action)
        following[i] = now
        rows.append((np.array(action), np.array(reward), terminated, truncated, number, legal, kept_of(then)))
        info, over = then, terminated or truncated
    chosen, rewards, ended, cut, episode, before, after = zip(*rows, strict=True)
    masks = action_masks(actions, [*before, *after])
    return Dataset.from_arrays(
        observation,
        np.array(chosen),
        np.array(rewards),
        following,
        terminated=ended,
        truncated=[*cut[:-1], cut[-1] or not ended[-1]],
        mask=None if masks is None else masks[:transitions],
        next_mask=None if masks is None else masks[transitions:],
        episode=episode,
        actions=actions,
        categories=categories,
    )


def _uniform(actions: ActionSpace) -> Policy:
    """Every part of the decision drawn uniformly from its legal choices."""
    exists = np.arange(max(actions.choices)) < np.asarray(actions.choices)[:, None]  # [D, K]

    def behave(observation: np.ndarray, info: dict[str, Any], generator: np.random.Generator) -> Any:
        masks = action_masks(actions, [info])
        legal = exists if masks is None else exists & masks[0]
        if not legal.any(1).all():
            raise QDFMError('info["action_mask"] forbids every choice in a step; allow at least one.')
        draws = np.where(legal, generator.random(legal.shape), -1.0).argmax(1)
        return int(draws[0]) if isinstance(actions, Discrete) else draws

    return behave


def _check_memory(transitions: int, shape: Any, dtype: Any) -> None:
    """Images fill the memory long before the last transition."""
    needed = 2 * transitions * int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory / 2:
        raise QDFMError(
            f"{transitions} transitions take {needed / 2**30:.1f} GiB, more than half of this machine's "
            f"{memory / 2**30:.1f} GiB; collect fewer (qdfm data make --steps)."
        )
