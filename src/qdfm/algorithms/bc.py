"""BC: behaviour cloning, a softmax per token fitted by maximum likelihood (Pomerleau, 1991).

For one categorical token this is as expressive as any flow; for several it cannot couple them. Also the separate
behaviour network μ̂ of the paper, and of the value baselines. No deviations.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Config, Metrics, Phase, draw_preference, legal_choices
from qdfm.algorithms.learner import Learner
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow.rates import log_posterior
from qdfm.flow.samplers import JOINT_MAX, inverse_cdf, joint_states
from qdfm.nets import MLP, context, feature_size, preference_size


@dataclass(frozen=True)
class BC(Config):
    """Behaviour cloning."""

    clone_steps: int = 20_000
    """Gradient steps."""

    name = "bc"
    about = "behaviour cloning: a softmax per token"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)

        def act(
            policy: Any, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
            carry: Any, greedy: bool = False,
        ) -> tuple[jax.Array, Any]:  # fmt: skip
            log_mu = log_behaviour(spec, policy, observation, preference, mask)
            return choose(noise, log_mu, greedy), carry

        def probs(
            policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
        ) -> jax.Array:  # fmt: skip
            return joint_law(spec, log_behaviour(spec, policy, observation, preference, mask))

        return Algorithm(
            init=lambda key: init_behaviour(config, spec, key),
            phases=(clone_phase(config, spec, config.clone_steps, lambda s: s, lambda s, new: new),),
            policy=lambda state: state.average,
            act=act,
            noise=spec.tokens,
            probs=probs,
        )


def init_behaviour(config: Config, spec: Spec, key: jax.Array) -> Learner:
    """A fresh behaviour network."""
    inputs = feature_size(spec) + preference_size(spec)
    return learner.start(MLP(inputs, config.hidden, spec.tokens * spec.num_choices, False, key), config.learning_rate)


def log_behaviour(
    spec: Spec, net: MLP, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
) -> jax.Array:
    """log μ̂ of each token `[B, D, K]`; illegal choices at −inf."""
    legal = legal_choices(spec, mask, len(observation))
    scores = net(context(spec, observation, preference)).reshape(legal.shape)
    return jnp.where(legal, log_posterior(scores, legal), -jnp.inf)


def clone_phase(config: Config, spec: Spec, steps: int, get: Any, put: Any) -> Phase:
    """Maximum likelihood of the logged actions, for the behaviour network that `get` finds in the state."""

    def update(state: Any, dataset: Dataset, cache: None, key: jax.Array) -> tuple[Any, Metrics]:
        rows, omega = jax.random.split(key)
        batch = dataset.sample(rows, config.batch_size)
        preference = draw_preference(omega, spec, config.batch_size)

        def loss(net: MLP) -> jax.Array:
            log_mu = log_behaviour(spec, net, batch.observation, preference, batch.mask)
            return -jnp.mean(jnp.sum(jnp.take_along_axis(log_mu, batch.action[..., None], -1), (1, 2)))

        current = get(state)
        value, gradient = jax.value_and_grad(loss)(current.net)
        new, norm = learner.descend(current, gradient, config.learning_rate, config.ema)
        return put(state, new), {"loss": value, "grad_norm": norm}

    return Phase("clone", steps, update)


def choose(noise: jax.Array, log_p: jax.Array, greedy: bool) -> jax.Array:
    """Tokens `[B, D]` from independent laws `[B, D, K]`, drawn by noise `[B, D]` or the most likely."""
    if greedy:
        return jnp.argmax(log_p, -1).astype(jnp.int32)
    return inverse_cdf(noise[..., None], jnp.exp(log_p))[..., 0]


def joint_law(spec: Spec, log_p: jax.Array) -> jax.Array:
    """Independent laws `[B, D, K]` as probabilities `[B, K]` or `[B, K, ..., K]`."""
    if spec.num_joint > JOINT_MAX:
        raise QDFMError(f"There are {spec.num_choices}**{spec.tokens} joint actions; draw samples with act instead.")
    every = joint_states(spec.tokens, spec.num_choices)
    joint = jnp.exp(jnp.sum(log_p[:, jnp.arange(spec.tokens), every], -1))
    return joint.reshape(len(log_p), *(spec.num_choices,) * spec.tokens)
