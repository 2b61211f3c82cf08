"""Gaussian diffusion of vectors in continuous time: x_t = α_t x_0 + σ_t ε. Knows arrays, nothing of states or rewards.

The schedule is the variance-preserving one with a linear β(t) (Song et al., 2021), from the data at t = 0 to noise at
t = 1; DDIM (Song et al., 2021) walks back without adding noise, by a network that predicts x_0.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

BETA_MIN, BETA_MAX = 0.1, 20.0
FIRST = 1e-3  # the least time that is trained on and sampled at; σ is .01 there
TAIL = 1e-6  # uniforms nearer to 0 or 1 are taken to be so near: normals stay within ±4.8


def schedule(t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """α and σ at times `[...]`: log α = −(β₁ − β₀) t² / 4 − β₀ t / 2 and α² + σ² = 1."""
    log_alpha = -(BETA_MAX - BETA_MIN) * t**2 / 4 - BETA_MIN * t / 2
    return jnp.exp(log_alpha), jnp.sqrt(-jnp.expm1(2 * log_alpha))


def noised(x0: jax.Array, t: jax.Array, noise: jax.Array) -> jax.Array:
    """x_t of data and noise `[B, ...]` at times `[B]`."""
    alpha, sigma = (v.reshape(-1, *(1,) * (x0.ndim - 1)) for v in schedule(t))
    return alpha * x0 + sigma * noise


def normals(uniforms: jax.Array) -> jax.Array:
    """Standard normals, one of each uniform."""
    return ndtri(jnp.clip(uniforms, TAIL, 1 - TAIL))


def ddim(
    denoise: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    steps: int,
    clamp: Callable[[jax.Array], jax.Array] = lambda x: x,
) -> jax.Array:
    """From noise `[B, ...]` at t = 1 to data, by `denoise(x, t)`, which predicts x_0; `clamp` follows every step."""
    times = jnp.linspace(1.0, FIRST, steps + 1, dtype=x.dtype)
    alpha, sigma = schedule(times)

    def step(x: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        x0 = denoise(x, times[k])
        noise = (x - alpha[k] * x0) / sigma[k]
        return clamp(alpha[k + 1] * x0 + sigma[k + 1] * noise), None

    return jax.lax.scan(step, clamp(x), jnp.arange(steps))[0]
