"""The building blocks of all networks. Plain Equinox modules whose leaves are all arrays, applied to batches
`[..., features]`. The networks of the flow are in `ratenets.py`, those of values in `valuenets.py`.

A flow network and a critic read observations through `features`: flat vectors now; an encoder for images or
dictionaries takes its place there and nowhere else.
"""

import math
from itertools import groupby

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.data.spec import Spec

HE = math.sqrt(6.0)  # He's uniform initialisation, for layers that a ReLU follows

PREFERENCE_GRID = 501  # points between the least and the most logged weight of an objective


def quantities(x: jax.Array) -> jax.Array:
    """Numbers as they are; bytes become 0..1."""
    return x / 255 if x.dtype == jnp.uint8 else x


def features(spec: Spec, observation: jax.Array) -> jax.Array:
    """Observations `[..., *shape]` as float vectors `[..., size]`; bytes become 0..1, categories one-hot."""
    x = observation.reshape(*observation.shape[: observation.ndim - len(spec.observation_shape)], -1)
    quantity = quantities(x)
    if not spec.categories:
        return quantity
    parts, at = [], 0
    for n, columns in groupby(spec.categories):
        end = at + len(list(columns))
        named = jax.nn.one_hot(x[..., at:end].astype(int), n).reshape(*x.shape[:-1], -1)
        parts.append(named if n else quantity[..., at:end])
        at = end
    return jnp.concatenate(parts, -1)


def feature_size(spec: Spec) -> int:
    """How many numbers `features` gives."""
    return sum(max(n, 1) for n in spec.categories) if spec.categories else math.prod(spec.observation_shape)


def preference_size(spec: Spec) -> int:
    """A preference is an input of the networks only where there is a choice of objectives."""
    if spec.objectives == 1:
        return 0
    return spec.objectives + (PREFERENCE_GRID * (spec.objectives - 1) if spec.preference_range else 0)


def preference_features(spec: Spec, preference: jax.Array) -> jax.Array:
    """Preferences `[..., objectives]` as the networks see them, `[..., preference_size]`.

    Logged ones come with their place on a fine grid for each objective but the last, as shares of the two points
    beside it: behaviours under near preferences may be other policies altogether, and a network is slow to learn what
    changes within a small part of its input's range.
    """
    if not spec.preference_range:
        return preference
    inside = spec.normalise_preference(preference)
    place = (inside[..., :-1, None] + 1) / 2 * (PREFERENCE_GRID - 1) - jnp.arange(PREFERENCE_GRID)
    grid = jnp.maximum(0, 1 - jnp.abs(place))  # [..., objectives - 1, points]
    return jnp.concatenate([inside, grid.reshape(*preference.shape[:-1], -1)], -1)


def context(spec: Spec, observation: jax.Array, preference: jax.Array | None) -> jax.Array:
    """What a policy or a critic is conditioned on: `[..., feature_size + preference_size]`."""
    x = features(spec, observation)
    if preference is None or preference_size(spec) == 0:
        return x
    return jnp.concatenate([x, preference_features(spec, preference).astype(x.dtype)], -1)


def agent_size(spec: Spec) -> int:
    """How many numbers one agent's row has."""
    return feature_size(spec) // spec.agents + preference_size(spec) + spec.agents


def agent_rows(spec: Spec, x: jax.Array) -> jax.Array:
    """Contexts `[..., inputs]` as rows `[..., G, agent_size]`: own observation, preference, number one-hot."""
    seen, wanted = feature_size(spec), preference_size(spec)
    lead = x.shape[:-1]
    own = x[..., :seen].reshape(*lead, spec.agents, -1)
    preference = jnp.broadcast_to(x[..., None, seen : seen + wanted], (*lead, spec.agents, wanted))
    number = jnp.broadcast_to(jnp.eye(spec.agents, dtype=x.dtype), (*lead, spec.agents, spec.agents))
    return jnp.concatenate([own, preference, number], -1)


def score_size(spec: Spec) -> int:
    """How many outputs of a network `choice_scores` needs for a token."""
    return spec.num_choices + (0 if spec.levels is None else 2)


def choice_scores(spec: Spec, out: jax.Array) -> jax.Array:
    """A network's outputs `[..., D · score_size]` as scores `[..., D, K]`, of which a softmax makes a law.

    Where choices are quantities, a parabola adds to the scores: two outputs say where its peak is and how narrow. Near
    choices are then learned together, where a softmax alone would have to see each of them, and no law is ruled out.
    """
    out = out.reshape(*out.shape[:-1], -1, score_size(spec))
    if spec.levels is None:
        return out
    k = spec.num_choices
    narrowest = math.log(k)  # half the distance between two choices
    narrow = narrowest - jax.nn.softplus(narrowest - 1 - out[..., k + 1 :])
    return out[..., :k] - jnp.exp(2 * narrow) / 2 * (spec.levels - out[..., k : k + 1]) ** 2


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

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], outputs: int, norm: bool, key: jax.Array, head_gain: float = 1.0
    ):
        k1, k2 = jax.random.split(key)
        self.first = Linear(inputs, hidden[0], k1)
        self.trunk = Trunk(hidden, outputs, norm, k2, head_gain)

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
