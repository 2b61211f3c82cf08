"""SMAC's battles in HDF5: whole episodes side by side, padded to one length, as PyMARL's episode buffers hold them.

A file has the datasets obs `[E, R, G, o]`, state `[E, R, s]`, avail_actions `[E, R, G, K]`, actions `[E, T, G]` and
reward, terminated and filled `[E, T]`; the last four may have one more axis of length 1. Padding ends here: only rows
that `filled` marks become transitions. There are two layouts, told apart by their lengths:

- R = T, as PyMARL writes it. The row after an episode's last step is filled too and holds what was seen then. Where it
  is missing, the last observation stands in for the one after `terminated`, whose value nobody asks for.
- R = T + 1. `filled` counts the steps, and a row of obs, state and avail_actions follows the last of them.

An episode without `terminated` was cut off by the time limit: it is truncated at the last step whose successor is
known. The file's word is taken for `terminated`, which SMAC itself also sets at the time limit unless its
`continuing_episode` is on. Dead agents keep the mask that lets them do nothing but the no-op. Episodes and steps in
errors count from 0.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qdfm.data.arrays import read_hdf5
from qdfm.data.checks import bad_rows
from qdfm.data.dataset import Dataset
from qdfm.errors import QDFMError

AXES = {
    "obs": ("episodes", "rows", "agents", "features"),
    "state": ("episodes", "rows", "numbers"),
    "avail_actions": ("episodes", "rows", "agents", "choices"),
    "actions": ("episodes", "steps", "agents"),
    "reward": ("episodes", "steps"),
    "terminated": ("episodes", "steps"),
    "filled": ("episodes", "steps"),
}
MAY_END_IN_ONE = ("actions", "reward", "terminated", "filled")


class Steps(NamedTuple):
    """The real steps of all episodes, one after the other."""

    episode: np.ndarray  # [n]
    now: np.ndarray  # [n], the row of the step
    after: np.ndarray  # [n], the row of what was seen next
    terminated: np.ndarray  # [n]
    truncated: np.ndarray  # [n]


def read_smac(path: str | Path, normalise: bool = True) -> Dataset:
    """The transitions of a SMAC file: one token per agent, the team's reward, the global state and the masks."""
    arrays = _checked_shapes(path, _read(path))
    steps = _steps(path, arrays)
    mask, next_mask = (_flags(path, arrays, "avail_actions", steps.episode, row) for row in (steps.now, steps.after))
    choices, agents = mask.shape[-1], mask.shape[-2]
    action = _actions(path, arrays, steps, mask)
    empty = np.flatnonzero(~next_mask.any(-1).all(-1) & ~steps.terminated)
    if empty.size:
        raise QDFMError(
            f"avail_actions in {path} forbids an agent everything {_place(steps, steps.after, empty[0])}; "
            "allow the no-op at least."
        )
    return Dataset.from_arrays(
        observation=_numbers(path, arrays, "obs", steps, steps.now),
        action=action,
        reward=_numbers(path, arrays, "reward", steps, steps.now),
        next_observation=_numbers(path, arrays, "obs", steps, steps.after),
        terminated=steps.terminated,
        truncated=steps.truncated,
        mask=mask,
        next_mask=next_mask,
        episode=steps.episode,
        num_actions=(choices,) * agents,
        state=_numbers(path, arrays, "state", steps, steps.now),
        next_state=_numbers(path, arrays, "state", steps, steps.after),
        agents=agents,
        normalise=normalise,
    )


def _read(path: str | Path) -> dict[str, np.ndarray]:
    """The datasets of the file that we need."""
    arrays = read_hdf5(path, AXES)
    missing = [name for name in AXES if name not in arrays]
    if missing:
        raise QDFMError(
            f"{path} lacks the datasets {', '.join(missing)}; SMAC data has {', '.join(AXES)}, and D4RL data "
            "observations, actions, rewards, terminals."
        )
    return arrays


