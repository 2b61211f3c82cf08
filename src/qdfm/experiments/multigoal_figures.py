"""The picture of `multigoal`: where each policy goes at K = 4, and coverage, trap rate and return against K."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from qdfm.envs.multigoal import GOAL_X, GOAL_Y, START, TRAP_X, TRAP_Y
from qdfm.metrics import summarise

HEATMAP_GOALS = "4"
CURVES = (("coverage", "mode coverage"), ("trap", "trap rate"), ("return", "mean return"))
STYLES = (("", "sampled", "-", "o"), ("greedy_", "greedy", ":", "x"))


def draw(folder: Path, results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> None:
    """multigoal.png: heatmaps above, and the three curves below where there is more than one K."""
    shown = {name: by_goals[HEATMAP_GOALS] for name, by_goals in results.items() if HEATMAP_GOALS in by_goals}
    curves = len(sizes) > 1
    width = max(1.6 * len(shown) + 1.2, 9.0)
    figure = plt.figure(figsize=(width, 4.2 + 4.4 * curves), layout="constrained")
    parts = figure.subfigures(1 + curves, 1, height_ratios=(1, 1.1)[: 1 + curves], squeeze=False)[:, 0]
    _heatmaps(parts[0], shown)
    if curves:
        _curves(parts[1], results, sizes)
    figure.savefig(folder / "multigoal.png", dpi=110)
    plt.close(figure)


def _heatmaps(part: SubFigure, shown: dict[str, dict[str, Any]]) -> None:
    axes = part.subplots(2, len(shown), squeeze=False)
    image: Any = None
    for column, (name, cell) in zip(axes.T, shown.items(), strict=True):
        column[0].set_title(name, fontsize=9, pad=12)
        for axis, (prefix, _, _, _) in zip(column, STYLES, strict=True):
            image = _heatmap(axis, np.minimum(np.asarray(cell[f"{prefix}visits"]), 1))
    for row, (_, label, _, _) in zip(axes, STYLES, strict=True):
        row[0].set_ylabel(label)
    bar = part.colorbar(image, ax=axes.ravel().tolist(), shrink=0.7, label="visits per episode")
    bar.set_ticks([np.sqrt(v) for v in (0, 0.05, 0.25, 0.5, 1)], labels=["0", ".05", ".25", ".5", "1"])


def _heatmap(axis: Axes, visits: np.ndarray) -> Any:
    image = axis.imshow(np.sqrt(visits), origin="lower", cmap="Blues", vmin=0, vmax=1)
    for x in GOAL_X[int(HEATMAP_GOALS)]:
        axis.add_patch(plt.Rectangle((x - 0.5, GOAL_Y - 0.5), 1, 1, fill=False, edgecolor="tab:green", lw=1.5))
        if visits[GOAL_Y, x] >= 0.005:
            share = f"{100 * visits[GOAL_Y, x]:.0f}"
            axis.text(x, GOAL_Y + 0.75, share, ha="center", va="bottom", fontsize=6, color="tab:green")
    height = TRAP_Y[1] - TRAP_Y[0] + 1
    trap = plt.Rectangle((TRAP_X - 0.5, TRAP_Y[0] - 0.5), 1, height, fill=False, edgecolor="tab:red", hatch="///", lw=1)
    axis.add_patch(trap)
    axis.plot(*START, "o", color="black", ms=3)
    axis.set_xticks([])
    axis.set_yticks([])
    return image


def _curves(part: SubFigure, results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> None:
    axes = part.subplots(1, len(CURVES))
    colours = plt.get_cmap("tab20")(np.arange(len(results)) % 20)
    for axis, (metric, label) in zip(axes, CURVES, strict=True):
        for i, (name, by_goals) in enumerate(results.items()):
            places = np.asarray(sizes) + 0.05 * (i - (len(results) - 1) / 2)  # side by side, so that none is hidden
            for prefix, played, line, marker in STYLES:
                points = [summarise([row[prefix + metric] for row in by_goals[str(k)]["seeds"]]) for k in sizes]
                axis.errorbar(
                    places, [p.mean for p in points], [p.std for p in points], marker=marker, ms=3, capsize=2,
                    lw=1, elinewidth=0.6, ls=line, color=colours[i], label=f"{name}, {played}",
                )  # fmt: skip
        axis.set_xlabel("number of goals")
        axis.set_ylabel(label)
        axis.set_xticks(sizes)
        axis.grid(alpha=0.3)
    part.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=7, ncols=2)
