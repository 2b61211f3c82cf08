"""critics: where a critic that does not see the preference must fail (the paper's scalarised critic, against ours).

Two decisions. First: keep c in both objectives, or go on. Then: take (1, 0) or (0, 1). Going on is worth max(ω, 1 − ω),
which is convex in the preference ω. A critic Q(s, a) ∈ R² without ω can only say ⟨ω, q⟩; its least-squares fit over
uniform preferences is ¾ for every ω (q = (¾, ¾), by symmetry and since E max(ω, 1 − ω) = ¾). So it goes on whenever
c < ¾, even at ω = ½, where that is worth ½; and never when c > ¾, even at ω = 1, where it is worth 1. No amount of data
or training mends it. A critic Q(s, a, ω) has no such limit.
"""

from functools import partial
from typing import Any

import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import CQL, QDFM
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset
from qdfm.envs.exact import expected_returns
from qdfm.envs.tabular import Tabular
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.report import Headline, Table, finish
from qdfm.figures import save_figure
from qdfm.metrics import simplex, summarise
from qdfm.train import train

KEPT = (0.6, 0.7, 0.8, 0.9)  # c
PREFERENCES = simplex(2, 101)
ROWS = 50  # of each action in the data

NETWORK: dict[str, Any] = {"gamma": 1.0, "hidden": (64, 64), "batch_size": 64, "critic_learning_rate": 1e-3}
SCHEDULE: dict[str, Any] = {"warmup_steps": 1_000, "critic_steps": 10_000, "improve_steps": 5_000}
GUIDED: dict[str, Any] = {**NETWORK, **SCHEDULE, "beta": 100.0, "beta_scale": "none"}
METHODS: dict[str, Config] = {
    "QDFM, vector critic": QDFM(**GUIDED),
    "QDFM, scalarised critic": QDFM(**GUIDED, critic="scalarised"),
    "CQL, vector critic": CQL(**NETWORK, train_steps=15_000, penalty=0.01),
    "CQL, scalarised critic": CQL(**NETWORK, train_steps=15_000, penalty=0.01, critic="scalarised"),
}
QUICK_SHARE = 0.3

NOTES = (
    "Mean and largest loss of ⟨ω, return⟩ against the best policy over 101 evenly spread preferences, greedy play, "
    "exact returns. Predicted: what a critic without ω does whose value of going on is its least-squares fit, ¾ at "
    "every preference. Means ± sample standard deviations over seeds."
)


def run(settings: Settings) -> None:
    """Train, compare, tabulate, draw."""
    chosen = settings.chosen("method", METHODS)
    cells, seeds = Cells(settings), settings.seed_range(5)
    configs = {name: METHODS[name].scaled(QUICK_SHARE) if settings.quick else METHODS[name] for name in chosen}
    results: dict[str, dict[str, Any]] = {}
    for kept in KEPT:
        for name, config in configs.items():
            key = {"kept": kept, "config": config.described(), "seeds": seeds}
            compute = partial(_cell, config, kept, seeds, settings.progress)
            results.setdefault(name, {})[str(kept)] = cells.get(key, compute)
    finish(
        cells, settings.command("critics", len(seeds)), "Two kinds of critic", results, [_table(results)], NOTES,
        _headlines(results), seeds=list(seeds),
        steps={name: config.total_steps(logged(KEPT[0]).spec) for name, config in configs.items()},
    )  # fmt: skip
    _draw(settings, results)


def task(kept: float) -> Tabular:
    """The two decisions; action 0 keeps, or takes (1, 0); action 1 goes on, or takes (0, 1)."""
    next_state = np.array([[[1], [1]], [[1], [1]]])
    reward = np.array([[[[kept, kept]], [[0.0, 0.0]]], [[[1.0, 0.0]], [[0.0, 1.0]]]])
    terminated = np.array([[[True], [False]], [[True], [True]]])
    return Tabular(np.eye(2, dtype=np.float32), 0, next_state, np.ones((2, 2, 1)), reward, terminated, horizon=2)


