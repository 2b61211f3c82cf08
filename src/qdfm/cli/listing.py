"""qdfm list."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from qdfm.algorithms import ALGORITHMS
from qdfm.cli.common import parse
from qdfm.data.builtin import GENERATORS


def run(words: Sequence[str]) -> None:
    """Tasks, algorithms, environments and experiments, each with a line about it."""

    def command() -> None:
        """Tasks, algorithms, environments and experiments."""
        from qdfm.envs.registry import ENVIRONMENTS, GAMES
        from qdfm.experiments import EXPERIMENTS

        games = {f"{name}-MAP": f"{g.about}; MAP: {', '.join(g.maps)}" for name, g in GAMES.items()}
        for title, rows in (
            ("tasks", {name: g.about for name, g in GENERATORS.items()}),
            ("algorithms", {name: c.about for name, c in ALGORITHMS.items()}),
            ("environments", {name: _first_line(make) for name, make in ENVIRONMENTS.items()} | games),
            ("experiments", {name: e.about for name, e in EXPERIMENTS.items()}),
        ):
            table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
            for name, about in rows.items():
                table.add_row(name, about)
            Console().print(table)

    parse("list", command, words)


def _first_line(make: Any) -> str:
    """Of what makes an environment, without making it: that may need a package which is not there."""
    return (getattr(make, "func", make).__doc__ or "").splitlines()[0]
