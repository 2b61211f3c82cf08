"""matrix: two agents, one step, agreeing or not as the preference says (the paper's two-agent matrix game).

Cloning and guided flows, with rates that read both agents or each agent's own. The joint law of a trained policy is
known exactly (three actions each, two contexts), so that nothing here is sampled but the data and the training. Beside
them stand the closed forms: the KL optimum of the true behaviour, what is left of it when agents choose apart, and the
fronts of the game. Centralised cloning is QDFM's first phase alone, a flow fitted to the joint actions.
"""

import time
from functools import partial
from typing import Any

import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import BC, QDFM
from qdfm.algorithms.base import Config
from qdfm.data.sources import load_dataset
from qdfm.envs.matrix import ACTIONS, AGENTS, CONTEXTS, DIFFERENT, EQUAL, Matrix, behaviour
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.matrix_exact import (
    PREFERENCES,
    coordination,
    deterministic_front,
    expected_returns,
    front_hypervolume,
    independent,
    kl_front,
    stochastic_front,
)
from qdfm.experiments.matrix_figures import draw
from qdfm.experiments.matrix_report import (
    CLOSED_FORMS,
    DETERMINISTIC,
    FINDINGS,
    LOGGED,
    LOGGED_APART,
    NOTES,
    OPTIMUM,
    OPTIMUM_APART,
    STOCHASTIC,
    Results,
    headlines,
    tabulate,
)
from qdfm.experiments.report import finish
from qdfm.metrics import simplex, total_variation
from qdfm.train import train

BETA, EULER = 0.737, 64
FULL_SEEDS = 3
QUICK_SHARE = 0.1  # of the steps, in the quick version

# One layer and large batches: log-odds are linear in ω, and deeper networks or noisier gradients blur them near (0, 1).
NETWORK: dict[str, Any] = {"hidden": (64,), "batch_size": 2048, "learning_rate": 3e-3, "ema": 0.999}
FLOW: dict[str, Any] = {**NETWORK, "layer_norm": False, "steps": EULER, "warmup_steps": 6_000}
# Logged actions as endpoints: draws of the behaviour would be weighed among M, which is biased by about 1/M.
GUIDED: dict[str, Any] = {
    "beta": BETA, "beta_scale": "none", "caution": 0.0, "support_share": 0.0, "endpoints": "data", "samples": 8,
    "critics": 1, "pessimism": "mean", "critic_hidden": (32, 32), "critic_learning_rate": 1e-3, "critic_steps": 3_000,
    "improve_steps": 12_000, "corners": 0.2,  # the ends of the front are asked for
}  # fmt: skip
METHODS: dict[str, Config] = {
    "BC, independent": BC(**NETWORK, clone_steps=6_000),
    "BC, centralised": QDFM(**FLOW, execution="centralised", critic_steps=0, improve_steps=0),
    "QDFM, centralised": QDFM(**FLOW, **GUIDED, execution="centralised"),
    "QDFM, decentralised": QDFM(**FLOW, **GUIDED, execution="decentralised"),
}
QUICK_METHODS = ("BC, independent", "QDFM, centralised")


def run(settings: Settings) -> None:
    """Train, find the laws, tabulate, draw."""
    chosen = settings.chosen("method", METHODS, QUICK_METHODS)
    cells, seeds = Cells(settings), settings.seed_range(FULL_SEEDS)
    configs = {name: METHODS[name].scaled(QUICK_SHARE) if settings.quick else METHODS[name] for name in chosen}
    trained: Results = {}
    for name, config in configs.items():
        key = {"config": config.described(), "seeds": seeds, "preferences": PREFERENCES}
        trained[name] = cells.get(key, partial(_cell, name, config, seeds, settings.progress))
    exact = closed_forms()
    finish(
        cells, settings.command("matrix", len(seeds)), "Matrix game", {"trained": trained, "exact": exact},
        [tabulate(trained, exact)], settings.notes(NOTES, FINDINGS, FULL_SEEDS), headlines(trained, exact),
        seeds=list(seeds), steps={name: config.total_steps(Matrix().spec) for name, config in configs.items()},
    )  # fmt: skip
    draw(settings.out, trained, exact)


def _cell(name: str, config: Config, seeds: tuple[int, ...], progress: bool) -> dict[str, Any]:
    began = time.perf_counter()
    agents = train(config, load_dataset("matrix"), seeds=seeds, progress=progress, task="matrix")
    seconds = time.perf_counter() - began
    wanted = exact_laws()[CLOSED_FORMS[name]]
    rows = []
    for agent in agents:
        laws = joint_laws(agent)
        gap = total_variation(laws.reshape(-1, ACTIONS**AGENTS), wanted.reshape(-1, ACTIONS**AGENTS)).mean()
        rows.append(judge(laws) | {"distance": float(gap)})
    return {"seeds": rows, "train_seconds": round(seconds, 1)}


def joint_laws(agent: Agent) -> np.ndarray:
    """The agent's joint policies `[101, 2, 3, 3]` at the preferences of a front."""
    preference = simplex(2, PREFERENCES)
    seen = np.repeat(np.eye(CONTEXTS, dtype=np.float32)[:, None], AGENTS, axis=1)  # [2, agents, 2]
    laws = agent.action_probabilities(np.tile(seen, (PREFERENCES, 1, 1)), np.repeat(preference, CONTEXTS, axis=0))
    return np.asarray(laws, np.float64).reshape(PREFERENCES, CONTEXTS, ACTIONS, ACTIONS)


def judge(policies: np.ndarray) -> dict[str, Any]:
    """Joint policies `[101, 2, 3, 3]` of evenly spread preferences: their front, and how often the agents agree."""
    return {
        "hypervolume": front_hypervolume(policies),
        "spread": float(expected_returns(policies)[:, 0].std() / (EQUAL[0] - DIFFERENT[0])),
        "coordination": np.round(coordination(policies), 6).tolist(),
    }


def exact_laws() -> dict[str, np.ndarray]:
    """What each method tends to, `[101, 2, 3, 3]`, of the true behaviour."""
    mu, optimum = behaviour(), kl_front(behaviour(), BETA)
    unguided = np.broadcast_to(mu, optimum.shape)
    return {
        OPTIMUM: optimum,
        OPTIMUM_APART: independent(optimum),
        LOGGED: unguided,
        LOGGED_APART: independent(unguided),
    }


def closed_forms() -> Results:
    """The same judged, and the fronts of the game, which know no preference."""
    fronts = {STOCHASTIC: stochastic_front(), DETERMINISTIC: deterministic_front()}
    judged = {name: judge(laws) for name, laws in exact_laws().items()}
    return judged | {name: {"hypervolume": front_hypervolume(policies)} for name, policies in fronts.items()}