def _checked_shapes(path: str | Path, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays with exactly the axes above."""
    sizes: dict[str, int] = {}
    shaped = {}
    for name, axes in AXES.items():
        array = np.asarray(arrays[name])
        if name in MAY_END_IN_ONE and array.ndim == len(axes) + 1 and array.shape[-1] == 1:
            array = array[..., 0]
        if array.dtype.kind not in "iufb":
            raise QDFMError(f"{name} in {path} has type {array.dtype}; write numbers.")
        if array.ndim == len(axes):
            known = sizes | dict(zip(axes, array.shape)) | sizes  # what an earlier dataset says holds
            fits = 0 not in array.shape and array.shape == tuple(known[axis] for axis in axes)
        else:
            known, fits = sizes, False
        if "steps" in known and known["rows"] - known["steps"] not in (0, 1):
            fits = False
        if not fits:
            told = sizes | ({"steps": f"{sizes['rows']} or one less"} if name == "actions" else {})
            wanted = ", ".join(f"{axis}: {told[axis]}" if axis in told else axis for axis in axes)
            raise QDFMError(f"{name} in {path} has shape {array.shape} but [{wanted}] is needed; write it so.")
        sizes, shaped[name] = known, array
    return shaped


def _steps(path: str | Path, arrays: dict[str, np.ndarray]) -> Steps:
    """Which rows are steps, and how the episodes end."""
    step = np.arange(arrays["filled"].shape[1])
    everywhere = np.indices(arrays["filled"].shape)
    filled = _flags(path, arrays, "filled", *everywhere)  # [E, T]
    real = filled.sum(1)
    apart = np.argwhere(filled & (step >= real[:, None]))
    if apart.size:
        raise QDFMError(
            f"filled in {path} is true in episode {apart[0, 0]}, step {apart[0, 1]}, after padding; "
            "put the rows of an episode first and the padding last."
        )
    ended = np.zeros_like(filled)
    ended[filled] = _flags(path, arrays, "terminated", *np.nonzero(filled))
    ends, last = np.asarray(ended.any(1)), ended.argmax(1)
    beyond = arrays["obs"].shape[1] - len(step)  # 1 where a row of obs follows the last step without being filled
    count = np.where(ends, last + 1, np.maximum(real - (1 - beyond), 0))  # steps of each episode
    on = np.flatnonzero(ends & (real - count > 1 - beyond))
    if on.size:
        raise QDFMError(
            f"terminated in {path} is true in episode {on[0]}, step {last[on[0]]}, but the episode goes on to step "
            f"{real[on[0]] - 1}; end it there or mend filled."
        )
    seen = real + beyond  # real rows of obs
    episode, now = np.nonzero(step < count[:, None])
    if episode.size == 0:
        raise QDFMError(f"{path} has no step whose next observation is known; check filled and terminated.")
    final = now == count[episode] - 1
    after = np.where(now + 1 < seen[episode], now + 1, now)
    return Steps(episode, now, after, final & ends[episode], final & ~ends[episode])


def _place(steps: Steps, row: np.ndarray, i: int) -> str:
    return f"in episode {steps.episode[i]}, step {row[i]}"


def _flags(
    path: str | Path, arrays: dict[str, np.ndarray], name: str, episode: np.ndarray, row: np.ndarray
) -> np.ndarray:
    """Some rows of a dataset as booleans."""
    values = arrays[name][episode, row]
    wrong = np.argwhere((values != 0) & (values != 1))
    if wrong.size:
        first = tuple(wrong[0, : episode.ndim])
        raise QDFMError(
            f"{name} in {path} is {values[tuple(wrong[0])]} in episode {episode[first]}, step {row[first]}; "
            "write 0 or 1."
        )
    return values.astype(bool)


def _numbers(path: str | Path, arrays: dict[str, np.ndarray], name: str, steps: Steps, row: np.ndarray) -> np.ndarray:
    """Some rows of a dataset as finite float32."""
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused as such
        values = arrays[name][steps.episode, row].astype(np.float32)
    bad = bad_rows(~np.isfinite(values))
    if bad.size:
        raise QDFMError(
            f"{name} in {path} is NaN or infinite {_place(steps, row, bad[0])}; drop or repair such episodes first."
        )
    return values


def _actions(path: str | Path, arrays: dict[str, np.ndarray], steps: Steps, mask: np.ndarray) -> np.ndarray:
    """The tokens `[n, G]`, each among the available ones."""
    values, choices = arrays["actions"][steps.episode, steps.now], mask.shape[-1]
    # Comparisons with NaN are false, so that NaN is outside without a test of its own.
    inside = (values >= 0) & (values < choices) & (values == np.round(values))
    token = np.where(inside, values, 0).astype(np.int32)
    for good, why in (
        (inside, f"is not one of 0..{choices - 1}"),
        (np.take_along_axis(mask, token[..., None], -1)[..., 0], "avail_actions forbids"),
    ):
        if not good.all():
            i, agent = np.argwhere(~good)[0]
            raise QDFMError(
                f"actions in {path} is {values[i, agent]} for agent {agent} {_place(steps, steps.now, i)}, "
                f"which {why}; repair or drop such episodes first."
            )
    return token
