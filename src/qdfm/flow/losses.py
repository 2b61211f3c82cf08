"""What the flow is trained on: Bregman divergences between target and model, and the weighted objectives.

Every divergence here is Bregman in its second argument, so a regression to random targets has the gradient of a
regression to their mean (Theorem 1). That one fact gives both the paper's objective its meaning and the collapsed
objective its speed: the sum over M endpoints needs two network evaluations per state, not M (method, §4 there).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdfm.flow.path import interpolate, one_hot, target_rates
from qdfm.flow.rates import log_posterior, off_diagonal
from qdfm.flow.samplers import inverse_cdf

Scores = Callable[[jax.Array, jax.Array], jax.Array]  # (A_t [..., D], t [...]) -> scores [..., D, K]
TINY = 1e-20


def squared_l2(target: jax.Array, rates: jax.Array, diagonal: bool = True) -> jax.Array:
    """Squared distance of the outgoing rates of each token `[..., D]`, with or without the diagonal entry."""
    gap = target - rates
    loss = jnp.sum(gap**2, -1)
    return loss + jnp.sum(gap, -1) ** 2 if diagonal else loss


def generalised_kl(target: jax.Array, rates: jax.Array) -> jax.Array:
    """Σ y log(y / v) − y + v over the off-diagonal rates of each token `[..., D]`, with 0 log 0 = 0."""
    y = jnp.where(target > 0, target, 1)
    log_ratio = jnp.log(y) - jnp.log(jnp.maximum(rates, TINY))
    return jnp.sum(jnp.where(target > 0, target * log_ratio, 0) - target + rates, -1)


def cross_entropy(endpoint: jax.Array, log_probs: jax.Array) -> jax.Array:
    """−Σ law(a) log p(a) of each token `[..., D]`."""
    return -jnp.sum(endpoint * log_probs, -1)


TIME_WEIGHTS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "none": jnp.ones_like,
    "squared": lambda t: (1 - t) ** 2,  # bounds each sample of a rate regression, same minimiser
    "inverse": lambda t: 1 / jnp.maximum(1 - t, 0.05),  # the likelihood weight of a masked source
}
LOSSES = ("l2", "kl", "cross_entropy")


class Matching(NamedTuple):
    """Which loss is taken between the target and what the network says."""

    rates: str = "posterior"
    loss: str = "cross_entropy"
    diagonal: bool = True
    time_weight: str = "none"
    masked: bool = False  # the source is the mask token

    def point(
        self, endpoint: jax.Array, scores: jax.Array, current: jax.Array, t: jax.Array, legal: jax.Array
    ) -> jax.Array:
        """The loss `[...]` at states `current` `[..., D]` whose endpoint has the law `endpoint` `[..., D, K]`."""
        if self.loss == "cross_entropy":
            loss = cross_entropy(endpoint, jnp.where(legal, log_posterior(scores, legal), 0))
            loss = jnp.where(current == scores.shape[-1], loss, 0) if self.masked else loss
        else:
            rates = off_diagonal(self.rates, scores, current, t, legal, self.masked)
            target = target_rates(endpoint, current, t)
            loss = squared_l2(target, rates, self.diagonal) if self.loss == "l2" else generalised_kl(target, rates)
        return TIME_WEIGHTS[self.time_weight](t) * jnp.sum(loss, -1)


def conditional(
    matching: Matching,
    scores: Scores,
    a0: jax.Array,
    a1: jax.Array,
    t: jax.Array,
    uniforms: jax.Array,
    legal: jax.Array,
) -> jax.Array:
    """The unweighted loss `[...]` of one start and one endpoint per row, tokens `[..., D]`, times `[...]`."""
    current = interpolate(uniforms, t, a0, a1)
    s = scores(current, t)
    return matching.point(one_hot(a1, s.shape[-1], s.dtype), s, current, t, legal)


def literal(
    matching: Matching,
    scores: Scores,
    a0: jax.Array,
    a1: jax.Array,
    weights: jax.Array,
    t: jax.Array,
    uniforms: jax.Array,
    legal: jax.Array,
) -> jax.Array:
    """The paper's Σ_j w_j ℓ_j `[B]` over M endpoints `[B, M, D]`: M network evaluations per state."""
    each = conditional(matching, scores, a0[:, None], a1, t, uniforms, legal[:, None])
    return jnp.sum(weights * each, -1)


def collapsed(
    matching: Matching,
    scores: Scores,
    a0: jax.Array,
    endpoint: jax.Array,
    t: jax.Array,
    uniforms: jax.Array,
    legal: jax.Array,
) -> jax.Array:
    """The same gradient in expectation for D = 1, from the law of endpoints `[B, 1, K]`; uniforms `[B]`.

    With probability 1 − t the state is A0, which all endpoints share: one regression to the averaged target. With
    probability t it is the endpoint itself, and one draw from the law suffices. Both branches are evaluated and
    weighted, which has less variance than drawing one of them.
    """
    a1 = inverse_cdf(uniforms[:, None, None], endpoint)[..., 0]
    current = jnp.concatenate([a0, a1])
    law = jnp.concatenate([endpoint, one_hot(a1, endpoint.shape[-1], endpoint.dtype)])
    tt = jnp.concatenate([t, t])
    loss = matching.point(law, scores(current, tt), current, tt, jnp.concatenate([legal, legal]))
    stayed, arrived = jnp.split(loss, 2)
    return (1 - t) * stayed + t * arrived


def collapsed_at_start(
    matching: Matching, scores: Scores, a0: jax.Array, endpoint: jax.Array, legal: jax.Array
) -> jax.Array:
    """`collapsed` where every time is 0 (samplers of one step): the second branch has no weight."""
    t = jnp.zeros(a0.shape[:-1], endpoint.dtype)
    return matching.point(endpoint, scores(a0, t), a0, t, legal)


def endpoint_law(a1: jax.Array, weights: jax.Array, choices: int) -> jax.Array:
    """Weighted endpoints of one token, `[B, M, 1]` and `[B, M]`, as their law `[B, 1, K]`; multiplicity counts."""
    rows = jnp.arange(a1.shape[0])[:, None]
    law = jnp.zeros((a1.shape[0], choices), weights.dtype).at[rows, a1[..., 0]].add(weights)
    return law[:, None, :]
