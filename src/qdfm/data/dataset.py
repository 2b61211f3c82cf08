"""Dataset: logged transitions as a pytree with a leading transition axis, validated once at the door.

Rewards are always `[n, objectives]`, actions always tokens `[n, D]`, episodes are contiguous blocks in time order.
A batch is a Dataset too, with fewer rows, so that there is one data type from the file to the gradient step.
"""

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.actions import ActionSpace, Discrete, MultiDiscrete, integral
from qdfm.data.spec import Normalisation, Spec
from qdfm.errors import QDFMError

FORMAT = "qdfm-dataset"
FORMAT_VERSION = 1
# A std below this share of the largest one belongs to a feature that is constant but for rounding.
CONSTANT = 1e-6


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dataset:
    """Transitions. Build one with `from_arrays`, `load` or `qdfm.load_dataset`; those validate, this does not."""

    observation: Any  # [n, *observation_shape]
    action: Any  # [n, D] int32 tokens
    reward: Any  # [n, objectives] float32
    next_observation: Any  # [n, *observation_shape]
    terminated: Any  # [n] bool: the task ended, no value beyond
    truncated: Any  # [n] bool: the recording ended, the value goes on
    episode: Any  # [n] int32, non-decreasing
    spec: Spec = field(metadata={"static": True})
    mask: Any = None  # [n, D, K] bool, legal choices at observation
    next_mask: Any = None  # [n, D, K] bool, legal choices at next_observation
    preference: Any = None  # [n, objectives], the preference a row was collected under
    state: Any = None  # [n, *state_shape], a team's global state
    next_state: Any = None

    def __len__(self) -> int:
        return int(self.reward.shape[0])

    def __getitem__(self, rows: Any) -> "Dataset":
        """The rows of an index array (of any shape) or slice; `None` fields stay `None`."""
        return jax.tree.map(lambda x: x[rows], self)

    def sample(self, key: jax.Array, size: int) -> "Dataset":
        """A batch of transitions, drawn uniformly with replacement."""
        return self[jax.random.randint(key, (size,), 0, len(self))]

    def sample_segments(self, key: jax.Array, size: int, length: int) -> tuple["Dataset", jax.Array]:
        """A batch of contiguous pieces of episodes `[size, length, ...]` and which of their rows are real.

        A piece starts at a uniformly drawn row; rows past the end of its episode repeat the last row of the data or
        belong to the next episode, and are marked False.
        """
        start = jax.random.randint(key, (size,), 0, len(self))
        rows = start[:, None] + jnp.arange(length)
        inside = rows < len(self)
        rows = jnp.minimum(rows, len(self) - 1)
        episode = jnp.asarray(self.episode)
        return self[rows], inside & (episode[rows] == episode[start][:, None])

    def normalised(self) -> "Dataset":
        """The data as the networks see it."""
        s = self.spec
        return replace(
            self,
            observation=s.normalise_observation(self.observation),
            next_observation=s.normalise_observation(self.next_observation),
            reward=s.normalise_reward(self.reward),
        )

    def with_normalisation(self, observation: bool = True, reward: bool = False) -> "Dataset":
        """The same rows with a spec whose normalisation is fitted on them."""
        norm = Normalisation()
        if observation and np.dtype(self.spec.observation_dtype).kind == "f":
            x = np.asarray(self.observation, np.float64).reshape(len(self), -1)
            mean, std = x.mean(0), x.std(0)
            std = np.where(std > CONSTANT * np.maximum(1.0, np.abs(mean)), std, 1.0)
            norm = replace(norm, observation_mean=_floats(mean), observation_std=_floats(std))
        if reward:
            scale = np.asarray(self.reward, np.float64).std(0)
            norm = replace(norm, reward_scale=_floats(np.where(scale > 0, scale, 1.0)))
        return replace(self, spec=replace(self.spec, normalisation=norm))

    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(x.nbytes for x in jax.tree.leaves(self))

    def returns(self, gamma: float = 1.0) -> np.ndarray:
        """Return of each episode, `[episodes, objectives]`, in the units of the raw reward."""
        episode, reward = np.asarray(self.episode), np.asarray(self.reward, np.float64)
        first = np.r_[True, episode[1:] != episode[:-1]]
        index = np.cumsum(first) - 1
        step = np.arange(len(episode)) - np.flatnonzero(first)[index]
        out = np.zeros((index[-1] + 1, reward.shape[1]))
        np.add.at(out, index, reward * (gamma**step)[:, None])
        return out

    @classmethod
    def from_arrays(
        cls,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any = None,
        mask: Any = None,
        next_mask: Any = None,
        episode: Any = None,
        num_actions: int | tuple[int, ...] | None = None,
        *,
        preference: Any = None,
        state: Any = None,
        next_state: Any = None,
        agents: int = 1,
        normalise: bool = True,
        actions: ActionSpace | None = None,
    ) -> "Dataset":
        """Own data, checked: every array has one row per transition, in time order within an episode.

        `action` is `[n]` for one choice or `[n, D]` for a decision of D parts; `num_actions` (an integer, or one per
        part) is read off the data when left out. Without `episode`, an episode ends where `terminated` or
        `truncated` is true. `normalise` standardises floating-point observations for the networks.
        """
        obs = _array("observation", observation)
        n = len(obs)
        if n == 0:
            raise QDFMError("The data is empty; give at least one transition.")
        obs = obs.reshape(n, -1) if obs.ndim == 1 else obs
        next_obs = _array("next_observation", next_observation)
        next_obs = next_obs.reshape(len(next_obs), -1) if next_obs.ndim == 1 else next_obs
        rewards = _array("reward", reward).astype(np.float32)
        rewards = rewards[:, None] if rewards.ndim == 1 else rewards
        ended = _flags("terminated", terminated)
        cut = np.zeros(n, bool) if truncated is None else _flags("truncated", truncated)
        raw = np.asarray(action)
        if actions is None:
            actions = _action_space(raw, num_actions)
        rows: dict[str, np.ndarray | None] = {
            "observation": obs,
            "action": raw,
            "reward": rewards,
            "next_observation": next_obs,
            "terminated": ended,
            "truncated": cut,
            "mask": _optional_mask("mask", mask, actions),
            "next_mask": _optional_mask("next_mask", next_mask, actions),
            "preference": None if preference is None else _array("preference", preference).astype(np.float32),
            "state": None if state is None else _array("state", state),
            "next_state": None if next_state is None else _array("next_state", next_state),
            "episode": None if episode is None else np.asarray(episode),
        }
        for name, values in rows.items():
            if values is not None and len(values) != n:
                raise QDFMError(
                    f"{name} has {len(values)} rows but observation has {n}; give one row per transition."
                )
        if next_obs.shape != obs.shape:
            raise QDFMError(
                f"next_observation has shape {next_obs.shape[1:]} per row but observation has {obs.shape[1:]}; "
                "they must agree."
            )
        rows["action"] = actions.encode(raw)
        rows["episode"], order = _episodes(rows["episode"], ended | cut)
        spec = Spec(
            observation_shape=obs.shape[1:],
            observation_dtype=str(obs.dtype),
            actions=actions,
            objectives=rewards.shape[1],
            agents=agents,
            state_shape=None if state is None else tuple(np.shape(state)[1:]),
        )
        data = cls(spec=spec, **{k: v if v is None else v[order] for k, v in rows.items()})
        _check(data)
        return data.with_normalisation() if normalise else data

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file that `load` reads back exactly."""
        header = {"format": FORMAT, "version": FORMAT_VERSION, "spec": self.spec.to_json()}
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "spec"}
        try:
            with open(path, "wb") as file:
                np.savez_compressed(
                    file,
                    header=np.array(json.dumps(header)),
                    **{k: np.asarray(v) for k, v in arrays.items() if v is not None},
                )
        except OSError as error:
            raise QDFMError(f"Cannot write {path} ({error.strerror}); choose a writable place.") from None

    @classmethod
    def load(cls, path: str | Path) -> "Dataset":
        """Read what `save` wrote; no pickle is loaded."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        try:
            header = json.loads(str(arrays.pop("header")))
            known = header["format"] == FORMAT
        except (KeyError, TypeError, ValueError):
            known = False
        if not known:
            raise QDFMError(f"{path} was not written by Dataset.save; read it with qdfm.load_dataset.")
        if header["version"] > FORMAT_VERSION:
            raise QDFMError(f"{path} was written by a newer qdfm; upgrade qdfm to read it.")
        data = cls(spec=Spec.from_json(header["spec"]), **arrays)
        _check(data)
        return data


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(v) for v in np.atleast_1d(values))


