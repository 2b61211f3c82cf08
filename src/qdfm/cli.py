"""The command line. Options come from the config dataclasses; a mistake gets one sentence and exit code 2."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from qdfm._version import __version__
from qdfm.algorithms import ALGORITHMS
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset
from qdfm.data.sources import GENERATORS, collected, is_file, load_dataset
from qdfm.data.tables import Columns
from qdfm.errors import Diverged, QDFMError, unknown
from qdfm.train import Options, train, trained_task

USAGE = """usage: qdfm COMMAND ...

  qdfm list                       tasks, algorithms, environments and experiments
  qdfm train TASK                 train on a built-in task or a log file; --algo A, --seeds 5, --quick, --resume
  qdfm evaluate CHECKPOINT        play episodes with a saved agent
  qdfm pareto CHECKPOINT          the front that an agent reaches as its preference varies
  qdfm reproduce EXPERIMENT       a table or figure of the paper; --quick
  qdfm data inspect NAME_OR_FILE  what is in the data
  qdfm data make NAME             write built-in data, or random behaviour in a Gymnasium id, to a file

qdfm COMMAND --help says more. qdfm --version prints the version."""
QUICK_SHARE = 0.1
FLAT = arg(name="")  # options of a nested dataclass without its name before them
Task = Annotated[Positional[str], arg(metavar="TASK")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a mistake in the input, 3 for a diverged run, 130 when interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except QDFMError as error:
        print(f"qdfm: {error}", file=sys.stderr)
        return 2
    except Diverged as error:
        print(f"qdfm: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    command, rest = words[0], words[1:]
    if command == "data":
        if not rest or rest[0] not in DATA_COMMANDS:
            raise unknown("command", " ".join(words[:2]), [f"data {name}" for name in DATA_COMMANDS])
        DATA_COMMANDS[rest[0]](rest[1:])
    elif command in COMMANDS:
        COMMANDS[command](rest)
    else:
        raise unknown("command", command, [*COMMANDS, "data"])
    return 0


# qdfm list


def _list(words: list[str]) -> None:
    """Tasks, algorithms, environments and experiments, each with a line about it."""

    def command() -> None:
        """Tasks, algorithms, environments and experiments."""
        from qdfm.envs.registry import ENVIRONMENTS
        from qdfm.experiments import EXPERIMENTS

        for title, rows in (
            ("tasks", {name: g.about for name, g in GENERATORS.items()}),
            ("algorithms", {name: c.about for name, c in ALGORITHMS.items()}),
            ("environments", {name: _first_line(make) for name, make in ENVIRONMENTS.items()}),
            ("experiments", {name: e.about for name, e in EXPERIMENTS.items()}),
        ):
            table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
            for name, about in rows.items():
                table.add_row(name, about)
            Console().print(table)

    _parse("list", command, words)


def _first_line(make: Any) -> str:
    """Of what makes an environment, without making it: that may need a package which is not there."""
    return (getattr(make, "func", make).__doc__ or "").splitlines()[0]


# qdfm train


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    """Train on a built-in task or on a log file, and keep everything in one folder."""

    task: Task
    """A built-in task (see qdfm list), a .npz, .parquet or .csv file, or a Gymnasium id for random behaviour there."""
    algo: str = "qdfm"
    """The algorithm (see qdfm list); its own options follow below, those of another with --algo A --help."""
    seeds: int = 1
    """How many seeds, trained side by side: 0, 1, ..."""
    out: Path | None = None
    """The run's folder (default: runs/TASK-ALGO)."""
    quick: bool = False
    """A tenth of the default gradient steps, for a first look."""
    paper: bool = False
    """Start from the preset of the paper, where the algorithm has one."""
    resume: bool = False
    """Go on with the run in the folder."""
    episodes: int = 100
    """Episodes to play at the end, where the task has an environment; 0: none."""
    columns: Columns = dataclasses.field(default_factory=Columns)
    """Names of the columns of a .parquet or .csv file."""
    num_actions: tuple[int, ...] | None = None
    """Number of actions where the data does not show all of them, one number per part."""
    normalise: bool = True
    """Standardise the observations of a file."""
    run: Annotated[Options, FLAT] = dataclasses.field(default_factory=Options)


