"""The border to Gymnasium: our environments as Gymnasium ones, and Gymnasium action spaces as ours."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from qdfm.data.actions import ActionSpace, Discrete, MultiDiscrete
from qdfm.envs.base import JaxEnv
from qdfm.errors import QDFMError


class GymEnv(gymnasium.Env[np.ndarray, Any]):
    """A built-in environment behind Gymnasium's interface.

    `info["action_mask"]` holds the legal choices as int8: `[n]` for one choice, the way `action_space.sample`
    takes it, `[D, K]` for a decision of several parts. With several objectives the reward is a vector in
    `reward_space`, as in MO-Gymnasium.
    """

    def __init__(self, env: JaxEnv) -> None:
        spec, actions = env.spec, env.spec.actions
        self.jax_env = env
        self.action_space = (
            spaces.Discrete(actions.n)
            if isinstance(actions, Discrete)
            else spaces.MultiDiscrete(np.array(actions.nvec))
        )
        self.observation_space = _box(spec.observation_shape, spec.observation_dtype)
        if spec.objectives > 1:
            self.reward_space = _box((spec.objectives,), "float32")
        self._state: Any = None
        self._steps = 0

        def view(state: Any) -> tuple[jax.Array, jax.Array]:
            return env.observation(state), env.mask(state)

        def first(key: jax.Array) -> tuple[Any, ...]:
            state = env.reset(jax.random.fold_in(key, 0))
            return state, view(state)

        def after(state: Any, tokens: jax.Array, key: jax.Array, steps: int) -> tuple[Any, ...]:
            step = env.step(state, tokens, jax.random.fold_in(key, steps))
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


def action_space_of(env: gymnasium.Env) -> ActionSpace:
    """Our action space for a Gymnasium environment's; only finite choices numbered from 0 have one."""
    space = env.action_space
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        raise QDFMError(
            f"The action space {space} is neither Discrete nor MultiDiscrete; discretise the actions first."
        )
    if np.any(space.start):
        raise QDFMError(f"The action space {space} does not count from 0; wrap the environment so it does.")
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if space.nvec.ndim != 1:
        raise QDFMError(f"The action space {space} has {space.nvec.ndim} axes; flatten it to one.")
    return MultiDiscrete(tuple(int(n) for n in space.nvec))


def _box(shape: tuple[int, ...], dtype: str) -> spaces.Box:
    """All finite values: the environments declare no tighter bounds, and infinite ones draw warnings."""
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, shape, np.dtype(dtype).type)
