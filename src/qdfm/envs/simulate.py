"""Episodes of a built-in environment side by side, under whatever says what to do, and the rows that they make."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.envs.base import JaxEnv

Act = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]
"""(uniforms [B, n], observation, mask, carry) -> (tokens [B, D], carry)"""


class Record(NamedTuple):
    """Episodes side by side, time first. Rows after an episode's end are not `running`."""

    states: Any  # [T + 1, episodes, ...], after the end the last again
    reward: Any  # [T, episodes, objectives], 0 after the end
    running: Any  # [T, episodes], whether the step was taken
    terminated: Any  # [episodes]
    action: Any  # [T, episodes, D], of no meaning after the end


def record(env: JaxEnv, act: Act, noise: int, episodes: int, key: jax.Array) -> Record:
    """All episodes side by side, to be compiled by the caller. A decision of one episode takes `noise` uniforms."""

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
        return (state, alive & ~moved.terminated, memory), (state, reward, alive, tokens)

    first = jax.vmap(env.reset)(jax.random.split(jax.random.fold_in(key, env.horizon), episodes))
    start = (first, jnp.ones(episodes, bool), None)
    (_, alive, _), (states, reward, running, action) = jax.lax.scan(step, start, jnp.arange(env.horizon))
    states = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, states)
    return Record(states, reward, running, ~alive, action)


def steps_taken(played: Record) -> dict[str, Any]:
    """The steps of a record on the host, episode by episode, as arguments of `Dataset.from_arrays`.

    Its states are what is wanted of them by name, `{"observation": [T + 1, episodes, ...], ...}`: before the step that
    is the field of this name, after it `next_observation`.
    """
    taken = played.running.T  # [episodes, T]
    last = np.arange(taken.shape[1]) == taken.sum(1, keepdims=True) - 1
    terminated = played.terminated[:, None]

    def rows(by_time: np.ndarray) -> np.ndarray:
        return by_time.swapaxes(0, 1)[taken]

    return {
        **{name: rows(seen[:-1]) for name, seen in played.states.items()},
        **{f"next_{name}": rows(seen[1:]) for name, seen in played.states.items()},
        "action": rows(played.action),
        "reward": rows(played.reward),
        "terminated": (last & terminated)[taken],
        "truncated": (last & ~terminated)[taken],
        "episode": np.nonzero(taken)[0],
    }
