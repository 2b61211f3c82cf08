"""Grid worlds: four moves, and cells that end an episode and pay. `table` has all of it, for exact calculations.

Cells are numbered y · width + x, so that an array over cells reshaped to `[height, width]` is a picture with rows y.
"""

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.envs.tabular import Tabular

MOVES = ((0, 1), (0, -1), (-1, 0), (1, 0))  # up, down, left, right


class Grid(ABC):
    """What they share: a subclass says where episodes end and what that pays. A state is a cell `[2]` int32, (x, y)."""

    width: int
    height: int
    first: tuple[int, int]  # the start cell
    horizon: int

    @property
    @abstractmethod
    def plan(self) -> np.ndarray:
        """The outcome that each cell ends in, `[height, width]`; −1 where nothing ends."""

    @property
    @abstractmethod
    def payoffs(self) -> np.ndarray:
        """What each outcome pays, `[outcomes, objectives]`."""

    @property
    def spec(self) -> Spec:
        """One-hot x beside one-hot y, and four moves."""
        objectives = self.payoffs.shape[1]
        return Spec((self.width + self.height,), Discrete(len(MOVES)), objectives=objectives)

    def outcome(self, state: jax.Array) -> jax.Array:
        """What states `[..., 2]` end in, −1 where nothing ends."""
        return jnp.asarray(self.plan)[state[..., 1], state[..., 0]]

    def reset(self, key: jax.Array) -> jax.Array:
        """The start cell; nothing is random here."""
        return jnp.array(self.first, jnp.int32)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Step:
        """One move; a move off the grid stays where it is."""
        corner = jnp.array((self.width - 1, self.height - 1), jnp.int32)
        state = jnp.clip(state + jnp.array(MOVES, jnp.int32)[action[0]], 0, corner)
        outcome = self.outcome(state)
        paid = jnp.asarray(self.payoffs, jnp.float32)[outcome]
        return Step(state, jnp.where(outcome < 0, 0.0, paid), outcome >= 0)

    def observation(self, state: jax.Array) -> jax.Array:
        """One-hot x and one-hot y, `[width + height]`."""
        x, y = (jax.nn.one_hot(state[i], n, dtype=jnp.float32) for i, n in enumerate((self.width, self.height)))
        return jnp.concatenate([x, y])

    def mask(self, state: jax.Array) -> jax.Array:
        """Every move is legal everywhere."""
        return jnp.ones((1, len(MOVES)), bool)

    def cell_of(self, state: np.ndarray) -> np.ndarray:
        """The numbers of the cells of states (x, y) `[..., 2]`."""
        return np.asarray(state)[..., 1] * self.width + np.asarray(state)[..., 0]

    def table(self) -> Tabular:
        """The environment's own step, taken from every cell with every move."""
        y, x = np.divmod(np.arange(self.width * self.height, dtype=np.int32), self.width)
        states, actions = jnp.asarray(np.stack([x, y], 1)), jnp.arange(len(MOVES))[:, None]
        step = jax.vmap(jax.vmap(self.step, (None, 0, None)), (0, None, None))(states, actions, jax.random.key(0))
        next_state = self.cell_of(np.asarray(step.state))
        return Tabular(
            observations=np.asarray(jax.vmap(self.observation)(states)),
            start=int(self.cell_of(np.array(self.first))),
            next_state=next_state[..., None],
            probability=np.ones((*next_state.shape, 1)),
            reward=np.asarray(step.reward, np.float64)[:, :, None],
            terminated=np.asarray(step.terminated)[..., None],
            horizon=self.horizon,
        )
