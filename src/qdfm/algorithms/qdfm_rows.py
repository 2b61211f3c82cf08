"""Candidates at the rows of the data and their weights by exp(βQ): what QDFM's phases ask of its frozen parts.

Behaviour and critic are frozen before the phases that lean on them, so most of it is found once per row and kept:
support actions of several tokens, laws of one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from qdfm.algorithms import guidance
from qdfm.algorithms.base import draw_preference, legal_choices
from qdfm.algorithms.energy import energies
from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.algorithms.guidedcritic import (
    CriticState,
    Support,
    candidates_of,
    drawn_support,
    guiding_values,
    ratio_to_behaviour,
    support_of,
)
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import log_softmax_of
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.flow.samplers import inverse_cdf
from qdfm.nets import context
from qdfm.ratenets import RateNet

if TYPE_CHECKING:
    from qdfm.algorithms.qdfm import QDFM

CACHE_ROWS = 4096  # rows whose support is drawn, or whose law is found, at a time
LAW_BYTES = 2**30  # up to which the laws of one token are kept for all rows, for each seed


class State(eqx.Module):
    """Everything that training moves. `behaviour` is the frozen warm-up flow, or the network μ̂ in training."""

    flow: Learner
    behaviour: Any
    critic: CriticState
    energy: Learner | None  # of guidance="energy"
    proposal: RateNet | None  # where model endpoints come from
    step: jax.Array  # of phase 3


class Weights(NamedTuple):
    """Of every row: the weights of its candidates `[n, M]`, with their effective share `[n]`; or the weight `[n, 1]` of
    its logged action, whose share is that of the batch."""

    weights: jax.Array
    share: jax.Array | None


class Cached(NamedTuple):
    """What is known of every row before phase 3, since critic and behaviour are frozen by then: support actions
    `[n, M, D]` of several tokens and, where every row has its preference, the weights."""

    actions: jax.Array | None
    known: Weights | None


class Rows:
    """The pure functions of one resolved config and spec."""

    def __init__(self, config: "QDFM", spec: Spec, policy: FlowPolicy):
        self.config, self.spec, self.policy, self.single = config, spec, policy, spec.tokens == 1

    def log_mu(
        self, state: State, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
    ) -> jax.Array:  # fmt: skip
        """log μ̂ `[B, 1, K]` of one token."""
        if self.config.behaviour == "network":
            return log_softmax_of(self.spec, state.behaviour.average, observation, preference, mask)
        return self.log_law(state.behaviour, observation, preference, mask)

    def log_law(
        self, net: RateNet, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
    ) -> jax.Array:  # fmt: skip
        """The logarithm of a flow's law `[B, 1, K]` of one token."""
        legal = legal_choices(self.spec, mask, len(observation))
        x = context(self.spec, observation, preference)
        if self.policy.posterior:  # one evaluation instead of K · N
            return jnp.where(legal, self.policy.first_law(net, x, legal), -jnp.inf)
        return jnp.log(self.policy.law(net, x, legal))[:, None]

    def support(self, state: State, batch: Dataset, preference: jax.Array, key: jax.Array) -> Support:
        """Candidate endpoints at a batch, as the switch `endpoints` says."""
        config = self.config
        if config.endpoints == "model":
            assert state.proposal is not None
            x = context(self.spec, batch.observation, preference)
            return drawn_support(self.draw(state.proposal, state, x, batch, preference, key))
        if self.single:
            log_mu = self.log_mu(state, batch.observation, preference, batch.mask)
            return support_of(config, key, log_mu, config.samples if config.endpoints == "behaviour" else 0)
        x = context(self.spec, batch.observation, preference)
        return drawn_support(self.draw(state.behaviour, state, x, batch, preference, key))

    def draw(
        self, net: RateNet, state: State, x: jax.Array, batch: Dataset, preference: jax.Array, key: jax.Array
    ) -> jax.Array:
        """M endpoints per row `[B, M, D]` by simulating a flow network."""
        legal = legal_choices(self.spec, batch.mask, len(batch))
        noise, start = jax.random.split(key)
        uniforms = jax.random.uniform(noise, (len(batch), self.config.samples, self.policy.noise))
        a0 = None
        if self.config.act_start == "behaviour":
            mu = jnp.exp(log_softmax_of(self.spec, state.behaviour.average, batch.observation, preference, batch.mask))
            a0 = inverse_cdf(jax.random.uniform(start, (len(batch), self.config.samples)), mu[:, 0])[..., None]
        return self.policy.sample(net, x, legal, uniforms, a0, self.config.support_share)

    def weigh(
        self, state: State, batch: Dataset, preference: jax.Array, support: Support, energy: Learner | None
    ) -> jax.Array:
        """The weights `[B, 1, M]` of the candidates by exp(βQ), or by an energy network."""
        if energy is None:
            critic = state.critic.learner.average
            seen = self.config.seen(batch)
            q = guiding_values(self.config, self.spec, critic, seen, preference, support)
            beta = guidance.state_beta(support.log_mu, q, state.critic.beta, self.config.state_share)
        else:
            observation, beta = batch.observation, jnp.float32(1)
            q = energies(self.spec, energy.average, observation, preference, support.actions)
        return guidance.tilt(support.log_mu, q, beta)

    # `kept` is what is cached, if anything, of the rows of the batch.

    def candidates(
        self, state: State, batch: Dataset, preference: jax.Array, key: jax.Array, kept: Cached | None
    ) -> Support:
        """The candidates at a batch."""
        if kept is None or kept.actions is None:
            return self.support(state, batch, preference, key)
        return drawn_support(kept.actions.astype(jnp.int32))

    def weighted(
        self, state: State, batch: Dataset, preference: jax.Array, key: jax.Array, kept: Cached | None,
        energy: Learner | None,
    ) -> tuple[Support, jax.Array, jax.Array]:  # fmt: skip
        """Candidates at a batch, their weights `[B, 1, M]` and the mean effective share of these."""
        support = self.candidates(state, batch, preference, key, kept)
        if kept is not None and kept.known is not None:
            assert kept.known.share is not None
            return support, kept.known.weights[:, None], jnp.mean(kept.known.share)
        weights = jax.lax.stop_gradient(self.weigh(state, batch, preference, support, energy))
        return support, weights, jnp.mean(guidance.share_of(support.log_mu, weights))

    def logged_weight(
        self, state: State, batch: Dataset, preference: jax.Array, key: jax.Array, kept: Cached | None
    ) -> jax.Array:
        """The weight of each logged action `[B, 1]`."""
        if kept is not None and kept.known is not None:
            return kept.known.weights
        support = self.candidates(state, batch, preference, key, kept)
        at = (self.config.seen(batch), preference, support, batch.action)
        return jax.lax.stop_gradient(ratio_to_behaviour(self.config, self.spec, state.critic, *at))

    def next_support(
        self, state: State, batch: Dataset, preference: jax.Array, key: jax.Array, kept: jax.Array | None
    ) -> Support:
        """The candidates at the next observations."""
        if not self.single:
            assert kept is not None
            return drawn_support(kept.astype(jnp.int32))
        log_mu = self.next_law(state, batch, preference) if kept is None else kept
        return candidates_of(key, log_mu, self.config.backup_samples or 0)

    def next_law(self, state: State, batch: Dataset, preference: jax.Array) -> jax.Array:
        """log μ̂ `[B, 1, K]` of one token at the next observations, as far as it is supported."""
        log_mu = self.log_mu(state, batch.next_observation, preference, batch.next_mask)
        return guidance.keep_supported(log_mu, self.config.support_share)

    # What is found once per row, because the behaviour is frozen: support actions of several tokens, laws of one

    def cache(self, state: State, dataset: Dataset, key: jax.Array) -> Cached | None:
        """The candidates at each row's observation, with the weights of phase 3."""
        if self.single:
            return self.cache_law(state, dataset, key)
        return self.cache_rows(state, dataset, key, state.energy)

    def cache_taught(self, state: State, dataset: Dataset, key: jax.Array) -> Cached | None:
        """The same with the weights that the energy network is to learn."""
        return None if self.single else self.cache_rows(state, dataset, key, None)

    def cache_rows(self, state: State, dataset: Dataset, key: jax.Array, energy: Learner | None) -> Cached | None:
        """M drawn actions of several tokens."""
        if self.config.endpoints == "model":
            return None
        actions = self.draw_rows(state, dataset, dataset.observation, dataset.mask, self.config.samples, key)
        if not self.known_preferences:
            return Cached(actions, None)

        def weigh(rows: jax.Array, key: jax.Array) -> Weights:
            support = drawn_support(actions[rows].astype(jnp.int32))
            return self.known_weights(state, dataset[rows], key, energy, lambda *_: support)

        return Cached(actions, by_blocks(weigh, len(dataset), key))

    def cache_law(self, state: State, dataset: Dataset, key: jax.Array) -> Cached | None:
        """All that phase 3 asks of critic and behaviour, of one token."""
        config = self.config
        if config.endpoints not in ("enumerated", "data") or not self.keeps_laws(dataset, config.improve_steps):
            return None

        def weigh(rows: jax.Array, key: jax.Array) -> Weights:
            return self.known_weights(state, dataset[rows], key, state.energy, self.support)

        return Cached(None, by_blocks(weigh, len(dataset), key))

    def known_weights(
        self, state: State, batch: Dataset, key: jax.Array, energy: Learner | None, support_at: Callable[..., Support]
    ) -> Weights:
        """The weights of some rows, whose preferences are known."""
        preference = draw_preference(self.config, self.spec, key, batch)  # the only one there is
        support = support_at(state, batch, preference, key)
        if self.config.endpoints == "data":
            at = (self.config.seen(batch), preference, support, batch.action)
            return Weights(ratio_to_behaviour(self.config, self.spec, state.critic, *at), None)
        weights = self.weigh(state, batch, preference, support, energy)
        return Weights(weights[:, 0], guidance.share_of(support.log_mu, weights))

    def cache_next(self, state: State, dataset: Dataset, key: jax.Array) -> jax.Array | None:
        """Support actions at each row's next observation, or what `next_law` says of one token there, `[n, 1, K]`."""
        if not self.single:
            samples = self.config.backup_samples or 0
            return self.draw_rows(state, dataset, dataset.next_observation, dataset.next_mask, samples, key)
        if not self.keeps_laws(dataset, self.config.critic_steps):
            return None

        def law(rows: jax.Array, key: jax.Array) -> jax.Array:
            batch = dataset[rows]
            return self.next_law(state, batch, draw_preference(self.config, self.spec, key, batch))

        return by_blocks(law, len(dataset), key)

    @property
    def known_preferences(self) -> bool:
        """Whether a row is always met with the same preference, so that values by row are worth keeping."""
        config = self.config
        return self.spec.objectives == 1 or config.preference is not None or config.preferences == "logged"

    def keeps_laws(self, dataset: Dataset, steps: int) -> bool:
        """Whether laws by row can be kept, and are asked for more often than made."""
        small = 4 * len(dataset) * self.spec.num_choices <= LAW_BYTES
        return self.known_preferences and small and steps * self.config.batch_size >= len(dataset)

    def draw_rows(
        self, state: State, dataset: Dataset, observation: jax.Array, mask: jax.Array | None, samples: int,
        key: jax.Array,
    ) -> jax.Array:  # fmt: skip
        """Draws from the frozen behaviour for every row, a block of rows at a time, in the smallest integer type."""
        dtype = next(kind for kind in (jnp.int8, jnp.int16, jnp.int32) if self.spec.num_choices <= jnp.iinfo(kind).max)

        def draw(rows: jax.Array, key: jax.Array) -> jax.Array:
            omega, noise = jax.random.split(key)
            legal = legal_choices(self.spec, None if mask is None else mask[rows], len(rows))
            x = context(self.spec, observation[rows], draw_preference(self.config, self.spec, omega, dataset[rows]))
            uniforms = jax.random.uniform(noise, (len(rows), samples, self.policy.noise))
            return self.policy.sample(state.behaviour, x, legal, uniforms, cut=self.config.support_share).astype(dtype)

        return by_blocks(draw, len(observation), key)


def by_blocks(function: Callable[[jax.Array, jax.Array], Any], count: int, key: jax.Array) -> Any:
    """The arrays `function(rows, key)` of all rows 0..count−1, so many at a time as fit."""
    block = min(CACHE_ROWS, count)

    def one(i: jax.Array) -> Any:
        return function(jnp.minimum(i * block + jnp.arange(block), count - 1), jax.random.fold_in(key, i))

    out = jax.lax.map(one, jnp.arange(-(-count // block)))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], out)
