"""What is in a dataset, and what looks wrong with it: the report behind `qdfm data inspect`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qdfm.data.actions import Bins, Codebook
from qdfm.data.checks import check_filled
from qdfm.data.dataset import Dataset
from qdfm.data.episodes import borders

FEW_TRANSITIONS = 1000
LARGE_REWARD = 1000.0
DOMINANT = 0.99
# Choices that look like ids: so many, of which so small a share is taken.
MANY_CHOICES = 100
RARELY = 0.1
DUPLICATES = 0.5
# An observation that tells the reward: so large a correlation, over at least so many rows.
LEAK = 0.99
LEAK_ROWS = 30
# Looking for duplicates sorts the rows; beyond this many bytes that is no longer a matter of a second or two.
DUPLICATES_LIMIT = 2**27
SHOWN_CHOICES = 20
SHOWN_TOKENS = 8
SHOWN_NAMES = 10


@dataclass(frozen=True)
class Summary:
    """The distribution of one number; `std` is the sample standard deviation."""

    mean: float
    std: float
    min: float
    lower_quartile: float
    median: float
    upper_quartile: float
    max: float


@dataclass(frozen=True)
class Report:
    """A dataset in plain numbers."""

    transitions: int
    episodes: int
    episode_length: Summary
    observation_shape: tuple[int, ...]
    observation_dtype: str
    choices: tuple[int, ...]  # of each token
    objectives: int
    agents: int  # 1 where there is no team
    state_shape: tuple[int, ...] | None  # of a global state
    masked: bool
    terminated: int
    truncated: int
    action_counts: tuple[tuple[int, ...], ...]  # [token][choice]
    actions: tuple[
        tuple[tuple[float, ...], ...], ...
    ]  # [token][choice]: the quantities that it is; () where it is none
    returns: tuple[Summary, ...]  # undiscounted, of each objective
    warnings: tuple[str, ...]


def inspect(dataset: Dataset, columns: Mapping[str, Sequence[str]] | None = None) -> Report:
    """The report on a dataset; of a table, by the names of the columns that became each field."""
    check_filled(dataset)
    spec = dataset.spec
    first, last = borders(dataset.episode)
    return Report(
        transitions=len(dataset),
        episodes=len(last),
        episode_length=_summary(last - first + 1),
        observation_shape=spec.observation_shape,
        observation_dtype=spec.observation_dtype,
        choices=spec.choices,
        objectives=spec.objectives,
        agents=spec.agents,
        state_shape=spec.state_shape,
        masked=dataset.mask is not None,
        terminated=int(np.sum(dataset.terminated)),
        truncated=int(np.sum(dataset.truncated)),
        action_counts=tuple(tuple(int(c) for c in count) for count in _action_counts(dataset)),
        actions=_quantities(dataset),
        returns=tuple(_summary(column) for column in dataset.returns().T),
        warnings=(
            *_size_warnings(dataset),
            *action_warnings(dataset),
            *_observation_warnings(dataset, columns or {}),
            *_reward_warnings(dataset),
            *_episode_warnings(dataset, last),
            *_duplicate_warnings(dataset),
        ),
    )


def render(report: Report, columns: Mapping[str, Sequence[str]] | None = None) -> RenderableType:
    """The report for the terminal; of a table, with the columns that became each field."""
    parts: list[RenderableType] = [_facts(report), Text(), _returns(report)]
    if columns:
        parts[1:1] = [Text(), _columns(columns)]
    for token, counts in enumerate(report.action_counts[:SHOWN_TOKENS]):
        parts += [Text(), _histogram(token, counts, report)]
    hidden = len(report.action_counts) - SHOWN_TOKENS
    if hidden > 0:
        parts.append(Text(f"and {hidden} more tokens", style="dim"))
    parts.append(Text())
    parts += [Text(f"⚠ {warning}", style="yellow") for warning in report.warnings]
    if not report.warnings:
        parts.append(Text("Nothing looks wrong.", style="green"))
    return Group(*parts)


def _summary(values: np.ndarray) -> Summary:
    low, lower, median, upper, high = (float(q) for q in np.quantile(values, (0, 0.25, 0.5, 0.75, 1)))
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Summary(float(np.mean(values)), std, low, lower, median, upper, high)


def _names(names: Sequence[str] | np.ndarray) -> str:
    """Some names or numbers as text: all of them, or the first few and how many more."""
    shown = ", ".join(str(name) for name in names[:SHOWN_NAMES])
    more = len(names) - SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _size_warnings(dataset: Dataset) -> list[str]:
    n = len(dataset)
    return [f"There are only {n} transitions; expect an unsteady result."] if n < FEW_TRANSITIONS else []


def action_warnings(dataset: Dataset) -> list[str]:
    """What looks wrong with the actions, one sentence each: they may be choices in another form than they were taken
    for."""
    warnings = _one_hot_warnings(dataset)
    for token, count in enumerate(_action_counts(dataset)):
        where = f" of token {token}" if dataset.spec.tokens > 1 else ""
        never = np.flatnonzero(count == 0)
        taken = len(count) - len(never)
        if len(count) > MANY_CHOICES and taken < RARELY * len(count) and not dataset.spec.continuous:
            warnings.append(
                f"Only {taken:,} of {len(count):,} choices{where} are ever taken and nothing can be learnt about the "
                "others; if these are ids, number them from 0."
            )
        elif never.size:
            warnings.append(
                f"Choices{where} never taken: {_names(never)}; nothing can be learnt about them, check num_actions."
            )
        if len(count) > 1 and count.max() > DOMINANT * count.sum():
            warnings.append(
                f"Choice {count.argmax()}{where} is {count.max() / count.sum():.1%} of the data; "
                "there is little to choose between."
            )
    return warnings


def _one_hot_warnings(dataset: Dataset) -> list[str]:
    action, spec = np.asarray(dataset.action), dataset.spec
    if spec.tokens == 1 or spec.agents > 1 or spec.continuous or spec.num_choices > 2 or (action.sum(1) != 1).any():
        return []
    return [
        f"Of the {spec.tokens} parts of an action one is 1 and all others are 0, in every row; if that is a one-hot "
        "choice, give its number: action.argmax(1)."
    ]


def _action_counts(dataset: Dataset) -> list[np.ndarray]:
    """How often each choice was taken, `[K]` of each token."""
    action = np.asarray(dataset.action)
    return [np.bincount(action[:, d], minlength=k) for d, k in enumerate(dataset.spec.choices)]


def _quantities(dataset: Dataset) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """What the choices of each token stand for, where actions are quantities."""
    space = dataset.spec.actions
    if isinstance(space, Bins):
        return tuple(tuple((value,) for value in values) for values in space.values)
    return (space.centres,) if isinstance(space, Codebook) else ()


def _observation_warnings(dataset: Dataset, columns: Mapping[str, Sequence[str]]) -> list[str]:
    observation, agents = np.asarray(dataset.observation), dataset.spec.agents
    if observation.dtype == np.uint8:  # the border of an image may well be constant
        return []
    flat = observation.reshape(len(observation) * agents, -1)  # what tells agents apart is not constant
    named = columns.get("observation", ())
    names = np.array(named if len(named) == flat.shape[1] else range(flat.shape[1]))  # not of lists or a history
    constant = flat.min(0) == flat.max(0)
    warnings = [f"Constant observation features: {_names(names[constant])}; leave them out."] if constant.any() else []
    telling = (
        np.flatnonzero(~constant)[_tells_reward(dataset, flat[:, ~constant])] if agents == 1 else np.array([], int)
    )
    if telling.size:
        warnings.append(
            f"Observation features that tell the reward of their row: {_names(names[telling])}; leave them out if they "
            "are not known before the action."
        )
    return warnings


def _tells_reward(dataset: Dataset, columns: np.ndarray) -> np.ndarray:
    """Which columns `[n, width]` are almost linear in one of the objectives."""
    reward = np.asarray(dataset.reward, np.float64)
    reward = reward[:, reward.min(0) < reward.max(0)]
    if len(reward) < LEAK_ROWS:
        return np.zeros(columns.shape[1], bool)
    x, y = (v / np.linalg.norm(v, axis=0) for v in (columns - columns.mean(0, np.float64), reward - reward.mean(0)))
    return np.asarray((np.abs(x.T @ y) > LEAK).any(1))


def _reward_warnings(dataset: Dataset) -> list[str]:
    reward = np.asarray(dataset.reward)
    constant = np.array(dataset.constant_objectives())
    warnings = []
    if constant.size:
        warnings.append(f"Constant reward in objectives: {_names(constant + 1)}; check the reward.")
    large = float(np.abs(reward).max())
    if large > LARGE_REWARD and not dataset.spec.normalisation.reward_scale:
        warnings.append(f"Rewards reach {large:g}; scale them with dataset.with_normalisation(reward=True).")
    return warnings


def _episode_warnings(dataset: Dataset, last: np.ndarray) -> list[str]:
    ended = np.asarray(dataset.terminated) | np.asarray(dataset.truncated)
    warnings = []
    open_ends, early = int((~ended[last]).sum()), np.setdiff1d(np.flatnonzero(ended), last)
    if open_ends:
        warnings.append(f"Episodes that neither terminate nor truncate: {open_ends}; mark their last rows.")
    if early.size:
        warnings.append(
            f"Episodes go on after the rows that end them: {_names(early)}; give each its own episode number."
        )
    return warnings


def _duplicate_warnings(dataset: Dataset) -> list[str]:
    n = len(dataset)
    columns = [dataset.observation, dataset.action, dataset.reward, dataset.next_observation]
    rows = [np.ascontiguousarray(np.asarray(x).reshape(n, -1)).view(np.uint8) for x in columns]
    if sum(part.nbytes for part in rows) > DUPLICATES_LIMIT:
        return []
    joined = np.concatenate(rows, axis=1)
    different = len(np.unique(joined.view(np.dtype((np.void, joined.shape[1])))))
    share = 1 - different / n
    if share <= DUPLICATES:
        return []
    return [f"{share:.0%} of the rows repeat another; in a small world that is normal, else look for copies."]


def _facts(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    length, choices = report.episode_length, report.choices
    same = len(set(choices)) == 1
    actions = f"{len(choices)} × {choices[0]}" if same else " + ".join(str(k) for k in choices)
    for name, value in (
        ("transitions", f"{report.transitions:,}"),
        ("episodes", f"{report.episodes:,}"),
        ("episode length", f"{length.min:g} / {length.mean:.1f} / {length.max:g} (min / mean / max)"),
        ("observation", f"{report.observation_shape} {report.observation_dtype}"),
        ("tokens × choices", actions),
        *((("agents", str(report.agents)),) if report.agents > 1 else ()),
        *((("global state", f"{report.state_shape}"),) if report.state_shape is not None else ()),
        ("objectives", str(report.objectives)),
        ("legality masks", "yes" if report.masked else "no"),
        ("terminated", f"{report.terminated:,}"),
        ("truncated", f"{report.truncated:,}"),
    ):
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _columns(columns: Mapping[str, Sequence[str]]) -> Table:
    """Where each field comes from, as it may be another column, or in another order, than its owner thinks."""
    table = Table("field", "columns, in order", title="Columns", title_justify="left", box=None, pad_edge=False)
    shown = {"next_observation": ["those of the next row"]} | dict(columns)
    for field in ("observation", "action", "reward", "next_observation"):
        table.add_row(Text(field.replace("_", " ")), Text(_names(shown.pop(field))))
    for field, names in shown.items():
        table.add_row(Text(field.replace("_", " ")), Text(_names(names)))
    return table


def _returns(report: Report) -> Table:
    heads = ("mean", "std", "min", "25 %", "median", "75 %", "max")
    # One space between columns, so that seven numbers like -1.23e+05 fit a terminal of 80 characters.
    table = Table("objective", title="Return per episode", title_justify="left", box=None, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for objective, r in enumerate(report.returns):
        numbers = (r.mean, r.std, r.min, r.lower_quartile, r.median, r.upper_quartile, r.max)
        table.add_row(str(objective + 1), *(f"{x:.3g}" for x in numbers))
    return table


def _histogram(token: int, counts: tuple[int, ...], report: Report) -> Table:
    """The choices of one token as bars: all in order, neighbours together where there are many quantities, or the most
    frequent ones where there are many other choices."""
    title = "Actions" if len(report.choices) == 1 else f"Actions, token {token}"
    values = report.actions[token] if report.actions else ()
    if values and len(values[0]) == 1:
        head, (rows, hidden) = "value", (_neighbours([v for (v,) in values], counts), 0)
    else:
        shown = sorted(range(len(counts)), key=lambda k: -counts[k])[:SHOWN_CHOICES]
        shown = sorted(shown) if len(counts) <= SHOWN_CHOICES else shown
        head, hidden = "value" if values else "choice", len(counts) - len(shown)
        rows = [(_names([f"{v:.3g}" for v in values[k]]) if values else str(k), counts[k]) for k in shown]
    table = Table(head, title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("share", justify="right")
    table.add_column("", width=40)
    for name, count in rows:
        bar = Bar(max(count for _, count in rows), 0, count, color="cyan")
        table.add_row(name, f"{count / report.transitions:.1%}", bar)
    if hidden:
        table.add_row("", "", Text(f"and {hidden} more", style="dim"))
    return table


def _neighbours(values: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """Values in order and how often each was taken; where they are many, so many at a time."""
    rows, size = [], ceil(len(values) / SHOWN_CHOICES)
    for start in range(0, len(values), size):
        some = values[start : start + size]
        name = f"{some[0]:.3g}" if len(some) == 1 else f"{some[0]:.3g} to {some[-1]:.3g}"
        rows.append((name, sum(counts[start : start + size])))
    return rows
