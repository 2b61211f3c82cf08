"""The picture of `fork`: where each policy goes at three preferences."""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.envs.fork import Fork
from qdfm.experiments.heatmaps import colour_bar, heatmap
from qdfm.figures import save_figure


def draw(folder: Path, results: dict[str, Any], preferences: tuple[str, ...]) -> None:
    """fork.png: a row for each preference, a column for each method (seed 0)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.9 * len(results) + 1.4, 5.2), layout="constrained")
    axes = figure.subplots(len(preferences), len(results), squeeze=False)
    image: Any = None
    for column, (name, cell) in zip(axes.T, results.items(), strict=True):
        column[0].set_title(name.replace(", ", ",\n"), fontsize=9, pad=12)
        for axis, preference in zip(column, preferences, strict=True):
            image = heatmap(axis, Fork(), np.asarray(cell["visits"][preference]))
    for axis, preference in zip(axes[:, 0], preferences, strict=True):
        axis.set_ylabel(f"ω = {preference}")
    colour_bar(figure, image, axes.ravel().tolist())
    save_figure(figure, folder / "fork.png")
