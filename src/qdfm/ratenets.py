"""The networks of the flow, whose scores `flow.rates` makes rates of: by parameterisation, for one step, for teams."""

import math
from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.data.spec import Spec
from qdfm.nets import (
    MLP,
    Linear,
    TokenMLP,
    activate,
    agent_rows,
    agent_size,
    choice_scores,
    feature_size,
    preference_size,
    score_size,
)

FREQUENCIES = 8


def time_embedding(t: jax.Array) -> jax.Array:
    """Times `[...]` as `[..., 2 · FREQUENCIES]` sines and cosines."""
    angle = t[..., None] * (math.pi * 2.0 ** jnp.arange(FREQUENCIES, dtype=t.dtype) / 2)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


class RateNet(Protocol):
    """What the flow asks of a network."""

    def embed(self, x: jax.Array) -> jax.Array:
        """The share of the context, to be computed once per observation."""

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """Scores `[..., D, K]` at states `[..., D]` and times `[...]`, with `embedded` broadcast to them."""


def arrival(t: jax.Array, choices: int) -> jax.Array:
    """The probability that a token, uniform at the start and now at a certain endpoint, has arrived there by time t."""
    return t / (t + (1 - t) / choices)


class FlowNet(eqx.Module):
    """Scores `[..., D, K]` of a rate model u_θ,t(·, A_t | s, ω), for `flow.rates` to turn into rates.

    With `gated`, the current action fades out as t → 0, by the probability t / (t + (1 − t) / K) that a token drawn
    uniformly at the start has arrived at a certain endpoint. At t = 0 the start is independent of the endpoint, so
    nothing is lost, and the law at t = 0 is one evaluation whatever the start. A mask token carries no information to
    begin with and needs no gate.
    """

    net: TokenMLP
    spec: Spec = eqx.field(static=True)
    posterior: bool = eqx.field(static=True)
    gated: bool = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], key: jax.Array, masked: bool, gated: bool, norm: bool, bias: float
    ):  # fmt: skip
        self.spec, self.posterior, self.gated = spec, gated, gated and not masked
        inputs = feature_size(spec) + preference_size(spec)
        states = spec.num_choices + int(masked)
        outputs = spec.tokens * (score_size(spec) if self.posterior else spec.num_choices)
        net = TokenMLP(inputs, spec.tokens, states, 2 * FREQUENCIES, hidden, outputs, norm, key, head_gain=0.1)
        self.net = eqx.tree_at(lambda n: n.trunk.head.bias, net, jnp.zeros(outputs) + bias)

    def embed(self, x: jax.Array) -> jax.Array:
        """The share of the context, to be computed once per observation."""
        return self.net.embed(x)

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """Scores at states `[..., D]` and times `[...]`, with `embedded` broadcast to them."""
        gate = arrival(t, self.spec.num_choices) if self.gated else jnp.ones_like(t)
        out = self.net(embedded, current, gate, time_embedding(t))
        if self.posterior:
            return choice_scores(self.spec, out)
        return out.reshape(*out.shape[:-1], self.spec.tokens, self.spec.num_choices)


class StartNet(eqx.Module):
    """Scores `[..., D, K]` of posterior rates where all is decided in the first step.

    At t = 0 the start is independent of the endpoint, so the context is all there is to read.
    """

    net: MLP
    spec: Spec = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], key: jax.Array, masked: bool, gated: bool, norm: bool, bias: float
    ):  # fmt: skip
        self.spec = spec
        inputs, outputs = feature_size(spec) + preference_size(spec), spec.tokens * score_size(spec)
        net = MLP(inputs, hidden, outputs, norm, key, head_gain=0.1)
        self.net = eqx.tree_at(lambda n: n.trunk.head.bias, net, jnp.zeros(outputs) + bias)

    def embed(self, x: jax.Array) -> jax.Array:
        """The first layer."""
        return self.net.first(x)

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """The same scores at all states `[..., D]`."""
        out = choice_scores(self.spec, self.net.trunk(embedded))
        return jnp.broadcast_to(out, (*current.shape, self.spec.num_choices))


class LocalNet(eqx.Module):
    """Scores `[..., G, K]` of the rates of each agent, which reads its own observation and its own current action.

    The chains of the agents are then independent given what they see, so each can run its own. `gated` as in `FlowNet`.
    """

    net: TokenMLP
    spec: Spec = eqx.field(static=True)
    gated: bool = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], key: jax.Array, masked: bool, gated: bool, norm: bool, bias: float
    ):  # fmt: skip
        self.spec, self.gated = spec, gated and not masked
        states, choices = spec.num_choices + int(masked), spec.num_choices
        net = TokenMLP(agent_size(spec), 1, states, 2 * FREQUENCIES, hidden, choices, norm, key, head_gain=0.1)
        self.net = eqx.tree_at(lambda n: n.trunk.head.bias, net, jnp.zeros(choices) + bias)

    def embed(self, x: jax.Array) -> jax.Array:
        """The share of the context, all agents in one row `[..., G · hidden]`."""
        embedded = self.net.embed(agent_rows(self.spec, x))
        return embedded.reshape(*x.shape[:-1], -1)

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """Scores at states `[..., G]` and times `[...]`, with `embedded` broadcast to them."""
        own = embedded.reshape(*embedded.shape[:-1], self.spec.agents, -1)
        gate = arrival(t, self.spec.num_choices) if self.gated else jnp.ones_like(t)
        return self.net(own, current[..., None], gate[..., None], time_embedding(t)[..., None, :])


