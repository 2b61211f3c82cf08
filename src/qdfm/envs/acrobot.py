"""Acrobot: two hanging links, driven only at the joint between them, must swing their tip above a line.

The equations of motion of Sutton and Barto's book, with the constants and the limits of Gymnasium's Acrobot-v1. Both
links weigh 1, are 1 long, have their centre in the middle and moment of inertia 1.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step

GRAVITY, MASS, LENGTH, CENTRE, INERTIA = 9.8, 1.0, 1.0, 0.5, 1.0
TORQUES = (-1.0, 0.0, 1.0)
SECONDS = 0.2  # of one step, integrated by one Runge-Kutta step of fourth order
FASTEST = (4 * math.pi, 9 * math.pi)
FIRST = 0.1  # each coordinate of the first state is uniform within ± this


@dataclass(frozen=True)
class Acrobot:
    """Reward −1 per step, 0 for the one that gets there. A state is `[4]`: θ₁ from hanging, θ₂ relative, θ̇₁, θ̇₂."""

    horizon: int = 500

    @property
    def spec(self) -> Spec:
        """Cosine and sine of both angles and both velocities, and three torques."""
        return Spec(observation_shape=(6,), actions=Discrete(len(TORQUES)))

    def reset(self, key: jax.Array) -> jax.Array:
        """Almost hanging, almost at rest."""
        return jax.random.uniform(key, (4,), minval=-FIRST, maxval=FIRST)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Step:
        """A constant torque for one time step; then angles are wrapped to ±π and velocities cut to their limits."""
        torque = jnp.array(TORQUES)[action[0]]
        k1 = _motion(state, torque)
        k2 = _motion(state + SECONDS / 2 * k1, torque)
        k3 = _motion(state + SECONDS / 2 * k2, torque)
        k4 = _motion(state + SECONDS * k3, torque)
        state = state + SECONDS / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        limit = jnp.array(FASTEST)
        angles = jnp.mod(state[:2] + math.pi, 2 * math.pi) - math.pi
        state = jnp.concatenate([angles, jnp.clip(state[2:], -limit, limit)])
        ended = -jnp.cos(angles[0]) - jnp.cos(angles[0] + angles[1]) > 1
        return Step(state, jnp.where(ended, 0.0, -1.0)[None], ended)

    def observation(self, state: jax.Array) -> jax.Array:
        """cos θ₁, sin θ₁, cos θ₂, sin θ₂, θ̇₁, θ̇₂, `[6]`."""
        angles = jnp.stack([jnp.cos(state[:2]), jnp.sin(state[:2])], -1).reshape(-1)
        return jnp.concatenate([angles, state[2:]])

    def mask(self, state: jax.Array) -> jax.Array:
        """Every torque is always legal."""
        return jnp.ones((1, len(TORQUES)), bool)


def _motion(state: jax.Array, torque: jax.Array) -> jax.Array:
    """The time derivative `[4]` of a state."""
    theta1, theta2, speed1, speed2 = state
    sine, cosine = jnp.sin(theta2), jnp.cos(theta2)
    lever = MASS * LENGTH * CENTRE
    d1 = MASS * CENTRE**2 + MASS * (LENGTH**2 + CENTRE**2) + 2 * lever * cosine + 2 * INERTIA
    d2 = MASS * CENTRE**2 + lever * cosine + INERTIA
    # Angles are measured from hanging, so gravity acts by the sine.
    phi2 = MASS * CENTRE * GRAVITY * jnp.sin(theta1 + theta2)
    weight1 = MASS * (CENTRE + LENGTH) * GRAVITY * jnp.sin(theta1)
    phi1 = -lever * speed2 * (speed2 + 2 * speed1) * sine + weight1 + phi2
    pull = torque + d2 / d1 * phi1 - lever * speed1**2 * sine - phi2
    turn2 = pull / (MASS * CENTRE**2 + INERTIA - d2**2 / d1)
    turn1 = -(d2 * turn2 + phi1) / d1
    return jnp.stack([speed1, speed2, turn1, turn2])
