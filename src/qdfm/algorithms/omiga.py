"""OMIGA: implicit global-to-local value regularisation (Wang et al., 2023), for teams with discrete actions.

Local values Q_i(o_i, a_i) and V_i(o_i), by one network each for all agents, are mixed linearly by weights that the
global state s gives: Q_tot = Σ_i w_i(s) Q_i + b(s) and V_tot = Σ_i w_i(s) V_i + b(s), w ≥ 0. A penalty α·KL(π‖μ) on the
team's policy then falls apart into one for every agent. With z_i = w_i (Q_i − V_i) / α, at the logged actions only:
    V_i minimises    exp(z_i) + w_i V_i / α,   so that w_i V_i = α log E_μ exp(w_i Q_i / α),
    Q minimises      (r + γ V_tot(s') − Q_tot(s, a))²,
    π_i minimises    −exp(z_i) log π_i(a_i|o_i),   so that π_i ∝ μ_i exp(w_i Q_i / α).
As published, V's loss is divided by exp(max z) of the batch, z is bounded, and z, w in it and V_tot(s') are of target
networks, but for the V_i that is fitted. A team without a global state mixes by all observations.
Deviations: above the bound V's loss goes on as a straight line, since a loss that is clipped has no slope there to stop
V_i from falling. With several objectives Q and V are vectors and w_i, b follow the preference: ⟨ω, V_i⟩ is the value
above, and the rest of V_i is the mean of Q_i's under π_i, as if the divergence were taken off every objective alike.
"""

import math
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.advantage import advantage_weights
from qdfm.algorithms.base import Algorithm, Metrics, sampled
from qdfm.algorithms.critic import CriticConfig, critic_context, read, regress, scalarise
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import MLP, feature_size, preference_size
from qdfm.valuenets import HYPER, AgentValues


@dataclass(frozen=True)
class OMIGA(CriticConfig):
    """Implicit global-to-local value regularisation."""

    train_steps: int = 60_000
    """Gradient steps."""
    alpha: float = 10.0
    """α, the weight of the divergence, in units of the reward (the authors: 10, for one of their data sets 1)."""
    exponent_max: float = 10.0
    """The bound of the exponents z (the authors: 10)."""
    critics: int | None = 1
    """Size of the ensemble of local values Q_i, under one mixing network (the paper: 1)."""
    pessimism: str | None = "mean"
    """How an ensemble is read: min, mean or mean-std."""

    name = "omiga"
    about = "teams: the penalty on the joint policy as one for each agent's values"
    teams_only = True

    def state_size(self, spec: Spec) -> int:
        """All of the global state, which the mixing network reads."""
        return spec.state_size

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        for field in ("alpha", "exponent_max"):
            if getattr(config, field) <= 0:
                raise QDFMError(f"omiga: {field} is {getattr(config, field)}; it must be positive.")

        def init(key: jax.Array) -> State:
            k1, k2, k3 = jax.random.split(key, 3)
            value = AgentValues(spec, config.critic_hidden or config.hidden, 1, 1, bool(config.layer_norm), k3)
            return State(
                policy=init_softmax(config, spec, k1),
                critic=learner.start(LinearMix(config, spec, k2), config.critic_learning_rate),
                value=learner.start(value, config.critic_learning_rate),
            )

        def step(state: State, batch: Dataset, preference: jax.Array) -> tuple[State, Metrics]:
            target = state.critic.average
            x = critic_context(config, spec, config.seen(batch), preference)
            every = target.own(x)
            every = read(config, every, scalarise(every, preference))  # [B, G, K, objectives]
            q = jnp.take_along_axis(every, batch.action[..., None, None], 2)[:, :, 0]  # [B, G, objectives]
            share, _ = target.mixing(x)  # [B, G]

            def value_lost(net: AgentValues) -> jax.Array:
                return value_loss(net(x)[0, :, :, 0], q, share, preference, config.alpha, config.exponent_max)

            lost, gradient = jax.value_and_grad(value_lost)(state.value.net)
            value = learner.descend(state.value, gradient, config.critic_learning_rate, 1 - config.target_rate)

            gain = share * worth(q - value.net(x)[0, :, :, 0], preference)  # [B, G]
            weights = advantage_weights(gain, config.alpha, math.exp(config.exponent_max))

            def policy_lost(net: MLP) -> jax.Array:
                log_pi = log_softmax_of(spec, net, batch.observation, preference, batch.mask)
                taken = jax.nn.one_hot(batch.action, spec.num_choices, dtype=bool)
                return -jnp.mean(weights * jnp.sum(jnp.where(taken, log_pi, 0), -1))

            policy_loss, gradient = jax.value_and_grad(policy_lost)(state.policy.net)
            policy = learner.descend(state.policy, gradient, config.learning_rate, config.ema)

            x_next = critic_context(config, spec, config.seen_next(batch), preference)
            there = target.mix(x_next, state.value.average(x_next))[0, :, 0]
            critic, metrics = regress(config, spec, state.critic, batch, preference, there)
            metrics |= {"value_loss": lost, "policy_loss": policy_loss, "advantage": jnp.mean(gain)}
            return State(policy, critic, value), metrics

        return tokenwise(
            spec,
            init=init,
            phases=(sampled(config, spec, "train", config.train_steps, step),),
            policy=lambda state: state.policy.average,
            log_law=partial(log_softmax_of, spec),
        )


