"""The mixture path and its target rates (paper: Eq. 3 and Eq. 4, per token as in the factorised path of §3.5).

Per token p_t = (1−t) δ(A0) + t δ(A1); the chain jumps from any a ≠ A1 to A1 at rate 1/(1−t) and stays there.
Random numbers come in as uniforms, so that the same functions serve training, acting and exact enumeration.
"""

import jax
import jax.numpy as jnp


def one_hot(tokens: jax.Array, choices: int, dtype: jnp.dtype | None = None) -> jax.Array:
    """Tokens `[..., D]` as laws `[..., D, K]`; a masked token (index K) is a row of zeros."""
    return jax.nn.one_hot(tokens, choices, dtype=dtype or jnp.float32)


def draw_times(uniforms: jax.Array, steps: int) -> jax.Array:
    """Times for training, uniform on [0, 1 − 1/N].

    On [0, 1] the expected squared target rate diverges. Nothing is lost by stopping at 1 − 1/N, because an Euler
    sampler with N steps never asks for a later time; for N = 1 only t = 0 is ever asked for.
    """
    return uniforms * (1 - 1 / steps)


def draw_source(uniforms: jax.Array, legal: jax.Array) -> jax.Array:
    """A0 uniform over the legal choices of each token, from uniforms `[..., D]`."""
    count = jnp.sum(legal, -1)
    rank = jnp.minimum(jnp.floor(uniforms * count), count - 1)
    return jnp.sum(jnp.cumsum(legal, -1) <= rank[..., None], -1).astype(jnp.int32)


def interpolate(uniforms: jax.Array, t: jax.Array, a0: jax.Array, a1: jax.Array) -> jax.Array:
    """A_t ~ p_t given A0 and A1: each token has arrived with probability t. `t` is `[...]`, tokens `[..., D]`."""
    return jnp.where(uniforms < t[..., None], a1, a0)


def target_rates(endpoint: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
    """Off-diagonal rates `[..., D, K]` out of `current` for a law of endpoints.

    For a one-hot law this is the jump-to-endpoint rate of Eq. 4. For any other law it is that rate averaged over the
    endpoint, Σ_a1 law(a1) u_t(·, current | a1), because the rate is linear in the endpoint's one-hot vector.
    """
    elsewhere = 1 - one_hot(current, endpoint.shape[-1], endpoint.dtype)
    return endpoint * elsewhere / (1 - t)[..., None, None]
