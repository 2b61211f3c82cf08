"""The few networks. Plain Equinox modules whose leaves are all arrays, applied to batches `[..., features]`.

A flow network and a critic read observations through `features`: flat vectors now; an encoder for images or
dictionaries takes its place there and nowhere else.
"""

import math
from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.data.spec import Spec

FREQUENCIES = 8
HE = math.sqrt(6.0)  # He's uniform initialisation, for layers that a ReLU follows


def features(spec: Spec, observation: jax.Array) -> jax.Array:
    """Observations `[..., *shape]` as float vectors `[..., size]`; bytes become 0..1."""
    x = observation.reshape(*observation.shape[: observation.ndim - len(spec.observation_shape)], -1)
    return x / 255 if x.dtype == jnp.uint8 else x


def feature_size(spec: Spec) -> int:
    """How many numbers `features` gives."""
    return math.prod(spec.observation_shape)


def preference_size(spec: Spec) -> int:
    """A preference is an input of the networks only where there is a choice of objectives."""
    return spec.objectives if spec.objectives > 1 else 0


def context(spec: Spec, observation: jax.Array, preference: jax.Array | None) -> jax.Array:
    """What a policy or a critic is conditioned on: `[..., features + objectives]`."""
    x = features(spec, observation)
    if preference is None or preference_size(spec) == 0:
        return x
    return jnp.concatenate([x, preference.astype(x.dtype)], -1)


def time_embedding(t: jax.Array) -> jax.Array:
    """Times `[...]` as `[..., 2 · FREQUENCIES]` sines and cosines."""
    angle = t[..., None] * (math.pi * 2.0 ** jnp.arange(FREQUENCIES, dtype=t.dtype) / 2)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


class Linear(eqx.Module):
    """x W + b for inputs with any leading axes."""

    weight: jax.Array  # [in, out]
    bias: jax.Array  # [out]

    def __init__(self, inputs: int, outputs: int, key: jax.Array, gain: float = HE):
        bound = gain / math.sqrt(max(inputs, 1))
        self.weight = jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.weight + self.bias


def activate(x: jax.Array, norm: bool) -> jax.Array:
    """ReLU, after a layer norm where there is one."""
    if norm:  # without learned gain and shift: the next layer has its own
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return jax.nn.relu(x)


class Trunk(eqx.Module):
    """The hidden layers after the first: activation, then dense layers, each with an optional layer norm."""

    layers: tuple[Linear, ...]
    head: Linear
    norm: bool = eqx.field(static=True)

    def __init__(self, hidden: tuple[int, ...], outputs: int, norm: bool, key: jax.Array, head_gain: float = 1.0):
        keys = jax.random.split(key, len(hidden))
        self.layers = tuple(Linear(a, b, k) for a, b, k in zip(hidden[:-1], hidden[1:], keys[1:], strict=True))
        self.head = Linear(hidden[-1], outputs, keys[0], head_gain)
        self.norm = norm

    def __call__(self, first: jax.Array) -> jax.Array:
        """From the first layer's pre-activation to the outputs."""
        x = activate(first, self.norm)
        for layer in self.layers:
            x = activate(layer(x), self.norm)
        return self.head(x)


class MLP(eqx.Module):
    """Context to outputs."""

    first: Linear
    trunk: Trunk

    def __init__(self, inputs: int, hidden: tuple[int, ...], outputs: int, norm: bool, key: jax.Array):
        k1, k2 = jax.random.split(key)
        self.first = Linear(inputs, hidden[0], k1)
        self.trunk = Trunk(hidden, outputs, norm, k2)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.trunk(self.first(x))


