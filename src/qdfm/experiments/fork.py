"""fork: one model, three preferences, two goals and a trap between them (the paper's multi-objective heatmaps).

What a policy does is found by propagating its action probabilities through the grid, and 1,000 episodes are played
beside it. A policy that regresses the mean move of the same data shows what averaging does.
"""

from functools import partial
from typing import Any

import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import BC, CQL, QDFM, BoltzQ
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset
from qdfm.envs.exact import kl_optimum
from qdfm.envs.fork import Fork
from qdfm.envs.grid import MOVES
from qdfm.evaluate import rollout
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.fork_figures import draw
from qdfm.experiments.grid_exact import Ending, behaviour, propagate
from qdfm.experiments.report import Headline, Table, finish
from qdfm.metrics import summarise
from qdfm.train import train

PREFERENCES = {"(1, 0)": (1.0, 0.0), "(.5, .5)": (0.5, 0.5), "(0, 1)": (0.0, 1.0)}
EPISODES = 1_000
BETA, GAMMA = 5.0, 0.99

GUIDED: dict[str, Any] = {"beta": BETA, "beta_scale": "none", "gamma": GAMMA, "critic_steps": 20_000}
SCHEDULE: dict[str, Any] = {"warmup_steps": 3_000, "improve_steps": 10_000}
METHODS: dict[str, Config] = {
    "QDFM": QDFM(**GUIDED, **SCHEDULE),
    "QDFM, energy": QDFM(**GUIDED, **SCHEDULE, guidance="energy", energy_steps=10_000),
    "QDFM, scalarised critic": QDFM(**GUIDED, **SCHEDULE, critic="scalarised"),
    "BC": BC(clone_steps=33_000),
    "BoltzQ": BoltzQ(**GUIDED, clone_steps=10_000),
    "CQL": CQL(train_steps=33_000, gamma=GAMMA),
    "CQL, scalarised critic": CQL(train_steps=33_000, gamma=GAMMA, critic="scalarised"),
}
QUICK_METHODS, QUICK_SHARE = ("QDFM", "BC"), 0.3
OPTIMUM, MEAN_MOVE = "KL optimum", "mean move"

NOTES = (
    "Shares of the episodes that end at goal A, at goal B and in the trap, by exact propagation of action "
    "probabilities (β = 5 unscaled, γ = .99), and visits to the trap in 1,000 drawn episodes per seed. KL optimum: "
    "μ·exp(βQ)/C of the data's counted behaviour. Mean move: a linear regression of the move on the observation, "
    "which then takes the move nearest to its prediction. The paper shows heatmaps only and does not print its grid. "
    "Means ± sample standard deviations over seeds."
)
# Of the full run; a smaller one does not show all of it.
FINDINGS = (
    "QDFM goes where the preference says, splits evenly at (.5, .5) as the exact optimum does, and its trap "
    "probability stays below 2e-5 in every seed. BC does not heed the preference. BoltzQ, which ignores what the "
    "data supports, enters the trap in one of twenty episodes at (.5, .5). The policy that averages moves walks "
    "straight into it."
)


def run(settings: Settings) -> None:
    """Train, propagate, tabulate, draw."""
    chosen = settings.chosen("method", METHODS, QUICK_METHODS)
    cells, seeds = Cells(settings), settings.seed_range(5)
    configs = {name: METHODS[name].scaled(QUICK_SHARE) if settings.quick else METHODS[name] for name in chosen}
    results: dict[str, Any] = {}
    for name, config in configs.items():
        key = {"config": config.described(), "seeds": seeds, "episodes": EPISODES}
        results[name] = cells.get(key, partial(_cell, config, seeds, settings.progress))
    results |= fixed_policies(load_dataset("fork"))
    finish(
        cells, settings.command("fork", len(seeds)), "Fork", results, [_table(results)],
        settings.notes(NOTES, FINDINGS), _headlines(results), seeds=list(seeds),
        steps={name: config.total_steps(Fork().spec) for name, config in configs.items()},
    )  # fmt: skip
    draw(settings.out, results, tuple(PREFERENCES))