class State(eqx.Module):
    """The policy, the mixed values of actions, and the agents' own values."""

    policy: Learner
    critic: Learner
    value: Learner


class LinearMix(eqx.Module):
    """Q_tot(s, a) = Σ_i w_i(s) Q_i(o_i, a_i) + b(s), w ≥ 0; called as a `Critic` is."""

    own: AgentValues
    weight: MLP
    bias: MLP
    spec: Spec = eqx.field(static=True)

    def __init__(self, config: OMIGA, spec: Spec, key: jax.Array):
        k1, k2, k3 = jax.random.split(key, 3)
        hidden, norm = config.critic_hidden or config.hidden, bool(config.layer_norm)
        inputs = preference_size(spec) + (config.state_size(spec) or feature_size(spec))
        self.own = AgentValues(spec, hidden, config.critics or 1, spec.num_choices, norm, k1)
        self.weight = MLP(inputs, (HYPER,), spec.agents, False, k2)
        self.bias = MLP(inputs, (HYPER,), spec.objectives, False, k3)
        self.spec = spec

    def mixing(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """w `[B, G]` and b `[B, objectives]` at contexts that end with the global state, where there is one."""
        state = x if self.spec.state_shape is None else x[..., feature_size(self.spec) :]
        return jnp.abs(self.weight(state)), self.bias(state)

    def mix(self, x: jax.Array, own: jax.Array) -> jax.Array:
        """Values of the team `[E, B, M, objectives]` from the agents' own `[E, B, G, M, objectives]`."""
        weight, bias = self.mixing(x)
        return jnp.einsum("ebgmr,bg->ebmr", own, weight) + bias[:, None]

    def values(self, x: jax.Array, actions: jax.Array) -> jax.Array:
        """Q_tot `[E, B, 1, M, objectives]` of joint actions `[B, M, G]`."""
        chosen = jnp.moveaxis(actions, 2, 1)[None, ..., None]  # [1, B, G, M, 1]
        return self.mix(x, jnp.take_along_axis(self.own(x), chosen, 3))[:, :, None]


def worth(values: jax.Array, preference: jax.Array) -> jax.Array:
    """⟨ω, v⟩ `[B, G]` of the agents' values `[B, G, objectives]`."""
    return jnp.einsum("bgr,br->bg", values, preference)


def value_loss(
    value: jax.Array, q: jax.Array, share: jax.Array, preference: jax.Array, alpha: float, bound: float
) -> jax.Array:
    """The loss of local values V_i `[B, G, objectives]` for Q_i of the logged actions and w_i `[B, G]`."""
    z = share * worth(q - value, preference) / alpha
    top = jax.lax.stop_gradient(jnp.clip(jnp.max(z), -1, bound))
    risen = jnp.exp(jnp.minimum(z, bound) - top)
    risen = risen * (1 + jnp.maximum(z - bound, 0))  # a straight line above the bound
    fit = risen + jnp.exp(-top) * share * worth(value, preference) / alpha
    rest, other = (v - worth(v, preference)[..., None] for v in (value, q))  # nothing where there is one objective
    apart = jnp.sum((rest - other) ** 2, -1)
    return jnp.mean(fit + jax.lax.stop_gradient(risen) * apart)
