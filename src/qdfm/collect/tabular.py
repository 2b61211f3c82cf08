"""Heuristic behaviours on a finite decision process, and the mixtures of them that are the data of its tasks.

A seeker takes a shortest way to some of the transitions, never one it refuses; at every step it draws uniformly among
the actions that come closer, or, with probability `noise`, among all of them. Distances go by the first outcomes.
"""

from dataclasses import dataclass

import numpy as np

from qdfm.data.dataset import Dataset
from qdfm.envs.mogym import deep_sea_treasure, resource_gathering
from qdfm.envs.tabular import Tabular


@dataclass(frozen=True)
class Seeker:
    """One behaviour of a mixture; without a goal it draws every action at random."""

    name: str
    episodes: int
    goal: np.ndarray | None = None  # [S, A], what it heads for
    refuses: np.ndarray | None = None  # [S, A], what it never does on purpose
    noise: float = 0.1

    def law(self, table: Tabular) -> np.ndarray:
        """Its action probabilities `[S, A]`."""
        states, actions = table.next_state.shape[:2]
        if self.goal is None:
            return np.full((states, actions), 1 / actions)
        closer, _ = shortest_ways(table, self.goal, self.refuses)
        count = closer.sum(1, keepdims=True)
        aimed = np.where(count > 0, closer / np.maximum(count, 1), 1 / actions)
        return (1 - self.noise) * aimed + self.noise / actions


def deep_sea_behaviours(map_name: str = "convex") -> tuple[Seeker, ...]:
    """One for each objective (the largest treasure, the nearest), one for each treasure, and a random one."""
    table = deep_sea_treasure(map_name)
    treasure = table.reward[..., 0, 0] * table.terminated[..., 0]
    values = np.unique(treasure[treasure > 0])
    return (
        Seeker("largest", 200, treasure == values[-1]),
        Seeker("nearest", 200, treasure == values[0]),
        *(Seeker(f"treasure {value:g}", 100, treasure == value) for value in values),
        Seeker("random", 500),
    )


def resource_behaviours() -> tuple[Seeker, ...]:
    """One for gold, one for the diamond, one for both, each once bold and once avoiding enemies, and a random one."""
    table = resource_gathering()
    danger = table.probability[..., 1] > 0
    _, gold, diamond = np.moveaxis(table.reward[..., 0, :], -1, 0)
    goals = {"gold": gold > 0, "diamond": diamond > 0, "both": (gold > 0) & (diamond > 0)}
    bold = (Seeker(name, 300, goal) for name, goal in goals.items())
    safe = (Seeker(f"safe {name}", 300, goal, danger) for name, goal in goals.items())
    return (*bold, *safe, Seeker("random", 600))


def collect_mixture(
    table: Tabular, behaviours: tuple[Seeker, ...], categories: tuple[int, ...], seed: int = 0
) -> Dataset:
    """The episodes of every behaviour, one behaviour after the other, the same for the same seed."""
    rng = np.random.default_rng(seed)
    parts = [_episodes(table, behaviour.law(table), behaviour.episodes, rng) for behaviour in behaviours]
    state, action, outcome, length = (np.concatenate(part) for part in zip(*parts))
    at = (state, action, outcome)
    ends = np.cumsum(length) - 1
    terminated = table.terminated[at]
    truncated = np.zeros(len(state), bool)
    truncated[ends] = ~terminated[ends]
    return Dataset.from_arrays(
        observation=table.observations[state],
        action=action,
        reward=table.reward[at],
        next_observation=table.observations[table.next_state[at]],
        terminated=terminated,
        truncated=truncated,
        num_actions=table.next_state.shape[1],
        categories=categories,
    )


def collect_deep_sea(map_name: str = "convex", seed: int = 0) -> Dataset:
    """Data of deep-sea-treasure."""
    return collect_mixture(deep_sea_treasure(map_name), deep_sea_behaviours(map_name), (11, 11), seed)


def collect_resource(seed: int = 0) -> Dataset:
    """Data of resource-gathering."""
    return collect_mixture(resource_gathering(), resource_behaviours(), (5, 5, 2, 2), seed)


def shortest_ways(table: Tabular, goal: np.ndarray, refuses: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Which actions `[S, A]` are the first of a shortest way to the goal, and its length `[S]` (S + 1: no way)."""
    allowed = np.ones(goal.shape, bool) if refuses is None else ~refuses
    after, goes_on = table.next_state[..., 0], ~table.terminated[..., 0]
    far = len(goal) + 1
    distance = np.full(len(goal), far)
    while True:
        ahead = np.where(allowed & goal, 1, np.where(allowed & goes_on, 1 + distance[after], far))
        if (ahead.min(1) >= distance).all():
            return (ahead == distance[:, None]) & (distance < far)[:, None], distance
        distance = np.minimum(distance, ahead.min(1))


def _episodes(table: Tabular, law: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """States, actions and outcomes of `count` episodes, episode after episode, and the episodes' lengths."""
    state, alive = np.full(count, table.start), np.ones(count, bool)
    steps = []
    for _ in range(table.horizon):
        action = _draw(law[state], rng)
        outcome = _draw(table.probability[state, action], rng)
        steps.append((state, action, outcome, alive))
        alive = alive & ~table.terminated[state, action, outcome]
        state = table.next_state[state, action, outcome]
        if not alive.any():
            break
    states, actions, outcomes, taken = (np.stack(part, 1) for part in zip(*steps))
    return states[taken], actions[taken], outcomes[taken], taken.sum(1)


def _draw(law: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One index per row of probabilities `[n, K]`."""
    return (rng.random((len(law), 1)) > np.cumsum(law, 1)).sum(1).clip(max=law.shape[1] - 1)
