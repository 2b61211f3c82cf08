"""The picture of `matrix`: fronts over the preference, and how often the agents agree."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from qdfm.envs.matrix import DIFFERENT, EQUAL, PREFERENCES, deterministic_front, expected_returns
from qdfm.experiments.matrix_report import CLOSED_FORMS, PAPER, Results

COLOURS = dict(zip(CLOSED_FORMS, ("tab:green", "tab:olive", "tab:red", "tab:blue"), strict=True))
LANE = 0.32  # between the lines of the front's panel


def draw(folder: Path, trained: Results, exact: Results) -> None:
    """matrix.png: the fronts at the left, coordination against ω at the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 5.2), layout="constrained")
    _fronts(left, trained, exact)
    _coordination(right, trained, exact)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(folder / "matrix.png", dpi=120)
    plt.close(figure)


def _fronts(axis: Any, trained: Results, exact: Results) -> None:
    """All returns lie on one line, so each method and its closed form are drawn beside it, as far as they reach."""
    line = np.array([DIFFERENT, EQUAL])
    axis.plot(*line.T, color="0.3", lw=1, label="front of all policies")
    corners = expected_returns(deterministic_front())
    axis.plot(
        *corners.T,
        color="0.3",
        lw=0.8,
        ls=":",
        marker="s",
        ms=5,
        drawstyle="steps-pre",
        label="front of deterministic policies",
    )
    for lane, (name, result) in enumerate(trained.items(), 1):
        mean = np.mean([seed["coordination"] for seed in result["seeds"]], 0)
        for points, style in (
            (mean, {"marker": "o", "ms": 4, "ls": "none"}),
            (exact[CLOSED_FORMS[name]]["coordination"], {"marker": "|", "ms": 12, "ls": "none"}),
        ):
            r1, r2 = _returns(np.asarray(points)).T
            axis.plot(r1, r2 + LANE * lane, color=COLOURS[name], alpha=0.5, **style)
    axis.set(xlabel="objective 1 (agreeing)", ylabel="objective 2 (not agreeing)")
    axis.legend(fontsize=8)


def _returns(coordination: np.ndarray) -> np.ndarray:
    """Returns `[n, 2]` of probabilities of agreeing `[n]`."""
    return coordination[:, None] * np.array(EQUAL) + (1 - coordination[:, None]) * np.array(DIFFERENT)


def _coordination(axis: Any, trained: Results, exact: Results) -> None:
    """Means with the range of the seeds, closed forms dashed, the paper's figures at ω₁ = 0."""
    weight = np.linspace(0, 1, PREFERENCES)
    for name, result in trained.items():
        curves = np.array([seed["coordination"] for seed in result["seeds"]])
        colour, closed = COLOURS[name], CLOSED_FORMS[name]
        axis.plot(weight, curves.mean(0), color=colour, label=name)
        axis.fill_between(weight, curves.min(0), curves.max(0), color=colour, alpha=0.25, lw=0)
        axis.plot(weight, exact[closed]["coordination"], color=colour, ls="--", lw=1, label=closed)
        if name in PAPER:
            mean, deviation = PAPER[name].coordination
            axis.errorbar(-0.01, mean, deviation, color=colour, marker="D", ms=4, mfc="none", capsize=3)
    axis.set(xlabel="ω₁, the weight of agreeing", ylabel="coordination", ylim=(0, 1.03))
