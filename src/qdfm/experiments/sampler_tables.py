"""The tables of `sampler`: returns beside the paper's, and how well the drawn actions fit the chain's law."""

import itertools
import math
from typing import Any

from qdfm.experiments.report import Headline, Table
from qdfm.metrics import holm

TITLES = {"cartpole": "CartPole", "acrobot": "Acrobot"}
RULES = {"cartpole": "right θ + θ̇/2, left 0", "acrobot": "torque · (θ̇₁ + θ̇₂/2)"}  # the scores that π follows
ALPHAS, STEPS = (1.0, 2.0, 5.0, 10.0), (20, 50)
STARTS = ("π", "fixed", "uniform")
SHARPNESS = 20.0  # k_π: π is the softmax of k_π times the score
RANKS = (0.01, 0.05, 0.1, 0.25, 0.5)  # tested states, as shares of the visited states where π is less decided
SOLVED = 475  # CartPole counts as solved from this return
STRAY = 1e-9  # actions below this probability should not be seen in any number of draws made here
FAMILY_ERROR = 1e-3
NEAR = 3.5  # standard errors that a return from start π may be away from that of π

# The paper's figures: means, with deviations where it prints them. It does not say how many steps CartPole's have.
PAPER: dict[str, dict[Any, tuple[float, ...]]] = {
    "cartpole": {
        "uniform": (22.46, 13.05),
        "π": (400.25, 100.94),
        "argmax": (500.0, 0.0),
        **{("π", a, 20): (v,) for a, v in zip(ALPHAS, (410.5, 408.8, 406.4, 403.1), strict=True)},
        **{("fixed", a, 20): (v,) for a, v in zip(ALPHAS, (42.1, 209.9, 402.5, 394.4), strict=True)},
    },
    "acrobot": {
        "uniform": (-498.0, 19.9),
        "π": (-156.9, 82.4),
        "argmax": (-172.6, 106.6),
        ("π", 1.0, 20): (-151.26, 61.00),
        ("π", 1.0, 50): (-165.85, 92.80),
        ("π", 2.0, 20): (-152.91, 91.67),
        ("π", 2.0, 50): (-161.34, 94.17),
        ("π", 5.0, 20): (-147.16, 71.06),
        ("π", 5.0, 50): (-157.01, 91.54),
        ("uniform", 1.0, 20): (-214.72, 110.40),
        ("uniform", 1.0, 50): (-214.95, 106.44),
        ("uniform", 2.0, 20): (-166.50, 92.61),
        ("uniform", 2.0, 50): (-181.06, 97.78),
        ("uniform", 5.0, 20): (-164.69, 84.03),
        ("uniform", 5.0, 50): (-170.28, 88.09),
    },
}
HEADLINES = {
    "cartpole": [(start, alpha, 20) for start in ("π", "fixed") for alpha in ALPHAS],
    "acrobot": [("π", 5.0, 20), ("uniform", 5.0, 20)],
}
BASELINES = {"uniform": "random", "π": "sampling π", "argmax": "argmax π", "reference": "sampling π, more episodes"}
PRINTED = {"reference": "π"}  # whose figure stands beside it among the headlines

NOTES = (
    "Nothing is learned here. π is the softmax of a sharpness k_π times a heuristic score: in CartPole the score of "
    f"{RULES['cartpole']}; in Acrobot {RULES['acrobot']}. The paper prints neither its heuristics nor its "
    f"sharpness: these scores and k_π = {SHARPNESS:g} are our choice, made so that sampling π and its argmax come near "
    "the paper's returns. It does not say either how many steps its CartPole returns have: they stand beside 20.\n\n"
    "Returns: mean ± sample deviation over episodes; solved: the share of episodes with a return of at least "
    f"{SOLVED}. z: distance to sampling π (the row with more episodes) in standard errors of the difference, for the "
    f"start that leaves the law unchanged; the target is at most {NEAR} everywhere. The other starts are bound "
    "to differ while α is small: a share (1 − α/N)^N of their law is left.\n\n"
    f"Laws: the chain's actions, drawn at {len(RANKS)} states that π visits, against the law of the discretised chain "
    "in closed form, π + (1 − α/N)^N·(p₀ − π), by χ² with Holm's correction over the whole family; p and total "
    "variation are the worst of the states. How many cases the law of continuous time, with e^(−α), fails to fit "
    "shows how sharp the test is; at the start π both laws are π. Actions that are expected less than ten times are "
    "pooled with the next likelier one. Below that the resolution of float32 uniforms shows: they come in steps of "
    "2⁻²³ from 0 on, and a 0 draws the first action with any weight at all, so that one whose π is next to nothing is "
    "still drawn, about once in a million decisions of these lengths. An action of weight 0 never is."
)


def family(results: dict[str, Any]) -> dict[str, Any]:
    """The verdict over all laws together."""
    rows = [row for result in results.values() for row in result["chains"]]
    p = [value for row in rows for value in row["p"]]
    moved = [value for row in rows if row["start"] != "π" for value in row["p_continuous"]]
    return {
        "cases": len(p),
        "draws": rows[0]["draws"],
        "error": FAMILY_ERROR,
        "smallest_p": min(p),
        "threshold": FAMILY_ERROR / len(p),
        "rejected": len(holm(p, FAMILY_ERROR)),
        "largest_variation": max(value for row in rows for value in row["variation"]),
        "stray": sum(value for row in rows for value in row["stray"]),
        "continuous_cases": len(moved),
        "continuous_rejected": len(holm(moved, FAMILY_ERROR)),
    }


