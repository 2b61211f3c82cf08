"""The tables and the picture of `smax`."""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.experiments.report import PLAYED, Headline, Table, draw_ways, marked, near_best, number, rivals
from qdfm.figures import save_figure

MEASURES = {"return": "mean return", "won": "share of battles won"}
VARIANTS = ("QDFM, qmix", "QDFM, qmix, centralised")
OURS = ("QDFM", *VARIANTS)
# The paper's returns and win rates on SMAC's own data, which are others: return (win rate).
PAPER_METHODS = ("BC", "MACQL", "CFCQL", "OMAR", "OMIGA", "QDFM")
PAPER: dict[str, dict[str, str]] = {
    task: dict(zip(PAPER_METHODS, row, strict=True))
    for task, row in {
        "smax-3m-medium": ("– (.18)", "– (.31)", "– (.31)", "– (.13)", "– (.33)", "– (.29)"),
        "smax-2s3z-medium-replay": (
            "16.71 (.57)", "15.30 (.42)", "16.79 (.52)", "15.10 (.45)", "16.27 (.48)", "17.06 (.59)",
        ),
        "smax-5m_vs_6m-expert": (
            "12.13 (.43)", "12.17 (.41)", "15.05 (.51)", "11.32 (.29)", "14.95 (.49)", "14.99 (.48)",
        ),
        "smax-5m_vs_6m-medium": (
            "11.21 (.17)", "11.26 (.16)", "11.59 (.20)", "11.01 (.17)", "11.48 (.19)", "11.58 (.19)",
        ),
        "smax-5m_vs_6m-medium-replay": ("6.89", "6.66", "6.76", "6.83", "6.74", "6.94"),
        "smax-5m_vs_6m-poor": ("1.30", "1.54", "1.41", "3.43", "1.24", "1.67"),
    }.items()
}  # fmt: skip

# By task and method: the cell.
Results = dict[str, dict[str, dict[str, Any]]]

NOTES = (
    "SMAX's maps against its heuristic enemy, reward ×10 (enemy health lost, and 10 for a victory), so that returns "
    "compare with SMAC's 20 at most. The data are battles of our own policies, trained by the project's MAPPO and "
    "stopped at several win rates; their statistics stand in the last row of each table. The paper plays StarCraft II"
    " itself on other data: its figures are for orientation. Shown are mean ± sample standard deviation over seeds "
    "and the 95 % bootstrap interval of the mean; bold: the best mean of QDFM and the baselines, not of QDFM's "
    "variants; •: not below its interval. Sampled: actions drawn from the policy; greedy: its most likely ones. MACQL"
    " and CFCQL choose the best action by their values and have only one way to play. QDFM: every agent learns apart,"
    " from its own rows and the team's reward, its flow beside its critic, which is kept low for actions that were "
    "not logged, in batches of as many transitions of the team as the others have; qmix: a QMIX critic of the joint "
    "action weighs whole joint actions, the rates read an agent's own observation and current action; qmix, "
    "centralised: the rates read all observations and the joint action. BC: a softmax of each agent's own "
    "observation; joint: the unguided flow of the joint action. QDFM's settings were chosen among some twenty on "
    "3m-poor, 2s3z-medium and 2s3z-medium-replay, by one seed; the baselines have one setting each, near their "
    "authors', but for the weight of the penalty of MACQL and CFCQL, 20 instead of 1 on 2s3z-medium, where one seed "
    "showed how much it matters, and on 2s3z-medium-replay (on the poor sets and 3m-medium 5 and 20 were no better, "
    "or hardly). The data's battles are fought on the CPU, so that one seed gives one roll-out wherever a method "
    "learns. Cells from before that was so have roll-outs of the same policies on another device, which rounds "
    "otherwise: the last table says who learned from which. –: not run; 5m_vs_6m, where our policies hardly win, is "
    "left to --only 5m_vs_6m."
)
FINDINGS = (
    "Drawn, as the data were and as `evaluate` plays unless told otherwise, QDFM's teams have the best mean of "
    "returns and of battles won, with intervals clear of the next best (OMAR), and on none of the data sets are they "
    "below the interval of the best. Played greedily, as OMAR's authors play their deterministic actors, the two tie. "
    "Both let every agent learn apart: nothing weighs joint actions there, and in one step the flow of an agent is a "
    "softmax of what it sees, tilted by its own critic. Values of joint actions mixed by QMIX are learned too slowly "
    "from a thousand battles: their QDFM is ahead greedily on 3m-medium-replay, centralised level on 3m-poor, but far "
    "behind on 2s3z-poor and, centralised, on 2s3z-medium. Drawn, rates that read the joint action gain nothing over "
    "those of single agents, nor does joint cloning over single; greedily joint cloning wins .02 more. A battle "
    "rewards what each does with what it sees (`matrix` is the game where two must agree). MACQL and CFCQL win no "
    "battle on 2s3z-poor, one of CFCQL's five seeds failed on 3m-medium-replay, and OMIGA stays near cloning. QDFM and "
    "OMAR have one setting for all sets; with half the weight of what keeps values of other actions low both did "
    "better on 2s3z-poor, OMAR more so (one seed), so that their order there is open."
)  # of the full run


