"""Logs in tables: `.parquet` and `.csv` files with one row per decision.

A table names its columns as it likes (`qdfm.data.columns`). Rows are grouped into episodes, put in time order and
chained (`qdfm.data.chaining`). What a terminated row leads to may be empty. Messages count the rows of the file from 0,
without the header.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdfm.data.chaining import NumActions, chained, last_rows, refuse_going_on
from qdfm.data.checks import as_matrix, number_episodes, warn
from qdfm.data.columns import ALIKE, FOLLOWS, SINGLE, TIMES, Columns, matched
from qdfm.data.dataset import Dataset, Discretise
from qdfm.errors import QDFMError

if TYPE_CHECKING:
    import polars

UNUSED = "not used"  # what columns are that no field has
Row = Callable[[int], int]  # the row of the file that an entry of some column or list of lists is of
MOSTLY = 0.5  # the share of steps by one from which on others are gaps


def read_table(
    path: str | Path,
    columns: Columns | Mapping[str, Any] | None = None,
    num_actions: NumActions = None,
    normalise: bool = True,
    actions: Discretise | None = None,
) -> Dataset:
    """The transitions of a `.parquet` or `.csv` log; `actions` says how continuous ones become tokens.

    Without an episode column, episodes end where `terminated` or `truncated` is true; without those, next observations
    are needed, and the log is one episode. Without `terminated`, an episode ends by terminating unless `truncated` says
    otherwise.
    """
    columns = Columns.of(columns)
    frame = _read_frame(Path(path))
    if frame.height == 0:
        raise QDFMError(f"{path} has no rows; give at least one transition.")
    found = matched(frame.columns, columns)
    unused = _unused(frame.columns, found)
    _refuse_overlooked(path, found, unused)
    _refuse_endless(path, columns, found)

    terminated, truncated = _flag(frame, columns, "terminated"), _flag(frame, columns, "truncated")
    cut = np.zeros(frame.height, bool) if truncated is None else truncated
    ended = cut if terminated is None else cut | terminated
    number, _ = number_episodes(_identity(frame, columns), ended)
    step = _step(frame, columns)
    order = _time_order(number, step)
    if step is None:
        _refuse_backwards(frame, unused, number[order], order)
    last = last_rows(number, order)
    terminated = last & ~cut if terminated is None else terminated
    refuse_going_on(columns, terminated | cut, last)

    plain = {field: names for field, names in found.items() if field not in (*SINGLE, *FOLLOWS)}
    values = {field: _field(frame, columns, field, names) for field, names in plain.items()}
    for field, of in FOLLOWS.items():
        if field in found:
            values[field] = _after(frame, columns, field, found[field], values.get(of), terminated)
    values["action"] = values["action"] if actions is None else as_matrix("action", values["action"])
    called = {field: columns.names(field)[0] for field in (*FOLLOWS, "terminated")}
    options = {"num_actions": num_actions, "actions": actions}
    data = chained(path, called, values, number, order, terminated, cut, normalise, options)
    if step is not None and "next_observation" not in found:
        _warn_gaps(columns.step, step[order], number[order], order)
    return data


def columns_of(path: str | Path, columns: Columns | Mapping[str, Any] | None = None) -> dict[str, list[str]]:
    """Which columns of a table `read_table` takes for which field, in order, and any that it leaves."""
    header = _read_frame(Path(path), rows=0).columns
    found = matched(header, Columns.of(columns))
    unused = _unused(header, found)
    return found | ({UNUSED: unused} if unused else {})


def _warn_gaps(name: str, step: np.ndarray, number: np.ndarray, order: np.ndarray) -> None:
    """Where steps count rows, a jump among them tells of rows that are missing; steps come in the order of time."""
    ahead, within = np.diff(step), number[1:] == number[:-1]
    if (step != np.round(step)).any() or (within & (ahead == 1)).sum() <= MOSTLY * within.sum():
        return
    gaps = np.flatnonzero(within & (ahead != 1))
    if gaps.size:
        first = gaps[0]
        warn(
            f"{name} jumps {gaps.size:,} {'time' if gaps.size == 1 else 'times'} within episodes, first from "
            f"{step[first]:g} to {step[first + 1]:g} in row {order[first + 1]}, and the row after a gap was taken for "
            "the next; add next observations, or give what comes after a gap an episode of its own."
        )


def _read_frame(path: Path, rows: int | None = None) -> "polars.DataFrame":
    """The table, or so many of its first rows."""
    try:
        import polars
    except ImportError:
        raise QDFMError(f'Reading {path} needs polars; run: pip install "qdfm[tables]"') from None
    try:
        if path.suffix.lower() == ".parquet":
            return polars.read_parquet(path, n_rows=rows)
        header = polars.read_csv(path, infer_schema=False, n_rows=0).columns
        other = re.search("[;\t]", header[0]) if len(header) == 1 else None  # than commas, as spreadsheets write them
        # Types are inferred from all rows: one odd value late in the file must not become a parser's error.
        frame = polars.read_csv(
            path, separator=other[0] if other else ",", infer_schema_length=None, try_parse_dates=True, n_rows=rows
        )
    except OSError as error:
        raise QDFMError(f"Cannot read {path} ({error.strerror or 'no such file'}); check the path.") from None
    except polars.exceptions.NoDataError:
        raise QDFMError(f"{path} is empty; give at least one transition.") from None
    except polars.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise QDFMError(f"{path} is not a readable {path.suffix} file ({reason}); write it again.") from None
    for name in frame.columns:
        if twice := re.fullmatch(r"(.+)_duplicated_\d+", name):  # how polars renames the second of two
            raise QDFMError(f"{path} has two columns {twice[1]!r}; rename or drop one.")
    return frame


def _refuse_endless(path: str | Path, columns: Columns, found: dict[str, list[str]]) -> None:
    """Nothing tells which rows belong together: chained into one episode, rows of strangers would be successors."""
    if not {"episode", "terminated", "truncated", "next_observation"} & found.keys():
        raise QDFMError(
            f"{path} does not say where episodes end; name the column that tells them apart (--columns.episode NAME), "
            f"or add one: {columns.terminated} of ones if every row stands alone, {columns.episode} of zeros if all "
            "rows are one episode."
        )


def _unused(header: Sequence[str], found: dict[str, list[str]]) -> list[str]:
    used = {column for columns in found.values() for column in columns}
    return [column for column in header if column not in used]


def _refuse_overlooked(path: str | Path, found: dict[str, list[str]], unused: list[str]) -> None:
    """By its name, a column says where episodes end, but no field is said to be there."""
    for field, names in ALIKE.items():
        # Where episodes and truncations are known, the other ends are terminations; "done" often means either.
        known = field in found or (field == "terminated" and {"episode", "truncated"} <= found.keys())
        for name in names:
            if name in unused and not known:
                raise QDFMError(
                    f"{path} has no column for {field} but one called {name!r}, which would go unused; name it "
                    f"(--columns.{field} {name}), or rename it if it is something else."
                )


def _refuse_backwards(frame: "polars.DataFrame", unused: list[str], number: np.ndarray, order: np.ndarray) -> None:
    """By its name, a column tells the time, but rows are not in its order, in which they are taken for steps."""
    import polars

    for name in TIMES:
        if name in unused and (frame[name].dtype.is_numeric() or frame[name].dtype.is_temporal()):
            time = frame[name].to_physical().cast(polars.Float64).to_numpy()[order]
            back = np.flatnonzero((time[1:] < time[:-1]) & (number[1:] == number[:-1]))
            if back.size:
                raise QDFMError(
                    f"Column {name!r} would go unused but falls within an episode, in row {order[back[0] + 1]}; if it "
                    f"tells the order of the rows, name it (--columns.step {name}), else rename it."
                )


def _field(frame: "polars.DataFrame", columns: Columns, field: str, names: list[str], row: Row = int) -> np.ndarray:
    """A field of one or several columns, `[n]` or `[n, ...]`."""
    arrays = [_values(frame[name], row) for name in names]
    # In a column of its own a byte is a small number; only lists of bytes are pixels, which stay as they are.
    arrays = [a.astype(np.int32) if a.ndim == 1 and a.dtype == np.uint8 else a for a in arrays]
    if len(names) == 1 and tuple(names) == columns.names(field):
        return arrays[0]
    return np.concatenate([array.reshape(frame.height, -1) for array in arrays], axis=1)


def _after(
    frame: "polars.DataFrame",
    columns: Columns,
    field: str,
    names: list[str],
    own: np.ndarray | None,
    terminated: np.ndarray,
) -> np.ndarray:
    """What a row leads to; where a terminated row leaves it empty, its `own`, since nothing is asked there."""
    ends, gap = np.flatnonzero(terminated), np.zeros(frame.height, bool)
    for name in names:
        gap[ends] |= _gaps(frame[name][ends])
    if own is None or not gap.any():
        return _field(frame, columns, field, names)
    if gap.all():
        return own
    rows = np.flatnonzero(~gap)
    known = _field(frame.select(names)[rows], columns, field, names, lambda place: int(rows[place]))
    values = np.zeros((frame.height, *known.shape[1:]), np.result_type(own, known))
    values[rows] = known
    if values.size == own.size:  # else it is refused for its shape
        values[gap] = own.reshape(values.shape)[gap]
    return values


def _gaps(series: "polars.Series") -> np.ndarray:
    """Which rows are empty or NaN, or lists with such an entry."""
    import polars

    if isinstance(series.dtype, polars.List | polars.Array):
        lists = series.arr if isinstance(series.dtype, polars.Array) else series.list
        lengths = lists.len().fill_null(0).to_numpy()
        gap, rest = lengths == 0, np.flatnonzero(lengths)
        if rest.size:
            entry = np.repeat(rest, lengths[rest])
            gap[entry[_gaps(series[rest].explode())]] = True
        return gap
    missing = series.is_null() | series.is_nan() if series.dtype.is_float() else series.is_null()
    return missing.to_numpy()


def _single(frame: "polars.DataFrame", columns: Columns, field: str) -> "polars.Series | None":
    name = getattr(columns, field)
    if name not in frame.columns:
        return None
    if frame[name].dtype.is_nested():
        raise QDFMError(f"Column {name!r} holds lists; give one {field} per row.")
    return frame[name]


def _flag(frame: "polars.DataFrame", columns: Columns, field: str) -> np.ndarray | None:
    series = _single(frame, columns, field)
    if series is None:
        return None
    values = _values(series)
    bad = np.flatnonzero(~np.isin(values, (0, 1)))
    if bad.size:
        raise QDFMError(f"Column {series.name!r} is neither true nor false in row {bad[0]}; give 0 or 1.")
    return values.astype(bool)


def _identity(frame: "polars.DataFrame", columns: Columns) -> np.ndarray | None:
    """What tells the episodes apart: numbers, or names such as session ids."""
    import polars

    series = _single(frame, columns, "episode")
    if series is None:
        return None
    _refuse_null(series)
    return _values(series) if series.dtype.is_numeric() else series.cast(polars.String).to_numpy()


def _step(frame: "polars.DataFrame", columns: Columns) -> np.ndarray | None:
    series = _single(frame, columns, "step")
    if series is None:
        return None
    return _values(series.to_physical() if series.dtype.is_temporal() else series)


def _time_order(number: np.ndarray, step: np.ndarray | None) -> np.ndarray:
    """The rows episode by episode, in the order of the steps, or of the file where there are none."""
    if step is None:
        return np.argsort(number, kind="stable")
    order = np.lexsort((step, number))
    first, second = order[:-1], order[1:]
    twice = np.flatnonzero((number[first] == number[second]) & (step[first] == step[second]))
    if twice.size:
        a, b = first[twice[0]], second[twice[0]]
        raise QDFMError(
            f"step is {step[a]} in both row {a} and row {b} of one episode; drop one of the rows, or tell "
            "their episodes apart by an episode column."
        )
    return order


def _refuse_null(series: "polars.Series", row: Row = int) -> None:
    if series.null_count():
        place = series.is_null().arg_true()[0]
        raise QDFMError(f"Column {series.name!r} is empty in row {row(place)}; fill in or drop such rows first.")


def _values(series: "polars.Series", row: Row = int) -> np.ndarray:
    """The numbers of a column `[n]` or of its lists `[n, width, ...]`; `row` is the file's row of an entry."""
    import polars

    _refuse_null(series, row)
    if series.dtype.is_nested():
        return _lists(series, row)
    if series.dtype.is_numeric() or series.dtype == polars.Boolean:
        values = series.to_numpy()
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            place = np.flatnonzero(~np.isfinite(values))[0]
            raise QDFMError(
                f"Column {series.name!r} is NaN or infinite in row {row(place)}; drop or repair such rows first."
            )
        return values
    text = series.cast(polars.String)
    numbers = text.cast(polars.Float64, strict=False)
    odd = (numbers.is_null() | ~numbers.is_finite()).arg_true()
    place = odd[0] if len(odd) else 0
    raise QDFMError(
        f"Column {series.name!r} holds {series.dtype} values, {text[place]!r} in row {row(place)}; "
        "give numbers, or leave the column out."
    )


def _lists(series: "polars.Series", row: Row) -> np.ndarray:
    import polars

    if isinstance(series.dtype, polars.Struct):
        raise QDFMError(f"Column {series.name!r} holds records; give one column per entry.")
    lengths = (series.arr if isinstance(series.dtype, polars.Array) else series.list).len().to_numpy()
    width = int(lengths[0])
    ragged = np.flatnonzero(lengths != width)
    if ragged.size or width == 0:
        place = int(ragged[0]) if ragged.size else 0
        raise QDFMError(
            f"Column {series.name!r} has a list of length {lengths[place]} in row {row(place)}, and of "
            f"length {width} in row {row(0)}; give lists of one positive length."
        )
    entries = _values(series.explode(), lambda place: row(place // width))
    return entries.reshape(len(series), width, *entries.shape[1:])