def logged(kept: float) -> Dataset:
    """Every action of both states equally often."""
    table = task(kept)
    state, action = np.repeat(np.divmod(np.arange(4), 2), ROWS, 1)
    at = (state, action, 0)
    return Dataset.from_arrays(
        table.observations[state], action, table.reward[at], table.observations[table.next_state[at]],
        table.terminated[at], num_actions=2, normalise=False,
    )  # fmt: skip


def best_utility(kept: float) -> np.ndarray:
    """What the best policy gets at each preference."""
    return np.maximum(kept, PREFERENCES.max(1))


def predicted_utility(kept: float) -> np.ndarray:
    """What a critic gets at each preference that values going on at ¾ throughout."""
    return PREFERENCES.max(1) if kept < 0.75 else np.full(len(PREFERENCES), kept)


def reached_utility(agent: Agent, kept: float) -> np.ndarray:
    """What an agent gets at each preference, greedily."""
    table = task(kept)
    seen = np.tile(table.observations, (len(PREFERENCES), 1))
    law = agent.action_probabilities(seen, np.repeat(PREFERENCES, 2, 0)).reshape(-1, 2, 2)
    returns = expected_returns(table, np.eye(2)[law.argmax(-1)])
    return (PREFERENCES * returns).sum(1)


def _cell(config: Config, kept: float, seeds: tuple[int, ...], progress: bool) -> dict[str, Any]:
    agents = train(config, logged(kept), seeds=seeds, progress=progress)
    return {"seeds": [np.round(reached_utility(agent, kept), 6).tolist() for agent in agents]}


def _losses(kept: str, reached: Any) -> tuple[float, float]:
    loss = best_utility(float(kept)) - np.asarray(reached)
    return float(loss.mean()), float(loss.max())


def _table(results: dict[str, dict[str, Any]]) -> Table:
    columns = ["method", *(f"c = {kept}: {what} loss" for kept in KEPT for what in ("mean", "largest"))]
    table = Table("Loss of utility against the best policy", columns)
    for name, by_kept in results.items():
        shown = []
        for kept, cell in by_kept.items():
            both = [_losses(kept, reached) for reached in cell["seeds"]]
            shown += [format(summarise([loss[i] for loss in both]), ".3f") for i in (0, 1)]
        table.add(name, *shown)
    predicted = [_losses(str(kept), predicted_utility(kept)) for kept in KEPT]
    table.add("predicted without ω", *(f"{loss:.3f}" for pair in predicted for loss in pair))
    return table


def _headlines(results: dict[str, dict[str, Any]]) -> list[Headline]:
    return [
        Headline(
            f"{name}, c = {kept}: largest loss of utility (mean over seeds)",
            float(np.mean([_losses(kept, reached)[1] for reached in cell["seeds"]])),
        )
        for name, by_kept in results.items()
        for kept, cell in by_kept.items()
    ]


def _draw(settings: Settings, results: dict[str, dict[str, Any]]) -> None:
    """critics.png: the utility reached against the preference, a panel for each c."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    for axis, kept in zip(figure.subplots(1, len(KEPT), sharey=True, squeeze=False)[0], KEPT, strict=True):
        omega = PREFERENCES[:, 0]
        axis.plot(omega, best_utility(kept), color="black", lw=3, alpha=0.25, label="best")
        axis.plot(omega, predicted_utility(kept), color="black", ls=":", label="predicted without ω")
        for name, by_kept in results.items():
            axis.plot(omega, np.mean(by_kept[str(kept)]["seeds"], 0), lw=1, label=name)
        axis.set_title(f"c = {kept}", fontsize=10)
        axis.set_xlabel("weight of the first objective")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("⟨ω, return⟩")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    save_figure(figure, settings.out / "critics.png")
