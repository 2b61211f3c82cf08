"""The exact Pareto front of a finite decision process: every expected return vector that a deterministic policy can
reach and no other one dominates.

Value iteration over sets (White 1982): V₀(s) = {0}, and with k + 1 steps to go

    V(s) = ND ∪ₐ [ r̄(s, a) ⊕ γ ⊕ₒ pₒ V(s'ₒ) ]

over the outcomes o that do not terminate. Every outcome picks its own point of V(s'), so the policies may depend on the
history of states, actions and rewards. Stationary policies may reach fewer of the points, and drawing a policy by lot
reaches the points between them.
"""

from functools import reduce

import numpy as np

from qdfm.envs.tabular import Tabular
from qdfm.metrics import non_dominated

# The mean reward [objectives] of an action; then γp and the next state of each outcome that goes on.
Choice = tuple[np.ndarray, list[tuple[float, int]]]


def pareto_front(env: Tabular, gamma: float, tolerance: float = 1e-9) -> np.ndarray:
    """The front `[n, objectives]` of expected discounted returns from the start within the horizon, sorted.

    `tolerance` is that of `non_dominated`, which every sweep applies: a point can be short of the true front by that
    times the horizon.
    """
    states, actions, _ = env.next_state.shape
    choices = [[_choice(env, s, a, gamma) for a in range(actions)] for s in range(states)]
    needs = [{after for _, follows in choices[s] for _, after in follows} for s in range(states)]
    sets = [np.zeros((1, env.objectives))] * states  # V with no step to go
    changed = set(range(states))
    for sweep in range(env.horizon):
        due = [s for s in range(states) if sweep == 0 or needs[s] & changed]
        fresh = {s: _backup(choices[s], sets, tolerance) for s in due}
        changed = {s for s in due if not np.array_equal(fresh[s], sets[s])}
        if not changed:
            break
        sets = [fresh.get(s, old) for s, old in enumerate(sets)]
    return sets[env.start]


def _choice(env: Tabular, state: int, action: int, gamma: float) -> Choice:
    """What an action gives. Outcomes alike in reward and next state are one, since no policy can tell them apart."""
    probability, reward = env.probability[state, action], env.reward[state, action].astype(np.float64)
    onward = (probability > 0) & ~env.terminated[state, action]
    told = np.column_stack([env.next_state[state, action], reward])[onward]
    distinct, which = np.unique(told, axis=0, return_inverse=True)
    weight = gamma * np.bincount(which.ravel(), probability[onward], len(distinct))
    return probability @ reward, list(zip(weight.tolist(), distinct[:, 0].astype(int).tolist()))


def _backup(choices: list[Choice], sets: list[np.ndarray], tolerance: float) -> np.ndarray:
    """One sweep at one state."""

    def undominated(points: np.ndarray) -> np.ndarray:
        return points[non_dominated(points, tolerance)]

    def add(points: np.ndarray, follow: tuple[float, int]) -> np.ndarray:
        weight, after = follow
        return undominated((points[:, None] + weight * sets[after]).reshape(-1, points.shape[1]))

    points = undominated(np.concatenate([reduce(add, follows, mean[None]) for mean, follows in choices]))
    return points[np.lexsort(points.T[::-1])]
