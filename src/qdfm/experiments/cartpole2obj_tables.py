"""The tables of `cartpole-2obj`: the verdict on each sweep, scalarised returns side by side, every sweep in full."""

import math
from typing import Any, NamedTuple

import numpy as np

from qdfm.experiments.report import Headline, Table
from qdfm.metrics import Summary, summarise

Results = dict[str, dict[str, Any]]

WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # ω, of R1
SOLVED = 475  # CartPole counts as solved from this return
TOLERANCE = 2.0  # standard errors by which a step of the sweep may go the wrong way
PLAYED = ("sampled", "greedy")
REFERENCES = ("random", "data", "best habit")  # rows that are not trained
# The paper's R1, R2, scalarised return and solved share at each ω.
PAPER = (
    (430.78, -318.19, -318.19, 0.55),
    (430.21, -317.38, -242.62, 0.52),
    (423.93, -311.60, -127.72, 0.54),
    (402.27, -292.87, 54.70, 0.43),
    (403.76, -290.86, 230.10, 0.43),
    (408.45, -291.54, 338.46, 0.50),
    (396.19, -281.32, 396.19, 0.41),
)
METRICS = {"r1": "R1", "r2": "R2", "scalarised": "ω·R1 + (1−ω)·R2", "solved": "solved"}

NOTES = (
    "R1 = steps (at most 500), R2 = −(switches of the push), preference (ω, 1 − ω); one model per seed for all ω, 200 "
    f"episodes per seed and ω. Solved: the share of episodes with R1 ≥ {SOLVED}. Means ± sample standard deviations "
    "over seeds. Sampled: each method's own policy; greedy: its most likely action. Random tosses a coin at every "
    "step; data are the data's own episodes; best habit is an oracle that plays, at each ω, the one of the data's nine "
    "controllers that serves it best.\n\n"
    "Right way: from one ω to the next R1 must not fall, and R2 not rise, by more than 2 standard errors of the "
    "difference. One model makes a seed's whole sweep, so the error is that of the seeds' own differences (where there "
    "is one seed, that of its episodes). Worst step: the most adverse difference in its standard errors, negative "
    "where it goes the wrong way.\n\n"
    "The paper prints no errors; its R1 falls while its weight rises. It prints neither its data nor its policy: the "
    "controllers of nine habits are ours, and so is the previous push in the observation, which R2 depends on."
)
# Of the full run; a smaller one does not show all of it.
FINDINGS = (
    "QDFM follows the preference: from never switching, for which it falls after some ten steps, to balancing "
    "throughout. Drawn, it is ahead of the other methods at every ω. Greedy, BoltzQ is slightly ahead of it for ω "
    "from .25 to .9, and CQL at .1. The best habit is an oracle and stays ahead in between, most of all at ω = .1, "
    "where QDFM does not find that a patient controller pays. That a sweep goes the right way says that no step of "
    "it goes significantly the wrong way; it does not say that it goes far. These settings are the second tried "
    "with five seeds: at β = 30 and with 40,000 critic and 8,000 improvement steps the sampled R1 fell from 499.8 "
    "to 498.3 between ω = .9 and 1, which is 2.4 standard errors."
)


class Sweep(NamedTuple):
    """The adjacent differences of a sweep, counted so that the right way is positive."""

    differences: np.ndarray  # [ω − 1]
    errors: np.ndarray  # [ω − 1], their standard errors

    @property
    def wrong(self) -> int:
        """How many go the wrong way by more than the tolerance."""
        return int((self.differences < -TOLERANCE * self.errors).sum())

    @property
    def worst(self) -> float:
        """The most adverse difference in its standard errors; without any error, 0 or infinite."""
        return min(
            d / e if e else math.copysign(math.inf, d) if d else 0.0
            for d, e in zip(self.differences.tolist(), self.errors.tolist(), strict=True)
        )


def sweep_of(values: np.ndarray, errors: np.ndarray, direction: int) -> Sweep:
    """The sweep of seeds' values `[seeds, ω]` that should rise (+1) or fall (−1).

    The error of a difference is that of the seeds' own differences; of one seed, that of its episodes' means, whose
    standard errors `[seeds, ω]` are given.
    """
    differences = direction * np.diff(values, axis=1)
    if len(values) > 1:
        return Sweep(differences.mean(0), differences.std(0, ddof=1) / math.sqrt(len(values)))
    return Sweep(differences[0], np.hypot(errors[0, 1:], errors[0, :-1]))


def sweeps(cell: dict[str, Any], played: str) -> tuple[Sweep, Sweep]:
    """Those of R1, which should rise, and of R2, which should fall."""
    r1, r2 = (
        sweep_of(values(cell, played, metric), values(cell, played, f"{metric}_error"), direction)
        for metric, direction in (("r1", 1), ("r2", -1))
    )
    return r1, r2