def _train(words: list[str]) -> None:
    config_type = _algorithm(_value_of(words, "--algo") or "qdfm")
    default = config_type()
    if "--paper" in words:
        if not hasattr(config_type, "paper"):
            raise QDFMError(f"{config_type.name} has no preset of the paper; leave out --paper.")
        default = config_type.paper()
    if "--quick" in words:
        default = default.scaled(QUICK_SHARE)

    def command(args: Annotated[TrainArguments, FLAT], config: Annotated[Config, FLAT]) -> None:
        _run_training(args, config)

    command.__annotations__["config"] = Annotated[config_type, FLAT]
    command.__defaults__ = (default,)
    command.__doc__ = TrainArguments.__doc__
    _parse("train", command, words)


def _run_training(args: TrainArguments, config: Config) -> None:
    from qdfm.envs.registry import ENVIRONMENTS
    from qdfm.evaluate import evaluate

    logged = is_file(args.task)
    if args.task in ENVIRONMENTS and args.task not in GENERATORS:
        raise QDFMError(f"{args.task} is an environment without built-in data; give a log file of it instead.")
    columns = args.columns if args.task not in GENERATORS and args.columns != Columns() else None
    data = load_dataset(args.task, columns=columns, num_actions=_sizes(args.num_actions), normalise=args.normalise)
    if args.seeds < 1:
        raise QDFMError(f"--seeds is {args.seeds}; give at least 1.")
    out = args.out or Path("runs") / f"{Path(args.task).stem if logged else _file_name(args.task)}-{config.name}"
    task = None if logged else args.task
    agents = train(config, data, range(args.seeds), out, args.resume, options=args.run, task=task)
    print(f"Saved {len(agents)} agent(s) in {out}.")
    if logged:
        returns = data.returns()
        print(f"The data's own mean return per episode: {[round(float(r), 4) for r in returns.mean(0)]}.")
    elif args.episodes > 0 and (args.task in ENVIRONMENTS or args.task not in GENERATORS):
        if data.spec.objectives > 1 and config.preference is None:
            print("The agents follow a preference; play with qdfm evaluate --preference or qdfm pareto.")
            return
        for seed, agent in enumerate(agents):
            done = evaluate(agent, args.task, args.episodes, seed=seed, progress=True)
            print(json.dumps({"seed": seed, **done.summary()}))


# qdfm evaluate


@dataclasses.dataclass(frozen=True)
class PlayArguments:
    """Which agent plays where."""

    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")]
    """An agent-SEED.safetensors file."""
    env: str | None = None
    """A built-in environment or a Gymnasium id (default: the task that the file's run was trained on)."""
    seed: int = 0
    """Seed of the episodes."""
    gamma: float = 1.0
    """The discount of the returns; 1: none."""


@dataclasses.dataclass(frozen=True)
class EvaluateArguments(PlayArguments):
    """Play episodes with a saved agent."""

    episodes: int = 200
    """How many episodes."""
    greedy: bool = False
    """Take the most likely action instead of drawing one."""
    preference: tuple[float, ...] | None = None
    """Weights of the objectives, summing to 1."""


def _evaluate(words: list[str]) -> None:
    def command(args: Annotated[EvaluateArguments, FLAT]) -> None:
        from qdfm.agent import load
        from qdfm.evaluate import evaluate

        agent = load(args.checkpoint)
        env = args.env or _where_to_play(args.checkpoint)
        done = evaluate(agent, env, args.episodes, args.seed, args.greedy, args.preference, args.gamma, progress=True)
        played = {"greedy": args.greedy, "gamma": args.gamma, "preference": args.preference}
        print(json.dumps({"env": env, "algorithm": agent.config.name, **played, **done.summary()}))

    command.__doc__ = EvaluateArguments.__doc__
    _parse("evaluate", command, words)


