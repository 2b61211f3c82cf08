"""From values to weights: the Boltzmann tilt μ·exp(βQ)/C, its support, its sharpness (paper: Eq. 2 and Eq. 6).

Candidates are M actions with log-weights `log_mu` `[B, T, M]` that sum to one: the law μ̂ itself where all choices are
enumerated, −log M where they were drawn from it. T counts independent tokens whose values add up (1 for joint actions).
Everything is shift-invariant in Q and computed in logarithms.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

BETA_MAX = 1e6
SHARP = 100.0  # standard deviations of Q beyond which a larger β only amplifies rounding


def keep_supported(log_mu: jax.Array, share: float) -> jax.Array:
    """Drop candidates with less than `share` of the largest probability, and renormalise (dropped: −inf)."""
    if share <= 0:
        return log_mu
    top = jnp.max(log_mu, -1, keepdims=True)
    return jax.nn.log_softmax(jnp.where(log_mu >= top + jnp.log(share), log_mu, -jnp.inf), -1)


def tilt(log_mu: jax.Array, q: jax.Array, beta: jax.Array | float) -> jax.Array:
    """Weights `[B, T, M]` proportional to μ·exp(βQ). For drawn candidates: softmax(βQ), the paper's w_j."""
    return jax.nn.softmax(log_mu + beta * q, -1)


def mean_gain(log_mu: jax.Array, q: jax.Array, beta: jax.Array | float) -> jax.Array:
    """What the tilt expects of values `[B, T, M]` above μ, E_tilt q − E_μ q, in the mean over rows."""
    return jnp.mean(jnp.einsum("btm,btm->b", tilt(log_mu, q, beta) - jnp.exp(log_mu), q))


def state_beta(log_mu: jax.Array, q: jax.Array, beta: jax.Array, share: float) -> jax.Array:
    """β of each state and token `[B, T, 1]`: `beta`, or less where values `[B, T, M]` spread too far for a share.

    Weights exp(βQ) of normal values with deviation σ have the effective share exp(−β²σ²), so that β ≤ √(−log share)/σ.
    """
    if share <= 0:
        return beta
    spread = jnp.sqrt(_variance(log_mu, q))[..., None]
    return jnp.minimum(beta, math.sqrt(-math.log(share)) / jnp.maximum(spread, 1 / BETA_MAX))


def _variance(log_mu: jax.Array, q: jax.Array) -> jax.Array:
    """The variance `[B, T]` of values `[B, T, M]` under μ."""
    mu = jnp.exp(log_mu)
    mean = jnp.einsum("btm,btm->bt", mu, q)[..., None]
    return jnp.einsum("btm,btm->bt", mu, (q - mean) ** 2)


def effective_share(log_mu: jax.Array, q: jax.Array, beta: jax.Array | float) -> jax.Array:
    """Effective sample share (E_μ w)² / E_μ w² `[B]` of the weights w = exp(βQ): 1 unguided, down to μ(best).

    Over independent tokens w is a product, and so is its share.
    """
    q = q - jnp.max(jnp.where(log_mu > -jnp.inf, q, -jnp.inf), -1, keepdims=True)  # keeps the digits of large βQ
    first = logsumexp(log_mu + beta * q, -1)
    second = logsumexp(log_mu + 2 * beta * q, -1)
    return jnp.exp(jnp.sum(2 * first - second, -1))


def mean_share(log_mu: jax.Array, q: jax.Array, beta: jax.Array | float) -> jax.Array:
    """The mean effective share over the rows that leave a choice; an agent that can only wait says nothing of β."""
    open_ = jnp.any(jnp.sum(log_mu > -jnp.inf, -1) > 1, -1)  # [B]
    return jnp.mean(effective_share(log_mu, q, beta), where=open_ | ~jnp.any(open_))


def share_of(log_mu: jax.Array, weights: jax.Array) -> jax.Array:
    """The same share `[B]` of tilted weights `[B, T, M]` that are known: 1 / Σ weight² / μ."""
    ratio = jnp.where(log_mu > -jnp.inf, weights**2 / jnp.exp(log_mu), 0)
    return jnp.prod(1 / jnp.sum(ratio, -1), -1)


def sharpest(log_mu: jax.Array, q: jax.Array) -> jax.Array:
    """The largest β of use: SHARP standard deviations of Q under μ."""
    spread = jnp.sqrt(jnp.mean(_variance(log_mu, q)))
    return jnp.clip(SHARP / jnp.maximum(spread, 1 / BETA_MAX), 1 / BETA_MAX, BETA_MAX)


def beta_for_share(log_mu: jax.Array, q: jax.Array, target: float) -> jax.Array:
    """The β at which the mean effective share over the rows falls to `target`; bisection on log β.

    Where even a greedy choice keeps more than the target (one action everywhere), β ends at SHARP standard deviations
    of Q under μ, which is greedy for all purposes and still above the rounding of Q.
    """
    largest = sharpest(log_mu, q)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) / 2
        above = mean_share(log_mu, q, jnp.exp(middle)) > target
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    start = (jnp.asarray(jnp.log(1 / BETA_MAX), q.dtype), jnp.log(largest).astype(q.dtype))
    low, high = jax.lax.fori_loop(0, 40, halve, start)
    return jnp.exp((low + high) / 2)