class EnergyNet(eqx.Module):
    """Scores −E(s, ω, t, A_t, candidate) of a scalar energy that reads the candidate as an input.

    The context, the current action and the time enter the first layer once; all that follows is evaluated for each of
    the K candidates of each token. That is what an energy model is: its normaliser is a sum over separate evaluations.
    A network that gave all K energies in one pass would be `FlowNet` with posterior rates under another name.
    `gated` as in `FlowNet`.
    """

    net: TokenMLP
    candidates: jax.Array  # [D, K, hidden], the rows of the first layer that one-hot candidates look up
    gated: bool = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], key: jax.Array, masked: bool, gated: bool, norm: bool, bias: float
    ):  # fmt: skip
        k1, k2 = jax.random.split(key)
        self.gated = gated and not masked
        inputs, states = feature_size(spec) + preference_size(spec), spec.num_choices + int(masked)
        net = TokenMLP(inputs, spec.tokens, states, 2 * FREQUENCIES, hidden, 1, norm, k1, head_gain=0.1)
        self.net = eqx.tree_at(lambda n: n.trunk.head.bias, net, jnp.zeros(1) - bias)
        # Alone among the inputs it tells the candidates apart, so it starts at the scale of all of them together.
        self.candidates = jax.random.uniform(k2, (spec.tokens, spec.num_choices, hidden[0]), minval=-1, maxval=1)

    def embed(self, x: jax.Array) -> jax.Array:
        """The share of the context, to be computed once per observation."""
        return self.net.embed(x)

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """−E of every candidate, D · K evaluations of all layers but the first."""
        gate = arrival(t, self.candidates.shape[1]) if self.gated else jnp.ones_like(t)
        state = self.net.first_layer(embedded, current, gate, time_embedding(t))  # [..., hidden]
        return -self.net.trunk(state[..., None, None, :] + self.candidates)[..., 0]


class PairNet(eqx.Module):
    """Scores of a whole generator: one for every ordered pair (x, y) of each token, D·S·K outputs (S = K, or K + 1
    with the mask token), of which the rows of the current action are what leaves it.

    The network reads context and time alone, so several tokens are independent given those.
    """

    first: Linear
    layers: tuple[Linear, ...]
    weight: jax.Array  # [D, S, hidden, K]: what the row of a state needs lies together
    bias: jax.Array  # [D, S, K]
    norm: bool = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], key: jax.Array, masked: bool, gated: bool, norm: bool, bias: float
    ):  # fmt: skip
        k1, k2, *keys = jax.random.split(key, len(hidden) + 1)
        tokens, states, choices = spec.tokens, spec.num_choices + int(masked), spec.num_choices
        self.first = Linear(feature_size(spec) + preference_size(spec) + 2 * FREQUENCIES, hidden[0], k1)
        self.layers = tuple(Linear(a, b, k) for a, b, k in zip(hidden[:-1], hidden[1:], keys, strict=True))
        bound = 0.1 / math.sqrt(hidden[-1])
        self.weight = jax.random.uniform(k2, (tokens, states, hidden[-1], choices), minval=-bound, maxval=bound)
        self.bias = jnp.zeros((tokens, states, choices)) + bias
        self.norm = norm

    def embed(self, x: jax.Array) -> jax.Array:
        """The share of the context, to be computed once per observation."""
        return x @ self.first.weight[: x.shape[-1]] + self.first.bias

    def pairs(self, embedded: jax.Array, t: jax.Array) -> jax.Array:
        """The whole generator's scores `[..., D, S, K]` at times `[...]`."""
        return jnp.einsum("...h,dshk->...dsk", self._last(embedded, t), self.weight) + self.bias

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """The rows of the states. Only these rows of the output layer are read, not the other S − 1."""
        token = jnp.arange(len(self.weight))
        last = self._last(embedded, t)
        return jnp.einsum("...h,...dhk->...dk", last, self.weight[token, current]) + self.bias[token, current]

    def _last(self, embedded: jax.Array, t: jax.Array) -> jax.Array:
        time = time_embedding(t)
        x = activate(embedded + time @ self.first.weight[-time.shape[-1] :], self.norm)
        for layer in self.layers:
            x = activate(layer(x), self.norm)
        return x


class Ensemble(eqx.Module):
    """Several networks that are trained each by itself and asked together, for the mean of their scores.

    Where the data says little, chance decides what one network says; the mean of several is steadier.
    """

    members: RateNet  # stacked along a leading axis
    size: int = eqx.field(static=True)

    def __init__(self, make: Callable[[jax.Array], RateNet], size: int, key: jax.Array):
        self.members, self.size = jax.vmap(make)(jax.random.split(key, size)), size

    def embed(self, x: jax.Array) -> jax.Array:
        """The share of the context, all members in one row `[..., size · hidden]`."""
        each = jax.vmap(lambda member: member.embed(x))(self.members)
        return jnp.moveaxis(each, 0, -2).reshape(*x.shape[:-1], -1)

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """Mean scores at states `[..., D]` and times `[...]`, with `embedded` broadcast to them."""
        each = jnp.moveaxis(embedded.reshape(*embedded.shape[:-1], self.size, -1), -2, 0)
        return jnp.mean(jax.vmap(lambda member, own: member.scores(own, current, t))(self.members, each), 0)


RATE_NETWORKS: dict[str, Callable[..., RateNet]] = {
    "softplus": FlowNet,
    "posterior": FlowNet,
    "energy": EnergyNet,
    "diffuse": PairNet,
}
