"""A built-in environment as a Gymnasium one, for other libraries and for loops of one's own."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from qdfm.data.actions import Discrete
from qdfm.envs.base import JaxEnv
from qdfm.envs.gymnasium import box
from qdfm.envs.registry import ENVIRONMENTS
from qdfm.errors import QDFMError, unknown


class GymEnv(gymnasium.Env[np.ndarray, Any]):
    """A built-in environment, by its name or itself, behind Gymnasium's interface.

    `info["action_mask"]` holds the legal choices as int8: `[n]` for one choice, the way `action_space.sample`
    takes it, `[D, K]` for a decision of several parts. With several objectives the reward is a vector in
    `reward_space`, as in MO-Gymnasium.
    """

    def __init__(self, env: str | JaxEnv) -> None:
        self.jax_env = world = _built_in(env) if isinstance(env, str) else env
        spec, actions = world.spec, world.spec.actions
        self.action_space = (
            spaces.Discrete(actions.n)
            if isinstance(actions, Discrete)
            else spaces.MultiDiscrete(np.array(actions.choices))
        )
        self.observation_space = box(spec.observation_shape, spec.observation_dtype)
        if spec.objectives > 1:
            self.reward_space = box((spec.objectives,), "float32")
        self._state: Any = None
        self._steps = 0

        def view(state: Any) -> tuple[jax.Array, jax.Array]:
            return world.observation(state), world.mask(state)

        def first(key: jax.Array) -> tuple[Any, ...]:
            state = world.reset(jax.random.fold_in(key, 0))
            return state, view(state)

        def after(state: Any, tokens: jax.Array, key: jax.Array, steps: int) -> tuple[Any, ...]:
            step = world.step(state, tokens, jax.random.fold_in(key, steps))
            return step, view(step.state)

        self._first, self._after = jax.jit(first), jax.jit(after)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new episode. All its randomness comes from one key drawn from `np_random`."""
        super().reset(seed=seed)
        self._key = jax.random.key(int(self.np_random.integers(2**31)))
        self._steps = 0
        self._state, seen = self._first(self._key)
        return self._report(*seen)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """One step; an episode that has not ended by the horizon is truncated there."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("Call reset before the first step.")
        action = np.asarray(action)
        if not self.action_space.contains(action):
            raise QDFMError(f"The action {action} is not in {self.action_space}; give one that is.")
        self._steps += 1
        tokens = self.jax_env.spec.actions.encode(action[None])[0]
        step, seen = self._after(self._state, tokens, self._key, self._steps)
        self._state = step.state
        reward = np.array(step.reward, np.float32)
        terminated = bool(step.terminated)
        truncated = not terminated and self._steps >= self.jax_env.horizon
        observation, info = self._report(*seen)
        return observation, reward if len(reward) > 1 else float(reward[0]), terminated, truncated, info

    def _report(self, observation: jax.Array, mask: jax.Array) -> tuple[np.ndarray, dict[str, Any]]:
        legal = np.array(mask, np.int8)
        single = isinstance(self.action_space, spaces.Discrete)
        return np.array(observation), {"action_mask": legal[0] if single else legal}


def _built_in(name: str) -> JaxEnv:
    if name not in ENVIRONMENTS:
        raise unknown("built-in environment", name, ENVIRONMENTS)
    return ENVIRONMENTS[name]()
