"""The picture of `sampler`: returns against α for each start, beside the level of π."""

import math
from pathlib import Path
from typing import Any

from qdfm.experiments.sampler_tables import ALPHAS, STARTS, STEPS, TITLES
from qdfm.figures import save_figure

MARKERS = dict(zip(STARTS, ("o", "s", "^"), strict=True))


def picture(path: Path, results: dict[str, Any]) -> None:
    """One row per environment, one panel per number of steps; bars are standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(STEPS), 3.1 * len(results) + 0.5), layout="constrained")
    axes = figure.subplots(len(results), len(STEPS), squeeze=False, sharey="row")
    for line, (name, result) in zip(axes, results.items(), strict=True):
        level = result["baselines"]["reference"]["mean"]
        for axis, steps in zip(line, STEPS, strict=True):
            axis.axhline(level, color="black", lw=1, ls="--", label="sampling π")
            for i, start in enumerate(STARTS):
                rows = [r["played"] for r in result["chains"] if r["start"] == start and r["steps"] == steps]
                errors = [r["std"] / math.sqrt(r["episodes"]) for r in rows]
                places = [a * 1.03 ** (i - 1) for a in ALPHAS]  # side by side, so that none is hidden
                means = [r["mean"] for r in rows]
                axis.errorbar(
                    places, means, errors, marker=MARKERS[start], ms=4, capsize=3, label=f"chain from {start}"
                )
            axis.set_xscale("log")
            axis.set_xticks(ALPHAS, labels=[f"{a:g}" for a in ALPHAS])
            axis.minorticks_off()
            axis.set_xlabel("rate α")
            axis.set_title(f"{TITLES[name]}, {steps} steps")
            axis.grid(alpha=0.3)
        line[0].set_ylabel("mean return")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    save_figure(figure, path)
