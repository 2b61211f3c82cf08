"""What joint policies in the matrix game return, the best of them, and the fronts of the game: exactly.

A joint policy is an array `[2, 3, 3]`, laws of (first action, second action) by context. The policy of highest
⟨ω, r⟩ − KL/β against a law μ is μ exp(β⟨ω, r⟩)/C; of the behaviour it is no product of the agents' own laws, so agents
that choose apart miss it.
"""

from itertools import product

import numpy as np

from qdfm.envs.matrix import ACTIONS, AGENTS, CONTEXTS, payoffs
from qdfm.metrics import hypervolume, non_dominated, simplex

REFERENCE = (0.0, -8.0)  # of hypervolumes
PREFERENCES = 101  # of a front


def expected_returns(policy: np.ndarray) -> np.ndarray:
    """Both objectives `[..., 2]` of joint policies `[..., 2, 3, 3]`, over contexts too."""
    return np.einsum("...cij,ijm->...m", policy, payoffs()) / CONTEXTS


def coordination(policy: np.ndarray) -> np.ndarray:
    """The probability of equal actions `[...]`, over contexts too."""
    return np.einsum("...cii->...", policy) / CONTEXTS


def kl_optimal(law: np.ndarray, beta: float, preference: np.ndarray) -> np.ndarray:
    """μ exp(β⟨ω, r⟩)/C `[..., 2, 3, 3]` for a law μ `[2, 3, 3]` and preferences ω `[..., 2]`."""
    gain = np.einsum("...m,ijm->...ij", np.asarray(preference, np.float64), payoffs())
    weighed = law * np.exp(beta * (gain - gain.max((-2, -1), keepdims=True)))[..., None, :, :]
    return weighed / weighed.sum((-2, -1), keepdims=True)


def independent(policy: np.ndarray) -> np.ndarray:
    """The products of the agents' marginals of joint policies `[..., 2, 3, 3]`."""
    return policy.sum(-1)[..., :, None] * policy.sum(-2)[..., None, :]


def kl_front(law: np.ndarray, beta: float) -> np.ndarray:
    """The KL-optimal policies `[101, 2, 3, 3]` of evenly spread preferences, from (0, 1) to (1, 0)."""
    return kl_optimal(law, beta, simplex(2, PREFERENCES))


def front_hypervolume(policies: np.ndarray) -> float:
    """The hypervolume of what joint policies `[..., 2, 3, 3]` return."""
    return hypervolume(expected_returns(policies).reshape(-1, 2), REFERENCE)


def deterministic_front() -> np.ndarray:
    """The undominated policies `[n, 2, 3, 3]` among all that choose one pair in each context."""
    pairs = np.eye(ACTIONS**AGENTS).reshape(-1, ACTIONS, ACTIONS)
    policies = np.array([np.stack(chosen) for chosen in product(pairs, repeat=CONTEXTS)])
    returns = expected_returns(policies)
    front = np.flatnonzero(non_dominated(returns))
    return policies[front[np.argsort(returns[front, 0])]]


def stochastic_front(count: int = 10_001) -> np.ndarray:
    """So many policies `[count, 2, 3, 3]` on the front of all joint policies: lotteries between the ends of the
    deterministic one, since all returns lie on the line between them."""
    share = np.linspace(0, 1, count)[:, None, None, None]
    never, *_, always = deterministic_front()
    return (1 - share) * never + share * always
