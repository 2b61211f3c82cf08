"""Dataset: logged transitions as a pytree with a leading transition axis, validated once at the door.

Rewards are always `[n, objectives]`, actions always tokens `[n, D]`, episodes are contiguous blocks in time
order. A batch is a Dataset too, with fewer rows, so that there is one data type from the file to the gradient
step.
"""

import json
import zipfile
import zlib
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
# What NumPy and zipfile raise on pickled objects, other formats, cut files and flipped bits.
UNREADABLE = (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
# A std below this share of the largest magnitude belongs to a feature that is constant but for rounding.
CONSTANT = 1e-6


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dataset:
    """Transitions. Build with `from_arrays`, `load` or `qdfm.load_dataset`: those validate, this does not."""

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
        # NumPy arrays cannot be indexed by a traced value, and a compiled function may close over NumPy data.
        traced = isinstance(rows, jax.core.Tracer)
        return jax.tree.map(lambda x: (jnp.asarray(x) if traced else x)[rows], self)

    def sample(self, key: jax.Array, size: int) -> "Dataset":
        """A batch of transitions, drawn uniformly with replacement."""
        return self[jax.random.randint(key, (size,), 0, len(self))]

    def sample_segments(self, key: jax.Array, size: int, length: int) -> tuple["Dataset", jax.Array]:
        """A batch of contiguous pieces of episodes `[size, length, ...]` and which of their rows are real.

        A piece starts at a uniformly drawn row; rows past the end of its episode repeat the last row of the
        data or belong to the next episode, and are marked False.
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
            norm = replace(norm, observation_mean=_floats(x.mean(0)), observation_std=_floats(_spread(x)))
        if reward:
            norm = replace(norm, reward_scale=_floats(_spread(np.asarray(self.reward, np.float64))))
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

        `action` is `[n]` for one choice or `[n, D]` for a decision of D parts; `num_actions` (an integer, or
        one per part) is read off the data when left out. Without `episode`, an episode ends where
        `terminated` or `truncated` is true. `normalise` standardises floating-point observations for the
        networks.
        """
        obs = _matrix("observation", observation)
        n = len(obs)
        if n == 0:
            raise QDFMError("The data is empty; give at least one transition.")
        next_obs = _matrix("next_observation", next_observation)
        if next_obs.dtype != obs.dtype:
            obs, next_obs = obs.astype(np.float32), next_obs.astype(np.float32)
        rewards = _matrix("reward", reward).astype(np.float32)
        if rewards.ndim != 2 or rewards.shape[1] == 0:
            raise QDFMError(f"reward has shape {rewards.shape}; give [n] or [n, objectives].")
        ended = _flags("terminated", terminated)
        cut = np.zeros(n, bool) if truncated is None else _flags("truncated", truncated)
        raw = _asarray("action", action)
        _check_lengths({"observation": obs, "action": raw})
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
            "preference": None if preference is None else _matrix("preference", preference),
            "state": None if state is None else _array("state", state),
            "next_state": None if next_state is None else _array("next_state", next_state),
            "episode": None if episode is None else _asarray("episode", episode),
        }
        _check_lengths(rows)
        if (after := rows["next_mask"]) is not None:  # logs often allow nothing beyond the end, where nothing is asked
            rows["next_mask"] = after | (ended & ~after.any(-1).all(-1))[:, None, None]
        rows["action"] = actions.encode(raw)
        rows["episode"], order = number_episodes(rows["episode"], ended | cut)
        spec = Spec(
            observation_shape=obs.shape[1:],
            observation_dtype=str(obs.dtype),
            actions=actions,
            objectives=rewards.shape[1],
            agents=agents,
            state_shape=None if state is None else tuple(np.shape(state)[1:]),
        )
        data = cls(spec=spec, **rows)
        _check(data)  # before the rows are put in order, so that errors name the user's rows
        data = data[order]
        return data.with_normalisation() if normalise else data

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file that `load` reads back exactly."""
        header = {"format": FORMAT, "version": FORMAT_VERSION, "spec": self.spec.to_json()}
        fields_ = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "spec"}
        arrays: dict[str, Any] = {k: np.asarray(v) for k, v in fields_.items() if v is not None}
        try:
            with open(path, "wb") as file:
                np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)
        except OSError as error:
            raise QDFMError(f"Cannot write {path} ({error.strerror}); choose a writable place.") from None

    @classmethod
    def load(cls, path: str | Path) -> "Dataset":
        """Read what `save` wrote; no pickle is loaded."""
        arrays = read_arrays(path)
        header = saved_header(arrays)
        if header is None:
            raise QDFMError(f"{path} was not written by Dataset.save; read it with qdfm.load_dataset.")
        if header.get("version", 0) > FORMAT_VERSION:
            raise QDFMError(f"{path} was written by a newer qdfm; upgrade qdfm to read it.")
        try:
            del arrays["header"]
            data = cls(spec=Spec.from_json(header["spec"]), **arrays)
        except (KeyError, TypeError, AttributeError):
            raise QDFMError(f"{path} is damaged: its header or a field is missing; save it again.") from None
        _check_lengths({f.name: getattr(data, f.name) for f in fields(data) if f.name != "spec"})
        _check(data)
        return data


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file; pickled objects are refused unread."""
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise QDFMError(f"Cannot read {path} ({error.strerror or error}); check the path.") from None
    except UNREADABLE:
        pass
    raise QDFMError(
        f"{path} is damaged or no .npz file of numbers (Python objects could run code and are not loaded); "
        "write it again with numpy.savez."
    )