def _array(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise QDFMError(f"{name} has type {array.dtype}; give numbers.")
    if array.ndim == 0:
        raise QDFMError(f"{name} is a single number; give one row per transition.")
    if array.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1)) if array.size else []
        if len(bad):
            raise QDFMError(f"{name} is NaN or infinite in row {bad[0]}; drop or repair such rows first.")
    return array if array.dtype == np.uint8 else array.astype(np.float32)


def _flags(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind != "b" and not np.isin(array, (0, 1)).all():
        row = int(np.flatnonzero(~np.isin(array, (0, 1)))[0])
        raise QDFMError(f"{name} is neither true nor false in row {row}; give booleans or 0/1.")
    return array.astype(bool).reshape(-1)


def _optional_mask(name: str, values: Any, actions: ActionSpace) -> np.ndarray | None:
    if values is None:
        return None
    array = np.asarray(values)
    tokens, k = len(actions.choices), max(actions.choices)
    if array.size != len(array) * tokens * k:
        raise QDFMError(
            f"{name} has shape {array.shape} but the actions need one flag per choice, "
            f"({len(array)}, {tokens}, {k}); give one column per choice."
        )
    return _flags(name, array.reshape(-1)).reshape(len(array), tokens, k)


def _action_space(action: np.ndarray, num_actions: int | tuple[int, ...] | None) -> ActionSpace:
    if action.ndim not in (1, 2):
        raise QDFMError(f"action has {action.ndim} axes; give [n] for one choice or [n, D] for D parts.")
    multi = action.ndim == 2 and (action.shape[1] > 1 or isinstance(num_actions, tuple | list))
    if num_actions is None:
        tokens = integral(action).reshape(len(action), -1)
        sizes = tuple(int(m) + 1 for m in tokens.max(0))
    elif isinstance(num_actions, int | np.integer):
        sizes = (int(num_actions),) * (action.shape[1] if multi else 1)
    else:
        sizes = tuple(int(m) for m in num_actions)
    if multi and len(sizes) != action.shape[1]:
        raise QDFMError(
            f"num_actions names {len(sizes)} parts but action has {action.shape[1]}; give one number per part."
        )
    return MultiDiscrete(sizes) if multi else Discrete(sizes[0])


def _episodes(episode: np.ndarray | None, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Episode numbers 0, 1, ... in order of appearance, and the row order that makes episodes contiguous."""
    if episode is None:
        number = np.r_[0, np.cumsum(ended)[:-1]]
        return number.astype(np.int32), np.arange(len(ended))
    _, first, inverse = np.unique(episode.reshape(-1), return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int32)
    return number, np.argsort(number, kind="stable")


def _check(data: Dataset) -> None:
    """What must hold of the encoded arrays, whether they come from a user or from a file."""
    spec = data.spec
    sizes = np.asarray(spec.choices)
    if (sizes < 2).all():
        raise QDFMError(
            "There is a single action, so there is nothing to choose; check the action column or give num_actions."
        )
    bad = np.flatnonzero(((data.action < 0) | (data.action >= sizes)).any(1))
    if bad.size:
        row = data.action[bad[0]]
        shown = row[0] if len(row) == 1 else tuple(int(v) for v in row)
        raise QDFMError(
            f"action is {shown} in row {bad[0]}, outside 0..{tuple(int(v) for v in sizes - 1)}; "
            "number the actions from 0 or raise num_actions."
        )
    for name in ("observation", "next_observation", "reward", "state", "next_state"):
        values = getattr(data, name)
        if values is not None:
            _array(name, values)
    for name in ("mask", "next_mask"):
        legal = getattr(data, name)
        if legal is None:
            continue
        empty = np.flatnonzero(~(legal & spec.legal).any(-1).all(-1))
        if empty.size:
            raise QDFMError(f"{name} forbids every choice in row {empty[0]}; allow at least one.")
    if data.mask is not None:
        taken = np.take_along_axis(data.mask, data.action[..., None], -1)[..., 0].all(-1)
        if not taken.all():
            row = int(np.flatnonzero(~taken)[0])
            raise QDFMError(f"The logged action is illegal by the mask in row {row}; repair the mask or drop the row.")
    if (data.mask is None) != (data.next_mask is None):
        raise QDFMError("mask and next_mask come together; give both or neither.")
    if data.preference is not None:
        check_preference(data.preference, spec.objectives)


def check_preference(preference: Any, objectives: int) -> np.ndarray:
    """A preference `[..., objectives]` as float32, or the sentence that says why it is none."""
    try:
        array = np.asarray(preference, np.float32)
    except (TypeError, ValueError):
        raise QDFMError(f"The preference {preference!r} is not a list of numbers; give {objectives}.") from None
    if array.ndim == 0 or array.shape[-1] != objectives:
        given = 1 if array.ndim == 0 else array.shape[-1]
        raise QDFMError(
            f"The preference has {given} entries but the reward has {objectives} objectives; give one per objective."
        )
    if not np.isfinite(array).all():
        raise QDFMError("The preference has a NaN or infinite entry; give weights between 0 and 1.")
    if (array < 0).any():
        raise QDFMError(f"The preference has a negative entry, {array.min():g}; weights must be at least 0.")
    sums = array.sum(-1)
    if (np.abs(sums - 1) > 1e-4).any():
        worst = np.ravel(sums)[np.argmax(np.abs(np.ravel(sums) - 1))]
        raise QDFMError(f"The preference sums to {worst:g}; divide it by its sum so that it sums to 1.")
    return array
