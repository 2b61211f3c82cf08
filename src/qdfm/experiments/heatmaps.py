"""Pictures of where a policy goes on a grid world."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qdfm.envs.grid import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


def heatmap(axis: "Axes", env: Grid, visits: np.ndarray) -> Any:
    """Expected visits `[height, width]`: goals green with their share in per cent, the trap (the last outcome) red."""
    from matplotlib.patches import Rectangle

    visits = np.minimum(visits, 1)
    image = axis.imshow(np.sqrt(visits), origin="lower", cmap="Blues", vmin=0, vmax=1)
    trap = len(env.payoffs) - 1
    for y, x in np.argwhere(env.plan >= 0):
        goal = env.plan[y, x] != trap
        look: dict[str, Any] = (
            {"edgecolor": "tab:green", "lw": 1.5} if goal else {"edgecolor": "tab:red", "hatch": "///"}
        )
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, **look))
        if goal and visits[y, x] >= 0.005:
            share = f"{100 * visits[y, x]:.0f}"
            axis.text(x, y + 0.75, share, ha="center", va="bottom", fontsize=6, color="tab:green")
    axis.plot(*env.first, "o", color="black", ms=3)
    axis.set_xticks([])
    axis.set_yticks([])
    return image


def colour_bar(figure: "Figure | SubFigure", image: Any, axes: "Sequence[Axes]") -> None:
    """The scale of the heatmaps, whose colours go by the square root."""
    bar = figure.colorbar(image, ax=list(axes), shrink=0.7, label="visits per episode")
    bar.set_ticks([np.sqrt(v) for v in (0, 0.05, 0.25, 0.5, 1)], labels=["0", ".05", ".25", ".5", "1"])