def _where_to_play(checkpoint: Path) -> str:
    task = trained_task(checkpoint.parent)
    if task is None:
        raise QDFMError(f"The folder of {checkpoint} does not say where to play; give --env NAME.")
    return task


# qdfm pareto


@dataclasses.dataclass(frozen=True)
class ParetoArguments(PlayArguments):
    """The front that a saved agent reaches as its preference varies: front.png, front.csv and its measures."""

    preferences: int = 101
    """How many preferences, evenly spread (for three objectives and more, the finest lattice with at most as many)."""
    episodes: int = 1
    """Episodes per preference; a point is their mean."""
    sampled: bool = False
    """Draw actions instead of taking the most likely one."""
    reference: tuple[float, ...] | None = None
    """Where the hypervolume is measured from (default: the worst of the sweep minus 10 % of its range)."""
    out: Path | None = None
    """The folder of the files (default: that of the checkpoint)."""


def _pareto(words: list[str]) -> None:
    def command(args: Annotated[ParetoArguments, FLAT]) -> None:
        _run_pareto(args)

    command.__doc__ = ParetoArguments.__doc__
    _parse("pareto", command, words)


def _run_pareto(args: ParetoArguments) -> None:
    from qdfm.agent import load
    from qdfm.frontplot import draw_front
    from qdfm.metrics import hypervolume, simplex, spacing
    from qdfm.sweep import sweep, worst_corner

    agent = load(args.checkpoint)
    env = args.env or _where_to_play(args.checkpoint)
    objectives = agent.spec.objectives
    if args.reference is not None and len(args.reference) != objectives:
        raise QDFMError(f"--reference has {len(args.reference)} numbers; give {objectives}, one per objective.")
    out = args.out or args.checkpoint.parent
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QDFMError(f"Cannot create {out} ({error.strerror}); choose a writable folder.") from None
    omega = simplex(objectives, args.preferences)
    swept = sweep(agent, env, omega, args.episodes, args.seed, greedy=not args.sampled, gamma=args.gamma)
    reference = worst_corner(swept.returns) if args.reference is None else args.reference
    front = swept.returns[swept.non_dominated()]
    measures = {
        "preferences": len(omega),
        "episodes": args.episodes,
        "greedy": not args.sampled,
        "gamma": args.gamma,
        "hypervolume": hypervolume(front, reference),
        "reference": [float(r) for r in reference],
        "non_dominated": len(front),
        "spacing": spacing(front),
        "mean_utility": swept.mean_utility(),
    }
    print(json.dumps({"env": env, "algorithm": agent.config.name, **measures}))
    if args.episodes == 1:
        print("Each point is a single episode; where chance plays a part, give more with --episodes.")
    if args.reference is None:
        print("The reference is the worst of the sweep minus 10 % of its range; give --reference to compare agents.")
    draw_front(out / "front.png", swept.returns, title=f"{agent.config.name} in {env}")
    swept.write_csv(out / "front.csv")
    print(f"Wrote front.png and front.csv to {out}.")


# qdfm reproduce


@dataclasses.dataclass(frozen=True)
class ReproduceArguments:
    """Run an experiment: its table on the terminal; results.json, table.md and the figures in its folder."""

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT")]
    """The experiment's name (see qdfm list)."""
    quick: bool = False
    """A version of minutes with the same code."""
    out: Path | None = None
    """The folder of the results (default: runs/reproduce-EXPERIMENT)."""
    seeds: int | None = None
    """Seeds per method (default: the experiment's own number)."""
    only: Annotated[tuple[str, ...], arg(metavar="METHOD ...")] = ()
    """Methods to run (default: all)."""
    resume: bool = False
    """Keep what the folder already has and compute the rest."""


