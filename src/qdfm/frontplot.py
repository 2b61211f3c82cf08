"""The picture of a front: what an agent reached, beside what its data holds and what is possible."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from qdfm.figures import save_figure
from qdfm.metrics import non_dominated

PANELS = 3  # in a row
TEXT_SIZE = (64, 18)  # columns and lines of a front drawn in text


def draw_front(
    path: str | Path,
    achieved: np.ndarray,
    data: np.ndarray | None = None,
    front: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Write a PNG with a panel for each pair of objectives, all of them maximised.

    `achieved` are mean returns `[P, objectives]`, red where none of them dominates; `data` returns of episodes
    `[n, objectives]`, grey; `front` the true front `[m, objectives]`, black: with two objectives the border of what it
    dominates, else its points, because a point off the border of a pair may be on it in another.
    """
    from matplotlib.figure import Figure

    achieved = np.asarray(achieved)
    kept = non_dominated(achieved)
    names = names or [f"objective {i + 1}" for i in range(achieved.shape[1])]
    pairs = list(combinations(range(achieved.shape[1]), 2))
    across = min(PANELS, len(pairs))
    down = math.ceil(len(pairs) / across)
    size = (4.6 * across, 3.8 * down + 0.6)
    figure = Figure(figsize=size, layout="constrained")  # without pyplot, whose backend is the user's; PNG means Agg
    axes = figure.subplots(down, across, squeeze=False)
    for axis, (x, y) in zip(axes.flat, pairs):
        if data is not None:
            axis.scatter(data[:, x], data[:, y], s=8, color="0.75", label="data")
        if not kept.all():  # else the legend would tell of points that nobody finds
            axis.scatter(achieved[~kept, x], achieved[~kept, y], s=18, color="tab:blue", label="reached, dominated")
        if front is not None:
            line = front[np.argsort(front[:, x])]
            style = {"drawstyle": "steps-pre"} if len(pairs) == 1 else {"ls": "", "marker": "x", "ms": 4}
            axis.plot(line[:, x], line[:, y], color="black", lw=1, label="true front", **style)
        axis.scatter(achieved[kept, x], achieved[kept, y], s=22, color="tab:red", zorder=3, label="reached")
        axis.set_xlabel(names[x])
        axis.set_ylabel(names[y])
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(pairs) :]:
        axis.set_axis_off()
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2 if across == 1 else 4, fontsize=9)
    if title is not None:
        figure.suptitle(title)
    save_figure(figure, Path(path))


def text_front(achieved: np.ndarray, front: np.ndarray | None = None, names: Sequence[str] | None = None) -> str:
    """The same for two objectives as lines of text: ● reached, ○ reached but dominated, · the true front."""
    achieved, size = np.asarray(achieved), TEXT_SIZE
    front = np.empty((0, 2)) if front is None else front
    names = names or ["objective 1", "objective 2"]
    shown = np.concatenate([achieved, front])
    low, extent = shown.min(0), np.where(np.ptp(shown, 0) > 0, np.ptp(shown, 0), 1.0)
    grid = np.full(size[::-1], " ")
    kept = non_dominated(achieved)
    for points, mark in ((front, "·"), (achieved[~kept], "○"), (achieved[kept], "●")):
        x, y = np.rint((points - low) / extent * (np.array(size) - 1)).astype(int).T
        grid[size[1] - 1 - y, x] = mark
    body = "\n".join("│" + "".join(row).rstrip() for row in grid)
    across, up = (f"{name}: {a:.4g} to {a + span:.4g}" for name, a, span in zip(names, low, extent, strict=True))
    marks = "● reached" + "   ○ reached, dominated" * (not kept.all()) + "   · true front" * bool(len(front))
    return f"{body}\n└{'─' * size[0]}\n{across} →   {up} ↑\n{marks}"
