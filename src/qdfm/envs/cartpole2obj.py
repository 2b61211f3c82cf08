"""CartPole with two objectives: stay up, and push as steadily as possible (the paper's toy sweep of preferences).

The second reward counts switches of the push, so what it pays depends on the previous action. The paper leaves that out
of the observation; here it is in, since the second objective would be no function of what the agent sees.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.envs.cartpole import CartPole

CART = CartPole()
NONE = -1  # the previous action of a first state


class State(NamedTuple):
    """The cart, and what was pushed last."""

    cart: jax.Array  # [4]: x, ẋ, θ, θ̇
    previous: jax.Array  # int32: 0 left, 1 right, NONE before the first push


@dataclass(frozen=True)
class CartPole2Obj:
    """Rewards (1, −1 if the push differs from the previous one, else 0) per step; the first push is no switch."""

    horizon: int = 500

    @property
    def spec(self) -> Spec:
        """The cart's four numbers beside the previous push, and two pushes: left, right."""
        return Spec(observation_shape=(6,), actions=Discrete(2), objectives=2)

    def reset(self, key: jax.Array) -> State:
        """As CartPole, nothing pushed yet."""
        return State(CART.reset(key), jnp.int32(NONE))

    def step(self, state: State, action: jax.Array, key: jax.Array) -> Step:
        """CartPole's step; a switch costs 1 of the second objective."""
        moved = CART.step(state.cart, action, key)
        push = action[0].astype(jnp.int32)
        switched = (state.previous != NONE) & (push != state.previous)
        reward = jnp.concatenate([moved.reward, -switched.astype(jnp.float32)[None]])
        return Step(State(moved.state, push), reward, moved.terminated)

    def observation(self, state: State) -> jax.Array:
        """x, ẋ, θ, θ̇ and the previous push as one-hot, zeros where there is none, `[6]`."""
        return jnp.concatenate([state.cart, jax.nn.one_hot(state.previous, 2)])

    def mask(self, state: State) -> jax.Array:
        """Both pushes are always legal."""
        return CART.mask(state.cart)