def saved_header(arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """The header that `Dataset.save` put among the arrays of a file; None where another program wrote it."""
    try:
        header = json.loads(str(arrays["header"]))
        return header if header["format"] == FORMAT else None
    except (KeyError, TypeError, ValueError):
        return None


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(v) for v in np.atleast_1d(values))


def _spread(x: np.ndarray) -> np.ndarray:
    """The std of each column, 1 where the column is constant."""
    std = x.std(0)
    return np.where(std > CONSTANT * np.abs(x).max(0), std, 1.0)


def _bad_rows(bad: np.ndarray) -> np.ndarray:
    """The rows with any true entry."""
    return np.flatnonzero(bad.any(axis=tuple(range(1, bad.ndim))))


def _asarray(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise QDFMError(f"{name} has rows of different lengths; give every row the same shape.") from None
    if array.ndim == 0:
        raise QDFMError(f"{name} is a single value; give one row per transition.")
    return array


def _array(name: str, values: Any) -> np.ndarray:
    array = _asarray(name, values)
    if array.dtype.kind not in "fiub":
        raise QDFMError(f"{name} has type {array.dtype}; give numbers.")
    if array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused as such
        array = array.astype(np.float32, copy=False)
    bad = _bad_rows(~np.isfinite(array))
    if bad.size:
        raise QDFMError(f"{name} is NaN or infinite in row {bad[0]}; drop or repair such rows first.")
    return array


def _matrix(name: str, values: Any) -> np.ndarray:
    """The array, with one value per row as one column."""
    array = _array(name, values)
    return array[:, None] if array.ndim == 1 else array


def _flags(name: str, values: Any) -> np.ndarray:
    array = _asarray(name, values)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    bad = _bad_rows(~np.isin(array, (0, 1)))
    if bad.size:
        raise QDFMError(f"{name} is neither true nor false in row {bad[0]}; give booleans or 0/1.")
    return array.astype(bool)


def _optional_mask(name: str, values: Any, actions: ActionSpace) -> np.ndarray | None:
    if values is None:
        return None
    array = _asarray(name, values)
    tokens, k = len(actions.choices), max(actions.choices)
    if array.shape[1:] not in ((tokens, k), (tokens * k,)):
        raise QDFMError(
            f"{name} has shape {array.shape} but the actions need one flag per choice, "
            f"({len(array)}, {tokens}, {k}); give one column per choice."
        )
    exists = np.arange(k) < np.asarray(actions.choices)[:, None]
    return _flags(name, array).reshape(-1, tokens, k) & exists


def _action_space(action: np.ndarray, num_actions: int | tuple[int, ...] | None) -> ActionSpace:
    if action.ndim not in (1, 2) or action.size == 0:
        raise QDFMError(f"action has shape {action.shape}; give [n] for one choice or [n, D] for D parts.")
    parts = action.shape[1] if action.ndim == 2 else 1
    multi = action.ndim == 2 and (parts > 1 or isinstance(num_actions, tuple | list))
    if num_actions is None:
        tokens = integral(action).reshape(len(action), -1)
        sizes = tuple(int(m) + 1 for m in tokens.max(0))
    elif isinstance(num_actions, int | np.integer):
        sizes = (int(num_actions),) * parts
    else:
        sizes = tuple(int(m) for m in num_actions)
    if len(sizes) != parts:
        raise QDFMError(f"num_actions names {len(sizes)} parts but action has {parts}; give one per part.")
    return MultiDiscrete(sizes) if multi else Discrete(sizes[0])


def number_episodes(episode: np.ndarray | None, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Episode numbers 0, 1, ... in order of appearance, and the row order that makes episodes contiguous."""
    if episode is None:
        number = np.r_[0, np.cumsum(ended)[:-1]]
        return number.astype(np.int32), np.arange(len(ended))
    if episode.dtype.kind == "f" and not np.isfinite(episode).all():
        row = _bad_rows(~np.isfinite(episode))[0]
        raise QDFMError(f"episode is NaN or infinite in row {row}; give every row the number of its episode.")
    _, first, inverse = np.unique(episode.reshape(-1), return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int32)
    return number, np.argsort(number, kind="stable")


def _check_lengths(arrays: dict[str, Any]) -> None:
    n = len(arrays["observation"])
    for name, values in arrays.items():
        if values is not None and len(values) != n:
            raise QDFMError(f"{name} has {len(values)} rows but observation has {n}; they must be as many.")


def _check_shapes(data: Dataset) -> None:
    spec = data.spec
    observation, mask = spec.observation_shape, (spec.tokens, spec.num_choices)
    needed: dict[str, tuple[int, ...]] = {
        "observation": observation,
        "next_observation": observation,
        "action": (spec.tokens,),
        "reward": (spec.objectives,),
        "terminated": (),
        "truncated": (),
        "episode": (),
        "mask": mask,
        "next_mask": mask,
        "preference": (spec.objectives,),
        "state": spec.state_shape or (),
        "next_state": spec.state_shape or (),
    }
    for first, second in (("mask", "next_mask"), ("state", "next_state")):
        if (getattr(data, first) is None) != (getattr(data, second) is None):
            raise QDFMError(f"{first} and {second} come together; give both or neither.")
    for name, shape in needed.items():
        values = getattr(data, name)
        if values is not None and values.shape != (len(data), *shape):
            raise QDFMError(f"{name} has shape {values.shape[1:]} per row but {shape} is needed; reshape it.")
    if spec.agents > 1 and (spec.tokens != spec.agents or observation[0] != spec.agents):
        raise QDFMError(
            f"There are {spec.agents} agents but action has {spec.tokens} parts and observation the shape "
            f"{observation}; give action as [n, agents] and observation as [n, agents, ...]."
        )


def _check(data: Dataset) -> None:
    """What must hold of the encoded arrays, whether they come from a user or from a file."""
    _check_shapes(data)
    spec = data.spec
    sizes = np.asarray(spec.choices)
    if (sizes < 2).all():
        raise QDFMError(
            "action has a single choice, so there is nothing to learn; check the actions or give num_actions."
        )
    bad = np.flatnonzero(((data.action < 0) | (data.action >= sizes)).any(1))
    if bad.size:
        token = int(np.flatnonzero((data.action[bad[0]] < 0) | (data.action[bad[0]] >= sizes))[0])
        part = f" of part {token}" if spec.tokens > 1 else ""
        raise QDFMError(
            f"action{part} is {data.action[bad[0], token]} in row {bad[0]}, outside 0..{sizes[token] - 1}; "
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
            raise QDFMError(f"action is illegal by the mask in row {row}; repair the mask or drop the row.")
    if data.preference is not None:
        check_preference(data.preference, spec.objectives)


def check_preference(preference: Any, objectives: int) -> np.ndarray:
    """A preference `[..., objectives]` as float32, or the sentence that says why it is none."""
    try:
        array = np.asarray(preference, np.float32)
    except (TypeError, ValueError):
        raise QDFMError(f"The preference {preference!r} is no list of numbers; give {objectives}.") from None
    if array.ndim == 0 or array.shape[-1] != objectives:
        given = 1 if array.ndim == 0 else array.shape[-1]
        raise QDFMError(
            f"The preference has {given} entries but the reward has {objectives} objectives; give one per objective."
        )
    sums = np.asarray(array.sum(-1))
    for bad, what, remedy in (
        (~np.isfinite(array).all(-1), "has a NaN or infinite entry", "give weights between 0 and 1"),
        ((array < 0).any(-1), "has a negative entry", "weights must be at least 0"),
        (np.abs(sums - 1) > 1e-4, "does not sum to 1", "divide it by its sum"),
    ):
        if np.any(bad):
            row = f" in row {np.argwhere(bad)[0, 0]}" if array.ndim > 1 else ""
            raise QDFMError(f"The preference {what}{row}; {remedy}.")
    return array
