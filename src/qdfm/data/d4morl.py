"""D4MORL's trajectories (Zhu et al., 2023), each collected under a preference of its own, in two kinds of files.

- `.pkl`, as D4MORL publishes them: a pickled list with a dictionary for each trajectory, which holds observations,
  next_observations `[T, o]`, actions `[T, a]`, raw_rewards `[T, objectives]`, terminals `[T]` and preference, `[T,
  objectives]` or `[objectives]`. Other entries are passed over. Its terminals are also true at the time limit, so an
  episode of 500 steps counts as truncated and a shorter one with a terminal as terminated.
- `.npz`, trajectories one after the other: lengths `[E]`, observations `[n + E, o]` (one more of each trajectory than
  it has steps), actions `[n, a]`, rewards `[n, objectives]`, terminated `[E]` and preferences `[E, objectives]`; a
  trajectory that did not terminate was truncated. `qdfm data make mo-hopper-expert` writes these.

A pickle is a program. Ours is read by an interpreter that has plain containers, and in place of NumPy's functions a few
of our own that make arrays of numbers: nothing else can be named in it. Trajectories in errors count from 0.
"""

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdfm.data.arrays import write_arrays
from qdfm.data.dataset import Dataset, Discretise
from qdfm.data.episodes import borders
from qdfm.errors import QDFMError

LIMIT = 500  # steps of every environment of D4MORL
ENTRIES = ("observations", "next_observations", "actions", "raw_rewards", "terminals", "preference")  # of a .pkl
ARRAYS = ("lengths", "observations", "actions", "rewards", "terminated", "preferences")  # of a .npz
# What the interpreter raises on other kinds of files, cut files and flipped bits.
UNREADABLE = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
    MemoryError, RecursionError, ImportError,
)  # fmt: skip


class Refused(Exception):
    """A pickle that names what no file of D4MORL needs."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A function that a pickle may call; made for each mention, so that nothing the pickle does to it lasts."""

    make: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """What the function makes."""
        return self.make(*args)


class Kind:
    """Stands in for a NumPy type of numbers."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *rest: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        self.order = {"<": "<", ">": ">"}.get(state[1], "=")

    def numpy(self) -> np.dtype:
        """The type itself."""
        kind = np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]
        if kind.kind not in "biuf":
            raise Refused(f"arrays of the type {self.code}")
        return kind


class Array:
    """Stands in for a NumPy array until its numbers are known."""

    __slots__ = ("numbers",)

    def __init__(self, *kind_and_shape: Any) -> None:
        self.numbers: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        self.numbers = _numbers(data, kind, shape, "F" if by_columns else "C")


def _numbers(data: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    if not (isinstance(data, bytes | bytearray) and isinstance(kind, Kind)):
        raise Refused("arrays of objects")
    return np.frombuffer(data, kind.numpy()).reshape(shape, order=order)


def _scalar(kind: Any, data: Any) -> Any:
    return _numbers(data, kind, (), "C")[()]


class Unpickler(pickle.Unpickler):
    """Knows how D4MORL's files name arrays of numbers, dictionaries and lists, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Our own maker of what is named."""
        numpy = module.replace("numpy._core", "numpy.core")
        makers: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): Array,
            ("numpy.core.multiarray", "scalar"): _scalar,
            ("numpy.core.numeric", "_frombuffer"): _numbers,
            ("numpy", "ndarray"): Array,  # only named, as the type to make
            ("numpy", "dtype"): Kind,
            ("collections", "defaultdict"): lambda *factory: {},
            ("builtins", "list"): lambda: [],  # only named, as the factory above
        }
        if (numpy, name) not in makers:
            raise Refused(f"{module}.{name}")
        return Maker(makers[numpy, name])


