"""Matrix: two agents choose once, at the same time, and one objective pays for agreeing, the other for not agreeing.

A context s ∈ {0, 1}, drawn uniformly, is shown to both; each picks one of three actions. r₁ = 8 where the two are equal
and −2 where not, r₂ = −3.35 and 0. The paper prints no payoffs; these are ours. So only the probability of agreeing
counts, in either context, and all returns lie on the line between (−2, 0) and (8, −3.35).

The behaviour prefers the pair (s, s) with probability .945 and (1 − s, 1 − s) else; given the pair, each agent follows
its part with .905, else takes one of the other two actions, on its own.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step

CONTEXTS, AGENTS, ACTIONS = 2, 2, 3
EQUAL, DIFFERENT = (8.0, -3.35), (-2.0, 0.0)  # the payoffs in both objectives
PREFERRED, FOLLOWED = 0.945, 0.905  # probabilities of the behaviour


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
    """The behaviour's joint law `[2, 3, 3]`: of (first action, second action), by context."""
    alone = np.full((CONTEXTS, ACTIONS), (1 - FOLLOWED) / (ACTIONS - 1))  # of an agent that is to take action 0 or 1
    alone[range(CONTEXTS), range(CONTEXTS)] = FOLLOWED
    together = alone[:, :, None] * alone[:, None, :]  # by the preferred pair
    return PREFERRED * together + (1 - PREFERRED) * together[::-1]
