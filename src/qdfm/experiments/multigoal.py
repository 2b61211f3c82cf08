"""multigoal: K equally good goals and a trap between them (the paper's headline figure and its appendix table).

Each method is trained once per seed and asked for 200 episodes. Beside that, its action probabilities are propagated
through the grid, which gives the share of each goal and of the trap without sampling noise, and the same is done with
the KL optimum μ·exp(βQ)/C of the data. Baselines appear as the paper plays them (greedily) and sampled from their own
policy: a stochastic baseline covers modes too, and the table must say so.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import AWAC, AWBC, BC, BCQ, BRAC, CQL, IQL, QDFM, BoltzBC, BoltzQ, GreedyQ
from qdfm.algorithms.base import Config
from qdfm.data.sources import load_dataset
from qdfm.envs.exact import kl_optimum
from qdfm.envs.multigoal import MultiGoal
from qdfm.evaluate import rollout
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.grid_exact import Ending, behaviour, propagate
from qdfm.experiments.multigoal_figures import draw
from qdfm.experiments.report import Headline, Table, finish
from qdfm.metrics import interquartile_interval, interquartile_mean, mode_coverage, summarise
from qdfm.train import train

BETA, GAMMA, EPISODES = 5.0, 0.99, 200
QUICK_GOALS, QUICK_SHARE = 4, 0.3  # the quick version: one grid, this share of the steps

GUIDED: dict[str, Any] = {"beta": BETA, "beta_scale": "none", "gamma": GAMMA, "critic_steps": 20_000}
SCHEDULE: dict[str, Any] = {"warmup_steps": 3_000, "improve_steps": 10_000}
PRINTED: dict[str, Any] = {**GUIDED, **SCHEDULE, "clone_steps": 30_000, "samples": 16, "backup_samples": 16}
METHODS: dict[str, Config] = {
    "QDFM": QDFM(**GUIDED, **SCHEDULE),
    # Model endpoints multiply by exp(βQ) at each renewal of the proposal: at every step, or once.
    "QDFM.paper": QDFM.paper(**PRINTED, renew_every=1),
    "QDFM.paper-k1": QDFM.paper(**PRINTED, renew_every=10_000),
    "BC": BC(clone_steps=30_000),
    "BoltzBC": BoltzBC(**GUIDED, clone_steps=10_000),
    "GreedyQ": GreedyQ(**GUIDED, clone_steps=10_000),
    "BoltzQ": BoltzQ(**GUIDED, clone_steps=10_000),
    "CQL": CQL(train_steps=30_000, gamma=GAMMA),
    "IQL": IQL(train_steps=30_000, gamma=GAMMA),
    "AWAC": AWAC(train_steps=30_000, gamma=GAMMA),
    "AWBC": AWBC(train_steps=30_000, gamma=GAMMA),
    "BCQ": BCQ(train_steps=30_000, gamma=GAMMA),
    "BRAC": BRAC(clone_steps=10_000, train_steps=20_000, gamma=GAMMA),
}
QUICK_METHODS = ("QDFM", "BC", "BoltzBC", "CQL")

# The paper's return, its deviation and mode coverage for K = 2, 3, 4, 5.
PAPER: dict[str, tuple[tuple[float, float, float], ...]] = {
    "QDFM": ((10.0, 0.0, 1.0), (9.92, 0.1, 1.0), (9.72, 0.3, 1.0), (8.55, 0.5, 1.0)),
    "BRAC": ((6.0, 8.9, 0.4), (10.0, 0.0, 0.33), (6.0, 8.9, 0.2), (10.0, 0.0, 0.2)),
}
PAPER |= dict.fromkeys(("QDFM.paper", "QDFM.paper-k1"), PAPER["QDFM"])
PAPER |= dict.fromkeys(("CQL", "IQL", "AWAC"), ((10.0, 0, 0.5), (10.0, 0, 0.33), (10.0, 0, 0.25), (10.0, 0, 0.2)))
PAPER |= dict.fromkeys(("BCQ", "GreedyQ"), ((-4.0, 5.5, 0), (-4.0, 5.5, 0), (-6.0, 5.5, 0), (2.0, 4.5, 0.04)))

NOTES = (
    "Return, coverage and trap rate: 200 sampled episodes per seed. Shares, exact trap and share gap: action "
    "probabilities propagated through the grid; the gap is the largest distance of a goal's share to that of the exact "
    "KL optimum (β = 5, γ = .99, Boltzmann backup, empirical μ). Greedy columns play the most likely action, as the "
    "paper plays its baselines. Means ± sample standard deviations over seeds."
)
# Of the full run; a smaller one does not show all of it.
FINDINGS = (
    "What QDFM adds over a stochastic baseline: played greedily no method reaches more than one goal, but sampled from "
    "their own policies BC, CQL, IQL, AWAC, AWBC and BRAC reach all of them too. What they lack is the trade-off "
    "itself: BC weighs the goals as the data does, CQL by the entropy of its values, AWAC and AWBC by bounded "
    "advantages, and their shares are off the KL optimum's by the gap shown. QDFM is at the optimum for the β it is "
    "given. BoltzBC has the same optimum and ties with it, as it must for a single token.\n\n"
    "A seed of AWAC or BRAC whose return is 0 runs in circles: its critic overestimates moves that the data never made "
    "(in BRAC up to 168 where 10 is the most there is), and its policy follows them. QDFM.paper renews the proposal of "
    "its endpoints at every step, which multiplies by exp(βQ) each time and amplifies the critic's errors at such "
    "moves; QDFM.paper-k1 renews it once."
)


def run(settings: Settings) -> None:
    """Train, evaluate, tabulate, draw."""
    chosen = settings.chosen("method", METHODS, QUICK_METHODS)
    sizes = (QUICK_GOALS,) if settings.quick else (2, 3, 4, 5)
    seeds = settings.seed_range(5)
    cells = Cells(settings)
    results: dict[str, dict[str, Any]] = {}
    for goals in sizes:
        for name in chosen:
            config = configured(name, settings.quick)
            key = {"goals": goals, "config": config.described(), "seeds": seeds, "episodes": EPISODES}
            compute = _cell(config, goals, seeds, settings.progress)
            results.setdefault(name, {})[str(goals)] = cells.get(key, compute)
    tables = [_table(goals, chosen, results) for goals in sizes]
    if len(sizes) > 1:
        tables.insert(0, _overall(chosen, results, sizes))
    finish(
        cells, settings.command("multigoal", len(seeds)), "Multi-goal gridworld", results, tables,
        settings.notes(NOTES, FINDINGS), _headlines(results, sizes), seeds=list(seeds),
        steps={name: configured(name, settings.quick).total_steps(MultiGoal(QUICK_GOALS).spec) for name in chosen},
    )  # fmt: skip
    draw(settings.out, results, sizes)


def configured(name: str, quick: bool) -> Config:
    """A method's config; the quick one keeps the short warm-up whole, which decides how well the trap is avoided."""
    config = METHODS[name]
    if not quick:
        return config
    if isinstance(config, QDFM):
        return dataclasses.replace(config.scaled(QUICK_SHARE), warmup_steps=config.warmup_steps)
    return config.scaled(QUICK_SHARE)


