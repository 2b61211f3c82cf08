"""Multigoal: a grid where several goals are equally good and the mean of two good moves is a trap.

11×11 cells, start (5, 0). The column x = 5, y = 3..9 is a trap (−10, ends); K goals lie on the row y = 10
(+10, ends). A policy that averages experts to the left and to the right walks straight up, into the trap.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.errors import QDFMError

SIZE = 11
START = (5, 0)
TRAP_X, TRAP_Y = 5, (3, 9)
GOAL_Y = SIZE - 1
GOAL_X = {2: (1, 9), 3: (1, 5, 9), 4: (1, 3, 7, 9), 5: (1, 3, 5, 7, 9)}
MOVES = ((0, 1), (0, -1), (-1, 0), (1, 0))  # up, down, left, right


@dataclass(frozen=True)
class MultiGoal:
    """The grid with `goals` goals. A state is the cell `[2]` int32, (x, y)."""

    goals: int
    horizon: int = 60

    def __post_init__(self) -> None:
        if self.goals not in GOAL_X:
            raise QDFMError(f"multigoal has no layout with {self.goals} goals; choose 2, 3, 4 or 5.")

    @property
    def spec(self) -> Spec:
        """One-hot x beside one-hot y, and four moves."""
        return Spec(observation_shape=(2 * SIZE,), actions=Discrete(len(MOVES)))

    @property
    def goal_x(self) -> tuple[int, ...]:
        """The column of each goal, from left to right."""
        return GOAL_X[self.goals]

    def outcome(self, state: jax.Array) -> jax.Array:
        """What states `[..., 2]` end in: the goal's index, `goals` for the trap, −1 where nothing ends."""
        x, y = state[..., 0], state[..., 1]
        at_goal = (x[..., None] == jnp.array(self.goal_x)) & (y == GOAL_Y)[..., None]
        in_trap = (x == TRAP_X) & (y >= TRAP_Y[0]) & (y <= TRAP_Y[1])
        return jnp.where(in_trap, self.goals, jnp.where(at_goal.any(-1), at_goal.argmax(-1), -1))

    def reset(self, key: jax.Array) -> jax.Array:
        """The start cell; nothing is random here."""
        return jnp.array(START, jnp.int32)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Step:
        """One move; a move off the grid stays where it is."""
        state = jnp.clip(state + jnp.array(MOVES, jnp.int32)[action[0]], 0, SIZE - 1)
        outcome = self.outcome(state)
        reward = jnp.where(outcome < 0, 0.0, jnp.where(outcome == self.goals, -10.0, 10.0))
        return Step(state, reward[None], outcome >= 0)

    def observation(self, state: jax.Array) -> jax.Array:
        """One-hot x and one-hot y, `[22]`."""
        return jax.nn.one_hot(state, SIZE, dtype=jnp.float32).reshape(-1)

    def mask(self, state: jax.Array) -> jax.Array:
        """Every move is legal everywhere."""
        return jnp.ones((1, len(MOVES)), bool)
