"""qdfm evaluate."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated

from qdfm.cli.common import FLAT, PlayArguments, parse


@dataclasses.dataclass(frozen=True)
class EvaluateArguments(PlayArguments):
    """Play episodes with a saved agent."""

    episodes: int = 200
    """How many episodes."""
    greedy: bool = False
    """Take the most likely action instead of drawing one."""
    preference: tuple[float, ...] | None = None
    """Weights of the objectives, summing to 1."""


def run(words: Sequence[str]) -> None:
    """Play, and print one JSON object."""

    def command(args: Annotated[EvaluateArguments, FLAT]) -> None:
        from qdfm.agent import load
        from qdfm.evaluate import evaluate

        agent = load(args.checkpoint)
        env = args.where()
        done = evaluate(agent, env, args.episodes, args.seed, args.greedy, args.preference, args.gamma, progress=True)
        played = {"greedy": args.greedy, "gamma": args.gamma, "preference": args.preference}
        print(json.dumps({"env": env, "algorithm": agent.config.name, **played, **done.summary()}))

    command.__doc__ = EvaluateArguments.__doc__
    parse("evaluate", command, words)
