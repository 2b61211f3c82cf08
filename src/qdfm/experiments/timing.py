"""What experiments time: calls in turn, actions, gradient steps, on the device that trains and on the CPU beside it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset
from qdfm.train import compiled_phase, seed_keys

BURST = 10  # calls of one kind in a row, as a policy in use is called
WARM = 3  # scans before the timed ones: until a state has passed through its program, JAX may compile it again


@dataclass(frozen=True)
class Timing:
    """How much is timed."""

    seconds: float = 0.5
    """Of timed scans, at least, for each phase."""
    chunk: int = 200
    """Gradient steps per scan."""
    calls: int = 2_000
    """Timed actions of each method."""
    batch: int = 256
    """Observations of a batch of actions, of which a tenth as many are timed."""


def in_turn(calls: Mapping[str, Callable[[], Any]], count: int, warm: int = BURST) -> dict[str, float]:
    """Milliseconds of each call, the median of `count`; the calls take turns in bursts, so that all meet the same
    machine with warm caches."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for first in range(0, warm + count, BURST):
        for name, call in calls.items():
            for turn in range(first, min(first + BURST, warm + count)):
                began = time.perf_counter()
                call()
                if turn >= warm:  # the first ones compile and warm up
                    times[name].append(time.perf_counter() - began)
    return {name: 1e3 * float(np.median(taken)) for name, taken in times.items()}


def act_times(
    configs: dict[str, Config], data: Dataset, calls: int, batch: int, preferences: np.ndarray | None = None
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Milliseconds of one action and of a batch (0: of none), a tenth as often timed; the methods act in turn.

    One action is the mean over `preferences`, each asked for a share of the calls, or under the even one; `each` has
    them one by one.

    The networks are not trained, which changes no time, but the phases are prepared: MODULI then knows the preferences
    of the data, and slides to others only.
    """
    even = np.full(data.spec.objectives, 1 / data.spec.objectives)
    agents: dict[str, Agent] = {}
    for name, config in configs.items():
        adapted, key = config.adapt(data), jax.random.key(0)
        config, rows = config.resolve(adapted.spec), adapted.normalised()
        algorithm = config.build(adapted.spec)
        state = algorithm.init(key)
        for phase in algorithm.phases:
            state = jax.jit(phase.prepare)(state, rows, key) if phase.prepare else state
        agents[name] = Agent(config, adapted.spec, algorithm.policy(state))

    def medians(seen: np.ndarray, preference: np.ndarray, count: int) -> dict[str, float]:
        each = {name: partial(agent.act, seen, preference) for name, agent in agents.items()}
        return in_turn(each, max(1, count))

    asked = even[None] if preferences is None else preferences
    rounds = [medians(data.observation[0], w, calls // len(asked)) for w in asked]
    many = medians(data.observation[:batch], even, calls // 10) if batch else {}
    return {
        name: {
            "one": float(np.mean([found[name] for found in rounds])),
            "each": [round(found[name], 4) for found in rounds],
            "batch": many.get(name),
        }
        for name in agents
    }


def here_and_on_cpu(measure: Callable[[], Any], on_cpu: Callable[[], Any] | None = None) -> dict[str, Any]:
    """A measurement on the device that trains and (another, where given) on the CPU of the same machine."""
    here = None if jax.default_backend() == "cpu" else measure()
    with jax.default_device(jax.devices("cpu")[0]):
        cpu = (on_cpu or measure)()
    return {"device": here or cpu, "cpu": cpu}


def phase_rates(config: Config, dataset: Dataset, seeds: int, timing: Timing) -> dict[str, dict[str, float]]:
    """Steps per second of each phase with steps, and how many steps the config has of it."""
    config = config.resolve(dataset.spec)
    algorithm = config.build(dataset.spec)
    data = jax.device_put(dataset.normalised())
    keys = seed_keys(range(seeds))
    state = jax.jit(jax.vmap(algorithm.init))(keys)
    out = {}
    for index in range(len(algorithm.phases)):
        phase, prepare, cache, chunk = compiled_phase(config, dataset.spec, index)
        if prepare is not None:
            state = prepare(state, data, keys)
        if phase.steps == 0:
            continue
        cached = None if cache is None else cache(state, data, keys)
        times: list[float] = []
        while len(times) < WARM + 3 or sum(times[WARM:]) < timing.seconds:
            began = time.perf_counter()
            state, _ = jax.block_until_ready(chunk(state, data, cached, keys, jnp.int32(0), length=timing.chunk))
            times.append(time.perf_counter() - began)
        speed = timing.chunk / float(np.median(times[WARM:]))
        out[phase.name] = {"steps": phase.steps, "steps_per_second": speed}
    return out


def extrapolated(cell: dict[str, Any]) -> float:
    """Seconds of the phases' own numbers of steps at the measured speed."""
    return float(sum(phase["steps"] / phase["steps_per_second"] for phase in cell["phases"].values()))
