"""The tables of `mujoco`: scores by setting and way to play, and the steps behind them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from qdfm.experiments.control import PAPER_TASKS, SOURCE, data_return, scores, total_steps
from qdfm.experiments.report import PLAYED, Headline, Table, marked, near_best, number, rivals

# By setting and task: the cell of the behaviour, and under "methods" those of the methods.
Results = dict[str, dict[str, dict[str, Any]]]

BESIDE = ("BC", "BoltzBC", "IQL")
# The paper's normalised scores at K_act = 256.
PAPER: dict[str, dict[str, float]] = {
    method: dict(zip(PAPER_TASKS, row, strict=True))
    for method, row in {
        "AWAC": (2.49, 19.69, 0.95, 1.54, 1.53, -0.18),
        "AWBC": (-0.71, 2.22, 1.03, 7.12, -0.20, 2.48),
        "BCQ": (10.33, 20.23, 4.95, 36.18, 3.26, 9.30),
        "CQL": (-1.19, -0.58, 0.90, 1.13, -0.31, 6.65),
        "GreedyQ": (-0.31, -0.23, 0.90, 1.11, -0.30, 6.59),
        "BRAC": (-0.03, 0.42, 0.81, 2.82, 1.97, 3.15),
        "BoltzQ": (4.84, 4.62, 0.69, 1.84, 0.06, -0.09),
        "QDFM": (1.32, 6.02, 17.74, 37.79, 4.85, 14.01),
    }.items()
}

NOTES = (
    f"{SOURCE}\n\n"
    "Codebook: the nearest of 256 joint actions, k-means on the data (the paper does not say how it quantises). "
    "Tokens: 41 bins per dimension, a token each. Scores are means over the episodes of a seed; shown are the mean ± "
    "sample standard deviation over seeds and the 95 % bootstrap interval of the mean over seeds. Bold: the best "
    "mean of QDFM and the baselines (for the codebook, of the paper's seven, beside which BC, BoltzBC and IQL stand "
    "unmarked even where they are better); •: not below the interval of that best. Mean: over the data sets, seed by "
    "seed. The paper's rows are its figures after 1,000,000 steps; ours have the steps that the last table shows, "
    "equally many within a setting; what they take is measured by `qdfm reproduce runtime`. Sampled: each method's own "
    "policy; greedy: its most likely action. BCQ and GreedyQ have only one way to play. With tokens QDFM acts by the "
    "mean of its law, which draws nothing, so that both rows are the same episodes. On the codebook QDFM, BoltzBC, "
    "GreedyQ and BoltzQ share one kind of critic (four networks, layer norm, read as mean − std), the others have "
    "their own. QDFM's settings of both kinds were chosen while looking at these data; the baselines have their "
    "defaults, and QDFM's networks and steps."
)
FINDINGS = ""  # of the full run


def tabulate(results: Results) -> list[Table]:
    """All tables."""
    tables = [_scores(setting, rows, how) for setting, rows in results.items() for how in PLAYED]
    return tables + [_steps(setting, rows) for setting, rows in results.items()]


def _rivals(setting: str, names: Iterable[str]) -> tuple[str, ...]:
    """QDFM and the baselines; for the codebook, those of the paper."""
    return rivals(names, BESIDE if setting == "codebook" else ())


def over_tasks(rows: dict[str, dict[str, Any]], name: str, how: str) -> np.ndarray:
    """A method's mean over the data sets, for each seed `[seeds]`."""
    return np.mean([scores(row["methods"][name], how) for row in rows.values()], 0)


def by_column(rows: dict[str, dict[str, Any]], how: str) -> dict[str, dict[str, np.ndarray]]:
    """Seeds' scores by data set and method, and their means over the data sets where there are several."""
    columns = {t: {name: scores(cell, how) for name, cell in row["methods"].items()} for t, row in rows.items()}
    if len(rows) > 1:
        names = next(iter(rows.values()))["methods"]
        columns["mean"] = {name: over_tasks(rows, name, how) for name in names}
    return columns


def _scores(setting: str, rows: dict[str, dict[str, Any]], how: str) -> Table:
    columns = by_column(rows, how)
    table = Table(f"{setting}, {how}: normalised score", ("", *columns))
    for name in next(iter(columns.values())):
        table.add(name, *(marked(values, name, _rivals(setting, values)) for values in columns.values()))
        if setting == "codebook" and name in PAPER:
            table.add(f"paper: {name}", *(f"{v:.1f}" for v in _printed(name, columns)))
    tasks = list(rows)
    for label, found in (
        ("behaviour, data", [data_return(rows[t]["behaviour"], t) for t in tasks]),
        ("behaviour, replayed", [rows[t]["behaviour"]["replayed"]["score"] for t in tasks]),
    ):
        every = [v for v in found if v is not None]
        mean = [float(np.mean(every))] if len(every) == len(tasks) else [None]
        table.add(label, *(number(v) for v in (*found, *mean * (len(tasks) > 1))))
    errors = [rows[t]["behaviour"]["data"]["quantisation_error"] for t in tasks]
    table.add("quantisation error", *(f"{e:.3f}" for e in errors), *("",) * (len(tasks) > 1))
    return table


def _printed(name: str, columns: Any) -> list[float]:
    """The paper's figures for the columns of a table."""
    found = [PAPER[name][task] for task in columns if task != "mean"]
    return [*found, *[float(np.mean(found))] * ("mean" in columns)]


def _steps(setting: str, rows: dict[str, dict[str, Any]]) -> Table:
    table = Table(f"{setting}: gradient steps", ("", *rows))
    for name in next(iter(rows.values()))["methods"]:
        table.add(name, *(f"{total_steps(row['methods'][name]):,}" for row in rows.values()))
    table.add("transitions", *(f"{row['behaviour']['data']['transitions']:,}" for row in rows.values()))
    return table


def headlines(results: Results) -> list[Headline]:
    """QDFM on every data set, the means over all beside the paper's, how often QDFM is near the best."""
    lines = []
    for setting, rows in results.items():
        columns = by_column(rows, "sampled")
        paper = PAPER if setting == "codebook" else {}
        for task, values in columns.items():
            if "QDFM" in values and task != "mean":
                what = f"{setting}, {task}: QDFM, sampled"
                lines.append(Headline(what, float(values["QDFM"].mean()), paper.get("QDFM", {}).get(task)))
        if "mean" in columns:
            for how in PLAYED:
                for name, means in by_column(rows, how)["mean"].items():
                    printed = _printed(name, columns)[-1] if name in paper else None
                    lines.append(Headline(f"{setting}, mean: {name}, {how}", float(means.mean()), printed))
            lines += _standings(setting, rows)
    return lines


def _standings(setting: str, rows: dict[str, dict[str, Any]]) -> list[Headline]:
    lines = []
    for how in PLAYED:
        columns = [values for task, values in by_column(rows, how).items() if task != "mean"]
        if all("QDFM" in values for values in columns):
            for whose, among in {"the paper's methods": _rivals(setting, columns[0]), "all": tuple(columns[0])}.items():
                near = sum(near_best(values, "QDFM", among) for values in columns)
                what = f"{setting}: QDFM near the best of {whose}, of {len(rows)} data sets, {how}"
                lines.append(Headline(what, near))
    return lines
