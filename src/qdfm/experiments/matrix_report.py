"""The table and headlines of `matrix`: fronts and coordination of trained policies beside closed forms and the paper.

Trained results are `{"seeds": [judged, ...]}` by method, closed forms one `judged` each, fronts a hypervolume only.
"""

from typing import Any, NamedTuple

import numpy as np

from qdfm.experiments.report import Headline, Table
from qdfm.metrics import summarise

Results = dict[str, dict[str, Any]]

OPTIMUM, LOGGED = "KL optimum", "behaviour"
OPTIMUM_APART, LOGGED_APART = (f"{name}, product of marginals" for name in (OPTIMUM, LOGGED))
STOCHASTIC, DETERMINISTIC = "front of all policies", "front of deterministic policies"
CLOSED_FORMS = {  # what each method tends to
    "BC, independent": LOGGED_APART,
    "BC, centralised": LOGGED,
    "QDFM, centralised": OPTIMUM,
    "QDFM, decentralised": OPTIMUM_APART,
}
PLACES = {"(1, 0)": -1, "(.5, .5)": 50, "(0, 1)": 0}  # among the 101 preferences, which go from (0, 1) to (1, 0)
ENDS = ("(0, 1)", "(1, 0)")


class Paper(NamedTuple):
    """A figure and its deviation: hypervolume, spread, coordination at (0, 1)."""

    hypervolume: tuple[float, float]
    spread: tuple[float, float]
    coordination: tuple[float, float]


PAPER = {
    "BC, independent": Paper((30.145, 0.704), (0.043, 0.041), (0.748, 0.025)),
    "BC, centralised": Paper((32.786, 0.284), (0.039, 0.015), (0.824, 0.012)),
    "QDFM, centralised": Paper((47.667, 0.529), (0.616, 0.072), (0.283, 0.028)),
}

NOTES = (
    "One model per seed, its exact joint law at 101 preferences in both contexts: no number here is sampled. HV: "
    "hypervolume over the reference (0, −8), and its share of the front of all policies (lotteries between always and "
    "never agreeing) and of the front of deterministic ones. Spread: the standard deviation of the 101 points along "
    "the first objective, divided by that objective's range in the game, which is 10. Coordination: the probability "
    "that the agents choose alike, in the mean of both contexts. TV: total variation between a policy and the closed "
    "form it tends to, in the mean of contexts and preferences. Means ± sample standard deviations over seeds.\n\n"
    "Guidance: β = .737 unscaled, one centralised critic of both actions. Centralised execution: N = 64 Euler steps of "
    "a flow whose rates read both agents' current actions; where both jump in the same step, which happens once in N, "
    "neither knows of the other. Decentralised execution: each agent's rates read its own. KL optimum: "
    "μ·exp(β⟨ω, r⟩)/C of the true behaviour μ, in closed form; its product of marginals is what is "
    "left of it when the agents follow it apart.\n\n"
    "The paper prints neither payoffs nor behaviour nor β; those here are ours, chosen so that the closed forms come "
    "near its figures. That they agree says nothing for the method; how near training comes to the closed form does. "
    "Its spread must be another: by ours no front can have more than .5."
)
# Of the full run; a smaller one does not show all of it.
FINDINGS = (
    "With centralised execution QDFM has .991 of the hypervolume of all policies, where the KL optimum has .993 and "
    "the deterministic front .881, and is within .002 of the optimum's coordination at (1, 0) and within .014 at "
    "(0, 1), in every seed. With decentralised execution it comes near the product of marginals and no nearer to the "
    "optimum: coordination of at most .90 at (1, 0), .87 of the hypervolume. Neither cloning heeds the preference. "
    "These settings were found in three runs with these seeds: before a fifth of the preferences in training were one "
    "objective alone, (0, 1) was .011 to .029 too high, since preferences drawn uniformly never are the very end; two "
    "hidden layers and 30,000 steps of half the batch ended at .311 to .313."
)


def tabulate(trained: Results, exact: Results) -> Table:
    """A row for each method, closed form and front."""
    columns = (
        "policy", "HV", "of all", "of deterministic", "spread", *(f"coordination at {w}" for w in PLACES), "TV",
        "paper: HV", "paper: spread", "paper: coordination at (0, 1)",
    )  # fmt: skip
    table = Table("Fronts and coordination", columns)
    fronts = [exact[front]["hypervolume"] for front in (STOCHASTIC, DETERMINISTIC)]
    for name, result in (trained | {name: {"seeds": [judged]} for name, judged in exact.items()}).items():
        volume = over_seeds(result, "hypervolume")
        cells = [volume, *(volume / front for front in fronts), over_seeds(result, "spread")]
        cells += [at(result, w) for w in PLACES] + [over_seeds(result, "distance")]
        shown = [format(summarise(values), ".3f") if len(values) else "–" for values in cells]
        printed = [f"{mean:.3f} ± {std:.3f}" for mean, std in PAPER[name]] if name in PAPER else ["–"] * 3
        table.add(name, *shown, *printed)
    return table


def over_seeds(result: dict[str, Any], metric: str) -> np.ndarray:
    """A number of every seed `[seeds]`, none where it is not known."""
    return np.array([seed[metric] for seed in result["seeds"] if metric in seed])


def at(result: dict[str, Any], preference: str) -> np.ndarray:
    """Every seed's coordination at a preference `[seeds]`."""
    return np.array([seed["coordination"][PLACES[preference]] for seed in result["seeds"] if "coordination" in seed])


def headlines(trained: Results, exact: Results) -> list[Headline]:
    """Each method beside the paper's figures, and how far its worst seed is from its closed form at either end."""
    lines = []
    for name, result in trained.items():
        paper, wanted = PAPER.get(name), {"seeds": [exact[CLOSED_FORMS[name]]]}
        volume = float(over_seeds(result, "hypervolume").mean())
        low, high = (float(at(result, w).mean()) for w in ENDS)
        gap = max(float(np.abs(at(result, w) - at(wanted, w)).max()) for w in ENDS)
        lines += [
            Headline(f"{name}: hypervolume", volume, paper and paper.hypervolume[0]),
            Headline(f"{name}: share of the hypervolume of all policies", volume / exact[STOCHASTIC]["hypervolume"]),
            Headline(f"{name}: spread", float(over_seeds(result, "spread").mean())),
            Headline(f"{name}: coordination at (0, 1)", low, paper and paper.coordination[0]),
            Headline(f"{name}: coordination at (1, 0)", high),
            Headline(f"{name}: coordination of the worst seed at either end, distance to the closed form", gap),
        ]
    return lines
