"""qdfm data inspect and qdfm data make."""

import dataclasses
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from qdfm.checkpoint import check_writable
from qdfm.cli.common import FLAT, DataArguments, described, file_name, parse
from qdfm.data.arrays import check_suffix
from qdfm.data.builtin import GENERATORS, Generator
from qdfm.data.dataset import Dataset
from qdfm.data.sources import collected, table_columns
from qdfm.errors import DataWarning, QDFMError
from qdfm.seeds import check_seed


@dataclasses.dataclass(frozen=True)
class InspectArguments:
    """What is in the data: shapes, objectives, actions, returns, and what looks odd."""

    source: Annotated[Positional[str], arg(metavar="NAME_OR_FILE")]
    """A built-in task, a .npz, .parquet, .csv, D4RL or SMAC .h5 or D4MORL .pkl file, a Minari id or a Gymnasium id."""
    data: Annotated[DataArguments, FLAT] = dataclasses.field(default_factory=DataArguments)


def inspect(words: Sequence[str]) -> None:
    """Print what is in the data."""

    def command(args: Annotated[InspectArguments, FLAT]) -> None:
        from qdfm.data.inspect import inspect, render

        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always", DataWarning)
            data = args.data.load(args.source)
        for other in (w for w in given if not issubclass(w.category, DataWarning)):
            warnings.showwarning(other.message, other.category, other.filename, other.lineno)
        columns = table_columns(args.source, args.data.columns)
        report = inspect(data, columns)
        told = tuple(str(w.message) for w in given if issubclass(w.category, DataWarning))
        Console().print(render(dataclasses.replace(report, warnings=told + report.warnings), columns))

    command.__doc__ = InspectArguments.__doc__
    parse("data inspect", command, words)


@dataclasses.dataclass(frozen=True)
class MakeArguments:
    """Write data for qdfm.load_dataset: built-in data, or random behaviour in a Gymnasium id, to a .npz file; a MuJoCo
    task as a Minari set, where load_dataset finds it by its name; trajectories of MO-Hopper with their actions as they
    are."""

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """A built-in task, a MuJoCo task such as hopper-medium, a Gymnasium or MO-Gymnasium id with discrete actions."""
    steps: int | None = None
    """How many transitions to collect (default: 10000 in a Gymnasium id, 20000 of matrix, 1000000 of a MuJoCo task,
    1000 trajectories of MO-Hopper, 1000 battles of an SMAX task, 2000 of a replay)."""
    seed: int | None = None
    """The seed to collect with in a Gymnasium id, the matrix game, a MuJoCo, MO-Hopper or SMAX task (default: 0)."""
    out: Path | None = None
    """The .npz file (default: NAME.npz)."""
    replace: bool = False
    """Renew a file, or the Minari set of a MuJoCo task, that is already there."""


def make(words: Sequence[str]) -> None:
    """Write data and say how much."""

    def command(args: Annotated[MakeArguments, FLAT]) -> None:
        seed = check_seed(args.seed or 0)
        generator = _generator(args.name)
        if generator.keep is not None:
            if args.out is not None:
                raise QDFMError(
                    f"--out does not concern {args.name}, which becomes a Minari set; set MINARI_DATASETS_PATH instead."
                )
            print(f"Wrote {generator.keep(args.steps, seed, args.replace)}.")
            return
        out = args.out or Path(f"{file_name(args.name)}.npz")
        check_suffix(out)
        if out.is_file() and not args.replace:
            raise QDFMError(f"{out} is already there; renew it with --replace, or give another --out.")
        check_writable(out)
        wrote = _save(args, generator, out) if generator.write is None else generator.write(out, args.steps, seed)
        print(f"Wrote {wrote}, to {out}.")

    command.__doc__ = MakeArguments.__doc__
    parse("data make", command, words)


def _generator(name: str) -> Generator:
    """Of built-in data, or else of random behaviour in a Gymnasium id."""
    return GENERATORS.get(name) or Generator(partial(collected, "task", name), "", ("transitions", "seed"))


def _save(args: MakeArguments, generator: Generator, out: Path) -> str:
    data = _made(args, generator)
    text, known = described(args.name, data)
    data.save(out, {"task": args.name, "seed": args.seed or 0, **known} if known else {})
    return text


def _made(args: MakeArguments, generator: Generator) -> Dataset:
    options = {"transitions": args.steps, "seed": args.seed}
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in generator.options:
            word = "steps" if option == "transitions" else option
            raise QDFMError(f"--{word} does not concern the built-in {args.name}; leave it out.")
    return generator.make(**given)
