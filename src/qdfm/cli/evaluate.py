"""qdfm evaluate."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from qdfm.cli.common import FLAT, PlayArguments, parse


@dataclasses.dataclass(frozen=True)
class EvaluateArguments(PlayArguments):
    """Play episodes with a saved agent."""

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


def run(words: Sequence[str]) -> None:
    """Play, and print one JSON object."""

    def command(args: Annotated[EvaluateArguments, FLAT]) -> None:
        from qdfm.agent import load
        from qdfm.evaluate import evaluate
        from qdfm.video import check_film, record

        agent, env = load(args.checkpoint), args.where()
        if args.video is not None:
            check_film(args.video, env)
        done = evaluate(
            agent, env, args.episodes, args.seed, args.greedy, args.preference, args.gamma, True, args.workers
        )
        played = {"greedy": args.greedy, "gamma": args.gamma, "preference": args.preference}
        print(json.dumps({"env": env, "algorithm": agent.config.name, **played, **done.summary()}))
        if args.video is not None:
            seen = record(agent, env, args.video, args.seed, args.greedy, args.preference)
            print(f"Wrote an episode of {seen.lengths[0]} steps to {args.video}.")

    command.__doc__ = EvaluateArguments.__doc__
    parse("evaluate", command, words)
