"""qdfm train."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from qdfm.algorithms import ALGORITHMS
from qdfm.algorithms.base import Config
from qdfm.cli.common import FLAT, DataArguments, described, file_name, parse, whole_returns
from qdfm.cli.settings import check_beforehand, check_settings, given_in
from qdfm.curves import draw_curves
from qdfm.data.builtin import GENERATORS
from qdfm.data.dataset import Dataset
from qdfm.data.minari import environment_of
from qdfm.data.sources import is_file, table_columns
from qdfm.data.tables import UNUSED
from qdfm.errors import Interrupted, QDFMError, unknown
from qdfm.runfolder import RunFolder
from qdfm.train import Options, train

QUICK_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    """Train on a built-in task or on a log file, and keep everything in one folder."""

    task: Annotated[Positional[str], arg(metavar="TASK")]
    """A built-in task (see qdfm list), a .npz, .parquet, .csv, SMAC .h5 or D4MORL .pkl file, a Minari id, or a
    Gymnasium id for random behaviour there."""
    algo: str = "qdfm"
    """The algorithm (see qdfm list); its own options follow below, those of another with --algo A --help."""
    seeds: int = 1
    """How many seeds, trained side by side: 0, 1, ..."""
    out: Path | None = None
    """The run's folder (default: runs/TASK-ALGO)."""
    quick: bool = False
    """A tenth of the default gradient steps, and at most 100,000 transitions of a MuJoCo task or of MO-Hopper, for a
    first look."""
    paper: bool = False
    """Start from the preset of the paper, where the algorithm has one."""
    resume: bool = False
    """Go on with the run in the folder."""
    episodes: int = 100
    """Episodes to play at the end, where the task has an environment, with drawn and with the most likely actions (with
    --averaged, which draws none, once); 0: none."""
    data: Annotated[DataArguments, FLAT] = dataclasses.field(default_factory=DataArguments)
    normalise: bool = True
    """Standardise the observations of a log file, a Minari set, or a MuJoCo, MO-Hopper or SMAX task."""
    run: Annotated[Options, FLAT] = dataclasses.field(default_factory=Options)


def run(words: Sequence[str]) -> None:
    """Train, and play where the task has an environment."""
    config_type = _algorithm(_value_of(words, "--algo") or "qdfm")
    default = config_type()
    if "--paper" in words:
        if not hasattr(config_type, "paper"):
            raise QDFMError(f"{config_type.name} has no preset of the paper; leave out --paper.")
        default = config_type.paper()
    if "--quick" in words:
        default = default.scaled(QUICK_SHARE)

    def command(args: Annotated[TrainArguments, FLAT], config: Annotated[Config, FLAT]) -> None:
        given = given_in(words)
        check_beforehand(config, given)
        _run_training(args, config, given)

    command.__annotations__["config"] = Annotated[config_type, FLAT]
    command.__defaults__ = (default,)
    command.__doc__ = TrainArguments.__doc__
    parse("train", command, words)


def _run_training(args: TrainArguments, config: Config, given: frozenset[str]) -> None:
    from qdfm.envs.registry import known_names
    from qdfm.evaluate import evaluate
    from qdfm.tasks import PLACES

    logged = is_file(args.task)
    if args.task in known_names() and args.task not in GENERATORS:
        if played := [name for name, place in PLACES.items() if place.env == args.task]:
            raise QDFMError(f"{args.task} is an environment; train on data from there: {', '.join(played)}.")
        raise QDFMError(f"{args.task} is an environment without built-in data; give a log file of it instead.")
    if args.seeds < 1:
        raise QDFMError(f"--seeds is {args.seeds}; give at least 1.")
    if args.episodes < 0:
        raise QDFMError(f"--episodes is {args.episodes}; give at least 0.")
    out = args.out or Path("runs") / f"{Path(args.task).stem if logged else file_name(args.task)}-{config.name}"
    RunFolder.check(out, args.resume, args.run.tensorboard)  # before minutes of collecting
    data = _few(args).load(args.task, args.normalise)
    place = None if logged else _place(args.task)
    text, known = described(args.task, data)
    check_settings(config, config.adapt(data).spec, given)  # a mistake is told before anything else
    print(f"The data: {text}.", flush=True)
    columns = {field: names for field, names in table_columns(args.task, args.data.columns).items() if field != UNUSED}
    notes = {"source": args.task} | ({"columns": columns} if columns else {})
    agents = train(config, data, range(args.seeds), out, args.resume, options=args.run, task=place, notes=notes)
    print(f"Saved {len(agents)} agent(s) in {out}.")
    try:
        draw_curves(out)
        if place is None or args.episodes == 0:
            return
        if data.spec.objectives > 1 and config.preference is None:
            print("The agents follow a preference; play with qdfm evaluate --preference or qdfm pareto.")
            return
        ways = _ways(config)
        summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for seed, agent in enumerate(agents):
            for number, (name, greedy) in enumerate(ways.items()):
                done = evaluate(agent, place, args.episodes, seed=seed, greedy=greedy, progress=True)
                summaries[name].append(done.summary())
                if number == 0:
                    print(json.dumps({"seed": seed, **summaries[name][-1]}), flush=True)
        Console().print(_compared(args.seeds, {"the data": [_as_played(place, data, known)], **summaries}))
    except KeyboardInterrupt:
        print(f"Interrupted; the agents are saved in {out}.", file=sys.stderr)
        raise Interrupted from None


