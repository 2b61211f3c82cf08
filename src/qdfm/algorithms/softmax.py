"""A softmax per token: the policy of every baseline, and the separate behaviour network μ̂ of the paper.

For one categorical token this is as expressive as any flow; for several it cannot couple them. In a team each agent
has its own, of what it sees itself, all by one network.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Config, Phase, legal_choices
from qdfm.algorithms.learner import Learner
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.flow.rates import log_posterior
from qdfm.flow.samplers import JOINT_MAX, inverse_cdf, joint_states
from qdfm.nets import MLP, agent_rows, agent_size, choice_scores, context, feature_size, preference_size, score_size

# (policy, observation, preference, mask) -> log-probabilities [B, D, K] of independent tokens, −inf where illegal
LogLaw = Callable[[Any, jax.Array, jax.Array, jax.Array | None], jax.Array]


def init_softmax(config: Config, spec: Spec, key: jax.Array) -> Learner:
    """A fresh network."""
    inputs, outputs = feature_size(spec) + preference_size(spec), spec.tokens * score_size(spec)
    if spec.agents > 1:
        inputs, outputs = agent_size(spec), score_size(spec)
    return learner.start(MLP(inputs, config.hidden, outputs, False, key), config.policy_rate())


def log_softmax_of(
    spec: Spec, net: MLP, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
) -> jax.Array:
    """log p of each token `[B, D, K]`; illegal choices at −inf."""
    legal = legal_choices(spec, mask, len(observation))
    x = context(spec, observation, preference)
    scores = choice_scores(spec, net(x if spec.agents == 1 else agent_rows(spec, x))).reshape(legal.shape)
    return jnp.where(legal, log_posterior(scores, legal), -jnp.inf)


def divergence(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """KL(p‖q) `[..., D]` of the tokens' laws `[..., D, K]`, illegal choices (−inf in both) left out."""
    gap = jnp.where(jnp.isfinite(log_p), log_p, 0) - jnp.where(jnp.isfinite(log_q), log_q, 0)
    return jnp.sum(jnp.exp(log_p) * gap, -1)


def log_likelihood(log_p: jax.Array, action: jax.Array) -> jax.Array:
    """log p `[B]` of joint actions `[B, D]` under independent laws `[B, D, K]`."""
    taken = jax.nn.one_hot(action, log_p.shape[-1], dtype=bool)  # its gradient is a product, a gather's a scatter
    return jnp.sum(jnp.where(taken, log_p, 0), (1, 2))


def imitate(
    config: Config, spec: Spec, policy: Learner, batch: Dataset, preference: jax.Array, weights: jax.Array | None = None
) -> tuple[Learner, jax.Array]:
    """One step of (weighted) maximum likelihood of the logged actions; also the loss."""

    def loss(net: MLP) -> jax.Array:
        fit = log_likelihood(log_softmax_of(spec, net, batch.observation, preference, batch.mask), batch.action)
        return -jnp.mean(fit if weights is None else weights * fit)

    value, gradient = jax.value_and_grad(loss)(policy.net)
    new = learner.descend(policy, gradient, config.policy_rate(), config.ema)
    return new, value


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


def tokenwise(
    spec: Spec, init: Callable[..., Any], phases: tuple[Phase, ...], policy: Callable[[Any], Any], log_law: LogLaw
) -> Algorithm:
    """The algorithm that acts by independent laws of the tokens."""

    def act(
        policy: Any, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
        carry: Any, greedy: bool = False,
    ) -> tuple[jax.Array, Any]:  # fmt: skip
        return choose(noise, log_law(policy, observation, preference, mask), greedy), carry

    def probs(policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
        return joint_law(spec, log_law(policy, observation, preference, mask))

    return Algorithm(init=init, phases=phases, policy=policy, act=act, noise=spec.tokens, probs=probs)
