"""The networks of values: Q(s, a, ω) ∈ R^objectives of single tokens, points, joint actions and teams, as ensembles."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.spec import Spec
from qdfm.nets import MLP, Linear, TokenMLP, agent_rows, agent_size, feature_size, preference_size

MIXED = 32  # width of the mixing network of a team
HYPER = 64  # width of the networks that give its weights


class PointMLP(eqx.Module):
    """Context to values of K actions that are points: V(s) + ⟨features of the context, features of the point⟩.

    One pass gives all K, as an output layer would, but what is learned of one action holds for its neighbours. The
    features of the points are a learned map of fixed random ones, which tell a few hundred points apart as well as
    learned layers do.
    """

    state: MLP
    action: Linear

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], objectives: int, norm: bool, key: jax.Array
    ):  # fmt: skip
        k1, k2 = jax.random.split(key)
        width = hidden[-1]
        self.state = MLP(inputs, hidden, objectives * (width + 1), norm, k1)
        self.action = Linear(width, width, k2)

    def __call__(self, x: jax.Array, features: jax.Array) -> jax.Array:
        """Values `[B, K, objectives]` of points with features `[K, width]`, or of each row's own `[B, M, width]`."""
        width = self.action.weight.shape[-1]
        state = self.state(x).reshape(len(x), -1, width + 1)  # [B, objectives, width + 1]
        value, state = state[:, None, :, 0], state[..., 1:]
        if features.ndim == 2 and state.shape[0] * state.shape[1] < len(features):
            # ⟨s, f W + b⟩ = ⟨W s, f⟩ + ⟨b, s⟩: for few rows cheaper than the map of all points
            seen = jnp.einsum("brh,fh->brf", state, self.action.weight)
            product = jnp.einsum("brf,kf->bkr", seen, features) + (state @ self.action.bias)[:, None]
        else:
            each = "brh,kh->bkr" if features.ndim == 2 else "brh,bmh->bmr"
            product = jnp.einsum(each, state, self.action(features))
        return product / math.sqrt(width) + value


def random_features(points: np.ndarray, count: int) -> np.ndarray:
    """Features `[K, count]` of standardised points `[K, dimensions]`: ReLUs of random directions and offsets."""
    rng = np.random.RandomState(0)  # whose numbers no later NumPy changes: agents are saved without these features
    direction = rng.normal(size=(points.shape[1], count))
    direction /= np.linalg.norm(direction, axis=0)
    return np.maximum(points @ direction + rng.uniform(-2, 2, count), 0)


class QMix(eqx.Module):
    """Q_tot(s, a) ∈ R^objectives, increasing in every agent's own value U_i(o_i, a_i).

    The weights of the mixing network are absolute values of what the global state gives, so they are never negative.
    """

    utility: MLP
    first: MLP  # of the mixing network: its weights
    first_bias: MLP
    second: MLP
    second_bias: MLP
    spec: Spec = eqx.field(static=True)

    def __init__(self, spec: Spec, inputs: int, hidden: tuple[int, ...], norm: bool, key: jax.Array):
        self.spec = spec
        k1, k2, k3, k4, k5 = jax.random.split(key, 5)
        state, objectives = self._state_size(inputs), spec.objectives
        self.utility = MLP(agent_size(spec), hidden, spec.num_choices * objectives, norm, k1)
        self.first = MLP(state, (HYPER,), objectives * spec.agents * MIXED, False, k2)
        self.first_bias = MLP(state, (HYPER,), objectives * MIXED, False, k3)
        self.second = MLP(state, (HYPER,), objectives * MIXED, False, k4)
        self.second_bias = MLP(state, (HYPER,), objectives, False, k5)

    def _state_size(self, inputs: int) -> int:
        beyond = inputs - feature_size(self.spec) - preference_size(self.spec)
        return beyond + preference_size(self.spec) if beyond else inputs

    def utilities(self, x: jax.Array) -> jax.Array:
        """Each agent's own values `[B, G, K, objectives]`."""
        out = self.utility(agent_rows(self.spec, x))
        return out.reshape(*out.shape[:-1], self.spec.num_choices, self.spec.objectives)

    def mix(self, x: jax.Array, own: jax.Array) -> jax.Array:
        """Q_tot `[B, M, objectives]` of the agents' own values `[B, M, G, objectives]`."""
        agents, objectives = self.spec.agents, self.spec.objectives
        state = x[..., -self._state_size(x.shape[-1]) :]
        lead = state.shape[:-1]
        w1 = jnp.abs(self.first(state)).reshape(*lead, objectives, agents, MIXED) / agents
        b1 = self.first_bias(state).reshape(*lead, 1, objectives, MIXED)
        w2 = jnp.abs(self.second(state)).reshape(*lead, objectives, MIXED) / math.sqrt(MIXED)
        b2 = self.second_bias(state)[..., None, :]
        between = jax.nn.elu(jnp.einsum("bmgr,brgh->bmrh", own, w1) + b1)
        return jnp.einsum("bmrh,brh->bmr", between, w2) + b2

    def __call__(self, x: jax.Array, actions: jax.Array) -> jax.Array:
        """Q_tot `[B, M, objectives]` of joint actions `[B, M, G]`."""
        own = jnp.take_along_axis(self.utilities(x), jnp.moveaxis(actions, 2, 1)[..., None], 2)  # [B, G, M, objectives]
        return self.mix(x, jnp.moveaxis(own, 1, 2))


