"""Episodes of a built-in environment side by side, under whatever says what to do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdfm.envs.base import JaxEnv

Act = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]
"""(uniforms [B, n], observation, mask, carry) -> (tokens [B, D], carry)"""


def simulate(env: JaxEnv, act: Act, noise: int, episodes: int, key: jax.Array) -> tuple[Any, ...]:
    """All episodes side by side, to be compiled by the caller: states `[T + 1, episodes, ...]`, after the end the last
    again; reward `[T, episodes, objectives]`, 0 after the end; whether a step was taken `[T, episodes]`; and whether
    the episode was terminated `[episodes]`. A decision of one episode takes `noise` uniforms.
    """

    def step(carry: Any, t: jax.Array) -> tuple[Any, Any]:
        state, alive, memory = carry
        draw, move = jax.random.split(jax.random.fold_in(key, t))
        uniforms = jax.random.uniform(draw, (episodes, noise))
        observation, mask = jax.vmap(env.observation)(state), jax.vmap(env.mask)(state)
        tokens, memory = act(uniforms, observation, mask, memory)
        moved = jax.vmap(env.step)(state, tokens, jax.random.split(move, episodes))

        def keep(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(alive.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        state = jax.tree.map(keep, moved.state, state)
        reward = jnp.where(alive[:, None], moved.reward, 0)
        return (state, alive & ~moved.terminated, memory), (state, reward, alive)

    first = jax.vmap(env.reset)(jax.random.split(jax.random.fold_in(key, env.horizon), episodes))
    start = (first, jnp.ones(episodes, bool), None)
    (_, alive, _), (states, reward, running) = jax.lax.scan(step, start, jnp.arange(env.horizon))
    states = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, states)
    return states, reward, running, ~alive
