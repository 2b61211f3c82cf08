"""An environment that also shows its last observations, as `Dataset.with_history` has them."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdfm.data.spec import Spec
from qdfm.envs.base import JaxEnv, Step


class Memory(NamedTuple):
    """The environment's own state, and what was seen."""

    state: Any
    seen: jax.Array  # [history, *observation_shape], the present observation last


@dataclass(frozen=True)
class Remembered:
    """The same task with observations side by side along their last axis, the present one last."""

    env: JaxEnv
    history: int

    @property
    def spec(self) -> Spec:
        """The observation is longer; all else as it was."""
        spec = self.env.spec
        *shape, last = spec.observation_shape
        return replace(spec, observation_shape=(*shape, self.history * last), categories=())

    @property
    def horizon(self) -> int:
        """As it was."""
        return self.env.horizon

    def reset(self, key: jax.Array) -> Memory:
        """As if the first observation had been there before."""
        state = self.env.reset(key)
        return Memory(state, jnp.stack([self.env.observation(state)] * self.history))

    def step(self, state: Memory, action: jax.Array, key: jax.Array) -> Step:
        """The environment's own step; the oldest observation is forgotten."""
        step = self.env.step(state.state, action, key)
        seen = jnp.concatenate([state.seen[1:], self.env.observation(step.state)[None]])
        return step._replace(state=Memory(step.state, seen))

    def observation(self, state: Memory) -> jax.Array:
        """All that is remembered."""
        return jnp.concatenate([*state.seen], -1)

    def mask(self, state: Memory) -> jax.Array:
        """As it was."""
        return self.env.mask(state.state)
