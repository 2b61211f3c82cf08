"""The picture of `mujoco`: scores of every method by data set, a row of panels for each setting."""

from pathlib import Path
from typing import Any

from qdfm.experiments.control import data_return, scores
from qdfm.experiments.mujoco_tables import PAPER, Results
from qdfm.experiments.report import PLAYED, draw_ways
from qdfm.figures import save_figure


def draw(folder: Path, results: Results) -> None:
    """mujoco-SETTING.png: a panel per data set, the methods below each other."""
    from matplotlib.figure import Figure

    for setting, rows in results.items():
        names = list(next(iter(rows.values()))["methods"])
        figure = Figure(figsize=(2.5 * len(rows) + 1.6, 0.3 * len(names) + 1.4), layout="constrained")
        axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)
        for axis, (task, row) in zip(axes[0], rows.items(), strict=True):
            _panel(axis, task, row, setting == "codebook")
        axes[0, 0].set_yticks(range(len(names)), names)
        axes[0, 0].invert_yaxis()
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
        save_figure(figure, folder / f"mujoco-{setting}.png")


def _panel(axis: Any, task: str, row: dict[str, Any], paper: bool) -> None:
    """Means with 95 % intervals over seeds; the behaviour as vertical lines."""
    names = list(row["methods"])
    draw_ways(axis, {how: [scores(cell, how) for cell in row["methods"].values()] for how in PLAYED})
    printed = [(PAPER[name][task], i) for i, name in enumerate(names) if name in PAPER and paper]
    if printed:
        axis.plot(*zip(*printed, strict=True), "d", ms=4, mfc="none", color="grey", label="paper, its data")
    if (data := data_return(row["behaviour"], task)) is not None:
        axis.axvline(data, color="black", lw=0.8, label="behaviour, data")
    axis.axvline(row["behaviour"]["replayed"]["score"], color="black", lw=0.8, ls=":", label="behaviour, replayed")
    axis.set_title(task, fontsize=9)
    axis.set_xlabel("normalised score", fontsize=8)
    axis.grid(alpha=0.3)
