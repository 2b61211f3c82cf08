"""sampler: is the simulated chain what it should be? CartPole and Acrobot, a given policy π, no learning.

The chain jumps to a' ≠ a at rate α·π(a'|s) for a unit of time, from one of three starts. Simulated in N Euler steps its
law is π + (1 − α/N)^N·(p₀ − π): every step forgets a share α/N. Draws are tested against that law at states that π
visits, and the chain is played against π itself.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.envs.acrobot import TORQUES, Acrobot
from qdfm.envs.base import JaxEnv
from qdfm.envs.cartpole import CartPole
from qdfm.envs.simulate import Act, record
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.report import finish
from qdfm.experiments.sampler_figures import picture
from qdfm.experiments.sampler_tables import (
    ALPHAS,
    NOTES,
    RANKS,
    RULES,
    SHARPNESS,
    SOLVED,
    STARTS,
    STEPS,
    STRAY,
    family,
    headlines,
    tables,
)
from qdfm.flow.samplers import euler, inverse_cdf
from qdfm.metrics import chi_square, summarise, total_variation

SOURCES = (*STARTS, "argmax")  # laws from which an action can be drawn without a chain
SEED = 0


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment with the scores of its rule."""

    env: JaxEnv
    score: Callable[[jax.Array], jax.Array]  # observations [B, n] -> scores [B, K]


def _balance(observation: jax.Array) -> jax.Array:
    lean = observation[:, 2] + 0.5 * observation[:, 3]
    return jnp.stack([jnp.zeros_like(lean), lean], -1)


def _pump(observation: jax.Array) -> jax.Array:
    return (observation[:, 4] + 0.5 * observation[:, 5])[:, None] * jnp.array(TORQUES)


TASKS = {"cartpole": Task(CartPole(), _balance), "acrobot": Task(Acrobot(), _pump)}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is drawn."""

    episodes: int = 200
    reference: int = 2_000  # episodes of π that the chain's returns are compared with
    draws: int = 100_000


QUICK = Size(50, 500, 20_000)


def policy(task: Task, observation: jax.Array) -> jax.Array:
    """π(·|s) `[B, K]`."""
    return jax.nn.softmax(SHARPNESS * task.score(observation), -1)


def start_law(pi: jax.Array, source: jax.Array) -> jax.Array:
    """p₀ `[B, K]` for weights `[4]` over SOURCES; "fixed" is action 0."""
    k = pi.shape[-1]
    first = jnp.broadcast_to(jax.nn.one_hot(0, k), pi.shape)
    laws = [pi, first, jnp.full_like(pi, 1 / k), jax.nn.one_hot(jnp.argmax(pi, -1), k)]
    return jnp.einsum("s,sbk->bk", source, jnp.stack(laws))


def chain(task: Task, steps: int, alpha: float, source: jax.Array) -> Act:
    """Acting by the chain, with 1 + `steps` uniforms; without steps, by a draw from its start."""

    def act(noise: jax.Array, observation: jax.Array, mask: Any, carry: Any) -> tuple[jax.Array, Any]:
        pi = policy(task, observation)
        a0 = inverse_cdf(noise[:, :1], start_law(pi, source))  # [B, 1]
        if not steps:
            return a0, carry

        def rates(current: jax.Array, t: jax.Array) -> jax.Array:
            return pi[:, None] * (1 - jax.nn.one_hot(current, pi.shape[-1]))  # [B, 1, K]

        return euler(rates, a0, noise[:, 1:].T[..., None], alpha), carry

    return act


def chain_law(pi: np.ndarray, p0: np.ndarray, alpha: float, steps: float) -> np.ndarray:
    """The chain's law after N Euler steps in closed form; that of continuous time for infinitely many."""
    left = math.exp(-alpha) if math.isinf(steps) else (1 - alpha / steps) ** steps
    return pi + left * (p0 - pi)


def fit(places: dict[str, Any], drawn: dict[str, Any], start: str, alpha: float, steps: int) -> dict[str, Any]:
    """For each state: p-values under the chain's law and continuous time's, total variation, and stray draws."""
    out: dict[str, Any] = {"p": [], "p_continuous": [], "variation": [], "stray": []}
    for row, counts in zip(places["pi"], drawn["counts"], strict=True):
        pi, seen = np.asarray(row) / np.sum(row), np.asarray(counts)
        p0 = {"π": pi, "fixed": np.eye(len(pi))[0], "uniform": np.full(len(pi), 1 / len(pi))}[start]
        law = chain_law(pi, p0, alpha, steps)
        out["p"].append(chi_square(seen, law))
        out["p_continuous"].append(chi_square(seen, chain_law(pi, p0, alpha, math.inf)))
        out["variation"].append(float(total_variation(seen / seen.sum(), law)))
        out["stray"].append(int(seen[law < STRAY].sum()))
    return out


@lru_cache
def _player(name: str, steps: int, episodes: int) -> Any:
    task = TASKS[name]

    def play(key: jax.Array, alpha: float, source: jax.Array) -> tuple[Any, ...]:
        acting = chain(task, steps, alpha, source)
        played = record(task.env, acting, 1 + steps, episodes, key)
        return played.states, played.running, played.reward.sum((0, 2))

    return jax.jit(play)


