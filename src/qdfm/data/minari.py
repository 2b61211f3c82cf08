"""Minari data sets by their ids: any with Box or Discrete observations and actions, from the folder of Minari's own.

Nothing is downloaded here: a set that is not on this machine gets the command that fetches it, at once.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from qdfm.data.actions import Discrete, MultiDiscrete
from qdfm.data.dataset import Dataset, Discretise
from qdfm.errors import QDFMError

LIKE_A_SET = re.compile(r"([\w-]+/)+[\w-]+-v\d+")
# What Minari and h5py raise on files that lack a field, hold another type or are cut off.
UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, AssertionError, OSError, RuntimeError)


def minari_for(name: str) -> Any:
    """The package, which is an extra, for a set of that name."""
    try:
        import minari
    except ImportError:
        raise QDFMError(f'{name} needs Minari; install it with pip install "qdfm[mujoco]".') from None
    return minari


def local_set(name: str) -> dict[str, Any] | None:
    """The metadata of a set on this machine, if it is there."""
    found: dict[str, Any] | None = minari_for(name).list_local_datasets().get(name)
    return found


def environment_of(name: str) -> str | None:
    """The id of the environment that a local set names, if it names one; Gymnasium may not know it."""
    spec = minari_for(name).load_dataset(name).env_spec
    return None if spec is None else spec.id


def set_folder(name: str) -> Path:
    """Where Minari keeps a set, be it there or not."""
    minari_for(name)
    from minari.storage.datasets_root_dir import get_dataset_path

    return Path(get_dataset_path(name))


def read_minari(
    name: str, actions: Discretise | None = None, normalise: bool = True, transitions: int | None = None
) -> Dataset:
    """The first so many transitions of a local Minari set, or all; `actions` says how continuous ones become tokens."""
    minari = minari_for(name)
    if local_set(name) is None:
        raise QDFMError(f"The Minari set {name} is not on this machine; fetch it with: minari download {name}")
    try:
        source = minari.load_dataset(name)
        seen, acted = source.observation_space, source.action_space
        episodes, found = [], 0
        for episode in source.iterate_episodes():
            episodes.append(episode)
            found += len(episode.rewards)
            if transitions is not None and found >= transitions:
                break
    except UNREADABLE as error:
        raise QDFMError(f"The Minari set {name} is damaged ({error}); fetch it again.") from None
    rows = [_episode(name, episode, seen.shape, acted.shape) for episode in episodes]
    if not rows:
        raise QDFMError(f"The Minari set {name} has no episodes; fetch it again.")
    parts: dict[str, Any] = {field: np.concatenate([row[field] for row in rows]) for field in rows[0]}
    if transitions is not None:
        parts = _first(name, parts, transitions)
    return Dataset.from_arrays(
        **parts,
        actions=_actions(name, acted, actions),
        categories=_categories(name, seen),
        normalise=normalise,
    )


def _first(name: str, parts: dict[str, np.ndarray], transitions: int) -> dict[str, np.ndarray]:
    """So many rows; the last episode is cut off there."""
    if transitions < 1:
        raise QDFMError(f"{transitions} transitions of the Minari set {name} cannot be read; give at least 1.")
    if (found := len(parts["reward"])) < transitions:
        raise QDFMError(f"The Minari set {name} has {found} transitions, not {transitions}; ask for fewer.")
    parts = {field: values[:transitions] for field, values in parts.items()}
    parts["truncated"][-1] |= not parts["terminated"][-1]
    return parts


def _episode(name: str, episode: Any, seen: tuple[int, ...], acted: tuple[int, ...]) -> dict[str, np.ndarray]:
    """One episode's rows; it holds one observation more than steps."""
    steps, where = len(episode.rewards), f"Episode {episode.id} of the Minari set {name}"
    if steps == 0:
        raise QDFMError(f"{where} is empty; repair the set.")
    observation, action = np.asarray(episode.observations), np.asarray(episode.actions)
    for field, values, shape in (
        ("observations", observation, (steps + 1, *seen)),
        ("actions", action, (steps, *acted)),
    ):
        if values.shape != shape or values.dtype.kind not in "iufb":
            raise QDFMError(
                f"{where} has {field} of shape {values.shape} and type {values.dtype} where {shape} numbers belong; "
                "repair the set."
            )
    return {
        "observation": observation[:-1],
        "action": action,
        "reward": np.asarray(episode.rewards),
        "next_observation": observation[1:],
        "terminated": np.asarray(episode.terminations),
        "truncated": np.asarray(episode.truncations),
        "episode": np.full(steps, episode.id),
    }


def _actions(name: str, space: Any, discretise: Discretise | None) -> Discretise | None:
    """The space of finite choices itself; else what the caller wants."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return MultiDiscrete(tuple(int(n) for n in space.nvec))
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        raise QDFMError(f"The Minari set {name} has the action space {space}; only Box and Discrete ones can be read.")
    if discretise is None:
        raise QDFMError(
            f"The Minari set {name} has continuous actions; say how to discretise them: bins=21 or codebook=256."
        )
    return discretise


def _categories(name: str, space: Any) -> tuple[int, ...]:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete) and space.start == 0:
        return (int(space.n),)
    if not isinstance(space, spaces.Box):
        raise QDFMError(
            f"The Minari set {name} has the observation space {space}; only Box and Discrete ones can be read."
        )
    return ()
