"""An environment that also shows the discounted return so far and γ^t, as `Dataset.with_accumulated` has them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdfm.data.spec import Spec
from qdfm.envs.base import JaxEnv, Step


class SoFar(NamedTuple):
    """The environment's own state, what has been paid, and the weight of what comes."""

    state: Any
    paid: jax.Array  # [objectives]
    weight: jax.Array  # γ^t


@dataclass(frozen=True)
class Accumulated:
    """The same task with a longer observation `[n + objectives + 1]`."""

    env: JaxEnv
    gamma: float

    @property
    def spec(self) -> Spec:
        """The observation is longer; all else as it was."""
        spec = self.env.spec
        (size,) = spec.observation_shape
        return Spec((size + spec.objectives + 1,), spec.actions, objectives=spec.objectives)

    @property
    def horizon(self) -> int:
        """As it was."""
        return self.env.horizon

    def reset(self, key: jax.Array) -> SoFar:
        """Nothing has been paid."""
        return SoFar(self.env.reset(key), jnp.zeros(self.env.spec.objectives), jnp.float32(1))

    def step(self, state: SoFar, action: jax.Array, key: jax.Array) -> Step:
        """The environment's own step, and its reward added."""
        step = self.env.step(state.state, action, key)
        after = SoFar(step.state, state.paid + state.weight * step.reward, state.weight * self.gamma)
        return Step(after, step.reward, step.terminated)

    def observation(self, state: SoFar) -> jax.Array:
        """The environment's own, then the return so far, then γ^t."""
        own = self.env.observation(state.state).astype(jnp.float32)
        return jnp.concatenate([own, state.paid, state.weight[None]])

    def mask(self, state: SoFar) -> jax.Array:
        """As it was."""
        return self.env.mask(state.state)
