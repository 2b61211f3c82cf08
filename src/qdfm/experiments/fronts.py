"""What deep-sea-treasure and resource-gathering have in common: a preference sweep of a policy on a finite decision
process, without sampling noise, against the exact Pareto front and against the data.

Greedy policies are scored against the front of deterministic policies. The mean returns of a policy that draws its
actions are points between those, so they are scored against that front and against its mixtures too.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from qdfm.agent import Agent
from qdfm.data.sources import load_dataset
from qdfm.envs.exact import expected_returns
from qdfm.envs.pareto import pareto_front
from qdfm.envs.registry import ENVIRONMENTS
from qdfm.envs.tabular import Tabular
from qdfm.metrics import expected_utility, front_coverage, hypervolume, non_dominated, simplex, spacing
from qdfm.sweep import sweep

PREFERENCES = 501
MIXED = 60  # divisions of a mixture of points
SAME = 1e-3  # how near a point of the front must be met
DRAWN = 100  # episodes for each preference where the policy's law is not enumerable


@dataclass(frozen=True)
class Problem:
    """A task, the discount it is judged by, and the reference point of its hypervolume."""

    task: str
    gamma: float
    reference: tuple[float, ...]

    @property
    def table(self) -> Tabular:
        """The task written out."""
        table = ENVIRONMENTS[self.task]()
        assert isinstance(table, Tabular)
        return table

    @property
    def preferences(self) -> np.ndarray:
        """The preferences `[P, objectives]` of a sweep."""
        return simplex(len(self.reference), PREFERENCES)


@lru_cache
def true_front(problem: Problem) -> np.ndarray:
    """The exact front `[n, objectives]`."""
    return pareto_front(problem.table, problem.gamma)


@lru_cache
def data_returns(problem: Problem) -> np.ndarray:
    """The returns `[episodes, objectives]` in the data."""
    return load_dataset(problem.task).returns(problem.gamma)


def mixtures(points: np.ndarray) -> np.ndarray:
    """Mean returns that drawing one of the points by lot can have: evenly spread mixtures of as many as there are
    objectives, whose hypervolume nears that of the convex hull."""
    parts = min(points.shape[1], len(points))
    weights = simplex(parts, max(1, MIXED * (parts - 1) ** 2))
    return np.concatenate([weights @ points[list(some)] for some in combinations(range(len(points)), parts)])


@lru_cache
def volumes(problem: Problem) -> dict[str, float]:
    """The hypervolumes that a policy's is compared with."""
    front = true_front(problem)
    return {
        "front": hypervolume(front, problem.reference),
        "hull": hypervolume(mixtures(front), problem.reference),
        "data": hypervolume(data_returns(problem), problem.reference),
    }


def exact_sweep(agent: Agent, problem: Problem, preferences: np.ndarray) -> dict[str, np.ndarray]:
    """Expected returns `[P, objectives]` at every preference: of the most likely actions, and of drawn ones."""
    table = problem.table
    if agent.spec.accumulation is not None:  # the observation remembers the return, so the states are too many
        ways = {"greedy": (1, True), "sampled": (DRAWN, False)}
        return {
            name: sweep(agent, table, preferences, episodes, greedy=greedy, gamma=problem.gamma, progress=False).returns
            for name, (episodes, greedy) in ways.items()
        }
    states = len(table.observations)
    seen, omegas = np.tile(table.observations, (len(preferences), 1)), np.repeat(preferences, states, 0)
    laws = agent.action_probabilities(seen, omegas).reshape(len(preferences), states, -1)
    return both_ways(laws, problem)


def both_ways(laws: np.ndarray, problem: Problem) -> dict[str, np.ndarray]:
    """Expected returns `[policies, objectives]` of laws `[policies, S, A]`: of the likeliest actions, of drawn ones."""
    greedy = np.eye(laws.shape[-1])[laws.argmax(-1)]
    return {
        "greedy": expected_returns(problem.table, greedy, problem.gamma),
        "sampled": expected_returns(problem.table, laws, problem.gamma),
    }


def score(points: np.ndarray, problem: Problem, preferences: np.ndarray) -> dict[str, Any]:
    """The numbers of one sweep."""
    volume, due, front = hypervolume(points, problem.reference), volumes(problem), true_front(problem)
    kept = points[non_dominated(points, SAME)]
    return {
        **{f"hv_{against}": volume / value for against, value in due.items()},
        "points": round(front_coverage(points, front, SAME) * len(front)),
        "spacing": spacing(kept),
        "nd": len(kept),
        "utility": expected_utility(points, preferences),
    }


def followed(points: np.ndarray, problem: Problem) -> float:
    """How much of ⟨ω, return⟩ is lost, on average over a sweep, against the best policy for each of its preferences."""
    omega = problem.preferences
    return float(np.mean((omega @ true_front(problem).T).max(1) - (omega * points).sum(1)))


def judge(agent: Agent, problem: Problem) -> dict[str, Any]:
    """One trained policy: its scores, greedy and sampled, and where it got."""
    preferences = problem.preferences
    out: dict[str, Any] = {}
    for played, points in exact_sweep(agent, problem, preferences).items():
        out[played] = {
            **score(points, problem, preferences),
            "lost": followed(points, problem),
            "returns": np.round(points, 5).tolist(),
        }
    return out
