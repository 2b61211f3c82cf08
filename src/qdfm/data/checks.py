"""What must hold of data at the door. An error names the field, the first bad row and the remedy."""

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from qdfm.data.actions import ActionSpace, Bins, Discrete, MultiDiscrete, integral
from qdfm.data.spec import Spec
from qdfm.errors import DataWarning, QDFMError

if TYPE_CHECKING:
    from qdfm.data.dataset import Dataset

FEW_VALUES = 100  # whole numbers of fewer different values may be choices


def warn(sentence: str) -> None:
    """Warn of the data, at the line outside the library that asked for it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("qdfm."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, DataWarning, stacklevel=level)


def bad_rows(bad: np.ndarray) -> np.ndarray:
    """The rows with any true entry."""
    return np.flatnonzero(bad.any(axis=tuple(range(1, bad.ndim))))


def as_array(name: str, values: Any) -> np.ndarray:
    """The values as an array with one row per transition."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise QDFMError(f"{name} has rows of different lengths; give every row the same shape.") from None
    if array.ndim == 0:
        raise QDFMError(f"{name} is a single value; give one row per transition.")
    return array


def as_numbers(name: str, values: Any) -> np.ndarray:
    """The values as finite float32, or as bytes."""
    array = as_array(name, values)
    if array.dtype.kind not in "fiub":
        raise QDFMError(f"{name} has type {array.dtype}; give numbers.")
    if array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused as such
        array = array.astype(np.float32, copy=False)
    bad = bad_rows(~np.isfinite(array))
    if bad.size:
        raise QDFMError(f"{name} is NaN or infinite in row {bad[0]}; drop or repair such rows first.")
    return array


def as_matrix(name: str, values: Any) -> np.ndarray:
    """The array, with one value per row as one column."""
    array = as_numbers(name, values)
    return array[:, None] if array.ndim == 1 else array


def one_per_row(name: str, values: Any) -> np.ndarray:
    """The values `[n]`, of which each row has one."""
    array = as_array(name, values)
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise QDFMError(f"{name} has shape {array.shape}; give one value per row.")
    return array


def filled_beyond(name: str, after: Any, now: np.ndarray | None, ended: np.ndarray) -> np.ndarray:
    """What rows lead to; NaN beyond the end becomes what is `now`, since nothing is asked there but 0 × NaN is NaN."""
    array = as_array(name, after)
    if array.dtype.kind == "f" and now is not None and array.size == now.size and len(array) == len(ended):
        gap = np.flatnonzero(ended)[bad_rows(np.isnan(array[ended]))]
        if gap.size:
            array = array.copy()  # the user's own
            array[gap] = now.reshape(array.shape)[gap]
    return array


def as_flags(name: str, values: Any) -> np.ndarray:
    """The values as booleans."""
    array = as_array(name, values)
    bad = bad_rows(~np.isin(array, (0, 1)))
    if bad.size:
        raise QDFMError(f"{name} is neither true nor false in row {bad[0]}; give booleans or 0/1.")
    return array.astype(bool)


def as_mask(name: str, values: Any, actions: ActionSpace) -> np.ndarray | None:
    """Legal choices `[n, D, K]`, where they are given."""
    if values is None:
        return None
    array = as_array(name, values)
    tokens, k = len(actions.choices), max(actions.choices)
    if array.shape[1:] not in ((tokens, k), (tokens * k,)):
        counted = ", or the right num_actions" if isinstance(actions, Discrete | MultiDiscrete) else ""
        raise QDFMError(
            f"{name} has shape {array.shape} but the actions need one flag per choice, "
            f"({len(array)}, {tokens}, {k}); give one column per choice{counted}."
        )
    exists = np.arange(k) < np.asarray(actions.choices)[:, None]
    return as_flags(name, array).reshape(-1, tokens, k) & exists


def action_space(action: np.ndarray, num_actions: int | tuple[int, ...] | None, mask: Any = None) -> ActionSpace:
    """The action space that raw actions and their stated number show, or else the columns of a mask."""
    if action.ndim not in (1, 2) or action.size == 0:
        raise QDFMError(f"action has shape {action.shape}; give [n] for one choice or [n, D] for D parts.")
    parts = action.shape[1] if action.ndim == 2 else 1
    multi = action.ndim == 2 and (parts > 1 or isinstance(num_actions, tuple | list))
    if num_actions is None:
        tokens = integral(action).reshape(len(action), -1)
        sizes = tuple(int(m) + 1 for m in tokens.max(0))
        legal = None if mask is None else as_array("mask", mask)
        if parts == 1 and legal is not None and legal.ndim > 1:  # of several parts it is padded, so it tells of none
            sizes = (max(sizes[0], legal.shape[-1]),)
    else:
        given = np.asarray(num_actions)
        if given.ndim > 1 or given.size == 0 or given.dtype.kind not in "iu" or given.min() < 1:
            raise QDFMError(
                f"num_actions is {num_actions!r}; give a whole number from 2, or of several parts one for each."
            )
        sizes = tuple(given.tolist()) if given.ndim else (int(given),) * parts
    if len(sizes) != parts:
        raise QDFMError(f"num_actions names {len(sizes)} parts but action has {parts}; give one per part.")
    return MultiDiscrete(sizes) if multi else Discrete(sizes[0])


def whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    """The values as integers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise QDFMError(f"{name} is {values!r}; give whole numbers in a tuple.")
    return tuple(array.tolist())


def number_episodes(episode: np.ndarray | None, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Episode numbers 0, 1, ... in order of appearance, and the row order that makes episodes contiguous."""
    if episode is None:
        number = np.r_[0, np.cumsum(ended)[:-1]]
        return number.astype(np.int32), np.arange(len(ended))
    if episode.dtype.kind == "f" and not np.isfinite(episode).all():
        row = bad_rows(~np.isfinite(episode))[0]
        raise QDFMError(f"episode is NaN or infinite in row {row}; give every row the number of its episode.")
    try:
        _, first, inverse = np.unique(episode.reshape(-1), return_index=True, return_inverse=True)
    except TypeError:  # of things that have no order, None among them
        raise QDFMError("episode mixes types; give every row the number or the name of its episode.") from None
    number = np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int32)
    return number, np.argsort(number, kind="stable")


def check_filled(data: "Dataset") -> None:
    """There is something to look at or to learn from."""
    if len(data) == 0:
        raise QDFMError("The data is empty; give at least one transition.")


def warn_of_merged(actions: ActionSpace, raw: np.ndarray) -> None:
    """Actions that look like choices are not merged by being discretised without a word."""
    if isinstance(actions, Discrete | MultiDiscrete) or (raw != np.round(raw)).any():
        return
    if len(np.unique(raw)) >= FEW_VALUES:
        return
    distinct = np.unique(raw, axis=0)
    kept = len(np.unique(actions.encode(distinct), axis=0))
    if kept < len(distinct):
        how = "bins" if isinstance(actions, Bins) else "codebook"
        warn(
            f"The actions are whole numbers, {len(distinct)} different ones, of which {how} left {kept}; if they are "
            f"choices, leave out {how} and number them from 0."
        )


def check_lengths(arrays: dict[str, Any]) -> None:
    """Every array has as many rows as the observation."""
    n = len(arrays["observation"])
    for name, values in arrays.items():
        if values is not None and len(values) != n:
            raise QDFMError(f"{name} has {len(values)} rows but observation has {n}; they must be as many.")


def check_shapes(data: "Dataset") -> None:
    """Rows have the shapes of the spec."""
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


def check_rows(data: "Dataset") -> None:
    """What must hold of the encoded arrays, whether they come from a user or from a file."""
    check_shapes(data)
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
            as_numbers(name, values)
    for name in ("observation", "next_observation"):
        check_categories(name, getattr(data, name), spec)
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


def check_history(history: Any) -> int:
    """How many observations stand side by side in one."""
    if not isinstance(history, int | np.integer) or isinstance(history, bool) or history < 1:
        raise QDFMError(f"history is {history!r}; give a whole number from 1.")
    return int(history)


def check_categories(name: str, observation: Any, spec: Spec) -> None:
    """Categorical columns hold the numbers that the spec says."""
    if not spec.categories:
        return
    flat = np.asarray(observation).reshape(len(observation), -1)
    if len(spec.categories) != flat.shape[1]:
        raise QDFMError(
            f"categories has {len(spec.categories)} entries but {name} has {flat.shape[1]} columns; give one for each."
        )
    sizes = np.asarray(spec.categories)
    if (sizes.reshape(spec.agents, -1) != sizes[: len(sizes) // spec.agents]).any():
        raise QDFMError(f"categories is {spec.categories}; all agents share networks, so give every agent the same.")
    if (sizes < 0).any():
        raise QDFMError(f"categories is {spec.categories}; give the number of values of each column, 0 for a quantity.")
    wrong = (sizes > 0) & ((flat != np.round(flat)) | (flat < 0) | (flat >= sizes))
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise QDFMError(
            f"{name} is {flat[row, column]:g} in row {row}, column {column}, which is none of the categories "
            f"0..{sizes[column] - 1}; raise categories or repair the row."
        )


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
