"""Progress: a rich bar with rate and losses on a terminal, plain lines elsewhere, silence on request."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from qdfm.algorithms.base import Phase

LINE_SECONDS = 5.0
THROUGH_DATA = "going through all rows once"
SHOWN = ("loss", "held_out_loss", "q", "effective_share", "beta")


class Progress(Protocol):
    """What the training loop tells."""

    def begin(self, phase: int, done: int, through_data: bool = False) -> None:
        """A phase starts at this step, perhaps after it has gone through all of the data."""

    def advance(self, phase: int, done: int, rate: float, metrics: dict[str, float]) -> None:
        """A chunk is done."""

    def say(self, text: str) -> None:
        """A sentence for the user."""


class Quiet:
    """Says nothing but sentences."""

    def begin(self, phase: int, done: int, through_data: bool = False) -> None:
        """Nothing."""

    def advance(self, phase: int, done: int, rate: float, metrics: dict[str, float]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """To standard error."""
        print(text, file=sys.stderr, flush=True)


class Lines(Quiet):
    """A plain line every few seconds and at the end of each phase."""

    def __init__(self, title: str, phases: "Sequence[Phase]"):
        self.title, self.phases, self.told = title, phases, time.monotonic()

    def begin(self, phase: int, done: int, through_data: bool = False) -> None:
        """Say what takes a while where there is much data."""
        if through_data:
            self.say(f"{self.title} {self.phases[phase].name}: {THROUGH_DATA}")

    def advance(self, phase: int, done: int, rate: float, metrics: dict[str, float]) -> None:
        """Tell if it is time."""
        total = self.phases[phase].steps
        if done < total and time.monotonic() - self.told < LINE_SECONDS:
            return
        self.told = time.monotonic()
        self.say(f"{self.title} {self.phases[phase].name} {done}/{total} {_text(rate, metrics)}")


class Bar(Quiet):
    """One bar per phase."""

    def __init__(self, title: str, phases: "Sequence[Phase]", bars: Bars):
        self.title, self.phases, self.bars = title, phases, bars
        self.tasks: dict[int, TaskID] = {}

    def begin(self, phase: int, done: int, through_data: bool = False) -> None:
        """Show the bar of a phase."""
        p, text = self.phases[phase], THROUGH_DATA if through_data else ""
        self.tasks[phase] = self.bars.add_task(f"{self.title} {p.name}", total=p.steps, completed=done, text=text)

    def advance(self, phase: int, done: int, rate: float, metrics: dict[str, float]) -> None:
        """Move the bar."""
        self.bars.update(self.tasks[phase], completed=done, text=_text(rate, metrics))

    def say(self, text: str) -> None:
        """Above the bars."""
        self.bars.console.print(text, highlight=False)


def _text(rate: float, metrics: dict[str, float]) -> str:
    shown = " ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics)
    return f"{rate:,.0f} steps/s {shown}"


@contextmanager
def open_progress(name: str, phases: "Sequence[Phase]", seeds: int, show: bool) -> Iterator[Progress]:
    """The right kind of progress for where standard error goes."""
    title = name if seeds == 1 else f"{name} ×{seeds}"
    console = Console(stderr=True)
    if not show:
        yield Quiet()
    elif not console.is_terminal:
        yield Lines(title, phases)
    else:
        with _bars(console) as bars:
            yield Bar(title, phases, bars)


@contextmanager
def open_count(title: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Progress of many equal things, such as episodes: a function to be told how many are done."""
    console = Console(stderr=True)
    if not show:
        yield lambda done: None
    elif not console.is_terminal:
        told = time.monotonic()

        def tell(done: int) -> None:
            nonlocal told
            if time.monotonic() - told >= LINE_SECONDS:
                told = time.monotonic()
                print(f"{title} {done}/{total}", file=sys.stderr, flush=True)

        yield tell
    else:
        with _bars(console) as bars:
            task = bars.add_task(title, total=total, text="")
            yield lambda done: bars.update(task, completed=done)


def _bars(console: Console) -> Bars:
    columns = (
        TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )  # fmt: skip
    return Bars(*columns, console=console)
