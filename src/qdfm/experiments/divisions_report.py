"""The tables, headlines and picture of `divisions`, the paper's figures beside ours."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from qdfm.experiments.control import PAPER_TASKS, SOURCE, mean_returns, scores
from qdfm.experiments.report import PLAYED, Headline, Table, shown
from qdfm.figures import save_figure
from qdfm.metrics import summarise

# By coding (codebook-16, bins-9, ...) and task: the cell of the behaviour, and under "methods" those of the methods.
Results = dict[str, dict[str, dict[str, Any]]]

KINDS = {"codebook": "K_act", "bins": "bins per dimension"}
# The paper's raw returns: QDFM by K_act, and the methods at K_act = 16, which are runs of their own.
PAPER_SWEEP: dict[str, dict[str, float]] = {
    coding: dict(zip(PAPER_TASKS, row, strict=True))
    for coding, row in {
        "codebook-8": (-142.49, -4.49, 118.94, 31.25, -24.43, 332.03),
        "codebook-16": (-224.44, 37.69, 193.74, 349.19, 383.12, 98.96),
        "codebook-32": (-202.31, 98.24, 261.94, 8.28, 149.77, 203.75),
        "codebook-64": (-157.69, 187.53, 189.08, 7.18, 162.74, 322.46),
        "codebook-256": (-71.28, 608.02, 177.25, 572.16, 86.38, 291.60),
    }.items()
}
PAPER_16: dict[str, dict[str, float]] = {
    method: dict(zip(PAPER_TASKS, row, strict=True))
    for method, row in {
        "AWAC": (-232.53, 318.29, 7.06, 37.42, 79.51, 319.66),
        "AWBC": (-337.04, -5.80, 8.42, 198.77, 12.27, 46.59),
        "BCQ": (-384.38, -198.59, -0.77, 43.95, 444.78, 293.99),
        "CQL": (-263.23, -442.33, 105.71, 29.17, 68.31, 31.02),
        "GreedyQ": (-415.24, -143.53, 1.04, 28.52, 5.67, 90.36),
        "QDFM": (-191.31, 309.99, 173.45, 286.67, 254.65, 124.95),
    }.items()
}

NOTES = (
    f"{SOURCE}\n\n"
    "QDFM by the number of divisions: normalised scores, mean ± sample standard deviation over seeds and the 95 % "
    "bootstrap interval of the mean. The comparison at K_act = 16 is in raw returns, as the paper has it, mean ± "
    "sample standard deviation over seeds, bold the best of all; the paper's two tables at K_act = 16 are different "
    "runs of its method. "
    "Sampled: each method's own policy; greedy: its most likely action. Methods on codebooks have half the "
    "steps that they have in `qdfm reproduce mujoco`, and half the episodes. Bins have a smaller flow than there, and "
    "fewer steps, the same for every number of them."
)
FINDINGS = ""  # of the full run


def tabulate(results: Results, compared: str) -> list[Table]:
    """The sweeps by kind of coding, and the comparison."""
    tables = []
    for kind, label in KINDS.items():
        codings = _of_kind(results, kind)
        if codings:
            tables.append(_quantisers(results, codings, label))
            tables += [_sweep(results, codings, label, how) for how in PLAYED]
            if codings[0] in PAPER_SWEEP:
                tables.append(_printed(results, codings, label))
    return tables + [_comparison(results[compared], how) for how in PLAYED if compared in results]


def _of_kind(results: Results, kind: str) -> list[str]:
    """The codings of a kind, fewest choices first."""
    return sorted((c for c in results if c.startswith(kind)), key=_count)


def _count(coding: str) -> int:
    return int(coding.rsplit("-", 1)[1])


def _tasks(results: Results, codings: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(task for coding in codings for task in results[coding]))


def _quantisers(results: Results, codings: list[str], label: str) -> Table:
    table = Table(
        f"What the quantiser leaves, by {label}: error / behaviour, replayed", ("data", *map(str, map(_count, codings)))
    )
    for task in _tasks(results, codings):
        line = []
        for coding in codings:
            row = results[coding].get(task)
            cell = row and row["behaviour"]
            error, score = cell and cell["data"]["quantisation_error"], cell and cell["replayed"]["score"]
            line.append(f"{error:.3f} / {score:.1f}" if cell else "–")
        table.add(task, *line)
    return table


def _sweep(results: Results, codings: list[str], label: str, how: str) -> Table:
    table = Table(f"QDFM by {label}, {how}: normalised score", ("data", *map(str, map(_count, codings))))
    tasks = _tasks(results, codings)
    columns = {coding: {t: _qdfm(results, coding, t, how) for t in tasks} for coding in codings}
    for task in tasks:
        table.add(task, *("–" if (v := columns[c][task]) is None else shown(v) for c in codings))
    means = []
    for coding in codings:
        found = [v for v in columns[coding].values() if v is not None]
        means.append(shown(np.mean(found, 0)) if len(found) == len(tasks) else "–")
    if len(tasks) > 1:
        table.add("mean", *means)
    return table


def _printed(results: Results, codings: list[str], label: str) -> Table:
    table = Table(f"QDFM by {label}, sampled: raw return", ("data", *map(str, map(_count, codings))))
    for task in _tasks(results, codings):
        cells = [results[coding].get(task, {"methods": {}})["methods"].get("QDFM") for coding in codings]
        table.add(task, *(f"{mean_returns(cell, 'sampled'):.0f}" if cell else "–" for cell in cells))
        table.add(f"paper: {task}", *(f"{PAPER_SWEEP[c][task]:.0f}" if c in PAPER_SWEEP else "–" for c in codings))
    return table


def _qdfm(results: Results, coding: str, task: str, how: str) -> np.ndarray | None:
    row = results[coding].get(task)
    return scores(row["methods"]["QDFM"], how) if row and "QDFM" in row["methods"] else None


def _comparison(rows: dict[str, dict[str, Any]], how: str) -> Table:
    table = Table(f"All methods at K_act = 16, {how}: raw return", ("", *rows))
    for name in next(iter(rows.values()))["methods"]:
        found = {task: mean_returns(row["methods"][name], how) for task, row in rows.items()}
        best = {t: max(mean_returns(c, how).mean for c in row["methods"].values()) for t, row in rows.items()}
        table.add(name, *(f"**{s:.0f}**" if s.mean == best[t] else f"{s:.0f}" for t, s in found.items()))
        if name in PAPER_16:
            table.add(f"paper: {name}", *(f"{PAPER_16[name][task]:.0f}" for task in rows))
    table.add("behaviour, replayed", *(f"{np.mean(r['behaviour']['replayed']['returns']):.0f}" for r in rows.values()))
    table.add("behaviour, data", *(_raw(row["behaviour"]["data"]["return"]) for row in rows.values()))
    return table


def _raw(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def headlines(results: Results, compared: str) -> list[Headline]:
    """QDFM's raw returns at the compared coding beside the paper's, and its mean score by coding."""
    lines = []
    for task, row in results.get(compared, {}).items():
        if "QDFM" in row["methods"]:
            ours = mean_returns(row["methods"]["QDFM"], "sampled").mean
            lines.append(Headline(f"K_act = 16, {task}: QDFM, raw return", ours, PAPER_16["QDFM"][task]))
    for coding, rows in results.items():
        found = [v for task in rows if (v := _qdfm(results, coding, task, "sampled")) is not None]
        if found:
            names = "six data sets" if len(rows) == len(PAPER_TASKS) else ", ".join(rows)
            lines.append(Headline(f"{coding}: QDFM, mean score over {names}", float(np.mean(found))))
    return lines


def draw(folder: Path, results: Results) -> None:
    """divisions.png: scores of QDFM and of the replayed behaviour against the number of divisions, by data set."""
    from matplotlib.figure import Figure

    kinds = [kind for kind in KINDS if _of_kind(results, kind)]
    tasks = _tasks(results, results)
    figure = Figure(figsize=(2.7 * len(tasks) + 1.2, 2.6 * len(kinds) + 0.4), layout="constrained")
    axes = figure.subplots(len(kinds), len(tasks), squeeze=False)
    for row, kind in zip(axes, kinds, strict=True):
        for axis, task in zip(row, tasks, strict=True):
            codings = [c for c in _of_kind(results, kind) if task in results[c]]
            if not codings:
                axis.set_axis_off()
                continue
            counts = [_count(c) for c in codings]
            replayed = [results[c][task]["behaviour"]["replayed"]["score"] for c in codings]
            axis.plot(counts, replayed, "s:", color="black", ms=3, label="behaviour, replayed")
            for how in PLAYED:
                points = [(k, summarise(v)) for k, c in zip(counts, codings, strict=True)
                          if (v := _qdfm(results, c, task, how)) is not None]  # fmt: skip
                if points:
                    places, values = zip(*points, strict=True)
                    means, spreads = [s.mean for s in values], [s.std for s in values]
                    axis.errorbar(places, means, spreads, marker="o", ms=4, capsize=3, label=f"QDFM, {how}")
            axis.set_xscale("log", base=2)
            axis.set_xticks(counts, [str(k) for k in counts], minor=False)
            axis.set_title(task, fontsize=9)
            axis.set_xlabel(KINDS[kind], fontsize=8)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("normalised score")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    save_figure(figure, folder / "divisions.png")
