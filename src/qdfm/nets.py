"""The building blocks and the critic. Plain Equinox modules whose leaves are all arrays, applied to batches
`[..., features]`. The networks of the flow are in `ratenets.py`.

A flow network and a critic read observations through `features`: flat vectors now; an encoder for images or
dictionaries takes its place there and nowhere else.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.data.spec import Spec

HE = math.sqrt(6.0)  # He's uniform initialisation, for layers that a ReLU follows


def features(spec: Spec, observation: jax.Array) -> jax.Array:
    """Observations `[..., *shape]` as float vectors `[..., size]`; bytes become 0..1, categories one-hot."""
    x = observation.reshape(*observation.shape[: observation.ndim - len(spec.observation_shape)], -1)
    quantity = x / 255 if x.dtype == jnp.uint8 else x
    if not spec.categories:
        return quantity
    columns = [
        quantity[..., i : i + 1] if n == 0 else jax.nn.one_hot(x[..., i].astype(int), n)
        for i, n in enumerate(spec.categories)
    ]
    return jnp.concatenate(columns, -1)


def feature_size(spec: Spec) -> int:
    """How many numbers `features` gives."""
    return sum(max(n, 1) for n in spec.categories) if spec.categories else math.prod(spec.observation_shape)


def preference_size(spec: Spec) -> int:
    """A preference is an input of the networks only where there is a choice of objectives."""
    return spec.objectives if spec.objectives > 1 else 0


def context(spec: Spec, observation: jax.Array, preference: jax.Array | None) -> jax.Array:
    """What a policy or a critic is conditioned on: `[..., features + objectives]`."""
    x = features(spec, observation)
    if preference is None or preference_size(spec) == 0:
        return x
    return jnp.concatenate([x, preference.astype(x.dtype)], -1)


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


class PointMLP(eqx.Module):
    """Context to values of K actions that are points: V(s) + ⟨features of the context, features of the point⟩.

    One pass gives all K, as an output layer would, but what is learned of one action holds for its neighbours.
    """

    state: MLP
    action: MLP

    def __init__(
        self, inputs: int, dimensions: int, hidden: tuple[int, ...], objectives: int, norm: bool, key: jax.Array
    ):  # fmt: skip
        k1, k2 = jax.random.split(key)
        width = hidden[-1]
        self.state = MLP(inputs, hidden, objectives * (width + 1), norm, k1)
        self.action = MLP(dimensions, (width, width), width, False, k2)

    def __call__(self, x: jax.Array, points: jax.Array) -> jax.Array:
        """Values `[..., K · objectives]` of points `[K, dimensions]`."""
        action = self.action(points)  # [K, width]
        width = action.shape[-1]
        state = self.state(x)
        state = state.reshape(*state.shape[:-1], -1, width + 1)  # [..., objectives, width + 1]
        value = jnp.einsum("...rh,kh->...kr", state[..., 1:], action) / math.sqrt(width) + state[..., None, :, 0]
        return value.reshape(*value.shape[:-2], -1)


class Critic(eqx.Module):
    """An ensemble of value networks Q(s, a, ω) ∈ R^objectives.

    For one token, and for several when `decomposed`, a network gives in one pass values of each token's choices that
    add up: Q(s, a) = 1/D Σ_d U_d(s, a_d), the mean decomposition of DecQN (Seyde et al., 2023). Otherwise it reads the
    whole action, which can couple the tokens and costs one pass per action. Bins of a quantity and actions of a
    codebook enter by their values, so that what is learned of one holds for its neighbours.
    """

    members: MLP | PointMLP | TokenMLP  # stacked along a leading ensemble axis
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
        if spec.points is not None:
            dimensions = spec.points.shape[1]
            self.members = jax.vmap(lambda k: PointMLP(inputs, dimensions, hidden, spec.objectives, norm, k))(keys)
        elif self.decomposed:
            outputs = spec.tokens * spec.num_choices * spec.objectives
            self.members = jax.vmap(lambda k: MLP(inputs, hidden, outputs, norm, k))(keys)
        else:
            names, quantities = (spec.tokens, 0) if spec.levels is None else (0, spec.tokens)
            self.members = jax.vmap(
                lambda k: TokenMLP(inputs, names, spec.num_choices, quantities, hidden, spec.objectives, norm, k)
            )(keys)

    def values(self, x: jax.Array, actions: jax.Array | None = None) -> jax.Array:
        """Values `[E, B, T, M, objectives]` at contexts `[B, inputs]`, whose sum over T is Q.

        Of actions `[B, M, D]`: T = 1. Of None: the K choices of every token, T = D, where the values are decomposed.
        """
        if self.decomposed:
            points = () if self.spec.points is None else (jnp.asarray(self.spec.points, x.dtype),)
            out = self._each(lambda m: m(x, *points)) / self.spec.tokens
            out = out.reshape(self.size, x.shape[0], self.spec.tokens, self.spec.num_choices, -1)
            if actions is None:
                return out
            chosen = jnp.moveaxis(actions, 2, 1)[None, ..., None]  # [1, B, D, M, 1]
            return jnp.sum(jnp.take_along_axis(out, chosen, 3), 2, keepdims=True)
        if actions is None:
            raise ValueError("values of all choices exist where they are decomposed only")
        gate = jnp.ones(actions.shape[:-1], x.dtype)
        names, quantities = actions, jnp.zeros((*actions.shape[:-1], 0), x.dtype)
        if (levels := self.spec.levels) is not None:
            names, quantities = actions[..., :0], jnp.asarray(levels, x.dtype)[jnp.arange(len(levels)), actions]
        return self._each(lambda m: m(m.embed(x)[:, None], names, gate, quantities))[:, :, None]

    def _each(self, apply: Callable[..., jax.Array]) -> jax.Array:
        return jax.vmap(apply)(self.members)