def _ways(config: Config) -> dict[str, bool]:
    """How agents play at the end, and whether greedily: by draws and without, or once where nothing is drawn."""
    if getattr(config, "averaged", False):
        return {"averaged actions": True}
    return {"drawn actions": False, "most likely actions": True}


def _as_played(place: str, data: Dataset, known: dict[str, float]) -> dict[str, Any]:
    """What an evaluation would say of the data: their return and, where there are such, their score and win rate."""
    from qdfm.tasks import PLACES

    returns, score = whole_returns(place, data), PLACES[place].score if place in PLACES else None
    found: dict[str, Any] = {k: v for k, v in known.items() if k == "win_rate"}
    if len(returns):
        found["return_mean"] = returns.mean(0)
        if score is not None:
            found["score_mean"] = float(score(returns[:, 0]).mean())
    return found


def _compared(seeds: int, rows: dict[str, list[dict[str, Any]]]) -> Table:
    """The data beside the agents: means over the summaries of each row, one for each seed."""
    table = Table(f"mean of {seeds} seeds" if seeds > 1 else "")
    columns = {"return": ("return_mean", ""), "score": ("score_mean", ".1f"), "win rate": ("win_rate", ".3f")}
    shown = {title: how for title, how in columns.items() if any(how[0] in every[0] for every in rows.values())}
    for title in shown:
        table.add_column(title, justify="right")
    for name, every in rows.items():
        table.add_row(name, *(_mean([one[key] for one in every if key in one], form) for key, form in shown.values()))
    return table


def _mean(values: list[Any], form: str) -> str:
    """Over seeds, of one number or one per objective: without a form four digits, and tenths of thousands."""
    if not values:
        return "–"
    means = np.atleast_1d(np.mean(values, 0))
    return ", ".join(format(v, form or (".1f" if abs(v) >= 1000 else ".4g")) for v in means)


def _few(args: TrainArguments) -> DataArguments:
    """The options of the data, with fewer transitions where a quick run takes no more."""
    generator = GENERATORS.get(args.task)
    if not args.quick or args.data.transitions is not None or generator is None or generator.quick is None:
        return args.data
    return dataclasses.replace(args.data, transitions=generator.quick())


def _place(task: str) -> str | None:
    """Where agents trained on a task play: there, or in the environment that a Minari set names, if it is known."""
    from qdfm.envs.gymnasium import registered
    from qdfm.envs.registry import ENVIRONMENTS
    from qdfm.tasks import PLACES

    if task in ENVIRONMENTS or task in PLACES or registered(task):
        return task
    named = None if task in GENERATORS else environment_of(task)
    return named if named is not None and registered(named) else None


def _value_of(words: Sequence[str], option: str) -> str | None:
    """The value of an option that decides which other options there are."""
    for i, word in enumerate(words):
        if word == option and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"{option}="):
            return word.split("=", 1)[1]
    return None


def _algorithm(name: str) -> type[Any]:
    if name.lower() not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name.lower()]
