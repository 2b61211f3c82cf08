"""The picture of `boltzmann`: total variation against β, M and N, and the drift over renewals."""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.experiments.boltzmann_tables import Results, over_seeds
from qdfm.figures import save_figure


def draw(folder: Path, results: Results) -> None:
    """boltzmann.png with a panel for each sweep that has one; none is drawn where no such sweep was run."""
    from matplotlib.figure import Figure

    panels = [(panel, results[name]) for name, panel in PANELS if name in results]
    if not panels:
        return
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (panel, cells) in zip(axes.flat, panels, strict=False):
        panel(axis, cells)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    save_figure(figure, folder / "boltzmann.png")


def _line(axis: Any, x: Any, cells: list[Any], metric: str, label: str, parts: Any = None, **style: Any) -> None:
    """Means with sample deviations over seeds."""
    points = [over_seeds(cell, metric, part) for cell, part in zip(cells, parts or [-1] * len(cells), strict=True)]
    style = {"marker": "o", "ms": 4, "capsize": 3} | style
    axis.errorbar(x, [p.mean for p in points], [p.std for p in points], label=label, **style)


def _beta(axis: Any, cells: dict[str, Any]) -> None:
    x = [float(label) for label in cells]
    _line(axis, x, list(cells.values()), "tv", "trained")
    axis.set(xscale="log", xlabel="β", ylabel="TV to μ·exp(βQ)/C", title="strength of the tilt", ylim=(0, None))
    axis.set_xticks(x, labels=list(cells))
    axis.minorticks_off()


def _samples(axis: Any, cells: dict[str, Any]) -> None:
    x = np.array([int(label) for label in cells])
    every = list(cells.values())
    _line(axis, x, every, "tv", "trained")
    _line(axis, x, every, "expected_tv", "predicted bias", marker="", linestyle="--", color="black")
    last = over_seeds(every[-1], "expected_tv").mean
    axis.plot(x, last * x[-1] / x, ":", color="grey", label="1/M")
    axis.set(xscale="log", yscale="log", xlabel="M, endpoints drawn from μ̂", ylabel="TV to μ·exp(βQ)/C")
    axis.set_title("drawn endpoints")
    axis.set_xticks(x, labels=list(cells))
    axis.minorticks_off()


def _steps(axis: Any, cells: dict[str, Any]) -> None:
    split = [label.rsplit(" ", 1) for label in cells]
    for i, kind in enumerate(dict.fromkeys(name for name, _ in split)):
        x = [int(n) for name, n in split if name == kind]
        chosen = [cells[f"{kind} {n}"] for n in x]
        _line(axis, x, chosen, "tv", kind, color=f"C{i}")
        half = [1] * len(x)
        _line(axis, x, chosen, "tv", "after half the steps", half, color=f"C{i}", linestyle=":", marker="")
    axis.set(xscale="log", xlabel="Euler steps N", ylabel="TV to μ·exp(βQ)/C", title="sampling steps", ylim=(0, None))
    axis.set_xticks(x, labels=[str(n) for n in x])
    axis.minorticks_off()


def _drift(axis: Any, cells: dict[str, Any]) -> None:
    for i, (kind, cell) in enumerate(cells.items()):
        k = range(1, len(cell["seeds"][0]))
        _line(axis, k, [cell] * len(k), "tv", f"{kind}: to the optimum", k, color=f"C{i}")
        if kind == "model":
            _line(axis, k, [cell] * len(k), "tv_power", f"{kind}: to μ·exp(kβQ)/C", k, color=f"C{i}", linestyle=":")
    axis.set(xlabel="renewals k", ylabel="TV", title="drift of the law", yscale="log")


def _exponent(axis: Any, cells: dict[str, Any]) -> None:
    for i, (kind, cell) in enumerate(cells.items()):
        k = range(len(cell["seeds"][0]))
        _line(axis, k, [cell] * len(k), "exponent", f"{kind} endpoints", k, color=f"C{i}")
        style = {"color": f"C{i}", "linestyle": "--", "marker": ""}
        _line(axis, k, [cell] * len(k), "expected_exponent", "predicted for its M", k, **style)
    axis.plot(k, k, ":", color="grey", label="k")
    axis.set(xlabel="renewals k", ylabel="fitted exponent k̂", title="drift of the exponent")


PANELS = (("beta", _beta), ("samples", _samples), ("steps", _steps), ("drift", _drift), ("drift", _exponent))
