"""Minari data sets by their ids, from the folder of Minari's own. Observations that are not a Box become one vector, as
Gymnasium flattens them, since that is what an agent sees where it is evaluated.

Nothing is downloaded here: a set that is not on this machine gets the command that fetches it, at once.
"""

import json
import re
from collections import OrderedDict
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
        raise QDFMError(
            f"The Minari set {name} is not on this machine; fetch it with: minari download {name} (or, if it is a "
            "Gymnasium id, install the package that registers it)."
        )
    try:
        source = minari.load_dataset(name)
        seen, acted = _observations(name, source.observation_space), source.action_space
        episodes, found = [], 0
        for episode in source.iterate_episodes():
            episodes.append(episode)
            found += len(episode.rewards)
            if transitions is not None and found >= transitions:
                break
    except UNREADABLE as error:
        raise QDFMError(f"The Minari set {name} is damaged ({error}); fetch it again.") from None
    space = _actions(name, acted, actions)
    rows = [_episode(name, episode, seen, acted) for episode in episodes]
    if not rows:
        raise QDFMError(f"The Minari set {name} has no episodes; fetch it again.")
    parts: dict[str, Any] = {field: np.concatenate([row[field] for row in rows]) for field in rows[0]}
    if transitions is not None:
        parts = _first(name, parts, transitions)
    return Dataset.from_arrays(**parts, actions=space, normalise=normalise)


def _first(name: str, parts: dict[str, np.ndarray], transitions: int) -> dict[str, np.ndarray]:
    """So many rows; the last episode is cut off there."""
    if transitions < 1:
        raise QDFMError(f"{transitions} transitions of the Minari set {name} cannot be read; give at least 1.")
    if (found := len(parts["reward"])) < transitions:
        raise QDFMError(f"The Minari set {name} has {found} transitions, not {transitions}; ask for fewer.")
    parts = {field: values[:transitions] for field, values in parts.items()}
    parts["truncated"][-1] |= not parts["terminated"][-1]
    return parts


def _episode(name: str, episode: Any, seen: Any, acted: Any) -> dict[str, np.ndarray]:
    """One episode's rows, of these spaces; it holds one observation more than steps."""
    steps, where = len(episode.rewards), f"Episode {episode.id} of the Minari set {name}"
    if steps == 0:
        raise QDFMError(f"{where} is empty; repair the set.")
    observation = _flat(where, seen, episode.observations, steps + 1)
    action = _numbers(f"{where} has actions", episode.actions, (steps, *acted.shape))
    return {
        "observation": observation[:-1],
        "action": action,
        "reward": np.asarray(episode.rewards),
        "next_observation": observation[1:],
        "terminated": np.asarray(episode.terminations),
        "truncated": np.asarray(episode.truncations),
        "episode": np.full(steps, episode.id),
    }


def _numbers(where: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in "iufb":
        raise QDFMError(
            f"{where} of shape {array.shape} and type {array.dtype} where {shape} numbers belong; repair the set."
        )
    return array


def _observations(name: str, space: Any) -> Any:
    """The space with its parts in the order of the environment, which a set writes down but Minari reads sorted."""
    told = json.loads((set_folder(name) / "data" / "metadata.json").read_text()).get("observation_space")
    return space if told is None else _ordered(space, json.loads(told))


def _ordered(space: Any, told: dict[str, Any]) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_ordered(part, of) for part, of in zip(space.spaces, told["subspaces"], strict=True)])
    if isinstance(space, spaces.Dict):
        return spaces.Dict(OrderedDict((key, _ordered(space[key], of)) for key, of in told["subspaces"].items()))
    return space


def _flat(where: str, space: Any, values: Any, rows: int) -> np.ndarray:
    """Observations `[rows, ...]`, of other than Box spaces flat: `gymnasium.spaces.flatten` for all rows at a time."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        parts = [_flat(where, part, values[key], rows).reshape(rows, -1) for key, part in inner]
        return np.concatenate(parts, axis=1)
    if not isinstance(space, spaces.Box | spaces.MultiBinary | spaces.Discrete | spaces.MultiDiscrete):
        raise QDFMError(f"{where} has observations of the space {space}, which has no fixed size; flatten the set.")
    array = _numbers(f"{where} has observations", values, (rows, *(space.shape or ())))
    if isinstance(space, spaces.Box):
        return array
    if isinstance(space, spaces.MultiBinary):
        return array.reshape(rows, -1)
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    choice = array.reshape(rows, -1) - np.ravel(space.start)
    if ((choice < 0) | (choice >= sizes)).any():
        raise QDFMError(f"{where} has observations outside {space}; repair the set.")
    columns = [np.arange(size) == choice[:, [i]] for i, size in enumerate(sizes)]  # one-hot
    return np.concatenate(columns, axis=1).astype(np.float32)


def _actions(name: str, space: Any, discretise: Discretise | None) -> Discretise | None:
    """The space of finite choices itself; else what the caller wants."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return MultiDiscrete(tuple(int(n) for n in space.nvec))
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        raise QDFMError(
            f"The Minari set {name} has the action space {space}; only Discrete and MultiDiscrete ones that count from "
            "0, and Box ones with one axis, can be read."
        )
    if discretise is None:
        raise QDFMError(
            f"The Minari set {name} has continuous actions; say how to discretise them: bins=21 or codebook=256."
        )
    return discretise