class AgentValues(eqx.Module):
    """What a team's agents expect, each from what it sees itself: an ensemble of networks that all agents share."""

    members: MLP  # stacked along a leading ensemble axis
    spec: Spec = eqx.field(static=True)

    def __init__(self, spec: Spec, hidden: tuple[int, ...], size: int, outputs: int, norm: bool, key: jax.Array):
        self.spec = spec
        inputs = agent_size(spec)
        self.members = jax.vmap(lambda k: MLP(inputs, hidden, outputs * spec.objectives, norm, k))(
            jax.random.split(key, size)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Values `[E, B, G, outputs, objectives]` at contexts `[B, inputs]`."""
        rows = agent_rows(self.spec, x)
        out = each_of(self.members, lambda m, rows: m(rows), rows)
        return out.reshape(*out.shape[:-1], -1, self.spec.objectives)


class Critic(eqx.Module):
    """An ensemble of value networks Q(s, a, ω) ∈ R^objectives.

    For one token, and for several when `decomposed`, a network gives in one pass values of each token's choices that
    add up: Q(s, a) = 1/D Σ_d U_d(s, a_d), the mean decomposition of DecQN (Seyde et al., 2023). Otherwise it reads the
    whole action, which can couple the tokens and costs one pass per action, or, when `mixed`, only what each agent of
    a team does, as `QMix` has it. Bins of a quantity and actions of a codebook enter by their values, so that what is
    learned of one holds for its neighbours. Contexts end with `state` numbers of a team's global state.
    """

    members: MLP | PointMLP | TokenMLP | QMix  # stacked along a leading ensemble axis
    size: int = eqx.field(static=True)
    decomposed: bool = eqx.field(static=True)
    spec: Spec = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], size: int, conditioned: bool, norm: bool, decomposed: bool,
        key: jax.Array, mixed: bool = False, state: int = 0,
    ):  # fmt: skip
        self.size, self.spec, self.decomposed = size, spec, (decomposed and not mixed) or spec.tokens == 1
        inputs = feature_size(spec) + (preference_size(spec) if conditioned else 0) + state
        keys = jax.random.split(key, size)
        if mixed:
            self.members = jax.vmap(lambda k: QMix(spec, inputs, hidden, norm, k))(keys)
        elif spec.points is not None:
            self.members = jax.vmap(lambda k: PointMLP(inputs, hidden, spec.objectives, norm, k))(keys)
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
            read: tuple[jax.Array, ...] = ()  # what points are known by
            if self.spec.points is not None and isinstance(self.members, PointMLP):
                width = self.members.action.weight.shape[-2]
                read = (jnp.asarray(random_features(self.spec.points, width), x.dtype),)
            if read and actions is not None and actions.shape[1] == 1:  # without the values of all others
                return each_of(self.members, lambda m, *at: m(*at), x, read[0][actions[..., 0]])[:, :, None]
            out = each_of(self.members, lambda m, *at: m(*at), x, *read) / self.spec.tokens
            out = out.reshape(self.size, x.shape[0], self.spec.tokens, self.spec.num_choices, -1)
            if actions is None:
                return out
            chosen = jnp.moveaxis(actions, 2, 1)[None, ..., None]  # [1, B, D, M, 1]
            return jnp.sum(jnp.take_along_axis(out, chosen, 3), 2, keepdims=True)
        if actions is None:
            raise ValueError("values of all choices exist where they are decomposed only")
        if isinstance(self.members, QMix):
            return each_of(self.members, lambda m, x: m(x, actions), x)[:, :, None]
        gate = jnp.ones(actions.shape[:-1], x.dtype)
        names, quantities = actions, jnp.zeros((*actions.shape[:-1], 0), x.dtype)
        if (levels := self.spec.levels) is not None:
            names, quantities = actions[..., :0], jnp.asarray(levels, x.dtype)[jnp.arange(len(levels)), actions]
        return each_of(self.members, lambda m, x: m(m.embed(x)[:, None], names, gate, quantities), x)[:, :, None]

    def utilities(self, x: jax.Array) -> jax.Array:
        """Each agent's own values `[E, B, G, K, objectives]`, where the values of a team are mixed."""
        return each_of(self.members, lambda m, x: m.utilities(x), x)


def each_of(members: Any, apply: Callable[..., jax.Array], *inputs: jax.Array) -> jax.Array:
    """What `apply(member, *inputs)` gives for every member, whose weights are stacked along a leading axis.

    The inputs are repeated along it: for one input of all members XLA joins their products into one, and transposes
    their weights for it in every step.
    """
    size = jax.tree.leaves(members)[0].shape[0]
    return jax.vmap(apply)(members, *(jnp.broadcast_to(x, (size, *x.shape)) for x in inputs))
