"""qdfm pareto."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from qdfm.checkpoint import writing
from qdfm.cli.common import FLAT, PlayArguments, parse
from qdfm.errors import QDFMError


@dataclasses.dataclass(frozen=True)
class ParetoArguments(PlayArguments):
    """The front that a saved agent reaches as its preference varies: a picture, a table (.csv) and its measures."""

    preferences: int = 101
    """How many preferences, evenly spread (for three objectives and more, the finest lattice with at most as many)."""
    episodes: int = 1
    """Episodes per preference; a point is their mean."""
    sampled: bool = False
    """Draw actions instead of acting greedily."""
    reference: tuple[float, ...] | None = None
    """Where the hypervolume is measured from (default: the worst of the sweep minus 10 % of its range)."""
    out: Path | None = None
    """The folder of the files (default: that of the checkpoint)."""


def run(words: Sequence[str]) -> None:
    """Sweep the preference, print the measures and write the front."""

    def command(args: Annotated[ParetoArguments, FLAT]) -> None:
        _run_pareto(args)

    command.__doc__ = ParetoArguments.__doc__
    parse("pareto", command, words)


def _run_pareto(args: ParetoArguments) -> None:
    from qdfm.agent import load
    from qdfm.frontplot import draw_front
    from qdfm.metrics import hypervolume, simplex, spacing
    from qdfm.sweep import sweep, worst_corner

    agent = load(args.checkpoint)
    env = args.where()
    objectives = agent.spec.objectives
    if args.reference is not None and len(args.reference) != objectives:
        raise QDFMError(f"--reference has {len(args.reference)} numbers; give {objectives}, one per objective.")
    out = args.out or args.checkpoint.parent
    with writing(out, "create"):
        out.mkdir(parents=True, exist_ok=True)
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
    name = f"{args.checkpoint.stem}-front"  # a run's folder has an agent for each seed
    draw_front(out / f"{name}.png", swept.returns, title=f"{agent.config.name} in {env}")
    swept.write_csv(out / f"{name}.csv")
    print(f"Wrote {name}.png and {name}.csv to {out}.")
