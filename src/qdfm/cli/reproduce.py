"""qdfm reproduce."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from qdfm.cli.common import FLAT, parse
from qdfm.errors import QDFMError, unknown


@dataclasses.dataclass(frozen=True)
class ReproduceArguments:
    """Run an experiment: its table on the terminal; results.json, table.md and the figures in its folder."""

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT")]
    """The experiment's name (see qdfm list)."""
    quick: bool = False
    """A version of minutes with the same code."""
    out: Path | None = None
    """The folder of the results (default: runs/reproduce-EXPERIMENT, with --quick runs/reproduce-EXPERIMENT-quick)."""
    seeds: int | None = None
    """Seeds per method (default: the experiment's own number)."""
    only: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = ()
    """Names of methods, tasks, parts, ... to run (default: all)."""
    resume: bool = False
    """Keep what the folder already has and compute the rest."""


def run(words: Sequence[str]) -> None:
    """Run an experiment and say what it wrote."""

    def command(args: Annotated[ReproduceArguments, FLAT]) -> None:
        from qdfm.experiments import EXPERIMENTS
        from qdfm.experiments.cells import Settings

        if args.experiment not in EXPERIMENTS:
            raise unknown("experiment", args.experiment, EXPERIMENTS)
        if args.seeds is not None and args.seeds < 1:
            raise QDFMError(f"--seeds is {args.seeds}; give at least 1.")
        out = args.out or Path("runs") / f"reproduce-{args.experiment}{'-quick' * args.quick}"
        EXPERIMENTS[args.experiment].load()(Settings(out, args.quick, args.seeds, args.only, args.resume))
        print(f"Wrote {', '.join(sorted(f.name for f in out.iterdir() if f.is_file()))} to {out}.")

    command.__doc__ = ReproduceArguments.__doc__
    parse("reproduce", command, words)