def values(cell: dict[str, Any], how: str, measure: str) -> np.ndarray:
    """A measure of each seed `[seeds]`."""
    return np.array([seed[how][measure] for seed in cell["seeds"]])


def over_tasks(results: Results, name: str, how: str, measure: str) -> np.ndarray | None:
    """A method's mean over the data sets, for each seed `[seeds]`; None where it was not run on all of them."""
    found = [values(row[name], how, measure) for row in results.values() if name in row]
    return np.mean(found, 0) if len(found) == len(results) else None


def tabulate(results: Results) -> list[Table]:
    """A table for each measure and way to play, and one of the data."""
    tables = [_table(results, how, measure) for measure in MEASURES for how in PLAYED]
    return [*tables, _data(results)]


def _names(results: Results) -> list[str]:
    """The methods that were run on some data set."""
    return list(dict.fromkeys(name for row in results.values() for name in row))


def _table(results: Results, how: str, measure: str) -> Table:
    table = Table(f"{how}: {MEASURES[measure]}", ("", *results, "mean"))
    names = _names(results)
    columns = [{name: values(cell, how, measure) for name, cell in row.items()} for row in results.values()]
    means = {name: over_tasks(results, name, how, measure) for name in names}
    columns.append({name: mean for name, mean in means.items() if mean is not None})
    digits = 2 if measure == "return" else 3
    for name in names:
        table.add(name, *(marked(c, name, rivals(c, VARIANTS), digits) if name in c else "–" for c in columns))
    if any(task in PAPER for task in results) and measure == "return" and how == PLAYED[0]:
        for name in (n for n in names if any(n in PAPER.get(task, {}) for task in results)):
            table.add(f"paper: {name}", *(PAPER.get(task, {}).get(name, "–") for task in results), "–")
    key = "return_mean" if measure == "return" else "win_rate"
    known = [next(iter(row.values()))["data"][key] for row in results.values()]
    table.add("data", *(number(v, f".{digits}f") for v in known), number(float(np.mean(known)), f".{digits}f"))
    return table


def _data(results: Results) -> Table:
    """What was learned from: a line for each roll-out, with the methods that had it."""
    table = Table("Data", ("", "methods", "battles", "transitions", "mean return", "share won"))
    for task, row in results.items():
        known = {cell["data"]["fingerprint"]: cell["data"] for cell in row.values()}
        for fingerprint, data in known.items():
            had = [name for name, cell in row.items() if cell["data"]["fingerprint"] == fingerprint]
            facts = (number(data["return_mean"], ".2f"), number(data["win_rate"], ".3f"))
            who = "all" if len(had) == len(row) else "; ".join(had)
            table.add(task, who, data["episodes"], data["transitions"], *facts)
    return table


def headlines(results: Results) -> list[Headline]:
    """QDFM's mean over the data sets beside the best baseline's, and on how many it is near the best."""
    names, lines = _names(results), []
    baselines = [name for name in names if name not in OURS]
    for how in PLAYED:
        for measure, words in MEASURES.items():
            every = {name: over_tasks(results, name, how, measure) for name in names}
            means = {name: float(mean.mean()) for name, mean in every.items() if mean is not None}
            for name in (n for n in means if n in OURS):
                lines.append(Headline(f"{name}, {how}: {words}, mean over data sets", means[name]))
            if baselines:
                best = max(means[name] for name in baselines)
                lines.append(Headline(f"best baseline, {how}: {words}, mean over data sets", best))
            if "QDFM" in names:
                near = sum(
                    near_best({n: values(c, how, measure) for n, c in row.items()}, "QDFM", rivals(names, VARIANTS))
                    for row in results.values()
                )
                lines.append(Headline(f"QDFM, {how}: {words} near the best, of {len(results)} data sets", near))
    return lines


def draw(folder: Path, results: Results) -> None:
    """smax.png: the share of battles won by every method, a panel per data set."""
    from matplotlib.figure import Figure

    names = _names(results)
    columns = min(4, len(results))
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(2.6 * columns + 1.6, (0.25 * len(names) + 1.1) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, (task, row) in zip(panels.flat, results.items()):
        won = {how: [values(row[name], how, "won") if name in row else None for name in names] for how in PLAYED}
        draw_ways(axes, won)
        axes.axvline(next(iter(row.values()))["data"]["win_rate"], color="black", lw=0.8, ls=":", label="data")
        axes.set_title(task, fontsize=9)
        axes.set_xlabel("battles won", fontsize=8)
        axes.grid(alpha=0.3)
    panels[0, 0].set_yticks(range(len(names)), names)
    panels[0, 0].invert_yaxis()
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
    save_figure(figure, folder / "smax.png")
