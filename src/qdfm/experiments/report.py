"""What an experiment leaves behind: results.json with its provenance and headlines, a Markdown table, pictures."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from qdfm._version import __version__
from qdfm.checkpoint import write_file
from qdfm.metrics import bootstrap_interval, summarise

if TYPE_CHECKING:
    from qdfm.experiments.cells import Cells

PLAYED = ("sampled", "greedy")  # the two ways to play a policy
# Packages on which results depend.
PACKAGES = ("jax", "equinox", "optax", "numpy", "gymnasium", "mujoco", "minari", "jaxmarl", "mo-gymnasium")


@dataclass(frozen=True)
class Headline:
    """One line of RESULTS.md: what was measured, ours, and the paper's figure where it has one."""

    what: str
    ours: float
    paper: float | None = None


def provenance(command: str, cells: Iterable[dict[str, Any]] = (), **facts: Any) -> dict[str, Any]:
    """The command that makes a result again, what it was made with, and further facts.

    `cells` are results of `Cells.get`; a run that was resumed may have used more than one commit, device or version.
    """
    known = [cell["made"] for cell in cells] or [made_here()]
    packages = dict.fromkeys(name for made in known for name in made["versions"])
    return {
        "command": command,
        **{what: _merged(made[what] for made in known) for what in ("commit", "device")},
        "versions": {name: _merged(made["versions"].get(name) for made in known) for name in packages},
        **facts,
    }


def _merged(found: Iterable[str | None]) -> str:
    """All that differ, where they are known."""
    return ", ".join(sorted({value for value in found if value is not None}))


def made_here() -> dict[str, Any]:
    """The commit, device and versions of this process; a package that is not installed has none."""
    device = jax.devices()[0]
    versions = {"qdfm": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "commit": _commit(),
        "device": f"{device.platform}: {device.device_kind}",
        "versions": versions,
    }


def _commit() -> str:
    """What QDFM_COMMIT says, for copies of the code without its history; else the checkout this file lies in."""
    return os.environ.get("QDFM_COMMIT") or checkout(Path(__file__).parent)


@lru_cache(maxsize=1)
def checkout(folder: Path) -> str:
    """The commit of a folder as the process found it, dirty where the code differs: results are no change of it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ":/src", ":/pyproject.toml")
        return git("rev-parse", "--short=12", "HEAD") + "-dirty" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Table:
    """A small table that prints on a terminal and as Markdown."""

    def __init__(self, title: str, columns: Sequence[str]):
        self.title, self.columns = title, list(columns)
        self.rows: list[list[str]] = []

    def add(self, *cells: object) -> None:
        """One row, a cell per column."""
        self.rows.append([str(c) for c in cells])

    def markdown(self) -> str:
        """As a Markdown table under its title."""
        lines = [f"### {self.title}", "", "| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in self.rows]) + "\n"

    def show(self) -> None:
        """On the terminal."""
        table = RichTable(title=self.title)
        for column in self.columns:
            table.add_column(column, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console = Console(width=None if sys.stdout.isatty() else 150)
        console.print(table)


def shown(values: np.ndarray, digits: int = 1) -> str:
    """Mean ± sample deviation over seeds, and the 95 % bootstrap interval of the mean."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    low, high = bootstrap_interval(values)
    return f"{summarise(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def rivals(names: Iterable[str], variants: Iterable[str]) -> tuple[str, ...]:
    """Whose best all are compared with: all but the variants, which stand beside; all where nothing else was run."""
    every, beside = tuple(names), frozenset(variants)
    return tuple(name for name in every if name not in beside) or every


def near_best(by_name: dict[str, np.ndarray], name: str, rivals: tuple[str, ...]) -> bool:
    """Whether the mean of a method is not below the interval of the best mean among the rivals `[seeds]` each."""
    best = max((by_name[rival] for rival in rivals), key=np.mean)
    return bool(by_name[name].mean() >= bootstrap_interval(best)[0])


def marked(by_name: dict[str, np.ndarray], name: str, rivals: tuple[str, ...], digits: int = 1) -> str:
    """A method as a table shows it: bold where its mean is the best of the rivals', • where it is near that."""
    text, best = shown(by_name[name], digits), max(rivals, key=lambda rival: by_name[rival].mean())
    return (f"**{text}**" if name == best else text) + " •" * near_best(by_name, name, rivals)


def draw_ways(axes: Any, by_way: dict[str, list[np.ndarray | None]]) -> None:
    """Means over seeds with 95 % intervals, the methods below each other (None: not run), two ways to play beside."""
    for place, (how, every) in enumerate(by_way.items()):
        values = [v for v in every if v is not None]
        means = np.array([v.mean() for v in values])
        reach = np.abs(np.array([bootstrap_interval(v) for v in values]) - means[:, None]).T
        heights = np.array([i for i, v in enumerate(every) if v is not None]) + 0.2 * (2 * place - 1)
        axes.errorbar(means, heights, xerr=reach, fmt="ox"[place], ms=4, capsize=2, lw=1, label=how)


def number(value: float | None, form: str = ".1f") -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def finish(
    cells: "Cells",
    command: str,
    heading: str,
    results: Any,
    tables: Sequence[Table],
    notes: str,
    headlines: Sequence[Headline] = (),
    source: str = "",
    **facts: Any,
) -> None:
    """The end of a run: the tables on the terminal, and the report of what its cells hold in their folder."""
    for table in tables:
        table.show()
    made = provenance(command, cells.used, **facts)
    write_report(cells.folder, heading, made, results, tables, notes, headlines, source)


def write_report(
    folder: Path,
    heading: str,
    made: dict[str, Any],
    results: Any,
    tables: Sequence[Table],
    notes: str,
    headlines: Sequence[Headline] = (),
    source: str = "",
) -> None:
    """results.json and table.md in the experiment's folder; RESULTS.md shows of it the headlines, and where data that
    are not the published ones come from."""
    payload = {
        "heading": heading,
        "provenance": made,
        **({"source": source} if source else {}),
        "headlines": [asdict(h) for h in headlines],
        "results": results,
    }
    write_file(folder / "results.json", (json.dumps(payload, indent=1) + "\n").encode())
    facts = ", ".join(f"{k} {v}" for k, v in made.items() if k not in ("command", "versions"))
    text = f"# {heading}\n\n`{made['command']}`\n\n{facts}.\n\n{notes}\n\n"
    write_file(folder / "table.md", (text + "\n".join(t.markdown() for t in tables)).encode())
