"""The pictures of `multigoal`: where each policy goes, and coverage, trap rate and return against K."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from qdfm.envs.multigoal import GOAL_X, GOAL_Y, START, TRAP_X, TRAP_Y
from qdfm.metrics import summarise

HEATMAP_GOALS = "4"
COLUMNS = 4
CURVES = (("coverage", "mode coverage"), ("trap", "trap rate"), ("return", "mean return"))


def draw(folder: Path, results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> None:
    """heatmaps.png, and curves.png where there is more than one K."""
    _heatmaps(folder / "heatmaps.png", results)
    if len(sizes) > 1:
        _curves(folder / "curves.png", results, sizes)


def _heatmaps(path: Path, results: dict[str, dict[str, Any]]) -> None:
    shown = {name: by_goals[HEATMAP_GOALS] for name, by_goals in results.items() if HEATMAP_GOALS in by_goals}
    columns = min(len(shown), COLUMNS)
    rows = -(-len(shown) // columns)
    size = (2.9 * columns + 0.6, 3.5 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    image = None
    for axis, (name, cell) in zip(axes.flat, shown.items(), strict=False):
        visits = np.minimum(np.asarray(cell["visits"]), 1)
        image = axis.imshow(np.sqrt(visits), origin="lower", cmap="Blues", vmin=0, vmax=1)
        for x in GOAL_X[int(HEATMAP_GOALS)]:
            axis.add_patch(plt.Rectangle((x - 0.5, GOAL_Y - 0.5), 1, 1, fill=False, edgecolor="tab:green", lw=2))
            if visits[GOAL_Y, x] >= 0.005:
                label = f"{100 * visits[GOAL_Y, x]:.0f}%"
                axis.text(x, GOAL_Y + 0.75, label, ha="center", va="bottom", fontsize=8, color="tab:green")
        height = TRAP_Y[1] - TRAP_Y[0] + 1
        axis.add_patch(
            plt.Rectangle(
                (TRAP_X - 0.5, TRAP_Y[0] - 0.5), 1, height, fill=False, edgecolor="tab:red", hatch="///", lw=1
            )
        )
        axis.plot(*START, "o", color="black", ms=4)
        axis.set_title(name, pad=16)
        axis.set_xticks([])
        axis.set_yticks([])
    assert image is not None
    bar = figure.colorbar(image, ax=axes.ravel().tolist(), shrink=0.7, label="visits per episode")
    bar.set_ticks([np.sqrt(v) for v in (0, 0.05, 0.25, 0.5, 1)], labels=["0", ".05", ".25", ".5", "1"])
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _curves(path: Path, results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> None:
    figure, axes = plt.subplots(1, len(CURVES), figsize=(4 * len(CURVES), 3.2), layout="constrained")
    for axis, (metric, label) in zip(axes, CURVES, strict=True):
        for i, (name, by_goals) in enumerate(results.items()):
            places = np.asarray(sizes) + 0.06 * (i - (len(results) - 1) / 2)  # side by side, so that none is hidden
            points = [summarise([row[metric] for row in by_goals[str(k)]["seeds"]]) for k in sizes]
            axis.errorbar(
                places, [p.mean for p in points], [p.std for p in points], marker="o", ms=4, capsize=3, label=name
            )
        axis.set_xlabel("number of goals")
        axis.set_ylabel(label)
        axis.set_xticks(sizes)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)
