"""resource-gathering: gold, a diamond, and not being killed (the paper's multi-objective table and preference sweep).

Judged at γ = 1, where the exact front is the one point (0, 1, 1) that MO-Gymnasium's own front misses, and at γ = .9,
where it has nine.
"""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.algorithms import BC, CQL, QDFM, BoltzQ
from qdfm.collect.tabular import resource_behaviours
from qdfm.envs.mogym import resource_gathering
from qdfm.experiments.cells import Settings
from qdfm.experiments.frontruns import PerPreference, Study, run_studies
from qdfm.experiments.fronts import Problem
from qdfm.figures import save_figure

REFERENCE = (-1.0, -1.0, -1.0)
SAFETY = 0.2  # the weight of safety in the sweep between gold and diamond


def methods(gamma: float) -> dict[str, Any]:
    """All methods, with the discount they are trained with."""
    critic: dict[str, Any] = {"gamma": gamma, "critic_learning_rate": 1e-3, "target_rate": 0.001}
    guided: dict[str, Any] = {**critic, "beta": 100.0, "beta_scale": "none", "critic_steps": 60_000}
    flow: dict[str, Any] = {"warmup_steps": 5_000, "improve_steps": 20_000}
    return {
        "QDFM": QDFM(**guided, **flow),
        "QDFM, energy": QDFM(**guided, **flow, guidance="energy"),
        "QDFM, scalarised critic": QDFM(**guided, **flow, critic="scalarised"),
        "CQL": CQL(**critic, train_steps=85_000),
        "CQL, scalarised critic": CQL(**critic, train_steps=85_000, critic="scalarised"),
        "CQL per preference": PerPreference(CQL(**critic, train_steps=30_000), 10),
        "BC": BC(clone_steps=20_000),
        "BoltzQ": BoltzQ(**guided, clone_steps=5_000),
    }


QUICK_METHODS, QUICK_SHARE = ("QDFM", "CQL"), 0.08

NOTES = (
    "MO-Gymnasium's map, reward (−1 if killed, gold, diamond), reference (−1, −1, −1), 496 evenly spread "
    "preferences, horizon 100. Expected returns are computed from the policy's action probabilities by propagation, "
    "without sampling noise. The true front is ours, by exact Pareto dynamic programming over the stochastic "
    "transitions; MO-Gymnasium's own misses the risk-free route to gold and diamond. At γ = 1 nothing makes a "
    "policy hurry, so the methods judged there are trained with γ = .99. The sampled columns are mean returns of "
    "stochastic policies, which lie between the front's points and can exceed it, and are also set against its "
    "mixtures. HV / data: the data's returns are those of single episodes, lucky ones among them. SP: Schott "
    "spacing on min-max normalised objectives; ND: distinct non-dominated returns. Means ± sample standard "
    "deviations over seeds."
)
# Of the full run; a smaller one does not show all of it.
FINDINGS = (
    "One QDFM model is within .2 % of the exact front's hypervolume at γ = .9 and at the one point of γ = 1 in "
    "every seed. Of the nine points three are best under no linear preference and two by less than .005; QDFM meets "
    "5 or 6. At γ = 1 it misses the point at a few preferences that hardly weigh gold and diamond. BoltzQ ties at γ "
    "= .9, since nearly every action is in this data. CQL at γ = .9 is far off: its penalty is large beside returns "
    "below .4, and we did not tune it; trained with γ = .99 its values are larger and it finds the point. Drawn "
    "instead of greedy, QDFM loses .8 % at γ = 1 on average and CQL nearly half."
)


def run(settings: Settings) -> None:
    """Both discounts, and the sweep with a fixed weight of safety."""
    paper = {"QDFM": ".82 ± .05, .07, 4", "CQL": ".67 ± .10, –, 1"}, {"QDFM": 0.82, "CQL": 0.67}
    studies = (
        Study(
            Problem("resource-gathering", 0.9, REFERENCE), methods(0.9), "QDFM", _laws, *paper, "Discount .9",
        ),
        Study(
            Problem("resource-gathering", 1.0, REFERENCE), methods(0.99), "QDFM", _laws, *paper, "Undiscounted",
        ),
    )  # fmt: skip
    results = run_studies(
        settings, "resource-gathering", "Resource gathering", studies, QUICK_METHODS, QUICK_SHARE,
        ("safety", "gold", "diamond"), NOTES, FINDINGS,
    )  # fmt: skip
    if "QDFM" in results["Discount .9"]:
        _draw_sweep(settings.out, studies[0].problem, results["Discount .9"]["QDFM"]["seeds"][0])


def _laws() -> dict[str, np.ndarray]:
    table = resource_gathering()
    return {seeker.name: seeker.law(table) for seeker in resource_behaviours()}


def _draw_sweep(folder: Path, problem: Problem, row: dict[str, Any]) -> None:
    """sweep.png: the returns as weight moves from diamond to gold, the weight of safety kept."""
    from matplotlib.figure import Figure

    omega = problem.preferences
    safety = omega[:, 0][np.abs(omega[:, 0] - SAFETY).argmin()]
    at = np.flatnonzero(np.isclose(omega[:, 0], safety))
    at = at[np.argsort(omega[at, 1])]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axis, played in zip(figure.subplots(1, 2, sharey=True), ("greedy", "sampled"), strict=True):
        returns = np.asarray(row[played]["returns"])[at]
        for objective, colour, marker in ((0, "tab:red", "v"), (1, "tab:orange", "o"), (2, "tab:blue", "D")):
            label = ("safety", "gold", "diamond")[objective]
            axis.plot(omega[at, 1], returns[:, objective], marker=marker, ms=4, color=colour, label=label)
        axis.set_xlabel("weight of gold")
        axis.set_title(f"{played}, weight of safety {safety:.2f}", fontsize=10)
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("expected return, γ = .9")
    figure.axes[0].legend(fontsize=8)
    save_figure(figure, folder / "sweep.png")
