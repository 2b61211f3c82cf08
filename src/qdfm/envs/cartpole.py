"""CartPole: balance a pole on a cart by pushing the cart left or right.

The equations of motion of Barto, Sutton and Anderson (1983) without friction, with the constants and the limits of
Gymnasium's CartPole-v1.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
PUSH, SECONDS = 10.0, 0.02  # the force of one action and how long it lasts
TRACK_END, FALLEN = 2.4, 12 * math.pi / 180
FIRST = 0.05  # each coordinate of the first state is uniform within ± this


@dataclass(frozen=True)
class CartPole:
    """Reward 1 per step until the pole falls or the cart leaves the track. A state is `[4]`: x, ẋ, θ, θ̇."""

    horizon: int = 500

    @property
    def spec(self) -> Spec:
        """The state itself, and two pushes: left, right."""
        return Spec(observation_shape=(4,), actions=Discrete(2))

    def reset(self, key: jax.Array) -> jax.Array:
        """Near the middle, almost upright, almost at rest."""
        return jax.random.uniform(key, (4,), minval=-FIRST, maxval=FIRST)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Step:
        """One explicit Euler step: positions move with the velocities from before the push."""
        _, x_dot, theta, theta_dot = state
        sine, cosine = jnp.sin(theta), jnp.cos(theta)
        total = CART_MASS + POLE_MASS
        force = jnp.where(action[0] == 1, PUSH, -PUSH)
        drive = (force + POLE_MASS * HALF_LENGTH * theta_dot**2 * sine) / total
        inertia = HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / total)
        theta_ddot = (GRAVITY * sine - cosine * drive) / inertia
        x_ddot = drive - POLE_MASS * HALF_LENGTH * theta_ddot * cosine / total
        state = state + SECONDS * jnp.stack([x_dot, x_ddot, theta_dot, theta_ddot])
        ended = (jnp.abs(state[0]) > TRACK_END) | (jnp.abs(state[2]) > FALLEN)
        return Step(state, jnp.ones(1), ended)

    def observation(self, state: jax.Array) -> jax.Array:
        """The state, `[4]`."""
        return state

    def mask(self, state: jax.Array) -> jax.Array:
        """Both pushes are always legal."""
        return jnp.ones((1, 2), bool)
