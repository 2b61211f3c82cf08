"""A flow network as a policy: its source, its rates, drawing from it, and its exact law.

This is where `flow/` (which knows arrays only) meets a network conditioned on observation and preference.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow import samplers
from qdfm.flow.losses import Scores
from qdfm.flow.path import draw_source
from qdfm.flow.rates import PARAMETERISATIONS, log_posterior, off_diagonal
from qdfm.ratenets import RATE_NETWORKS, Ensemble, LocalNet, RateNet, StartNet

KERNEL_ENTRIES = 2**24  # of the joint chain's step kernels that are held at a time


@dataclass(frozen=True)
class FlowPolicy:
    """How a flow network is simulated. `x` is always the context `[B, inputs]`, `legal` `[B, D, K]`."""

    spec: Spec
    rates: str
    source: str
    steps: int
    alpha: float
    local: bool = False
    """Whether every agent of a team has rates of its own observation and current action only."""
    members: int = 1
    """Networks that are asked together."""

    @property
    def masked(self) -> bool:
        """Whether the chain starts from the mask token."""
        return self.source == "mask"

    @property
    def states(self) -> int:
        """States of one token of the chain."""
        return self.spec.num_choices + int(self.masked)

    @property
    def posterior(self) -> bool:
        """Whether the scores predict the endpoint."""
        return PARAMETERISATIONS[self.rates].posterior

    @property
    def direct(self) -> bool:
        """Whether one evaluation at t = 0 is the whole law: posterior or energy rates, one token, one step."""
        return self.posterior and self.spec.tokens == 1 and self.steps == 1 and self.alpha == 1

    @property
    def noise(self) -> int:
        """Uniforms that one draw takes: the start's, then each step's."""
        return 1 if self.direct else (self.steps + 1) * self.spec.tokens

    def network(self, hidden: tuple[int, ...], norm: bool, key: jax.Array) -> RateNet:
        """A fresh network."""
        bias = PARAMETERISATIONS[self.rates].bias(self.spec.num_choices)
        at_once = self.rates == "posterior" and self.steps == 1
        kind = LocalNet if self.local else StartNet if at_once else RATE_NETWORKS[self.rates]

        def make(key: jax.Array) -> RateNet:
            return kind(self.spec, hidden, key, self.masked, self.posterior, norm, bias)

        return make(key) if self.members == 1 else Ensemble(make, self.members, key)

    def scores(self, net: RateNet, x: jax.Array) -> Scores:
        """The network at fixed contexts, for states `[B, ..., D]` and times `[B, ...]`."""
        embedded = net.embed(x)

        def at(current: jax.Array, t: jax.Array) -> jax.Array:
            rows = embedded if len(embedded) == len(current) else jnp.tile(embedded, (len(current) // len(embedded), 1))
            return net.scores(rows.reshape(len(rows), *(1,) * (current.ndim - 2), -1), current, t)

        return at

    def start(self, uniforms: jax.Array, legal: jax.Array) -> jax.Array:
        """A0 `[..., D]` from the source."""
        if self.masked:
            return jnp.full(uniforms.shape, self.spec.num_choices, jnp.int32)
        return draw_source(uniforms, legal)

    def start_law(self, legal: jax.Array) -> jax.Array:
        """The source's law `[B, J]` over the joint states of the chain."""
        every = samplers.joint_states(self.spec.tokens, self.states)
        if self.masked:
            start = jnp.asarray((every == self.spec.num_choices).all(-1), jnp.float32)
            return jnp.broadcast_to(start, (len(legal), len(every)))
        each = legal / jnp.sum(legal, -1, keepdims=True)  # [B, D, K]
        return jnp.prod(each[:, np.arange(self.spec.tokens), every], -1)

    def rate_function(self, net: RateNet, x: jax.Array, legal: jax.Array, cut: float = 0.0) -> samplers.Rates:
        """Off-diagonal rates at states `[B, ..., D]`; `cut` drops choices below that share of the largest rate."""
        scores = self.scores(net, x)

        def rates(current: jax.Array, t: jax.Array) -> jax.Array:
            tt = jnp.broadcast_to(t, current.shape[:-1])
            allowed = legal.reshape(len(legal), *(1,) * (current.ndim - 2), *legal.shape[1:])
            s = scores(current, tt)
            if cut > 0:  # before the diagonal is taken out, so that posterior rates are shared among what is kept
                r = PARAMETERISATIONS[self.rates].rates(s, tt, allowed)
                allowed = allowed & (r >= cut * jnp.max(r, -1, keepdims=True))
            return off_diagonal(self.rates, s, current, tt, allowed, self.masked)

        return rates

    def first_law(self, net: RateNet, x: jax.Array, legal: jax.Array) -> jax.Array:
        """log p(A1) `[B, D, K]` of each token as posterior or energy rates give it at t = 0: one evaluation per row."""
        start = jnp.full((len(x), self.spec.tokens), self.spec.num_choices if self.masked else 0, jnp.int32)
        return log_posterior(self.scores(net, x)(start, jnp.zeros(len(x), x.dtype)), legal)

    def sample(
        self, net: RateNet, x: jax.Array, legal: jax.Array, uniforms: jax.Array, a0: jax.Array | None = None,
        cut: float = 0.0,
    ) -> jax.Array:  # fmt: skip
        """Endpoints `[B, ..., D]` by uniforms `[B, ..., noise]`, from the source or from given starts."""
        if self.direct:  # whatever the start
            law = jnp.exp(self.first_law(net, x, legal))[:, 0]  # [B, K]
            law = jnp.where(law >= cut * jnp.max(law, -1, keepdims=True), law, 0)
            return samplers.inverse_cdf(uniforms.reshape(len(x), -1), law).reshape(uniforms.shape)
        u = uniforms.reshape(*uniforms.shape[:-1], self.steps + 1, self.spec.tokens)
        if a0 is None:
            allowed = legal.reshape(len(legal), *(1,) * (u.ndim - 3), *legal.shape[1:])
            a0 = self.start(u[..., 0, :], allowed)
        rates = self.rate_function(net, x, legal, cut)
        return samplers.euler(rates, a0, jnp.moveaxis(u[..., 1:, :], -2, 0), self.alpha, self.masked)

    def law(self, net: RateNet, x: jax.Array, legal: jax.Array, p0: jax.Array | None = None) -> jax.Array:
        """Exact probabilities `[B, K]`, or `[B, K, ..., K]` for several tokens where the joint is small."""
        if self.direct and p0 is None:
            return jnp.where(legal[:, 0], jnp.exp(self.first_law(net, x, legal)[:, 0]), 0)
        tokens, k, states = self.spec.tokens, self.spec.num_choices, self.states
        if states**tokens > samplers.JOINT_MAX:
            raise QDFMError(
                f"The exact law of {tokens} tokens with {states} states each has {states}**{tokens} entries; "
                "draw samples with act instead."
            )

        def one(xi: jax.Array, li: jax.Array, pi: jax.Array) -> jax.Array:
            rates = self.rate_function(net, xi[None], li[None])
            joint = samplers.exact_law(
                lambda a, t: rates(a[None], t)[0], pi, tokens, self.steps, self.alpha, self.masked
            )
            return joint.reshape((states,) * tokens)[(slice(k),) * tokens]

        rows = max(1, KERNEL_ENTRIES // states ** (2 * tokens))
        inputs = (x, legal, self.start_law(legal) if p0 is None else p0)
        return jax.lax.map(lambda row: one(*row), inputs, batch_size=rows)

    def greedy(self, net: RateNet, x: jax.Array, legal: jax.Array, p0: jax.Array | None = None) -> jax.Array:
        """The most likely action `[B, D]`; for several tokens, unmask the surest token first, one at a time; for local
        agents, who do not wait for each other, each one's own at t = 0."""
        if self.spec.tokens == 1:
            return jnp.argmax(self.law(net, x, legal, p0), -1)[:, None].astype(jnp.int32)
        if not (self.masked and self.posterior):
            raise QDFMError("Greedy actions of several tokens need posterior or energy rates and the mask source.")
        if self.local:
            return jnp.argmax(self.first_law(net, x, legal), -1).astype(jnp.int32)
        scores, k, tokens = self.scores(net, x), self.spec.num_choices, self.spec.tokens

        def unmask(n: jax.Array, current: jax.Array) -> jax.Array:
            t = jnp.full(len(x), n / tokens, x.dtype)
            log_p = log_posterior(scores(current, t), legal)
            surest = jnp.argmax(jnp.where(current == k, jnp.max(log_p, -1), -jnp.inf), -1)  # [B]
            chosen = jnp.argmax(log_p, -1).astype(jnp.int32)
            return jnp.where(jnp.arange(tokens) == surest[:, None], chosen, current)

        return jax.lax.fori_loop(0, tokens, unmask, jnp.full((len(x), tokens), k, jnp.int32))