def _reproduce(words: list[str]) -> None:
    def command(args: Annotated[ReproduceArguments, FLAT]) -> None:
        from qdfm.experiments import EXPERIMENTS
        from qdfm.experiments.cells import Settings

        if args.experiment not in EXPERIMENTS:
            raise unknown("experiment", args.experiment, EXPERIMENTS)
        if args.seeds is not None and args.seeds < 1:
            raise QDFMError(f"--seeds is {args.seeds}; give at least 1.")
        out = args.out or Path("runs") / f"reproduce-{args.experiment}"
        EXPERIMENTS[args.experiment].load()(Settings(out, args.quick, args.seeds, args.only, args.resume))
        print(f"Wrote {', '.join(sorted(f.name for f in out.iterdir() if f.is_file()))} to {out}.")

    command.__doc__ = ReproduceArguments.__doc__
    _parse("reproduce", command, words)


# qdfm data


@dataclasses.dataclass(frozen=True)
class InspectArguments:
    """What is in the data: shapes, objectives, actions, returns, and what looks odd."""

    source: Annotated[Positional[str], arg(metavar="NAME_OR_FILE")]
    """A built-in task or a .npz, .parquet or .csv file."""
    columns: Columns = dataclasses.field(default_factory=Columns)
    """Names of the columns of a .parquet or .csv file."""
    num_actions: tuple[int, ...] | None = None
    """Number of actions where the data does not show all of them, one number per part."""


def _inspect(words: list[str]) -> None:
    def command(args: Annotated[InspectArguments, FLAT]) -> None:
        from qdfm.data.inspect import inspect, render

        columns = args.columns if args.columns != Columns() else None
        data = load_dataset(args.source, columns=columns, num_actions=_sizes(args.num_actions))
        Console().print(render(inspect(data)))

    command.__doc__ = InspectArguments.__doc__
    _parse("data inspect", command, words)


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


def _make(words: list[str]) -> None:
    def command(args: Annotated[MakeArguments, FLAT]) -> None:
        data = _made(args)
        out = args.out or Path(f"{_file_name(args.name)}.npz")
        data.save(out)
        returns = data.returns().mean(0)
        print(f"Wrote {len(data)} transitions, mean return {[round(float(r), 4) for r in returns]}, to {out}.")

    command.__doc__ = MakeArguments.__doc__
    _parse("data make", command, words)


def _made(args: MakeArguments) -> Dataset:
    given = {k: v for k in ("transitions", "seed") if (v := getattr(args, k)) is not None}
    if args.name in GENERATORS:
        if given:
            raise QDFMError(f"--{next(iter(given))} does not concern the built-in {args.name}; leave it out.")
        return GENERATORS[args.name].make()
    return collected("task", args.name, **given)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "list": _list,
    "train": _train,
    "evaluate": _evaluate,
    "pareto": _pareto,
    "reproduce": _reproduce,
}
DATA_COMMANDS: dict[str, Callable[[list[str]], None]] = {"inspect": _inspect, "make": _make}


def _parse(name: str, command: Callable[..., None], words: list[str]) -> None:
    tyro.cli(command, args=words, prog=f"qdfm {name}", description=command.__doc__)


def _sizes(num_actions: tuple[int, ...] | None) -> int | tuple[int, ...] | None:
    return num_actions[0] if num_actions is not None and len(num_actions) == 1 else num_actions


def _file_name(task: str) -> str:
    return task.replace("/", "-")  # of ids such as ALE/Pong-v5


def _value_of(words: list[str], option: str) -> str | None:
    """The value of an option that decides which other options there are."""
    for i, word in enumerate(words):
        if word == option and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"{option}="):
            return word.split("=", 1)[1]
    return None


def _algorithm(name: str) -> type[Any]:
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


if __name__ == "__main__":
    sys.exit(main())