def distance(played: dict[str, Any], reference: dict[str, Any]) -> float:
    """The difference of two mean returns in its standard errors; 0 where neither varies and both agree."""
    error = math.sqrt(sum(x["std"] ** 2 / x["episodes"] for x in (played, reference)))
    gap = played["mean"] - reference["mean"]
    return gap / error if error else math.copysign(math.inf, gap) if gap else 0.0


def farthest(result: dict[str, Any]) -> float:
    """The largest |z| of an environment's chains that start from π."""
    reference = result["baselines"]["reference"]
    return max(abs(distance(row["played"], reference)) for row in result["chains"] if row["start"] == "π")


def tables(results: dict[str, Any]) -> list[Table]:
    """Returns per environment, the verdict, and the laws per environment."""
    verdict = Table("Laws of both environments together" if len(results) > 1 else "Laws together", ("", ""))
    found = family(results)
    verdict.add("cases (start × α × N × state)", found["cases"])
    verdict.add("draws per case", found["draws"])
    verdict.add("smallest p", f"{found['smallest_p']:.2g}")
    verdict.add(f"Holm's first threshold, family error {FAMILY_ERROR:g}", f"{found['threshold']:.2g}")
    verdict.add("rejected", found["rejected"])
    verdict.add("largest total variation", f"{found['largest_variation']:.4f}")
    verdict.add(f"draws of actions less likely than {STRAY:g}", found["stray"])
    rejected = f"{found['continuous_rejected']} of {found['continuous_cases']}"
    verdict.add("rejected where e^(−α) takes the place of (1 − α/N)^N", rejected)
    returns = [_returns(name, result) for name, result in results.items()]
    return [*returns, verdict, *(_laws(name, result) for name, result in results.items())]


def _returns(name: str, result: dict[str, Any]) -> Table:
    solved = name == "cartpole"
    columns = ("actions", "α", "N", "episodes", "return", *(("solved",) if solved else ()), "z to π", "paper")
    table = Table(f"{TITLES[name]}: returns", columns)

    def add(label: str, alpha: str, steps: str, played: dict[str, Any], z: str, paper: tuple[float, ...]) -> None:
        share = (f"{played['solved']:.2f}",) if solved else ()
        printed = " ± ".join(f"{v:.2f}" for v in paper) or "–"
        spread = f"{played['mean']:.2f} ± {played['std']:.2f}"
        table.add(label, alpha, steps, played["episodes"], spread, *share, z, printed)

    for source, label in BASELINES.items():
        add(label, "", "", result["baselines"][source], "", PAPER[name].get(source, ()))
    for row in result["chains"]:
        key = (row["start"], row["alpha"], row["steps"])
        z = f"{distance(row['played'], result['baselines']['reference']):+.2f}" if row["start"] == "π" else ""
        label = f"chain from {row['start']}"
        add(label, f"{row['alpha']:g}", str(row["steps"]), row["played"], z, PAPER[name].get(key, ()))
    return table


def _laws(name: str, result: dict[str, Any]) -> Table:
    each = [f"{what}, N = {n}" for what in ("share left", "variation", "p") for n in STEPS]
    table = Table(f"{TITLES[name]}: laws", ("start", "α", "e^(−α)", *each))
    rows = {(row["start"], row["alpha"], row["steps"]): row for row in result["chains"]}
    for start, alpha in itertools.product(STARTS, ALPHAS):
        both = [rows[start, alpha, n] for n in STEPS]
        left = [f"{(1 - alpha / n) ** n:.5f}" for n in STEPS]
        variation = [f"{max(row['variation']):.4f}" for row in both]
        p = [f"{min(row['p']):.3g}" for row in both]
        table.add(start, f"{alpha:g}", f"{math.exp(-alpha):.5f}", *left, *variation, *p)
    return table


def headlines(results: dict[str, Any]) -> list[Headline]:
    """What the paper prints, beside ours, and the two verdicts."""
    found = family(results)
    out = [Headline(f"Laws that χ² rejects, of {found['cases']}", found["rejected"])]
    for name, result in results.items():
        title, rows = TITLES[name], {(r["start"], r["alpha"], r["steps"]): r for r in result["chains"]}
        out.append(Headline(f"{title}, chain from π: largest distance to π in standard errors", farthest(result)))
        for source, label in BASELINES.items():
            ours, printed = result["baselines"][source], PAPER[name][PRINTED.get(source, source)][0]
            out.append(Headline(f"{title}, {label} ({ours['episodes']} episodes): return", ours["mean"], printed))
        for start, alpha, steps in HEADLINES[name]:
            label = f"{title}, chain from {start}, α = {alpha:g}, {steps} steps: return"
            ours = rows[start, alpha, steps]["played"]["mean"]
            out.append(Headline(label, ours, PAPER[name][start, alpha, steps][0]))
    return out