@lru_cache
def _counter(name: str, steps: int, draws: int) -> Any:
    task = TASKS[name]
    choices = task.env.spec.num_choices

    def count(key: jax.Array, observation: jax.Array, alpha: float, source: jax.Array) -> jax.Array:
        act = chain(task, steps, alpha, source)

        def at(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
            noise = jax.random.uniform(inputs[0], (draws, 1 + steps))
            rows = jnp.broadcast_to(inputs[1], (draws, *inputs[1].shape))
            tokens, _ = act(noise, rows, jnp.ones((draws, 1, choices), bool), None)
            return jnp.bincount(tokens[:, 0], length=choices)

        return jax.lax.map(at, (jax.random.split(key, len(observation)), observation))

    return jax.jit(count)


def _weights(source: str) -> jax.Array:
    return jax.nn.one_hot(SOURCES.index(source), len(SOURCES))


def _cell(name: str, kind: str, **facts: Any) -> tuple[dict[str, Any], jax.Array]:
    """A cell's description, and the key of its random numbers, which follows from it."""
    cell = {"env": name, "rule": RULES[name], "k_pi": SHARPNESS, "kind": kind, "seed": SEED, **facts}
    fold = crc32(json.dumps(cell, sort_keys=True).encode()) >> 1
    return cell, jax.random.fold_in(jax.random.key(SEED, impl="threefry2x32"), fold)


def play(cells: Cells, name: str, source: str, episodes: int, alpha: float = 0.0, steps: int = 0) -> dict[str, Any]:
    """Returns of episodes that draw from `source`, or from the chain that starts there."""
    cell, key = _cell(name, "play", source=source, alpha=alpha, steps=steps, episodes=episodes)

    def compute() -> dict[str, Any]:
        returns = np.asarray(_player(name, steps, episodes)(key, alpha, _weights(source))[2])
        spread = summarise(returns)
        solved = float((returns >= SOLVED).mean())
        return {"mean": spread.mean, "std": spread.std, "episodes": episodes, "solved": solved}

    return cells.get(cell, compute)


def visited(cells: Cells, name: str, episodes: int) -> dict[str, Any]:
    """Observations of states that π visits, from where it is undecided to where it is decided, with π there."""
    cell, key = _cell(name, "visited", episodes=episodes, ranks=RANKS)

    def compute() -> dict[str, Any]:
        task = TASKS[name]
        states, running, _ = _player(name, 0, episodes)(key, 0.0, _weights("π"))
        seen = jax.vmap(task.env.observation)(states[:-1][running])  # [visits, n]
        pi = policy(task, seen)
        order = np.argsort(np.asarray(pi.max(-1)), kind="stable")
        rows = order[[int(rank * len(order)) for rank in RANKS]]
        return {"observation": np.asarray(seen)[rows].tolist(), "pi": np.asarray(pi, np.float64)[rows].tolist()}

    return cells.get(cell, compute)


def draw(
    cells: Cells, name: str, places: dict[str, Any], start: str, alpha: float, steps: int, draws: int
) -> dict[str, Any]:
    """Counts `[states, K]` of actions drawn by the chain at the visited states."""
    facts = {"at": places["observation"], "source": start, "alpha": alpha, "steps": steps, "draws": draws}
    cell, key = _cell(name, "draw", **facts)

    def compute() -> dict[str, Any]:
        at = jnp.asarray(places["observation"], jnp.float32)
        return {"counts": np.asarray(_counter(name, steps, draws)(key, at, alpha, _weights(start))).tolist()}

    return cells.get(cell, compute)


def measure(cells: Cells, name: str, size: Size) -> dict[str, Any]:
    """The results in one environment."""
    baselines = {source: play(cells, name, source, size.episodes) for source in ("uniform", "π", "argmax")}
    baselines["reference"] = play(cells, name, "π", size.reference)
    places = visited(cells, name, size.episodes)
    chains = []
    for start, alpha, steps in itertools.product(STARTS, ALPHAS, STEPS):
        played = play(cells, name, start, size.episodes, alpha, steps)
        drawn = draw(cells, name, places, start, alpha, steps, size.draws)
        row = {"start": start, "alpha": alpha, "steps": steps, "played": _bare(played)}
        chains.append(row | {"draws": size.draws, **fit(places, drawn, start, alpha, steps)})
    return {"baselines": {k: _bare(v) for k, v in baselines.items()}, "at": _bare(places), "chains": chains}


def _bare(cell: dict[str, Any]) -> dict[str, Any]:
    return {what: value for what, value in cell.items() if what != "made"}


def run(settings: Settings) -> None:
    """Play, draw, test, tabulate, picture."""
    chosen = settings.chosen("environment", TASKS)
    settings.require_no_seeds("sampler trains nothing")
    cells = Cells(settings)
    results: dict[str, dict[str, Any]] = {}
    for name in chosen:
        results[name] = measure(cells, name, QUICK if settings.quick else Size())
    finish(
        cells, settings.command("sampler"), "The sampler alone, on CartPole and Acrobot",
        {"family": family(results), "environments": results}, tables(results), NOTES, headlines(results), seeds=[SEED],
    )  # fmt: skip
    picture(settings.out / "returns.png", results)
