"""The picture of `matrix`: what is returned as the preference varies, and how often the agents agree."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qdfm.envs.matrix import DIFFERENT, EQUAL
from qdfm.experiments.matrix_exact import PREFERENCES, deterministic_front, expected_returns
from qdfm.experiments.matrix_report import CLOSED_FORMS, PAPER, Results
from qdfm.figures import save_figure

EVERY = 4  # preferences, of which the panel of returns shows one


class Look(NamedTuple):
    """Returns share one line, so what lies upon something larger is drawn smaller."""

    colour: str
    marker: str
    size: float


LOOKS = {
    "BC, independent": Look("tab:green", "s", 11),
    "BC, centralised": Look("tab:olive", "D", 11),
    "QDFM, centralised": Look("tab:red", "o", 9),
    "QDFM, decentralised": Look("tab:blue", "o", 4),
}


def draw(folder: Path, trained: Results, exact: Results) -> None:
    """matrix.png: returns at the left, coordination at the right; closed forms dashed or as crosses, in one colour with
    the method that tends to them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _fronts(left)
    for name, result in trained.items():
        curves = np.array([seed["coordination"] for seed in result["seeds"]])  # [seeds, 101]
        closed = np.array(exact[CLOSED_FORMS[name]]["coordination"])
        _points(left, name, curves.mean(0)[::EVERY], closed[::EVERY])
        _curve(right, name, curves, closed)
    left.set(xlabel="objective 1, which pays for agreeing", ylabel="objective 2, which pays for not agreeing")
    right.set(xlabel="ω₁, the weight of objective 1", ylabel="coordination", ylim=(0, 1.03))
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="best" if axis is left else "lower right")
    save_figure(figure, folder / "matrix.png")


def _fronts(axis: Any) -> None:
    axis.plot(*np.array([DIFFERENT, EQUAL]).T, color="0.4", lw=1, label="front of all policies")
    corners = expected_returns(deterministic_front()).T
    axis.plot(*corners, color="black", lw=0.8, ls=":", drawstyle="steps-pre", label="front of deterministic policies")


def _points(axis: Any, name: str, reached: np.ndarray, closed: np.ndarray) -> None:
    """Mean returns over seeds, and the closed form."""
    colour, marker, size = LOOKS[name]
    axis.plot(*_returns(reached), ls="none", color=colour, marker=marker, ms=size, mfc="none", label=name)
    axis.plot(*_returns(closed), ls="none", color=colour, marker="x", ms=size, mew=0.7)


def _returns(coordination: np.ndarray) -> np.ndarray:
    """Returns `[2, n]` of probabilities of agreeing `[n]`."""
    return np.outer(EQUAL, coordination) + np.outer(DIFFERENT, 1 - coordination)


def _curve(axis: Any, name: str, curves: np.ndarray, closed: np.ndarray) -> None:
    """The mean with the range of the seeds, the closed form, and the paper's figure at ω₁ = 0."""
    weight, colour = np.linspace(0, 1, PREFERENCES), LOOKS[name].colour
    axis.plot(weight, curves.mean(0), color=colour, label=name)
    axis.fill_between(weight, curves.min(0), curves.max(0), color=colour, alpha=0.25, lw=0)
    axis.plot(weight, closed, color=colour, ls="--", lw=1, label=CLOSED_FORMS[name])
    if name in PAPER:
        mean, deviation = PAPER[name].coordination
        axis.errorbar(-0.01, mean, deviation, color=colour, marker="D", ms=4, mfc="none", capsize=3)
