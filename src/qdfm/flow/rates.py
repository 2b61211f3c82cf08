"""Parameterisations: how a network's scores `[..., D, K]` become off-diagonal rates of a valid generator.

| name        | rates                 | from                                                               |
|-------------|-----------------------|--------------------------------------------------------------------|
| `softplus`  | softplus(g)           | the paper                                                          |
| `posterior` | softmax(g) / (1 − t)  | predicts p(A1 | A_t); hλ ≤ 1 at α = 1 without any clamp            |
| `energy`    | softmax(−E) / (1 − t) | the same law from energies, each candidate evaluated on its own    |
| `diffuse`   | softplus(g_x)         | row x = A_t of a K×K generator from a network that does not see A_t |

An entry of `PARAMETERISATIONS` says how scores become rates; which network gives the scores (for `energy` they are
−E, for `diffuse` one row) is `ratenets.RATE_NETWORKS`. A new parameterisation is an entry in each. All rates vanish at
the current choice, at illegal choices, and for tokens that have already arrived.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.flow.path import one_hot

NEVER = -1e9  # a score that no legal choice has; finite, so that no gradient turns into NaN


def log_posterior(scores: jax.Array, legal: jax.Array) -> jax.Array:
    """log p(A1 | A_t) over the legal choices; illegal ones are at `NEVER` or below."""
    return jax.nn.log_softmax(jnp.where(legal, scores, NEVER), axis=-1)


def _posterior_rates(scores: jax.Array, t: jax.Array, legal: jax.Array) -> jax.Array:
    return jnp.where(legal, jnp.exp(log_posterior(scores, legal)), 0) / (1 - t)[..., None, None]


def _softplus_rates(scores: jax.Array, t: jax.Array, legal: jax.Array) -> jax.Array:
    return jnp.where(legal, jax.nn.softplus(scores), 0)


def _leaving_rate_one(choices: int) -> float:
    # softplus(0) over K − 1 choices would leave at rate .69 (K − 1), far more than one jump per Euler step.
    return float(np.log(np.expm1(1 / max(choices - 1, 1))))


class Parameterisation(NamedTuple):
    """`rates(scores, t, legal)`, and the bias at which a fresh network's output layer starts.

    Where `posterior`, the softmax of the scores is p(A1 | A_t): it can be trained by cross-entropy, and at t = 0 it is
    the law of the endpoint.
    """

    rates: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    bias: Callable[[int], float]
    posterior: bool


PARAMETERISATIONS = {
    "softplus": Parameterisation(_softplus_rates, _leaving_rate_one, posterior=False),
    "posterior": Parameterisation(_posterior_rates, lambda choices: 0.0, posterior=True),
    "energy": Parameterisation(_posterior_rates, lambda choices: 0.0, posterior=True),
    "diffuse": Parameterisation(_softplus_rates, _leaving_rate_one, posterior=False),
}


def off_diagonal(
    name: str, scores: jax.Array, current: jax.Array, t: jax.Array, legal: jax.Array, masked: bool = False
) -> jax.Array:
    """Rates `[..., D, K]` out of `current` at time t `[...]`.

    With `masked`, the source is the mask token: a token that is not masked has arrived and never leaves.
    """
    choices = scores.shape[-1]
    rates = PARAMETERISATIONS[name].rates(scores, t, legal)
    if masked:
        return rates * (current == choices)[..., None]
    return rates * (1 - one_hot(current, choices, rates.dtype))
