"""The picture of `multigoal`: where each policy goes at K = 4, and coverage, trap rate and return against K."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdfm.envs.multigoal import MultiGoal
from qdfm.experiments.heatmaps import colour_bar, heatmap
from qdfm.figures import save_figure
from qdfm.metrics import summarise

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

HEATMAP_GOALS = "4"
CURVES = (("coverage", "mode coverage"), ("trap", "trap rate"), ("return", "mean return"))
STYLES = (("", "sampled", "-", "o"), ("greedy_", "greedy", ":", "x"))


def draw(folder: Path, results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> None:
    """multigoal.png: heatmaps above, and the three curves below where there is more than one K."""
    from matplotlib.figure import Figure

    shown = {name: by_goals[HEATMAP_GOALS] for name, by_goals in results.items() if HEATMAP_GOALS in by_goals}
    curves = len(sizes) > 1
    width = max(1.6 * len(shown) + 1.2, 9.0)
    figure = Figure(figsize=(width, 4.2 + 4.4 * curves), layout="constrained")
    parts = figure.subfigures(1 + curves, 1, height_ratios=(1, 1.1)[: 1 + curves], squeeze=False)[:, 0]
    _heatmaps(parts[0], shown)
    if curves:
        _curves(parts[1], results, sizes)
    save_figure(figure, folder / "multigoal.png")


def _heatmaps(part: "SubFigure", shown: dict[str, dict[str, Any]]) -> None:
    axes = part.subplots(2, len(shown), squeeze=False)
    image: Any = None
    for column, (name, cell) in zip(axes.T, shown.items(), strict=True):
        column[0].set_title(name, fontsize=9, pad=12)
        for axis, (prefix, _, _, _) in zip(column, STYLES, strict=True):
            image = heatmap(axis, MultiGoal(int(HEATMAP_GOALS)), np.asarray(cell[f"{prefix}visits"]))
    for row, (_, label, _, _) in zip(axes, STYLES, strict=True):
        row[0].set_ylabel(label)
    colour_bar(part, image, axes.ravel().tolist())


def _curves(part: "SubFigure", results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> None:
    from matplotlib import colormaps

    axes = part.subplots(1, len(CURVES))
    colours = colormaps["tab20"](np.arange(len(results)) % 20)
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
