"""Which columns of a table become which field, and in what order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from qdfm.errors import QDFMError, unknown

NEEDED = ("observation", "action", "reward")
SINGLE = ("episode", "step", "terminated", "truncated")  # fields of one column
FOLLOWS = {"next_observation": "observation", "next_mask": "mask"}
# What Gymnasium calls a mask; never a part of `action`, and the mask where there is none under its own name.
GYMNASIUM = {"mask": "action_mask", "next_mask": "next_action_mask"}
# Other common names of a field: overlooked, such a column would change the data without a word.
ALIKE = {
    "episode": ("episode_id", "episode_index", "episode_number"),
    "terminated": ("done", "dones", "terminal", "terminals"),
    "truncated": ("timeouts",),
}
TIMES = ("timestep", "time_step", "t")  # and of step, which matters only where the rows are not in its order


@dataclass(frozen=True)
class Columns:
    """The names of each field in a table: X stands for the column X, or else for all columns X_*. These come by number
    where each of them ends in one (X_0, X_1, ..., X_10), otherwise in the order of the file; what several names stand
    for, in the order given. The columns of next_observation come in the order of the observation's, by their names.

    A column may hold numbers or lists of equal length. `episode`, `step`, `terminated` and `truncated` are
    one column each. Observation, action and reward must be there; the rest may be missing unless renamed. Masks may
    also be called as in Gymnasium, action_mask and next_action_mask.
    """

    observation: str | Sequence[str] = "obs"
    next_observation: str | Sequence[str] = "next_obs"
    action: str | Sequence[str] = "action"
    reward: str | Sequence[str] = "reward"
    episode: str = "episode"
    step: str = "step"
    terminated: str = "terminated"
    truncated: str = "truncated"
    mask: str | Sequence[str] = "mask"
    next_mask: str | Sequence[str] = "next_mask"
    preference: str | Sequence[str] = "preference"

    def __post_init__(self) -> None:
        for field in (f.name for f in fields(self)):
            value = getattr(self, field)
            names = tuple(value) if isinstance(value, list | tuple) else (value,)
            if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
                raise QDFMError(f"columns.{field} is {value!r}; give the name of a column, or several that differ.")
            if field in SINGLE and len(names) > 1:
                raise QDFMError(f"columns.{field} is {value!r}; it is one column, give its name.")
            object.__setattr__(self, field, names[0] if len(names) == 1 else names)  # equal however it was given

    @classmethod
    def of(cls, given: "Columns | Mapping[str, Any] | None") -> "Columns":
        """Columns as they are, or from a dictionary of their names."""
        if given is None or isinstance(given, Columns):
            return given or cls()
        if not isinstance(given, Mapping):
            raise QDFMError(f"columns is {given!r}; give qdfm.Columns(...), or a dictionary of its fields.")
        known = [f.name for f in fields(cls)]
        for field in given:
            if field not in known:
                raise unknown("field of columns", str(field), known)
        return cls(**given)

    def names(self, field: str) -> tuple[str, ...]:
        """The names of a field, be it one or several."""
        value = getattr(self, field)
        return (value,) if isinstance(value, str) else tuple(value)


def matched(header: Sequence[str], columns: Columns) -> dict[str, list[str]]:
    """The columns of each field that has any, in order."""
    columns = _with_masks(header, columns)
    found: dict[str, list[str]] = {}
    for field in (f.name for f in fields(Columns)):
        names = columns.names(field)
        groups = [_group(header, columns, name) if field not in SINGLE or name in header else [] for name in names]
        absent = [name for name, group in zip(names, groups, strict=True) if not group]
        if not absent:
            found[field] = [column for group in groups for column in group]
        elif field in NEEDED or names != Columns().names(field):  # what was named must be there
            raise unknown(f"{field} column", absent[0], header)
    for field, of in FOLLOWS.items():
        if field in found and of in found:
            found[field] = _following(header, columns, field, of)
    if "preference" in found:  # a weight belongs to the objective of its name, where names tell
        alike = _alike(columns.names("preference")[0], columns.names("reward"), found["reward"])
        if set(alike) == set(found["preference"]):
            found["preference"] = alike
    return found


def _with_masks(header: Sequence[str], columns: Columns) -> Columns:
    """Masks by Gymnasium's names, where there are none by their own and no field is said to have those columns."""
    named = [other for f in fields(columns) for other in columns.names(f.name)]
    for field, name in GYMNASIUM.items():
        meant = getattr(columns, field) == field and not any(other.startswith(name) for other in named)
        if meant and not _group(header, columns, field) and _group(header, columns, name):
            columns = replace(columns, **{field: name})
    return columns


def _group(header: Sequence[str], columns: Columns, name: str) -> list[str]:
    """The column of a name, or else those that begin with it."""
    if name in header:
        return [name]
    # The column action_mask_0 belongs to the mask and not to the action.
    named = [*GYMNASIUM.values(), *(other for f in fields(columns) for other in columns.names(f.name))]
    nested = tuple(other for other in named if other.startswith(f"{name}_"))
    group = [
        column
        for column in header
        if column.startswith(f"{name}_")
        and not any(column == other or column.startswith(f"{other}_") for other in nested)
    ]
    # ["10"] of obs_10, ["0", "2"] of mask_0_2
    endings = {column: column.removeprefix(f"{name}_").split("_") for column in group}
    if all(part.isdecimal() for parts in endings.values() for part in parts):
        group.sort(key=lambda column: [int(part) for part in endings[column]])
    return group


def _following(header: Sequence[str], columns: Columns, field: str, of: str) -> list[str]:
    """The columns of a field in the order of those that they follow, one for each."""
    names, others = columns.names(field), columns.names(of)
    if len(names) not in (1, len(others)):
        raise QDFMError(
            f"columns.{field} is {names} but columns.{of} is {others}; give as many names, in the same order."
        )
    if len(names) == 1:
        return _one_for_each(header, columns, field, of, names[0], others)
    ordered = []
    for name, other in zip(names, others, strict=True):
        ordered += _one_for_each(header, columns, field, of, name, (other,))
    return ordered


def _one_for_each(
    header: Sequence[str], columns: Columns, field: str, of: str, name: str, others: tuple[str, ...]
) -> list[str]:
    group = _group(header, columns, name)
    if name in header or (len(others) == 1 and others[0] in header):  # lists have no names to go by
        return group
    ahead = [column for other in others for column in _group(header, columns, other)]
    wanted = _alike(name, others, ahead)
    for column, follower in zip(ahead, wanted, strict=True):
        if follower not in group:
            raise QDFMError(
                f"There is no column {follower!r} to go with {column!r}; {field} needs one for each column of {of}, "
                "so add it or rename what is there."
            )
    for follower in group:
        if follower not in wanted:
            raise QDFMError(f"Column {follower!r} goes with no column of {of}; rename or drop it.")
    return wanted


def _alike(name: str, others: tuple[str, ...], columns: list[str]) -> list[str]:
    """Under one name, the columns of others: next_x_age for x_age if that is one of all x_*, next_age for age."""
    prefix = f"{others[0]}_" if len(others) == 1 else ""
    return [f"{name}_{column.removeprefix(prefix)}" for column in columns]