def read_d4morl(path: str | Path, actions: Discretise | None = None, normalise: bool = True) -> Dataset:
    """The transitions of D4MORL's own file; `actions` says how continuous ones become tokens."""
    found = _unpickled(path)
    if not (isinstance(found, list) and found and all(isinstance(one, dict) for one in found)):
        raise QDFMError(f"{path} is no list of trajectories, each a dictionary; fetch D4MORL's own file.")
    parts = [_trajectory(f"Trajectory {number} of {path}", one) for number, one in enumerate(found)]
    for field in ("observation", "action", "reward"):
        widths = {part[field].shape[1] for part in parts}
        if len(widths) > 1:
            raise QDFMError(f"The trajectories of {path} have {field}s of {sorted(widths)} numbers; give all as many.")
    rows = {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
    return _dataset(path, rows, [len(part["reward"]) for part in parts], actions, normalise)


def is_d4morl(arrays: dict[str, np.ndarray]) -> bool:
    """Whether the arrays of a .npz file are trajectories in the layout above, by their names."""
    return {"lengths", "observations", "actions"} <= arrays.keys()


def from_trajectories(
    path: str | Path, arrays: dict[str, np.ndarray], actions: Discretise | None = None, normalise: bool = True
) -> Dataset:
    """The transitions of a .npz file in the layout above."""
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise QDFMError(f"{path} lacks {', '.join(missing)}; trajectories have {', '.join(ARRAYS)}.")
    for name in ARRAYS:
        _check_numbers(f"{name} in {path}", arrays[name], 1 if name in ("lengths", "terminated") else 2)
    lengths = arrays["lengths"]
    if lengths.size == 0 or lengths.dtype.kind not in "iu" or lengths.min() < 1:
        raise QDFMError(f"lengths in {path} must be the steps of each trajectory, at least 1; write them so.")
    episodes, steps = len(lengths), int(lengths.sum())
    for name in ARRAYS[1:]:
        due = {"observations": steps + episodes, "actions": steps, "rewards": steps}.get(name, episodes)
        if len(arrays[name]) != due:
            raise QDFMError(f"{name} in {path} has {len(arrays[name])} rows where lengths need {due}; write as many.")
    last = np.cumsum(lengths) - 1
    now = np.arange(steps) + np.repeat(np.arange(episodes), lengths)  # the row of observations
    terminated = np.zeros(steps, arrays["terminated"].dtype)
    terminated[last] = arrays["terminated"]
    rows = {
        "observation": arrays["observations"][now],
        "action": arrays["actions"],
        "reward": arrays["rewards"],
        "next_observation": arrays["observations"][now + 1],
        "terminated": terminated,
        "preference": np.repeat(arrays["preferences"], lengths, 0),
    }
    return _dataset(path, rows, lengths, actions, normalise)


def write_trajectories(path: str | Path, rows: dict[str, np.ndarray]) -> None:
    """Write rows, under the names of `Dataset.from_arrays`, in the layout above."""
    first, last = borders(rows["episode"])
    observations = np.insert(rows["observation"], last + 1, rows["next_observation"][last], 0)
    arrays = {
        "lengths": (last - first + 1).astype(np.int32),
        "observations": observations.astype(np.float32),
        "actions": rows["action"].astype(np.float32),
        "rewards": rows["reward"].astype(np.float32),
        "terminated": rows["terminated"][last],
        "preferences": rows["preference"][first].astype(np.float32),
    }
    write_arrays(path, arrays)


def _dataset(
    path: str | Path,
    rows: dict[str, Any],
    lengths: Sequence[int] | np.ndarray,
    actions: Discretise | None,
    normalise: bool,
) -> Dataset:
    if actions is None:
        raise QDFMError(f"{path} has continuous actions; say how to discretise them: bins=21 or codebook=256.")
    last = np.zeros(len(rows["reward"]), bool)
    last[np.cumsum(lengths) - 1] = True
    episode = np.repeat(np.arange(len(lengths)), lengths)
    truncated = last & (rows["terminated"] == 0)
    return Dataset.from_arrays(**rows, truncated=truncated, episode=episode, actions=actions, normalise=normalise)


def _unpickled(path: str | Path) -> Any:
    try:
        with open(path, "rb") as file:
            return Unpickler(file).load()
    except OSError as error:
        raise QDFMError(f"Cannot read {path} ({error.strerror or error}); check the path.") from None
    except Refused as what:
        raise QDFMError(
            f"{path} asks for {what}, which no file of D4MORL needs and which may run code; nothing was run, so fetch "
            "the file from where D4MORL publishes it."
        ) from None
    except UNREADABLE:
        raise QDFMError(f"{path} is damaged or no pickle of arrays; fetch it again.") from None


def _trajectory(where: str, one: dict[Any, Any]) -> dict[str, np.ndarray]:
    """One trajectory's rows."""
    if missing := [name for name in ENTRIES if name not in one]:
        raise QDFMError(f"{where} lacks {', '.join(missing)}; D4MORL's have {', '.join(ENTRIES)}.")
    held = {name: _array(one[name]) for name in ENTRIES}
    rewards, terminals = held["raw_rewards"], held["terminals"]
    steps = len(terminals) if terminals.ndim else 0
    if steps == 0:
        raise QDFMError(f"{where} has no steps; drop it.")
    if held["preference"].ndim == 1:
        held["preference"] = np.tile(held["preference"], (steps, 1))
    for name, array in held.items():
        _check_numbers(f"{name} of {where[0].lower()}{where[1:]}", array, 1 if name == "terminals" else 2)
        if len(array) != steps:
            raise QDFMError(f"{where} has {len(array)} rows of {name} but {steps} of terminals; give as many.")
    if held["observations"].shape != held["next_observations"].shape or held["preference"].shape != rewards.shape:
        raise QDFMError(f"{where} has next_observations or a preference of another size than its steps; repair it.")
    if terminals[:-1].any():
        raise QDFMError(f"{where} goes on after a terminal at step {int(terminals.argmax())}; end it there.")
    terminated = np.zeros(steps, bool)
    terminated[-1] = bool(terminals[-1]) and steps < LIMIT
    return {
        "observation": held["observations"],
        "action": held["actions"],
        "reward": rewards,
        "next_observation": held["next_observations"],
        "terminated": terminated,
        "preference": held["preference"],
    }


def _array(value: Any) -> np.ndarray:
    """An entry as an array, be it one or a list of arrays and numbers; of objects where it is neither."""
    if isinstance(value, Array):
        return np.asarray(value.numbers)
    if isinstance(value, list | tuple):
        value = [_array(one) for one in value]
        if len({one.shape for one in value}) > 1:
            return np.empty(len(value), object)
    return np.asarray(value)


def _check_numbers(what: str, array: np.ndarray, axes: int) -> None:
    if array.ndim != axes or array.dtype.kind not in "iufb" or math.prod(array.shape[1:]) == 0:
        raise QDFMError(f"{what} has shape {array.shape} and type {array.dtype}; {axes} axes of numbers belong there.")