@lru_cache
def optimum(goals: int) -> dict[str, Any]:
    """The exact KL optimum on the data's empirical behaviour, propagated."""
    env = MultiGoal(goals)
    mu = behaviour(env, load_dataset(f"multigoal-{goals}"))
    return _shown(propagate(env, kl_optimum(env.table(), mu, BETA, GAMMA)))


def _shown(exact: Ending) -> dict[str, Any]:
    *shares, trap = exact.shares.tolist()
    return {"shares": shares, "trap": trap, "return": float(exact.expected_return[0])}


def _cell(config: Config, goals: int, seeds: tuple[int, ...], progress: bool) -> Callable[[], dict[str, Any]]:
    def compute() -> dict[str, Any]:
        began = time.perf_counter()
        task = f"multigoal-{goals}"
        agents = train(config, load_dataset(task), seeds=seeds, progress=progress, task=task)
        seconds = time.perf_counter() - began
        rows = [judge(agent, goals, seed) for agent, seed in zip(agents, seeds, strict=True)]
        env = MultiGoal(goals)
        law = agents[0].action_probabilities(env.table().observations)
        greedy = np.eye(law.shape[1])[law.argmax(1)]
        sampled_visits, greedy_visits = (propagate(env, p).visits for p in (law, greedy))
        return {
            "seeds": rows,
            "optimum": optimum(goals),
            "visits": np.round(sampled_visits, 6).tolist(),
            "greedy_visits": np.round(greedy_visits, 6).tolist(),
            "train_seconds": round(seconds, 1),
        }

    return compute


