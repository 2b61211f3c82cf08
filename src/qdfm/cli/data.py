"""qdfm data inspect and qdfm data make."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from qdfm.checkpoint import check_writable
from qdfm.cli.common import FLAT, DataArguments, described, file_name, parse
from qdfm.data.dataset import Dataset
from qdfm.data.sources import GENERATORS, collected
from qdfm.envs.mujoco import MO_TASKS, TASKS
from qdfm.errors import QDFMError
from qdfm.seeds import check_seed


@dataclasses.dataclass(frozen=True)
class InspectArguments:
    """What is in the data: shapes, objectives, actions, returns, and what looks odd."""

    source: Annotated[Positional[str], arg(metavar="NAME_OR_FILE")]
    """A built-in task, a .npz, .parquet, .csv, SMAC .h5 or D4MORL .pkl file, a Minari id or a Gymnasium id."""
    data: Annotated[DataArguments, FLAT] = dataclasses.field(default_factory=DataArguments)


def inspect(words: Sequence[str]) -> None:
    """Print what is in the data."""

    def command(args: Annotated[InspectArguments, FLAT]) -> None:
        from qdfm.data.inspect import inspect, render

        Console().print(render(inspect(args.data.load(args.source))))

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
    """Renew the Minari set of a MuJoCo task."""


def make(words: Sequence[str]) -> None:
    """Write data and say how much."""

    def command(args: Annotated[MakeArguments, FLAT]) -> None:
        check_seed(args.seed or 0)
        if args.name in TASKS:
            _make_minari(args)
            return
        if args.replace:
            raise QDFMError(f"--replace does not concern {args.name}, which is a file; leave it out.")
        out = args.out or Path(f"{file_name(args.name)}.npz")
        if args.name in MO_TASKS:
            _make_trajectories(args, out)
            return
        check_writable(out)
        data = _made(args)
        text, known = described(args.name, data)
        data.save(out, {"task": args.name, "seed": args.seed or 0, **known} if known else {})
        print(f"Wrote {text}, to {out}.")

    command.__doc__ = MakeArguments.__doc__
    parse("data make", command, words)


def _made(args: MakeArguments) -> Dataset:
    options = {"transitions": args.steps, "seed": args.seed}
    given = {option: value for option, value in options.items() if value is not None}
    if args.name not in GENERATORS:
        return collected("task", args.name, **given)
    generator = GENERATORS[args.name]
    for option in given:
        if option not in generator.options:
            word = "steps" if option == "transitions" else option
            raise QDFMError(f"--{word} does not concern the built-in {args.name}; leave it out.")
    return generator.make(**given)


def _make_trajectories(args: MakeArguments, out: Path) -> None:
    from qdfm.collect.mo_hopper import make_mo_hopper

    rows = make_mo_hopper(args.name, out, args.steps, args.seed or 0)
    count = int(rows["episode"][-1]) + 1
    mean = [round(float(r), 1) for r in rows["reward"].sum(0) / count]
    print(f"Wrote {len(rows['reward'])} transitions of {count} trajectories, mean return {mean}, to {out}.")


def _make_minari(args: MakeArguments) -> None:
    from qdfm.collect.mujoco import MILLION, make_minari
    from qdfm.data.minari import local_set

    if args.out is not None:
        raise QDFMError(
            f"--out does not concern {args.name}, which becomes a Minari set; set MINARI_DATASETS_PATH instead."
        )
    steps = MILLION if args.steps is None else args.steps
    name = make_minari(args.name, steps, args.seed or 0, progress=True, replace=args.replace)
    made = local_set(name)
    assert made is not None
    mean, score = made["mean_return"], made["normalised_score"]
    played = "no whole episode" if mean is None else f"mean return {mean:.1f}, normalised score {score:.1f}"
    print(f"Wrote {made['total_steps']} transitions, {played}, to the Minari set {name}.")
