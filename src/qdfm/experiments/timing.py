"""What experiments time: calls in turn, actions, on the device that trains and on the CPU beside it."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset

BURST = 10  # calls of one kind in a row, as a policy in use is called


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
