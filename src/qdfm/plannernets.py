"""The network of a diffusion planner: a transformer over a sequence of states (DiT: Peebles & Xie, 2023).

Time and condition modulate every layer norm (adaLN-Zero): blocks begin as the identity and the output as zero.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.nets import Linear
from qdfm.ratenets import FREQUENCIES, time_embedding

LECUN = math.sqrt(3.0)  # uniform weights that keep the variance, for layers that no ReLU follows
EXPANSION = 4  # of the feed-forward layers
EPSILON = 1e-6  # of the layer norms


def normed(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    """Layer norm, then gain 1 + scale and shift, which are told from outside."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(centred.var(-1, keepdims=True) + EPSILON) * (1 + scale) + shift


class Block(eqx.Module):
    """Self-attention and a feed-forward layer."""

    modulation: Linear
    inner: Linear
    outer: Linear
    up: Linear
    down: Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, key: jax.Array):
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        self.modulation = Linear(width, 6 * width, k1, gain=0.0)
        self.inner, self.outer = Linear(width, 3 * width, k2, LECUN), Linear(width, width, k3, LECUN)
        self.up, self.down = Linear(width, EXPANSION * width, k4, LECUN), Linear(EXPANSION * width, width, k5, LECUN)
        self.heads = heads

    def __call__(self, x: jax.Array, told: jax.Array) -> jax.Array:
        """Sequences `[B, H, width]`, told `[B, width]`."""
        shift1, scale1, gate1, shift2, scale2, gate2 = jnp.split(self.modulation(told)[:, None], 6, -1)
        x = x + gate1 * self.attend(normed(x, shift1, scale1))
        return x + gate2 * self.down(jax.nn.gelu(self.up(normed(x, shift2, scale2))))

    def attend(self, x: jax.Array) -> jax.Array:
        """Every state looks at every state."""
        query, key, value = jnp.split(self.inner(x).reshape(*x.shape[:2], self.heads, -1), 3, -1)  # [B, H, heads, ·]
        score = jnp.einsum("bihd,bjhd->bhij", query, key) / math.sqrt(query.shape[-1])
        return self.outer(jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(score, -1), value).reshape(x.shape))


class Planner(eqx.Module):
    """Outputs `[B, H, outputs]` for noised sequences, their times, and a condition that can be kept back."""

    states: Linear
    position: jax.Array  # [H, width]
    times: tuple[Linear, Linear]
    condition: tuple[Linear, Linear]
    blocks: tuple[Block, ...]
    modulation: Linear
    head: Linear

    def __init__(
        self, features: int, conditions: int, outputs: int, horizon: int, width: int, depth: int, heads: int,
        key: jax.Array,
    ):  # fmt: skip
        keys = iter(jax.random.split(key, depth + 8))
        self.states = Linear(features, width, next(keys), LECUN)
        self.position = jax.random.normal(next(keys), (horizon, width)) / math.sqrt(2)  # as large as sines and cosines
        self.times = Linear(2 * FREQUENCIES, width, next(keys), LECUN), Linear(width, width, next(keys), LECUN)
        self.condition = Linear(conditions, width, next(keys), LECUN), Linear(width, width, next(keys), LECUN)
        self.blocks = tuple(Block(width, heads, next(keys)) for _ in range(depth))
        self.modulation = Linear(width, 2 * width, next(keys), gain=0.0)
        self.head = Linear(width, outputs, next(keys), gain=0.0)

    def __call__(self, x: jax.Array, t: jax.Array, condition: jax.Array, kept: jax.Array) -> jax.Array:
        """Sequences `[B, H, features]`, times `[B]`, conditions `[B, conditions]`, whether they are known `[B]`."""
        wanted = self.condition[1](jax.nn.silu(self.condition[0](condition)))
        moment = self.times[1](jax.nn.silu(self.times[0](time_embedding(t))))
        told = jax.nn.silu(moment + jnp.where(kept[:, None], wanted, 0))
        y = self.states(x) + self.position
        for block in self.blocks:
            y = block(y, told)
        shift, scale = jnp.split(self.modulation(told)[:, None], 2, -1)
        return self.head(normed(y, shift, scale))


def guided(net: Planner, x: jax.Array, t: jax.Array, condition: jax.Array, weight: float) -> jax.Array:
    """Classifier-free guidance `[B, H, outputs]`: weight · with the condition + (1 − weight) · without."""
    rows = len(x)
    twice = [jnp.concatenate([v, v]) for v in (x, t, condition)]
    both = net(twice[0], twice[1], twice[2], jnp.arange(2 * rows) < rows)
    return weight * both[:rows] + (1 - weight) * both[rows:]