def values(cell: dict[str, Any], played: str, metric: str) -> np.ndarray:
    """A metric of every seed and weight, `[seeds, ω]`."""
    return np.array([[at[metric] for at in seed[played]] for seed in cell["seeds"]])


def over_seeds(cell: dict[str, Any], played: str, metric: str) -> list[Summary]:
    """Mean and deviation at every weight."""
    return [summarise(column) for column in values(cell, played, metric).T]


def tabulate(results: Results) -> list[Table]:
    """All tables."""
    trained = [name for name in results if name not in REFERENCES]
    return [
        _verdicts(results, trained),
        *(_scalarised(results, played) for played in PLAYED),
        *(_sweep(name, results[name]) for name in trained),
        _references(results),
    ]


def _verdicts(results: Results, trained: list[str]) -> Table:
    columns = (
        "method", "played", "R1 right way", "worst step", "R2 right way", "worst step", "R1 at ω = 0 → 1",
        "R2 at ω = 0 → 1", "solved at ω = 1",
    )  # fmt: skip
    table = Table("Does the sweep go the right way?", columns)
    for name in trained:
        for played in PLAYED:
            judged = []
            for sweep in sweeps(results[name], played):
                judged += [f"no: {sweep.wrong} of {len(sweep.errors)} wrong" if sweep.wrong else "yes"]
                judged += [f"{sweep.worst:+.1f}"]
            r1, r2, solved = (over_seeds(results[name], played, metric) for metric in ("r1", "r2", "solved"))
            ends = [f"{x[0].mean:.1f} → {x[-1].mean:.1f}" for x in (r1, r2)]
            table.add(name, played, *judged, *ends, solved[-1])
    return table


def _scalarised(results: Results, played: str) -> Table:
    table = Table(f"ω·R1 + (1−ω)·R2, {played}", ("", *(f"ω = {w:g}" for w in WEIGHTS)))
    for name, cell in results.items():
        if played in cell["seeds"][0]:
            table.add(name, *(f"{s:.1f}" for s in over_seeds(cell, played, "scalarised")))
    if played == "sampled":
        table.add("paper", *(f"{row[2]:.1f}" for row in PAPER))
    return table


def _sweep(name: str, cell: dict[str, Any]) -> Table:
    paper = name == "QDFM"
    columns = [f"{label}{', greedy' * (played == 'greedy')}" for played in PLAYED for label in METRICS.values()]
    table = Table(name, ("ω", *columns, *(f"paper: {label}" for label in METRICS.values() if paper)))
    summaries = [over_seeds(cell, played, metric) for played in PLAYED for metric in METRICS]
    for i, weight in enumerate(WEIGHTS):
        printed = [f"{value:.2f}" for value in PAPER[i]] if paper else []
        table.add(f"{weight:g}", *(column[i] for column in summaries), *printed)
    return table


def _references(results: Results) -> Table:
    """The best habit changes with ω, the others do not."""
    shown = {"r1": "R1", "r2": "R2", "solved": "solved"}
    table = Table("Nothing trained", ("ω", *(f"{name}: {label}" for name in REFERENCES for label in shown.values())))
    summaries = [over_seeds(results[name], "sampled", metric) for name in REFERENCES for metric in shown]
    for i, weight in enumerate(WEIGHTS):
        table.add(f"{weight:g}", *(column[i] for column in summaries))
    return table


def headlines(results: Results) -> list[Headline]:
    """QDFM's sweep at both ends beside the paper's, its spread, and how many of its steps go the wrong way."""
    if "QDFM" not in results:
        return []
    cell, lines = results["QDFM"], []
    means = {metric: [s.mean for s in over_seeds(cell, "sampled", metric)] for metric in METRICS}
    for place in (0, -1):
        for metric, printed in zip(METRICS, PAPER[place], strict=True):
            if metric != "scalarised":
                what = f"QDFM, ω = {WEIGHTS[place]:g}: {METRICS[metric]}"
                lines.append(Headline(what, means[metric][place], printed))
    for column, metric in enumerate(("r1", "r2")):
        what = f"QDFM: {METRICS[metric]} at ω = 1 minus ω = 0 ({'above' if column == 0 else 'below'} 0 is right)"
        ours = means[metric][-1] - means[metric][0]
        lines.append(Headline(what, ours, PAPER[-1][column] - PAPER[0][column]))
    wrong = [sweep.wrong for sweep in sweeps(cell, "sampled")]
    steps = 2 * (len(WEIGHTS) - 1)
    lines.append(Headline(f"QDFM: steps of the sweep in the wrong direction, of {steps}", sum(wrong)))
    return lines