def _cell(config: Config, seeds: tuple[int, ...], progress: bool) -> dict[str, Any]:
    agents = train(config, load_dataset("fork"), seeds=seeds, progress=progress, task="fork")
    laws = {w: agents[0].action_probabilities(Fork().table().observations, omega) for w, omega in PREFERENCES.items()}
    return {
        "seeds": [judge(agent, seed) for agent, seed in zip(agents, seeds, strict=True)],
        "visits": {w: np.round(propagate(Fork(), law).visits, 6).tolist() for w, law in laws.items()},
    }


def judge(agent: Agent, seed: int, episodes: int = EPISODES) -> dict[str, Any]:
    """One trained policy at each preference."""
    env, out = Fork(), {}
    for name, omega in PREFERENCES.items():
        exact = propagate(env, agent.action_probabilities(env.table().observations, omega))
        played = rollout(agent, env, episodes, seed=seed, preference=omega)
        trapped = np.asarray(env.outcome(played.states[-1])) == len(env.payoffs) - 1
        out[name] = {**_shares(exact), "trapped": int(trapped.sum())}
    return out


def fixed_policies(data: Dataset) -> dict[str, Any]:
    """The exact optimum at each preference, and the policy that averages, for which none matters."""
    env = Fork()
    mu, table = behaviour(env, data), env.table()
    optimum = {
        name: propagate(env, kl_optimum(table, mu, BETA, GAMMA, preference=np.array(omega)))
        for name, omega in PREFERENCES.items()
    }
    average = dict.fromkeys(PREFERENCES, propagate(env, mean_move(data, table.observations)))
    return {
        name: {
            "seeds": [{w: _shares(ending) for w, ending in endings.items()}],
            "visits": {w: ending.visits.tolist() for w, ending in endings.items()},
        }
        for name, endings in ((OPTIMUM, optimum), (MEAN_MOVE, average))
    }


def mean_move(data: Dataset, observations: np.ndarray) -> np.ndarray:
    """The law `[S, A]` that takes the move nearest to a linear regression of the logged moves on the observation."""
    moves = np.array(MOVES, np.float64)
    x = np.asarray(data.observation, np.float64)
    weights, *_ = np.linalg.lstsq(x, moves[np.asarray(data.action)[:, 0]], rcond=None)
    return np.eye(len(moves))[(observations @ weights @ moves.T).argmax(1)]


def _shares(ending: Ending) -> dict[str, float]:
    goal_a, goal_b, trap = ending.shares.tolist()
    return {"A": goal_a, "B": goal_b, "trap": trap}


def _table(results: dict[str, Any]) -> Table:
    columns = ["method"]
    for w in PREFERENCES:
        columns += [f"{w}: to A", "to B", "trap", "trapped of 1,000"]
    table = Table("Where episodes end at three preferences", columns)
    for name, row in results.items():
        cells = []
        for w in PREFERENCES:
            seeds = [seed[w] for seed in row["seeds"]]
            cells += [format(summarise([s[goal] for s in seeds]), ".3f") for goal in ("A", "B")]
            cells.append(format(summarise([s["trap"] for s in seeds]), ".1e"))
            drawn = [s["trapped"] for s in seeds if "trapped" in s]
            cells.append(f"{max(drawn)} at most" if drawn else "–")
        table.add(name, *cells)
    return table


def _headlines(results: dict[str, Any]) -> list[Headline]:
    lines = []
    for name, row in results.items():
        for w, goal in zip(PREFERENCES, ("A", "either", "B"), strict=True):
            ends = [seed[w] for seed in row["seeds"]]
            least = min(end["A"] + end["B"] if goal == "either" else end[goal] for end in ends)
            lines.append(Headline(f"{name} at {w}: share to {goal}, of the worst seed", least))
        worst = max(seed[w]["trap"] for seed in row["seeds"] for w in PREFERENCES)
        lines.append(Headline(f"{name}: largest trap probability of a seed and preference", worst))
    return lines
