"""The picture of `cartpole-2obj`: both returns against ω, and against each other in the order of ω."""

from pathlib import Path
from typing import Any

from qdfm.experiments.cartpole2obj_tables import PAPER, PLAYED, REFERENCES, WEIGHTS, Results, over_seeds
from qdfm.figures import save_figure

PANELS = (("r1", "R1 (steps)"), ("r2", "R2 (−switches)"))
MARKERS = {"random": "x", "data": "*", "best habit": "+"}


def draw(folder: Path, results: Results) -> None:
    """cartpole-2obj.png: a row of three panels for sampled actions, and one for greedy ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 7.5), layout="constrained")
    axes = figure.subplots(2, 3)
    for row, played in zip(axes, PLAYED, strict=True):
        for name, cell in results.items():
            if name not in REFERENCES:
                _sweep(row, name, cell, played)
        _paper(row)
        for name in REFERENCES:
            r1, r2 = ([p.mean for p in over_seeds(results[name], "sampled", metric)] for metric, _ in PANELS)
            row[2].plot(r1, r2, MARKERS[name], color="black", ls="none", ms=8, label=name)
        for axis, (_, label) in zip(row, PANELS, strict=False):
            axis.set(xlabel="ω, the weight of R1", ylabel=label, title=played)
        row[2].set(xlabel=PANELS[0][1], ylabel=PANELS[1][1], title=f"{played}, in the order of ω")
        for axis in row:
            axis.grid(alpha=0.3)
    figure.legend(*axes[0, 2].get_legend_handles_labels(), loc="outside right center")
    save_figure(figure, folder / "cartpole-2obj.png")


def _sweep(row: Any, name: str, cell: dict[str, Any], played: str) -> None:
    """Means with sample deviations over seeds; in the plane ω = 0 is the hollow point."""
    points = [over_seeds(cell, played, metric) for metric, _ in PANELS]
    means, spreads = ([[getattr(p, what) for p in line] for line in points] for what in ("mean", "std"))
    for axis, mean, spread in zip(row, means, spreads, strict=False):
        axis.errorbar(WEIGHTS, mean, spread, marker="o", ms=4, capsize=3)
    drawn = row[2].errorbar(*means, yerr=spreads[1], xerr=spreads[0], marker="o", ms=4, capsize=2, label=name)
    row[2].plot(means[0][0], means[1][0], "o", ms=7, mfc="none", color=drawn[0].get_color())


def _paper(row: Any) -> None:
    r1, r2 = ([line[column] for line in PAPER] for column in (0, 1))
    style: dict[str, Any] = {"color": "grey", "ls": "--", "marker": "s", "ms": 3}
    row[0].plot(WEIGHTS, r1, **style)
    row[1].plot(WEIGHTS, r2, **style)
    row[2].plot(r1, r2, label="paper", **style)
    row[2].plot(r1[0], r2[0], "o", ms=7, mfc="none", color="grey")
