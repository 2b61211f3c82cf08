"""deep-sea-treasure: treasure against time on a convex and on a concave front (the paper's multi-objective table).

One model follows 501 preferences. Linear preferences reach every point of the convex map's front and only the two ends
of the concave one's; there a Chebyshev utility of accumulated and future return takes their place.
"""

from typing import Any

import numpy as np

from qdfm.algorithms import BC, CQL, QDFM, BoltzQ
from qdfm.collect.tabular import deep_sea_behaviours
from qdfm.envs.mogym import deep_sea_treasure
from qdfm.experiments.cells import Settings
from qdfm.experiments.frontruns import PerPreference, Study, run_studies
from qdfm.experiments.fronts import Problem

GAMMA, REFERENCE = 0.99, (0.0, -50.0)
# Neighbouring points of the front differ by .02 to .08 in scalarised return where treasures go up to 20: hence a sharp
# β, a slow target, a larger step size than the default, and a support that drops actions seen once or twice.
CRITIC: dict[str, Any] = {
    "gamma": GAMMA, "critic_learning_rate": 1e-3, "target_rate": 0.001, "pessimism": "mean", "critics": 2,
}  # fmt: skip
GUIDED: dict[str, Any] = {
    **CRITIC, "beta": 100.0, "beta_scale": "none", "support_share": 0.05, "critic_steps": 100_000,
}  # fmt: skip
FLOW: dict[str, Any] = {"warmup_steps": 5_000, "improve_steps": 20_000}
CONVEX: dict[str, Any] = {
    "QDFM": QDFM(**GUIDED, **FLOW),
    "QDFM, energy": QDFM(**GUIDED, **FLOW, guidance="energy"),
    "QDFM, scalarised critic": QDFM(**GUIDED, **FLOW, critic="scalarised"),
    "CQL": CQL(**CRITIC, train_steps=125_000),
    "CQL, scalarised critic": CQL(**CRITIC, train_steps=125_000, critic="scalarised"),
    "CQL per preference": PerPreference(CQL(**CRITIC, train_steps=30_000), 11),
    "BC": BC(clone_steps=20_000),
    "BoltzQ": BoltzQ(**GUIDED, clone_steps=5_000),
}
CHEBYSHEV = {**GUIDED, "beta": 1000.0, "support_share": 0.01, "critics": 4, "pessimism": "mean-std"}
# A longer warm-up and a narrower support: where time has little weight, it matters what is believed of cells at the
# map's right edge, which the data shows a few times only.
CAREFUL: dict[str, Any] = {**GUIDED, "pessimism": "min", "support_share": 0.1, "critic_steps": 60_000}
CONCAVE: dict[str, Any] = {
    "QDFM": QDFM(**CAREFUL, warmup_steps=20_000, improve_steps=15_000),
    "QDFM, Chebyshev": QDFM(**CHEBYSHEV, **FLOW, utility="chebyshev"),
    "CQL": CONVEX["CQL"],
}
QUICK_METHODS, QUICK_SHARE = ("QDFM", "CQL"), 0.08

NOTES = (
    "MO-Gymnasium's maps, reward (treasure, −1 per step), γ = .99, reference (0, −50). 501 evenly spread "
    "preferences; expected returns are computed from the policy's action probabilities by propagation, without "
    "sampling noise (for the Chebyshev utility by playing: the map is deterministic; sampled means are of 100 "
    "episodes). HV / true front: against the front of deterministic policies by exact Pareto dynamic programming; "
    "the sampled columns are mean returns of stochastic policies, which lie between its points and can exceed it, "
    "and are also set against its mixtures. Points: how many of the front's are met within .001. SP: Schott spacing "
    "on min-max normalised objectives; ND: distinct non-dominated returns. The data is a mixture of our heuristics "
    "(qdfm data make deep-sea-treasure), the paper's is not printed. Means ± sample standard deviations over seeds."
)
# Of the full run; a smaller one does not show all of it.
FINDINGS = (
    "Convex map: one QDFM model meets 8 to 10 of the ten points in every seed, and at each preference the point "
    "that is best for it (lost in seed 0: .002 of 5.53). CQL conditioned on the same preferences meets 7 and loses "
    ".1 in seed 0; drawn instead of greedy it loses a fifth of the hypervolume. What is missed lies in the middle, "
    "where neighbouring points differ by .02 to .08 in scalarised return. Trained anew for each of 11 preferences "
    "CQL meets 6. A critic that does not see the preference costs QDFM .07 of hypervolume and four points, and the "
    "policy then never ends an episode at a fifth of the preferences (see the experiment critics for why). BoltzQ, "
    "which ignores what the data supports, meets all ten points in four seeds and fails altogether in one. An "
    "energy network in place of exp(βQ) meets as many points, but in seed 0 wanders at preferences with little "
    "weight on time.\n\n"
    "Concave map: linear preferences can reach the two ends only. QDFM meets both in every seed, each where it is "
    "best. That took a longer warm-up and a support of 10 % (20,000 steps; the convex map: 5,000 and 5 %): with the "
    "latter it wandered without end at 145 of the 501 preferences in seed 0, those with the least weight on time, "
    "up and down the map's right edge, whose cells the data shows 8 to 50 times each, some of their moves never, "
    "and where its critic overrated what it had not seen. The Chebyshev utility reaches 3 or 4 points. That it does "
    "not reach all ten is a matter of precision: as the preference moves, the best return jumps from one point to "
    "the next, and a network blurs the jump. On a concave front the mean of two returns is worth more than either, "
    "so that a blurred value attracts; for the same reason drawn actions have the larger mean hypervolume under "
    "linear preferences."
)


def run(settings: Settings) -> None:
    """Both maps."""
    studies = (
        Study(
            Problem("deep-sea-treasure", GAMMA, REFERENCE), CONVEX, "QDFM", lambda: _laws("convex"),
            {"QDFM": ".90 ± .03, .18, 15", "CQL": ".92 ± .11, –, 1"}, {"QDFM": 0.90, "CQL": 0.92}, "Convex map",
        ),
        Study(
            Problem("deep-sea-treasure-concave", GAMMA, REFERENCE), CONCAVE, "QDFM, Chebyshev",
            lambda: _laws("concave"), title="Concave map",
        ),
    )  # fmt: skip
    run_studies(
        settings, "deep-sea-treasure", "Deep sea treasure", studies, QUICK_METHODS, QUICK_SHARE,
        ("treasure", "time"), NOTES, FINDINGS,
    )  # fmt: skip


def _laws(map_name: str) -> dict[str, np.ndarray]:
    table = deep_sea_treasure(map_name)
    return {seeker.name: seeker.law(table) for seeker in deep_sea_behaviours(map_name)}
