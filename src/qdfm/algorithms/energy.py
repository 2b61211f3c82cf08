"""Contrastive energy prediction for several objectives (the paper's appendix, MO-CEP), after Lu et al. (2023).

A network f(s, a, ω) is trained by cross-entropy to give the candidates of a state the weights that exp(βQ_ω) gives
them: −Σ_i w̃_i log softmax_i(log μ + f), where log μ is constant for candidates drawn from the behaviour, as printed.
At its minimum f = βQ_ω + a constant of the state. As guidance it takes the place of βQ, which it distils.
Where we differ: the printed f also reads a time t, but its candidates are never noised, so its minimiser does not
depend on t and ours does not read it.
"""

import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Metrics
from qdfm.algorithms.critic import CriticConfig
from qdfm.algorithms.guidedcritic import Support
from qdfm.algorithms.learner import Learner
from qdfm.data.spec import Spec
from qdfm.nets import context
from qdfm.valuenets import Critic


def init_energy(config: CriticConfig, spec: Spec, key: jax.Array) -> Learner:
    """A fresh energy network, of the critic's size, conditioned on the preference whatever the critic is."""
    net = Critic(spec, config.critic_hidden or config.hidden, 1, True, bool(config.layer_norm), False, key)
    return learner.start(net, config.critic_learning_rate)


def energies(
    spec: Spec, net: Critic, observation: jax.Array, preference: jax.Array, actions: jax.Array | None
) -> jax.Array:
    """f `[B, T, M]` of actions `[B, M, D]`, or of all choices of one token (None)."""
    return jnp.sum(net.values(context(spec, observation, preference), actions)[0], -1)


def contrast(
    config: CriticConfig, spec: Spec, energy: Learner, observation: jax.Array, preference: jax.Array, support: Support,
    weights: jax.Array,
) -> tuple[Learner, Metrics]:  # fmt: skip
    """One gradient step towards the weights `[B, T, M]` of the candidates."""

    def loss(net: Critic) -> jax.Array:
        f = energies(spec, net, observation, preference, support.actions)
        log_p = jax.nn.log_softmax(support.log_mu + f, -1)
        return -jnp.mean(jnp.sum(jnp.where(weights > 0, weights * log_p, 0), (1, 2)))

    value, gradient = jax.value_and_grad(loss)(energy.net)
    new = learner.descend(energy, gradient, config.critic_learning_rate, 1 - config.target_rate)
    return new, {"loss": value}
