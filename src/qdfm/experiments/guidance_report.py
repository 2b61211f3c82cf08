"""The tables and the picture of `guidance`."""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.experiments.control import SOURCE, data_return, gain, scores
from qdfm.experiments.report import PLAYED, Headline, Table, number
from qdfm.figures import save_figure
from qdfm.metrics import summarise

# By task: the cell of the behaviour, and under "rules" those of the rules.
Results = dict[str, dict[str, Any]]

NOTES = (
    f"{SOURCE}\n\n"
    "Every rule weighs 16 draws of the warm-up flow by exp(β·g), and the flow learns these weights. g is the mean of "
    "the critics' advantages over the behaviour less two standard deviations of these advantages; values: the "
    "critics' mean value instead. share-x: one β for the whole data set, at which the mean effective sample share of "
    "the weights is x; state-y: a smaller β in the states whose own share would fall below y. 100-per-size: β = 100 "
    "divided by the data's mean |Q|. logged: the last phase weighs the logged actions, not the flow's draws. "
    "onward: the critics' targets are values of the policy that the tilt makes of eight draws, read as mean − std, not "
    "the behaviour's own. "
    "best-of-16: of 16 draws of the guided (or unguided) flow the one with the largest g, a way to sample that does "
    "not change a greedy decision. mean: the same flow acts by the mean of its law, which draws nothing, so that "
    "sampled and greedy are the same episodes; it is compared with the unguided flow's mean. Shown are normalised "
    "scores, mean ± sample deviation over seeds, and in brackets the difference from the unguided flow of the same "
    "seed ± its standard error, where that flow was run; bold where it is below zero by more than that error. No loss: "
    "on how many data sets it is not, which a rule whose seeds differ much passes more easily. Means are taken of the "
    "unguided flow in the same way; played greedily that flow can score more, as its rows show. The rules' settings "
    "were chosen while looking at these data."
)
FINDINGS = ""  # of the full run
MEAN = "-mean"  # ends the names of rules that act by the mean of their law


def gains(results: Results, rule: str, base: str, how: str) -> list[tuple[float, float | None]]:
    """By data set: a rule's score less that of the unguided flow, and its standard error (None for one seed).

    What acts by the mean of its law is compared with the unguided flow that does so too. Where that flow was not run,
    or is the rule itself, there is nothing to compare with.
    """
    base += MEAN if rule.endswith(MEAN) else ""
    if rule == base or base not in _rules(results):
        return []
    return [gain(row["rules"][rule], row["rules"][base], how) for row in results.values()]


def harmless(results: Results, rule: str, base: str, how: str) -> int | None:
    """On how many data sets a rule is not worse than the unguided flow beyond one standard error, where known."""
    found = [(change, error) for change, error in gains(results, rule, base, how) if error is not None]
    return sum(change >= -error for change, error in found) if len(found) == len(results) else None


def tabulate(results: Results, base: str) -> list[Table]:
    """Scores by way to play."""
    return [_scores(results, base, how) for how in PLAYED]


def _rules(results: Results) -> list[str]:
    return list(next(iter(results.values()))["rules"])


def _scores(results: Results, base: str, how: str) -> Table:
    table = Table(f"{how}: normalised score", ("", *results, "mean", "no loss beyond 1 s.e."))
    for rule in _rules(results):
        line = [f"{summarise(scores(row['rules'][rule], how)):.1f}" for row in results.values()]
        found, count = gains(results, rule, base, how), harmless(results, rule, base, how)
        for i, (difference, error) in enumerate(found):
            change = f"{difference:+.1f} ± {number(error)}"
            line[i] += f" (**{change}**)" if error is not None and difference < -error else f" ({change})"
        verdict = f"{count} of {len(results)}" if count is not None else "–" if found else ""
        mean = np.mean([scores(row["rules"][rule], how).mean() for row in results.values()])
        table.add(rule, *line, f"{mean:.1f}", verdict)
    for label, returns in (
        ("behaviour, data", [data_return(row["behaviour"], task) for task, row in results.items()]),
        ("behaviour, replayed", [row["behaviour"]["replayed"]["score"] for row in results.values()]),
    ):
        known = [value for value in returns if value is not None]
        mean = float(np.mean(known)) if len(known) == len(returns) else None
        table.add(label, *(number(value) for value in returns), number(mean), "")
    return table


def headlines(results: Results, base: str) -> list[Headline]:
    """For every rule and way to play: the mean over the data sets, and on how many it does no harm."""
    lines = []
    for how in PLAYED:
        for rule in _rules(results):
            mean = np.mean([scores(row["rules"][rule], how).mean() for row in results.values()])
            lines.append(Headline(f"{rule}, {how}: mean score", float(mean)))
            if (count := harmless(results, rule, base, how)) is not None:
                lines.append(
                    Headline(f"{rule}, {how}: no loss beyond 1 s.e. of unguided, of {len(results)} data sets", count)
                )
    return lines


def draw(folder: Path, results: Results, base: str) -> None:
    """guidance.png: every rule's difference from the unguided flow, by data set."""
    from matplotlib.figure import Figure

    rules = [rule for rule in _rules(results) if gains(results, rule, base, PLAYED[0])]
    if not rules:
        return
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, how in zip(figure.subplots(1, len(PLAYED), sharey=True), PLAYED, strict=True):
        for shift, rule in zip(np.linspace(-0.35, 0.35, len(rules)), rules, strict=True):
            found = [(change, error or 0.0) for change, error in gains(results, rule, base, how)]
            at = np.arange(len(found)) + shift
            axes.errorbar(at, *np.transpose(found), fmt="o", markersize=4, label=rule)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(results)), list(results), rotation=30, ha="right")
        axes.set_title(how)
    axes.legend(fontsize=7)
    figure.supylabel("score less that of the unguided flow")
    save_figure(figure, folder / "guidance.png")
