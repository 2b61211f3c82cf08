"""A finite decision process written out as arrays, which is also an environment that looks its steps up.

Whatever is exact starts here: `exact` carries a policy through the process, `pareto` finds all it can reach.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step


@dataclass(frozen=True, eq=False)
class Tabular:
    """S states, A actions; an action has up to O outcomes. A state is its number, int32."""

    observations: np.ndarray  # [S, *observation_shape]
    start: int  # the first state
    next_state: np.ndarray  # [S, A, O] int
    probability: np.ndarray  # [S, A, O], sums to 1 over the outcomes
    reward: np.ndarray  # [S, A, O, objectives]
    terminated: np.ndarray  # [S, A, O] bool
    horizon: int  # steps after which an episode is cut off

    @property
    def objectives(self) -> int:
        """The number of objectives."""
        return self.reward.shape[-1]

    @property
    def spec(self) -> Spec:
        """The observations as they are, and one choice."""
        return Spec(
            observation_shape=self.observations.shape[1:],
            observation_dtype=str(self.observations.dtype),
            actions=Discrete(self.next_state.shape[1]),
            objectives=self.objectives,
        )

    def reset(self, key: jax.Array) -> jax.Array:
        """The first state."""
        return jnp.int32(self.start)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Step:
        """One of the outcomes."""
        at = (state, action[0])
        outcome = jax.random.choice(key, self.probability.shape[2], p=jnp.asarray(self.probability)[at])
        tables = (self.next_state.astype(np.int32), self.reward.astype(np.float32), self.terminated)
        return Step(*(jnp.asarray(table)[at][outcome] for table in tables))

    def observation(self, state: jax.Array) -> jax.Array:
        """The row of the state."""
        return jnp.asarray(self.observations)[state]

    def mask(self, state: jax.Array) -> jax.Array:
        """Every action is legal everywhere."""
        return jnp.ones((1, self.next_state.shape[1]), bool)
