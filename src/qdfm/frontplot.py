"""The picture of a front: what an agent reached, beside what its data holds and what is possible."""

import io
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from qdfm.checkpoint import write_file
from qdfm.metrics import non_dominated

PANELS = 3  # in a row


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
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    write_file(Path(path), content.getvalue())
