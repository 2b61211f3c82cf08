"""Matrix: two agents choose once, at the same time, and one objective pays for agreeing, the other for not agreeing.

A context s ∈ {0, 1}, drawn uniformly, is shown to both; each picks one of three actions. r₁ = 8 where the two are equal
and −2 where not, r₂ = −3.35 and 0. The paper prints no payoffs; these are ours. So only the probability of agreeing
counts, in either context, and all returns lie on the line between (−2, 0) and (8, −3.35).

The behaviour prefers the pair (s, s) with probability .945 and (1 − s, 1 − s) else; given the pair, each agent follows
its part with .905, else takes one of the other two actions, on its own. A joint policy is an array `[2, 3, 3]`, laws of
(first action, second action) by context; everything below is exact. The policy of highest ⟨ω, r⟩ − KL/β against a law μ
is μ exp(β⟨ω, r⟩)/C; of the behaviour it is no product of the agents' own laws, so agents that choose apart miss it.
"""

from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.metrics import hypervolume, non_dominated, simplex

CONTEXTS, AGENTS, ACTIONS = 2, 2, 3
EQUAL, DIFFERENT = (8.0, -3.35), (-2.0, 0.0)  # the payoffs in both objectives
PREFERRED, FOLLOWED = 0.945, 0.905  # probabilities of the behaviour
REFERENCE = (0.0, -8.0)  # of hypervolumes
PREFERENCES = 101  # of a front


@dataclass(frozen=True)
class Matrix:
    """Two agents, one step, two contexts: one objective pays for equal actions, the other for different ones."""

    horizon: int = 1

    @property
    def spec(self) -> Spec:
        """Each agent sees the context one-hot, which is the global state too."""
        actions = MultiDiscrete((ACTIONS,) * AGENTS)
        return Spec((AGENTS, CONTEXTS), actions, objectives=2, agents=AGENTS, state_shape=(CONTEXTS,))

    def reset(self, key: jax.Array) -> jax.Array:
        """A context."""
        return jax.random.randint(key, (), 0, CONTEXTS)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Step:
        """The payoff, and the end."""
        return Step(state, jnp.asarray(payoffs(), jnp.float32)[action[0], action[1]], jnp.array(True))

    def observation(self, state: jax.Array) -> jax.Array:
        """The context, one row per agent."""
        return jnp.tile(self.global_state(state), (AGENTS, 1))

    def global_state(self, state: jax.Array) -> jax.Array:
        """The context, one-hot."""
        return jax.nn.one_hot(state, CONTEXTS)

    def mask(self, state: jax.Array) -> jax.Array:
        """Every action is legal."""
        return jnp.ones((AGENTS, ACTIONS), bool)


def payoffs() -> np.ndarray:
    """The rewards of all pairs of actions, `[3, 3, 2]`."""
    return np.where(np.eye(ACTIONS, dtype=bool)[..., None], EQUAL, DIFFERENT)


def behaviour() -> np.ndarray:
    """The behaviour's joint law `[2, 3, 3]`."""
    alone = np.full((CONTEXTS, ACTIONS), (1 - FOLLOWED) / (ACTIONS - 1))  # of an agent that is to take action 0 or 1
    alone[range(CONTEXTS), range(CONTEXTS)] = FOLLOWED
    together = alone[:, :, None] * alone[:, None, :]  # by the preferred pair
    return PREFERRED * together + (1 - PREFERRED) * together[::-1]


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
