"""Data for cartpole-2obj: one hand-made controller in nine tempers, from one that switches all the time to one that
never does, some of them shaken or slow, so that the data shows falls and recoveries too.

The controller reads the lean s = θ + θ̇/4 + .04 x + .07 ẋ. It pushes right where s is above a band, left where s is
below −band, and goes on as before in between: the wider the band, the longer it holds a push. At each step it looks
with the probability `attention`, else it goes on as before; with the probability `noise` a coin decides instead. So it
does about the first push of an episode wherever there is nothing to go on with. Mean returns over 4,000 episodes:

| behaviour | band | attention | noise | R1 | R2 | episodes |
|---|---|---|---|---|---|---|
| eager | 0 | 1 | 0 | 500 | −331 | 24 |
| steady | .15 | 1 | 0 | 500 | −75 | 24 |
| patient | .3 | 1 | 0 | 500 | −37 | 24 |
| careless | .35 | 1 | 0 | 94 | −6 | 60 |
| shaken | 0 | 1 | .3 | 464 | −304 | 24 |
| steady, shaken | .15 | 1 | .2 | 391 | −92 | 32 |
| slow | 0 | .5 | 0 | 148 | −43 | 80 |
| drowsy | 0 | .2 | 0 | 24 | −3 | 100 |
| stubborn | 0 | 0 | 0 | 9 | 0 | 200 |
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.dataset import Dataset
from qdfm.envs.cartpole2obj import CartPole2Obj
from qdfm.envs.simulate import Record, record, steps_taken

LEAN = (0.04, 0.07, 1.0, 0.25)  # of x, ẋ, θ, θ̇
DRAWS = 3  # uniforms per decision: whether it looks, whether it is shaken, the coin


class Behaviour(NamedTuple):
    """A temper of the controller, and its number of episodes."""

    band: float
    attention: float
    noise: float
    episodes: int


BEHAVIOURS = {
    "eager": Behaviour(0.0, 1.0, 0.0, 24),
    "steady": Behaviour(0.15, 1.0, 0.0, 24),
    "patient": Behaviour(0.3, 1.0, 0.0, 24),
    "careless": Behaviour(0.35, 1.0, 0.0, 60),
    "shaken": Behaviour(0.0, 1.0, 0.3, 24),
    "steady, shaken": Behaviour(0.15, 1.0, 0.2, 32),
    "slow": Behaviour(0.0, 0.5, 0.0, 80),
    "drowsy": Behaviour(0.0, 0.2, 0.0, 100),
    "stubborn": Behaviour(0.0, 0.0, 0.0, 200),
}


def push(band: Any, attention: Any, noise: Any, uniforms: jax.Array, observation: jax.Array) -> jax.Array:
    """The controller's pushes `[B]` at observations `[B, 6]`, for one temper or one per row `[B]`."""
    looks, shaken = uniforms[:, 0] < attention, uniforms[:, 1] < noise
    coin = (uniforms[:, 2] < 0.5).astype(jnp.int32)
    lean = observation[:, :4] @ jnp.array(LEAN)
    before = jnp.where(observation[:, 4:].any(1), observation[:, 5].astype(jnp.int32), coin)
    wanted = jnp.where(lean > band, 1, jnp.where(lean < -band, 0, before))
    return jnp.where(shaken, coin, jnp.where(looks, wanted, before))


def collect_cartpole_2obj(seed: int = 0) -> Dataset:
    """All behaviours of the table, one after the other.

    The same for the same seed on one machine. Another device or compiler rounds differently, and a pole that is kept
    up by switching magnifies that within an episode: there the episodes are others, of the same kind.
    """
    env, counts = CartPole2Obj(), [b.episodes for b in BEHAVIOURS.values()]
    each = np.repeat(np.array([b[:3] for b in BEHAVIOURS.values()], np.float32), counts, 0)
    band, attention, noise = each.T  # [episodes]

    def act(uniforms: jax.Array, observation: jax.Array, mask: jax.Array, carry: None) -> tuple[jax.Array, None]:
        return push(band, attention, noise, uniforms, observation)[:, None], carry

    @jax.jit
    def play(key: jax.Array) -> Record:
        played = record(env, act, DRAWS, sum(counts), key)
        return played._replace(states={"observation": jax.vmap(jax.vmap(env.observation))(played.states)})

    played = jax.device_get(play(jax.random.key(seed, impl="threefry2x32")))
    return Dataset.from_arrays(**steps_taken(played), num_actions=2)