class TokenMLP(eqx.Module):
    """An MLP on [context, one-hot tokens, extra inputs], its first layer split by input.

    The context's share of the first layer is computed once by `embed` and reused for every action and time asked
    about; a one-hot token is a row of `table`, looked up rather than multiplied.
    """

    first: Linear
    table: jax.Array  # [D, S, hidden]
    extra: jax.Array  # [extra inputs, hidden]
    trunk: Trunk

    def __init__(
        self, inputs: int, tokens: int, states: int, extra: int, hidden: tuple[int, ...], outputs: int,
        norm: bool, key: jax.Array, head_gain: float = 1.0,
    ):  # fmt: skip
        k1, k2, k3, k4 = jax.random.split(key, 4)
        bound = HE / math.sqrt(inputs + tokens + extra)  # each token adds one active input
        self.first = Linear(inputs, hidden[0], k1)
        self.table = jax.random.uniform(k2, (tokens, states, hidden[0]), minval=-bound, maxval=bound)
        self.extra = jax.random.uniform(k3, (extra, hidden[0]), minval=-bound, maxval=bound)
        self.trunk = Trunk(hidden, outputs, norm, k4, head_gain)

    def embed(self, x: jax.Array) -> jax.Array:
        """The context's share `[..., hidden]` of the first layer."""
        return self.first(x)

    def __call__(self, embedded: jax.Array, tokens: jax.Array, gate: jax.Array, extra: jax.Array) -> jax.Array:
        """Outputs for `embedded` and tokens `[..., D]`; axes before the last broadcast. `gate` scales the tokens."""
        return self.trunk(self.first_layer(embedded, tokens, gate, extra))

    def first_layer(self, embedded: jax.Array, tokens: jax.Array, gate: jax.Array, extra: jax.Array) -> jax.Array:
        """The first layer's pre-activation `[..., hidden]`."""
        token = jnp.arange(self.table.shape[0])
        looked_up = jnp.sum(self.table[token, tokens], -2)
        return embedded + gate[..., None] * looked_up + extra @ self.extra


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
    tokens: int = eqx.field(static=True)
    choices: int = eqx.field(static=True)
    gated: bool = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], key: jax.Array, masked: bool, gated: bool, norm: bool, bias: float
    ):  # fmt: skip
        self.tokens, self.choices, self.gated = spec.tokens, spec.num_choices, gated and not masked
        inputs = feature_size(spec) + preference_size(spec)
        states = self.choices + int(masked)
        outputs = self.tokens * self.choices
        net = TokenMLP(inputs, self.tokens, states, 2 * FREQUENCIES, hidden, outputs, norm, key, head_gain=0.1)
        self.net = eqx.tree_at(lambda n: n.trunk.head.bias, net, jnp.full(outputs, bias))

    def embed(self, x: jax.Array) -> jax.Array:
        """The share of the context, to be computed once per observation."""
        return self.net.embed(x)

    def scores(self, embedded: jax.Array, current: jax.Array, t: jax.Array) -> jax.Array:
        """Scores at states `[..., D]` and times `[...]`, with `embedded` broadcast to them."""
        gate = arrival(t, self.choices) if self.gated else jnp.ones_like(t)
        out = self.net(embedded, current, gate, time_embedding(t))
        return out.reshape(*out.shape[:-1], self.tokens, self.choices)


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
        self.net = eqx.tree_at(lambda n: n.trunk.head.bias, net, jnp.full(1, -bias))
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
        self.bias = jnp.full((tokens, states, choices), bias)
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


RATE_NETWORKS: dict[str, Callable[..., RateNet]] = {
    "softplus": FlowNet,
    "posterior": FlowNet,
    "energy": EnergyNet,
    "diffuse": PairNet,
}


class Critic(eqx.Module):
    """An ensemble of value networks Q(s, a, ω) ∈ R^objectives.

    For one token, and for several when `decomposed`, a network gives in one pass values of each token's choices that
    add up: Q(s, a) = 1/D Σ_d U_d(s, a_d), the mean decomposition of DecQN (Seyde et al., 2023). Otherwise it reads the
    whole action, which can couple the tokens and costs one pass per action.
    """

    members: MLP | TokenMLP  # stacked along a leading ensemble axis
    size: int = eqx.field(static=True)
    decomposed: bool = eqx.field(static=True)
    spec: Spec = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], size: int, conditioned: bool, norm: bool, decomposed: bool,
        key: jax.Array,
    ):  # fmt: skip
        self.size, self.spec, self.decomposed = size, spec, decomposed or spec.tokens == 1
        inputs = feature_size(spec) + (preference_size(spec) if conditioned else 0)
        keys = jax.random.split(key, size)
        if self.decomposed:
            outputs = spec.tokens * spec.num_choices * spec.objectives
            self.members = jax.vmap(lambda k: MLP(inputs, hidden, outputs, norm, k))(keys)
        else:
            self.members = jax.vmap(
                lambda k: TokenMLP(inputs, spec.tokens, spec.num_choices, 0, hidden, spec.objectives, norm, k)
            )(keys)

    def values(self, x: jax.Array, actions: jax.Array | None = None) -> jax.Array:
        """Values `[E, B, T, M, objectives]` at contexts `[B, inputs]`, whose sum over T is Q.

        Of actions `[B, M, D]`: T = 1. Of None: the K choices of every token, T = D, where the values are decomposed.
        """
        if self.decomposed:
            out = self._each(lambda m: m(x)) / self.spec.tokens
            out = out.reshape(self.size, x.shape[0], self.spec.tokens, self.spec.num_choices, -1)
            if actions is None:
                return out
            chosen = jnp.moveaxis(actions, 2, 1)[None, ..., None]  # [1, B, D, M, 1]
            return jnp.sum(jnp.take_along_axis(out, chosen, 3), 2, keepdims=True)
        if actions is None:
            raise ValueError("values of all choices exist where they are decomposed only")
        gate = jnp.ones(actions.shape[:-1], x.dtype)
        none = jnp.zeros((*actions.shape[:-1], 0), x.dtype)
        return self._each(lambda m: m(m.embed(x)[:, None], actions, gate, none))[:, :, None]

    def _each(self, apply: Callable[..., jax.Array]) -> jax.Array:
        return jax.vmap(apply)(self.members)
