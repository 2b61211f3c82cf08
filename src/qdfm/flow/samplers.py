"""Simulating the chain: Euler steps (paper: Algorithm 2), one step, and the exact law of either.

All draws invert a cumulative sum with given uniforms. That needs one uniform per draw, where the Gumbel trick needs
one per choice, and makes a sampler a deterministic function that any generator can drive.

Repairs to the printed algorithm: where hλ > 1 the jump is certain and its law renormalised; with a mask-token source
the last step draws an endpoint for every token still masked (for other sources, staying is part of the law).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

JOINT_MAX = 4096  # states of a joint chain that are still enumerated

Rates = Callable[[jax.Array, jax.Array], jax.Array]  # (A_t [..., D], scalar t) -> off-diagonal rates [..., D, K]


def _supported(choice: jax.Array, weights: jax.Array) -> jax.Array:
    """`choice` `[..., M]`, the likeliest one in place of any that has weight 0 (K, which is none, stays).

    XLA adds up long rows in blocks, so that a cumulative sum may waver where nothing is added. A draw that falls
    there, about one in ten million, would be one that the weights exclude.
    """
    choices = weights.shape[-1]
    weight = jnp.take_along_axis(weights, jnp.minimum(choice, choices - 1), -1)
    return jnp.where((weight > 0) | (choice == choices), choice, jnp.argmax(weights, -1, keepdims=True))


def inverse_cdf(uniforms: jax.Array, weights: jax.Array) -> jax.Array:
    """Draws `[..., M]` from unnormalised weights `[..., K]` by uniforms `[..., M]`; weight 0 is never drawn."""
    total = jnp.cumsum(weights, -1)
    # The largest float below 1 times the total may round up to the total, which would pass the last positive weight.
    u = jnp.minimum(uniforms, 1 - jnp.finfo(weights.dtype).eps) * total[..., -1:]
    return _supported(jnp.sum(total[..., None, :] <= u[..., None], -1), weights).astype(jnp.int32)


def jump_law(rates: jax.Array, h: float, alpha: float = 1.0) -> jax.Array:
    """Probabilities `[..., D, K]` of the jumps of one Euler step; what is missing to 1 is staying."""
    p = alpha * h * rates
    return p / jnp.maximum(jnp.sum(p, -1, keepdims=True), 1)


def _step_law(rates: jax.Array, current: jax.Array, n: jax.Array, steps: int, alpha: float, masked: bool) -> jax.Array:
    """`jump_law` of step n of N; with a mask-token source, a token still masked jumps for certain at the last."""
    law = jump_law(rates, 1 / steps, alpha)
    if not masked:
        return law
    certain = rates / jnp.maximum(jnp.sum(rates, -1, keepdims=True), jnp.finfo(rates.dtype).tiny)
    return jnp.where((current == rates.shape[-1])[..., None] & (n == steps - 1), certain, law)


def euler(rates: Rates, a0: jax.Array, uniforms: jax.Array, alpha: float = 1.0, masked: bool = False) -> jax.Array:
    """Endpoints `[..., D]` after N parallel steps of all tokens from `a0` `[..., D]`, by uniforms `[N, ..., D]`."""
    steps = uniforms.shape[0]

    def step(current: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        n, u = inputs
        r = rates(current, (n / steps).astype(u.dtype))
        law = _step_law(r, current, n, steps, alpha, masked)
        cdf = jnp.cumsum(law, -1)
        if masked:  # so that rounding cannot leave a token masked
            cdf = jnp.where(n == steps - 1, cdf / jnp.maximum(cdf[..., -1:], 1 - 1e-3), cdf)
        choice = _supported(jnp.sum(cdf <= u[..., None], -1, keepdims=True), law)[..., 0]
        return jnp.where(choice < r.shape[-1], choice, current).astype(a0.dtype), None

    return jax.lax.scan(step, a0, (jnp.arange(steps), uniforms))[0]


def one_step(rates: Rates, a0: jax.Array, uniforms: jax.Array, masked: bool = False) -> jax.Array:
    """One draw at t = 0, uniforms `[..., D]`: exact for D = 1 and posterior rates, of order h otherwise."""
    return euler(rates, a0, uniforms[None], masked=masked)


def joint_states(tokens: int, states: int) -> np.ndarray:
    """All states `[states**tokens, tokens]` of the joint chain, the last token fastest."""
    return np.stack(np.unravel_index(np.arange(states**tokens), (states,) * tokens), -1).astype(np.int32)


def exact_law(
    rates: Rates, p0: jax.Array, tokens: int, steps: int, alpha: float = 1.0, masked: bool = False
) -> jax.Array:
    """The law `[J]` of `euler` after N steps from the law `p0` `[J]` over all J joint states.

    `rates` is asked for all J states at once. J is K**D, or (K+1)**D with the mask token as a state.
    """
    states = round(p0.shape[0] ** (1 / tokens))
    every = jnp.asarray(joint_states(tokens, states))  # [J, D]
    here = jax.nn.one_hot(every, states, dtype=p0.dtype)  # [J, D, S]

    def step(p: jax.Array, n: jax.Array) -> tuple[jax.Array, None]:
        law = _step_law(rates(every, (n / steps).astype(p0.dtype)), every, n, steps, alpha, masked)
        law = jnp.pad(law, ((0, 0), (0, 0), (0, states - law.shape[-1])))
        stay = jnp.maximum(1 - jnp.sum(law, -1, keepdims=True), 0)  # not below 0 by rounding
        law = law + stay * here  # [J, D, S]
        kernel = law[:, 0][:, every[:, 0]]
        for d in range(1, tokens):
            kernel = kernel * law[:, d][:, every[:, d]]
        return p @ kernel, None

    return jax.lax.scan(step, p0, jnp.arange(steps))[0]
