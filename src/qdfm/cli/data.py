"""qdfm data inspect and qdfm data make."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from qdfm.cli.common import FLAT, file_name, parse, sizes
from qdfm.data.dataset import Dataset
from qdfm.data.sources import GENERATORS, collected, load_dataset
from qdfm.data.tables import Columns
from qdfm.errors import QDFMError


@dataclasses.dataclass(frozen=True)
class InspectArguments:
    """What is in the data: shapes, objectives, actions, returns, and what looks odd."""

    source: Annotated[Positional[str], arg(metavar="NAME_OR_FILE")]
    """A built-in task or a .npz, .parquet or .csv file."""
    columns: Columns = dataclasses.field(default_factory=Columns)
    """Names of the columns of a .parquet or .csv file."""
    num_actions: tuple[int, ...] | None = None
    """Number of actions where the data does not show all of them, one number per part."""


def inspect(words: Sequence[str]) -> None:
    """Print what is in the data."""

    def command(args: Annotated[InspectArguments, FLAT]) -> None:
        from qdfm.data.inspect import inspect, render

        columns = args.columns if args.columns != Columns() else None
        data = load_dataset(args.source, columns=columns, num_actions=sizes(args.num_actions))
        Console().print(render(inspect(data)))

    command.__doc__ = InspectArguments.__doc__
    parse("data inspect", command, words)


@dataclasses.dataclass(frozen=True)
class MakeArguments:
    """Write built-in data, or random behaviour in a Gymnasium id, to a .npz file that qdfm.load_dataset reads."""

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """The built-in task, or a Gymnasium or MO-Gymnasium id with discrete actions."""
    transitions: int | None = None
    """How many transitions to collect in a Gymnasium id (default: 10000)."""
    seed: int | None = None
    """The seed to collect with in a Gymnasium id (default: 0)."""
    out: Path | None = None
    """The file (default: NAME.npz)."""


def make(words: Sequence[str]) -> None:
    """Write data and say how much."""

    def command(args: Annotated[MakeArguments, FLAT]) -> None:
        data = _made(args)
        out = args.out or Path(f"{file_name(args.name)}.npz")
        data.save(out)
        returns = data.returns().mean(0)
        print(f"Wrote {len(data)} transitions, mean return {[round(float(r), 4) for r in returns]}, to {out}.")

    command.__doc__ = MakeArguments.__doc__
    parse("data make", command, words)


def _made(args: MakeArguments) -> Dataset:
    given = {k: v for k in ("transitions", "seed") if (v := getattr(args, k)) is not None}
    if args.name in GENERATORS:
        if given:
            raise QDFMError(f"--{next(iter(given))} does not concern the built-in {args.name}; leave it out.")
        return GENERATORS[args.name].make()
    return collected("task", args.name, **given)
