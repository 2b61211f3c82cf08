"""cartpole-2obj: one model, a sweep of preferences between staying up and pushing steadily (the paper's toy sweep).

R1 counts steps, R2 = −(switches of the push); the preference is (ω, 1 − ω). Each method is trained once per seed for
all preferences and asked for 200 episodes at each ω, sampled from its own policy and greedily. In the paper R1 falls as
its weight rises; here the direction of every step of the sweep is judged by its standard error.
"""

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import BC, CQL, QDFM, BoltzQ
from qdfm.algorithms.base import Config
from qdfm.collect.cartpole import BEHAVIOURS
from qdfm.data.sources import load_dataset
from qdfm.envs.cartpole2obj import CartPole2Obj
from qdfm.envs.simulate import record
from qdfm.evaluate import rollout
from qdfm.experiments.cartpole2obj_figures import draw
from qdfm.experiments.cartpole2obj_tables import FINDINGS, NOTES, SOLVED, WEIGHTS, headlines, tabulate
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.report import finish
from qdfm.train import train

TASK, GAMMA, EPISODES = "cartpole-2obj", 0.99, 200
QUICK_SHARE = 0.2  # of the steps, in the quick version

GUIDED: dict[str, Any] = {"beta": 50.0, "gamma": GAMMA, "critic_steps": 60_000}
VALUED: dict[str, Any] = {"gamma": GAMMA, "train_steps": 68_000}
METHODS: dict[str, Config] = {
    "QDFM": QDFM(**GUIDED, warmup_steps=8_000, improve_steps=20_000),
    "BoltzQ": BoltzQ(**GUIDED, clone_steps=8_000),
    "CQL": CQL(**VALUED),
    "CQL, scalarised critic": CQL(**VALUED, critic="scalarised"),
    "BC": BC(clone_steps=68_000),
}
QUICK_METHODS = ("QDFM", "CQL")


def run(settings: Settings) -> None:
    """Train, play, tabulate, draw."""
    chosen = settings.chosen("method", METHODS, QUICK_METHODS)
    seeds = settings.seed_range(5)
    cells = Cells(settings)
    shared = {"task": TASK, "seeds": seeds, "weights": WEIGHTS, "episodes": EPISODES}
    results: dict[str, dict[str, Any]] = {}
    for name in chosen:
        config = configured(name, settings.quick)
        compute = _cell(config, seeds, settings.progress)
        results[name] = cells.get(shared | {"config": config.described()}, compute)
    results["random"] = cells.get(shared | {"policy": "random"}, partial(random_policy, seeds, EPISODES))
    results["data"] = cells.get(shared | {"policy": "data"}, behaviour_data)
    results["best habit"] = cells.get(shared | {"policy": "best habit"}, best_habit)
    finish(
        cells, settings.command(TASK, len(seeds)), "CartPole with two objectives", results, tabulate(results),
        settings.notes(NOTES, FINDINGS), headlines(results), seeds=list(seeds),
        steps={name: configured(name, settings.quick).total_steps(CartPole2Obj().spec) for name in chosen},
    )  # fmt: skip
    draw(settings.out, results)


def configured(name: str, quick: bool) -> Config:
    """A method's config, with fewer steps in a quick run."""
    return METHODS[name].scaled(QUICK_SHARE) if quick else METHODS[name]


def _cell(config: Config, seeds: tuple[int, ...], progress: bool) -> Callable[[], dict[str, Any]]:
    def compute() -> dict[str, Any]:
        began = time.perf_counter()
        agents = train(config, load_dataset(TASK), seeds=seeds, progress=progress, task=TASK)
        seconds = time.perf_counter() - began
        rows = [judge(agent, seed, EPISODES) for agent, seed in zip(agents, seeds, strict=True)]
        return {"seeds": rows, "train_seconds": round(seconds, 1)}

    return compute


def judge(agent: Agent, seed: int, episodes: int) -> dict[str, Any]:
    """The sweep of one trained policy, sampled and greedy; all weights are played side by side."""
    omega = np.array(WEIGHTS)
    preference = np.repeat(np.stack([omega, 1 - omega], 1), episodes, 0)
    out = {}
    for played, greedy in (("sampled", False), ("greedy", True)):
        reward = rollout(agent, CartPole2Obj(), len(preference), seed, greedy, preference).reward
        returns = reward.sum(0).reshape(len(WEIGHTS), episodes, 2)
        out[played] = [point(r, w) for r, w in zip(returns, WEIGHTS, strict=True)]
    return out


def point(returns: np.ndarray, weight: float) -> dict[str, Any]:
    """What episodes with returns `[episodes, 2]` come to at one weight ω of R1."""
    r1, r2 = returns.mean(0)
    error = returns.std(0, ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else np.zeros(2)
    return {
        "r1": float(r1),
        "r2": float(r2),
        "scalarised": float(weight * r1 + (1 - weight) * r2),
        "solved": float((returns[:, 0] >= SOLVED).mean()),
        "r1_error": float(error[0]),  # standard error of the mean over episodes
        "r2_error": float(error[1]),
    }


def random_policy(seeds: tuple[int, ...], episodes: int) -> dict[str, Any]:
    """The cell of a coin at every step, whatever the preference."""
    keys = [jax.random.key(seed, impl="threefry2x32") for seed in seeds]
    returns = [np.asarray(_coin(episodes)(key), np.float64) for key in keys]
    return {"seeds": [{"sampled": [point(r, w) for w in WEIGHTS]} for r in returns]}


@lru_cache
def _coin(episodes: int) -> Any:
    def act(noise: jax.Array, observation: jax.Array, mask: jax.Array, carry: None) -> tuple[jax.Array, None]:
        return (noise < 0.5).astype(jnp.int32), carry

    return jax.jit(lambda key: record(CartPole2Obj(), act, 1, episodes, key).reward.sum(0))


def behaviour_data() -> dict[str, Any]:
    """The cell of the data's own episodes."""
    returns = load_dataset(TASK).returns()
    return {"seeds": [{"sampled": [point(returns, w) for w in WEIGHTS]}]}


def best_habit() -> dict[str, Any]:
    """The cell of an oracle: at each weight the episodes of that controller of the data which serves it best."""
    borders = np.cumsum([behaviour.episodes for behaviour in BEHAVIOURS.values()])[:-1]
    habits = np.split(load_dataset(TASK).returns(), borders)
    # Of those that serve as well, the one that switches least.
    points = [max((point(h, w) for h in habits), key=lambda at: (at["scalarised"], at["r2"])) for w in WEIGHTS]
    return {"seeds": [{"sampled": points}]}