def judge(agent: Agent, goals: int, seed: int, episodes: int = EPISODES) -> dict[str, Any]:
    """One trained policy: simulated episodes, sampled and greedy, and exact propagation."""
    env = MultiGoal(goals)
    exact = _shown(propagate(env, agent.action_probabilities(env.table().observations)))
    gap = np.abs(np.subtract(exact["shares"], optimum(goals)["shares"])).max()
    out: dict[str, Any] = {f"exact_{what}": value for what, value in exact.items()} | {"share_gap": float(gap)}
    for prefix, greedy in (("", False), ("greedy_", True)):
        played = rollout(agent, env, episodes, seed=seed, greedy=greedy)
        outcome = np.asarray(env.outcome(played.states[-1]))
        out |= {
            f"{prefix}return": float(played.reward.sum((0, 2)).mean()),
            f"{prefix}coverage": mode_coverage(outcome, goals),
            f"{prefix}trap": float((outcome == goals).mean()),
        }
    return out


def _overall(chosen: tuple[str, ...], results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> Table:
    """Interquartile means over all grids and seeds, with 95 % stratified bootstrap intervals."""
    metrics = ("return", "coverage", "share_gap", "greedy_return", "greedy_coverage")
    table = Table("All grids: interquartile mean [95 % interval]", ("method", *(m.replace("_", " ") for m in metrics)))
    for name in chosen:
        shown = []
        for metric in metrics:
            scores = np.array([[row[metric] for row in results[name][str(k)]["seeds"]] for k in sizes]).T
            low, high = interquartile_interval(scores)
            shown.append(f"{interquartile_mean(scores):.2f} [{low:.2f}, {high:.2f}]")
        table.add(name, *shown)
    return table


def _table(goals: int, chosen: tuple[str, ...], results: dict[str, dict[str, Any]]) -> Table:
    columns = (
        "method", "return", "coverage", "trap %", "exact trap %", "share per goal", "share gap", "greedy return",
        "greedy coverage", "paper: return / coverage",
    )  # fmt: skip
    table = Table(f"K = {goals} goals", columns)
    for name in chosen:
        rows = results[name][str(goals)]["seeds"]

        def over(metric: str, scale: float = 1.0, rows: Any = rows) -> str:
            return str(summarise([scale * row[metric] for row in rows]))

        shares = np.mean([row["exact_shares"] for row in rows], 0)
        table.add(
            name, over("return"), over("coverage"), over("trap", 100), over("exact_trap", 100), _shares(shares),
            over("share_gap"), over("greedy_return"), over("greedy_coverage"),
            _printed(name, goals),
        )  # fmt: skip
    best = results[chosen[0]][str(goals)]["optimum"]
    trap = f"{100 * best['trap']:.2f}"
    table.add("KL optimum", f"{best['return']:.2f}", "", "", trap, _shares(best["shares"]), "", "", "", "")
    return table


def _printed(name: str, goals: int) -> str:
    if name not in PAPER:
        return "–"
    mean, deviation, coverage = PAPER[name][goals - 2]
    return f"{mean:.2f}" + f" ± {deviation:.1f}" * bool(deviation) + f" / {coverage:.2f}"


def _headlines(results: dict[str, dict[str, Any]], sizes: tuple[int, ...]) -> list[Headline]:
    """Return and coverage as each is played in the paper: QDFM sampled, the baselines greedily."""
    lines = []
    for name in (n for n in results if n in PAPER):
        played, prefix = ("sampled", "") if name.startswith("QDFM") else ("greedy", "greedy_")
        for goals in sizes:
            rows, printed = results[name][str(goals)]["seeds"], PAPER[name][goals - 2]
            for metric, paper in (("return", printed[0]), ("coverage", printed[2])):
                ours = float(np.mean([row[prefix + metric] for row in rows]))
                lines.append(Headline(f"{name} ({played}), K = {goals}: {metric}", ours, paper))
    return lines


def _shares(values: Any) -> str:
    return " ".join(f"{v:.2f}" for v in values)
