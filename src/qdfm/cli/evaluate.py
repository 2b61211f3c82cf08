"""qdfm evaluate: by playing, or by a log where there is nowhere to play."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table

from qdfm.cli.common import FLAT, DataArguments, PlayArguments, parse
from qdfm.data.sources import is_file, takes_actions
from qdfm.errors import QDFMError

if TYPE_CHECKING:
    from qdfm.estimate import Estimate

PLAYED = ("env", "episodes", "greedy", "workers", "video")  # options that a log has no use for


@dataclasses.dataclass(frozen=True)
class EvaluateArguments(PlayArguments):
    """Play episodes with a saved agent; or, with --data, estimate from a log what it would earn."""

    gamma: float | None = None  # type: ignore[assignment]  # whose default depends on what is done
    """The discount of the returns; 1: none (default: 1, with --data .99)."""
    episodes: int = 200
    """How many episodes."""
    greedy: bool = False
    """Take the most likely action, or the mean or plan of a method that acts so, instead of drawing one."""
    preference: tuple[float, ...] | None = None
    """Weights of the objectives, summing to 1."""
    workers: int = 1
    """Processes that step a Gymnasium environment; 1: this one."""
    video: Path | None = None
    """Also record the first episode here: a .gif, a strip of pictures (.png) or an .mp4."""
    data: str | None = None
    """Do not play but estimate from this log, as qdfm train takes one, preferably of episodes that the agent was not
    trained on."""
    steps: int = 10_000
    """With --data: gradient steps of fitted Q evaluation."""
    log: Annotated[DataArguments, FLAT] = dataclasses.field(default_factory=DataArguments)


def run(words: Sequence[str]) -> None:
    """Play or estimate, and print one JSON object."""

    def command(args: Annotated[EvaluateArguments, FLAT]) -> None:
        _refuse_idle(args)
        if args.data is None:
            _play(args)
        else:
            _estimate(args, args.data)

    command.__doc__ = EvaluateArguments.__doc__
    parse("evaluate", command, words)


def _play(args: EvaluateArguments) -> None:
    from qdfm.agent import load
    from qdfm.evaluate import evaluate
    from qdfm.video import check_film, record

    agent, env, gamma = load(args.checkpoint), args.where(), 1.0 if args.gamma is None else args.gamma
    if args.video is not None:
        check_film(args.video, env)
    done = evaluate(agent, env, args.episodes, args.seed, args.greedy, args.preference, gamma, True, args.workers)
    played = {"greedy": args.greedy, "gamma": gamma, "preference": args.preference}
    print(json.dumps({"env": env, "algorithm": agent.config.name, **played, **done.summary()}))
    if args.video is not None:
        seen = record(agent, env, args.video, args.seed, args.greedy, args.preference)
        earned = ", ".join(f"{r:.4g}" for r in seen.returns[0])
        print(f"Wrote an episode of {seen.lengths[0]} steps, return {earned}, to {args.video}.")


def _estimate(args: EvaluateArguments, source: str) -> None:
    from qdfm.agent import load
    from qdfm.estimate import FEW, estimate

    agent, gamma = load(args.checkpoint), 0.99 if args.gamma is None else args.gamma
    chosen = (args.log.num_actions, args.log.bins, args.log.codebook) != (None, None, None)
    # Its own actions: a few episodes may not show them all, and bins or a codebook found anew are others.
    own = takes_actions(source) and (is_file(source) or agent.spec.continuous)
    data = args.log.load(source, actions=agent.spec.actions if own and not chosen else None)
    found = estimate(agent, data, gamma, preference=args.preference, seed=args.seed, steps=args.steps)
    told = {"data": source, "algorithm": agent.config.name, "preference": args.preference}
    print(json.dumps({**told, **found.summary()}), flush=True)
    Console().print(_table(found))
    if found.effective_episodes < FEW:
        print(
            f"The effective sample size is {found.effective_episodes:.1f} episodes, below {FEW}: the figure by "
            "importance sampling means little."
        )


def _table(found: "Estimate") -> Table:
    """The log beside the agent."""
    said = found.summary()
    table = Table(f"discounted by {found.gamma:g}")
    for title in ("return", "95 % interval", "effective episodes"):
        table.add_column(title, justify="right")
    spread = [(m - 1.96 * e, m + 1.96 * e) for m, e in zip(said["log_return"], said["log_error"], strict=True)]
    table.add_row("log", _numbers(said["log_return"]), _intervals(spread), str(said["episodes"]))
    sampled = _numbers(said["importance"]), _intervals(said["importance_interval"])
    table.add_row("agent, importance sampling", *sampled, f"{said['effective_episodes']:.1f}")
    table.add_row("agent, fitted Q evaluation", _numbers(said["fitted"]), "–", "–")
    return table


def _numbers(values: Sequence[float | None]) -> str:
    return ", ".join("–" if v is None else f"{v:.4g}" for v in values)


def _intervals(values: Sequence[Sequence[float | None]]) -> str:
    return ", ".join("–" if low is None else f"{low:.4g} to {high:.4g}" for low, high in values)


def _refuse_idle(args: EvaluateArguments) -> None:
    """Refuse options that would have no effect."""
    changed = [f.name for f in dataclasses.fields(args) if getattr(args, f.name) != _default(f)]
    if args.data is not None:
        for option in (name for name in PLAYED if name in changed):
            raise QDFMError(f"--{option} concerns playing; leave it out, or --data.")
    elif "steps" in changed or "log" in changed:
        raise QDFMError(
            "--steps and the options of a log concern estimates; give the log as --data, or leave them out."
        )


def _default(field: "dataclasses.Field[object]") -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
