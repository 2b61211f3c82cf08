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
from qdfm.evaluate import rollout
from qdfm.metrics import expected_utility, front_coverage, hypervolume, non_dominated, simplex, spacing

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
    weights = simplex(points.shape[1], MIXED * (points.shape[1] - 1) ** 2)
    chosen = combinations(range(len(points)), min(points.shape[1], len(points)))
    return np.concatenate([weights[:, : len(some)] @ points[list(some)] for some in chosen])


@lru_cache
def volumes(problem: Problem) -> dict[str, float]:
    """The hypervolumes that a policy's is compared with."""
    front = true_front(problem)
    return {
        "front": hypervolume(front, problem.reference),
        "hull": hypervolume(mixtures(front) if len(front) > 1 else front, problem.reference),
        "data": hypervolume(data_returns(problem), problem.reference),
    }


def sweep(agent: Agent, problem: Problem, preferences: np.ndarray) -> dict[str, np.ndarray]:
    """Expected returns `[P, objectives]` at every preference: of the most likely actions, and of drawn ones."""
    table = problem.table
    if agent.spec.accumulation is not None:  # the observation remembers the return, so the states are too many
        return {
            "greedy": _played(agent, problem, preferences, 1),
            "sampled": _played(agent, problem, preferences, DRAWN),
        }
    states = len(table.observations)
    law = agent.action_probabilities(
        np.tile(table.observations, (len(preferences), 1)), np.repeat(preferences, states, 0)
    ).reshape(len(preferences), states, -1)
    greedy = np.eye(law.shape[-1])[law.argmax(-1)]
    return {
        "greedy": expected_returns(table, greedy, problem.gamma),
        "sampled": expected_returns(table, law, problem.gamma),
    }


def _played(agent: Agent, problem: Problem, preferences: np.ndarray, episodes: int) -> np.ndarray:
    every = np.repeat(preferences, episodes, 0)
    reward = rollout(agent, problem.table, len(every), greedy=episodes == 1, preference=every).reward
    discounted = np.einsum("t,tpr->pr", problem.gamma ** np.arange(len(reward)), reward)
    return discounted.reshape(len(preferences), episodes, -1).mean(1)


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


def judge(agent: Agent, problem: Problem) -> dict[str, Any]:
    """One trained policy: its scores, greedy and sampled, and where it got."""
    preferences = problem.preferences
    out: dict[str, Any] = {}
    for played, points in sweep(agent, problem, preferences).items():
        out[played] = {**score(points, problem, preferences), "returns": np.round(points, 5).tolist()}
    return out
