"""What QDFM does in training and when it acts: the phases that `qdfm.py` configures, as pure functions."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Metrics, Phase, disturbed, draw_preference, legal_choices
from qdfm.algorithms.bc import clone_phase
from qdfm.algorithms.critic import init_critic
from qdfm.algorithms.energy import contrast, init_energy
from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.algorithms.guidedcritic import (
    BETA_ROWS,
    CriticState,
    Support,
    drawn_support,
    first_beta,
    fit_beta,
    follow_beta,
    guiding_values,
    update_critic,
)
from qdfm.algorithms.qdfm_rows import Cached, Rows, State
from qdfm.algorithms.softmax import init_softmax, log_softmax_of
from qdfm.data.actions import Bins
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.flow import losses
from qdfm.flow.path import draw_times, one_hot
from qdfm.flow.samplers import inverse_cdf
from qdfm.nets import context
from qdfm.ratenets import Ensemble, RateNet

if TYPE_CHECKING:
    from qdfm.algorithms.qdfm import QDFM


class Endpoints(NamedTuple):
    """Endpoints of a batch: their law `[B, 1, K]` for one token, or drawn ones `[B, M, D]` with weights `[B, M]`."""

    actions: jax.Array | None
    weights: jax.Array


class Phases:
    """The pure functions of one resolved config and spec."""

    def __init__(self, config: "QDFM", spec: Spec):
        assert config.source is not None and config.steps is not None  # resolved
        self.config, self.spec, self.single = config, spec, spec.tokens == 1
        self.steps = config.steps
        local = config.execution == "decentralised"
        self.policy = FlowPolicy(spec, config.rates, config.source, config.steps, config.alpha, local, config.members)
        self.rows = Rows(config, spec, self.policy)
        self.matching = losses.Matching(
            config.rates, config.loss, config.diagonal, config.time_weight, config.source == "mask"
        )

    def algorithm(self) -> Algorithm:
        config, spec = self.config, self.spec
        network = config.behaviour == "network"
        warmup = Phase("warmup", config.warmup_steps, self.warmup)
        freeze = None if network else self.freeze
        critic = Phase("critic", config.critic_steps, self.critic, freeze, self.rows.cache_next)
        if config.together:
            critic = critic._replace(update=self.both, cache=None)
        taught = config.guidance == "energy"
        improve = Phase(
            "improve", config.improve_steps, self.improve, None if taught else self.fit_guidance, self.rows.cache
        )
        energy = Phase("energy", config.energy_steps, self.teach, self.fit_guidance, self.rows.cache_taught)
        clone = clone_phase(
            config, spec, config.clone_steps, lambda s: s.behaviour, lambda s, b: replace(s, behaviour=b)
        )
        return Algorithm(
            init=self.init,
            phases=(*(clone,) * network, warmup, critic, *(energy,) * taught, improve),
            policy=lambda s: (
                s.flow.average,
                s.behaviour.average if config.act_start == "behaviour" else None,
                s.critic.learner.average if config.candidates > 1 else None,
            ),
            act=self.act,
            noise=self.policy.noise * config.candidates,
            probs=self.probs if config.candidates == 1 and not config.averaged else None,
            actions=self.average if config.averaged else None,
        )

    def init(self, key: jax.Array) -> State:
        config, spec = self.config, self.spec
        k1, k2, k3, k4 = jax.random.split(key, 4)
        energy = init_energy(config, spec, k4) if config.guidance == "energy" else None
        net = self.policy.network(config.hidden, bool(config.layer_norm), k1)
        network = config.behaviour == "network"
        return State(
            flow=learner.start(net, config.flow_rate()),
            behaviour=init_softmax(config, spec, k2) if network else jax.tree.map(jnp.copy, net),
            critic=CriticState(init_critic(config, spec, k3, decomposed=False), first_beta(config)),
            energy=energy,
            proposal=jax.tree.map(jnp.copy, net),
            step=jnp.int32(0),
        )

    # Phase 1

    def warmup(self, state: State, dataset: Dataset, cache: None, key: jax.Array) -> tuple[State, Metrics]:
        """The unweighted flow-matching loss."""
        rows, omega, start, end, path = jax.random.split(key, 5)
        batch = dataset.sample(rows, self.config.batch_size)
        preference = draw_preference(self.config, self.spec, omega, batch)
        legal = legal_choices(self.spec, batch.mask, len(batch))
        a1 = batch.action
        if self.config.warmup_endpoint == "behaviour":
            mu = jnp.exp(log_softmax_of(self.spec, state.behaviour.average, batch.observation, preference, batch.mask))
            a1 = inverse_cdf(jax.random.uniform(end, (*a1.shape, 1)), mu)[..., 0]
        a0 = self.policy.start(jax.random.uniform(start, a1.shape), legal)
        return self.fit(state, batch, preference, legal, a0, self.certain(a1), path)

    def certain(self, a1: jax.Array) -> Endpoints:
        """One endpoint `[B, D]` for each row."""
        if self.single:
            return Endpoints(None, one_hot(a1, self.spec.num_choices))
        return Endpoints(a1[:, None], jnp.ones((len(a1), 1)))

    # Phase 2

    def freeze(self, state: State, dataset: Dataset, key: jax.Array) -> State:
        """The behaviour is the warm-up flow as it stands."""
        return replace(state, behaviour=jax.tree.map(jnp.copy, state.flow.average))

    def critic(self, state: State, dataset: Dataset, cache: Any, key: jax.Array) -> tuple[State, Metrics]:
        """Bellman regression over the behaviour's support at the next observations."""
        rows, omega, draws = jax.random.split(key, 3)
        index, batch, preference = self.batch(dataset, rows, omega)
        support = self.rows.next_support(state, index, batch, preference, draws, cache)
        critic, metrics = update_critic(self.config, self.spec, state.critic, batch, preference, support)
        return replace(state, critic=critic), metrics

    def both(self, state: State, dataset: Dataset, cache: None, key: jax.Array) -> tuple[State, Metrics]:
        """A step of the critic, which values states by the flow as it stands, and one of the flow towards its tilt."""
        config, spec = self.config, self.spec
        rows, omega, *lots = jax.random.split(key, 5)
        index, batch, preference = self.batch(dataset, rows, omega)
        law = Support(self.rows.log_law(state.flow.average, batch.next_observation, preference, batch.next_mask))
        critic, metrics = update_critic(replace(config, backup="mean"), spec, state.critic, batch, preference, law)
        support = self.rows.support(state, batch, preference, lots[0])
        critic = follow_beta(config, spec, critic, batch, preference, support, metrics["q_abs"])
        state, more = self.approach(replace(state, critic=critic), index, batch, preference, None, *lots)
        return state, metrics | more | {"loss": metrics["loss"], "flow_loss": more["loss"]}

    # Phase 3

    def fit_guidance(self, state: State, dataset: Dataset, key: jax.Array) -> State:
        """β in units of the finished critic; the proposal starts at the warm-up flow."""
        state = replace(state, proposal=jax.tree.map(jnp.copy, state.flow.average), step=jnp.int32(0))
        rows, omega, draws = jax.random.split(key, 3)
        batch = dataset.sample(rows, min(BETA_ROWS, len(dataset)))
        preference = draw_preference(self.config, self.spec, omega, batch)
        support = self.rows.support(state, batch, preference, draws)
        beta = fit_beta(self.config, self.spec, state.critic, batch, preference, support)
        return replace(state, critic=CriticState(state.critic.learner, beta))

    def towards_data(
        self, state: State, index: jax.Array, batch: Dataset, preference: jax.Array, key: jax.Array,
        cache: Cached | None,
    ) -> tuple[Endpoints, jax.Array, jax.Array]:  # fmt: skip
        """The logged actions as endpoints, the weight of each row `[B]`, and the effective share of these."""
        weight = self.rows.logged_weight(state, index, batch, preference, key, cache)
        return self.certain(batch.action), weight[:, 0], jnp.mean(weight) ** 2 / jnp.mean(weight**2)

    def teach(self, state: State, dataset: Dataset, cache: Any, key: jax.Array) -> tuple[State, Metrics]:
        """The energy network learns the weights."""
        assert state.energy is not None
        rows, omega, draws = jax.random.split(key, 3)
        index, batch, preference = self.batch(dataset, rows, omega)
        support, weights, share = self.rows.weighted(state, index, batch, preference, draws, cache, None)
        at = (batch.observation, preference, support)
        energy, metrics = contrast(self.config, self.spec, state.energy, *at, weights)
        return replace(state, energy=energy), metrics | {"effective_share": share}

    def improve(self, state: State, dataset: Dataset, cache: Any, key: jax.Array) -> tuple[State, Metrics]:
        """The Q-weighted flow-matching loss."""
        rows, omega, *lots = jax.random.split(key, 5)
        return self.approach(state, *self.batch(dataset, rows, omega), cache, *lots)

    def approach(
        self, state: State, index: jax.Array, batch: Dataset, preference: jax.Array, cache: Any, draws: jax.Array,
        start: jax.Array, path: jax.Array,
    ) -> tuple[State, Metrics]:  # fmt: skip
        """One step of the flow towards reweighted endpoints at a batch."""
        config = self.config
        legal = legal_choices(self.spec, batch.mask, len(batch))
        renew = state.step % config.renew_every == 0
        if config.endpoints == "model":
            proposal = jax.tree.map(lambda new, old: jnp.where(renew, new, old), state.flow.average, state.proposal)
            state = replace(state, proposal=proposal)
        row_weight = None
        if config.endpoints == "data":
            endpoints, row_weight, share = self.towards_data(state, index, batch, preference, draws, cache)
        else:
            support, weights, share = self.rows.weighted(state, index, batch, preference, draws, cache, state.energy)
            endpoints = Endpoints(support.actions, weights if support.actions is None else weights[:, 0])
        a0 = batch.action
        if config.improve_start == "source":
            a0 = self.policy.start(jax.random.uniform(start, a0.shape), legal)
        state, metrics = self.fit(state, batch, preference, legal, a0, endpoints, path, row_weight)
        metrics |= {"effective_share": share, "beta": state.critic.beta}
        if config.endpoints == "model":  # the fixed point after k renewals is μ·exp(kβQ)
            metrics["renewals"] = (state.step // config.renew_every + 1).astype(jnp.float32)
        return replace(state, step=state.step + 1), metrics

    def batch(self, dataset: Dataset, rows: jax.Array, omega: jax.Array) -> tuple[jax.Array, Dataset, jax.Array]:
        """Drawn row numbers, for the caches by row, with their transitions and a preference for each."""
        index = jax.random.randint(rows, (self.config.batch_size,), 0, len(dataset))
        batch = dataset[index]
        return index, batch, draw_preference(self.config, self.spec, omega, batch)

    def fit(
        self, state: State, batch: Dataset, preference: jax.Array, legal: jax.Array, a0: jax.Array,
        endpoints: Endpoints, key: jax.Array, row_weight: jax.Array | None = None,
    ) -> tuple[State, Metrics]:  # fmt: skip
        """One gradient step of the flow towards weighted endpoints, the rows weighted too where they are."""
        config = self.config
        *lots, noise = jax.random.split(key, 4)
        x = context(self.spec, disturbed(self.spec, batch.observation, config.observation_noise, noise), preference)

        def alone(net: RateNet) -> jax.Array:
            each = self.objective(self.policy.scores(net, x), a0, endpoints, legal, *lots)
            return jnp.mean(each if row_weight is None else row_weight * each)

        def loss(net: RateNet) -> jax.Array:
            return jnp.sum(jax.vmap(alone)(net.members)) if isinstance(net, Ensemble) else alone(net)

        value, gradient = jax.value_and_grad(loss)(state.flow.net)
        flow = learner.descend(state.flow, gradient, config.flow_rate(), config.ema)
        return replace(state, flow=flow), {"loss": value / config.members}

    def objective(
        self, scores: losses.Scores, a0: jax.Array, endpoints: Endpoints, legal: jax.Array, times: jax.Array,
        path: jax.Array, pick: jax.Array,
    ) -> jax.Array:  # fmt: skip
        """The loss of each row `[B]`: the literal sum, or what has the same gradient in expectation.

        `times`, `path` and `pick` are the keys of the times, of where the paths are by then, and of the endpoints.
        """
        rows, choices = len(a0), self.spec.num_choices
        actions, weights = endpoints
        if self.config.objective == "literal":
            if actions is None:  # draws from an enumerated law need no weights
                uniforms = jax.random.uniform(pick, (rows, self.config.samples))
                actions = inverse_cdf(uniforms, weights[:, 0])[..., None]
                weights = jnp.full(actions.shape[:2], 1 / self.config.samples)
            t = draw_times(jax.random.uniform(times, weights.shape), self.steps)
            uniforms = jax.random.uniform(path, actions.shape)
            return losses.literal(self.matching, scores, a0, actions, weights, t, uniforms, legal)
        if self.single:
            law = weights if actions is None else losses.endpoint_law(actions, weights, choices)
            if self.steps == 1:
                return losses.collapsed_at_start(self.matching, scores, a0, law, legal)
            t = draw_times(jax.random.uniform(times, (rows,)), self.steps)
            return losses.collapsed(self.matching, scores, a0, law, t, jax.random.uniform(path, (rows,)), legal)
        assert actions is not None  # several tokens have drawn endpoints only
        one = inverse_cdf(jax.random.uniform(pick, (rows, 1)), weights)  # [B, 1]
        a1 = jnp.take_along_axis(actions, one[..., None], 1)[:, 0]
        t = draw_times(jax.random.uniform(times, (rows,)), self.steps)
        return losses.conditional(self.matching, scores, a0, a1, t, jax.random.uniform(path, a1.shape), legal)

    # Acting

    def act(
        self, policy: Any, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
        carry: Any, greedy: bool = False,
    ) -> tuple[jax.Array, Any]:  # fmt: skip
        """Simulate the chain, several times where the critic is to choose, or take its most likely endpoint."""
        net, behaviour, critic = policy
        x = context(self.spec, observation, preference)
        legal = legal_choices(self.spec, mask, len(observation))
        mu = None if behaviour is None else jnp.exp(log_softmax_of(self.spec, behaviour, observation, preference, mask))
        if greedy:
            return self.policy.greedy(net, x, legal, None if mu is None else mu[:, 0]), carry
        uniforms = noise.reshape(len(x), self.config.candidates, -1)
        a0 = None if mu is None else inverse_cdf(uniforms[:, :, 0], mu[:, 0])[..., None]
        drawn = self.policy.sample(net, x, legal, uniforms, a0)  # [B, candidates, D]
        if critic is None:
            return drawn[:, 0], carry
        q = guiding_values(self.config, self.spec, critic, observation, preference, drawn_support(drawn))
        return jnp.take_along_axis(drawn, jnp.argmax(q, -1)[..., None], 1)[:, 0], carry

    def average(
        self, policy: Any, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
        carry: Any, greedy: bool = False,
    ) -> tuple[jax.Array, Any]:  # fmt: skip
        """The mean `[B, D]` of the law: a mean needs each token's own law only, and these are known at the start."""
        assert isinstance(self.spec.actions, Bins)
        values = [jnp.array(v) for v in self.spec.actions.values]
        legal = legal_choices(self.spec, mask, len(observation))
        law = jnp.exp(self.policy.first_law(policy[0], context(self.spec, observation, preference), legal))
        return jnp.stack([law[:, d, : len(v)] @ v for d, v in enumerate(values)], -1), carry

    def probs(
        self, policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None
    ) -> jax.Array:  # fmt: skip
        """The exact law of `act`."""
        net, behaviour, _ = policy
        x = context(self.spec, observation, preference)
        legal = legal_choices(self.spec, mask, len(observation))
        p0 = None
        if behaviour is not None:
            p0 = jnp.exp(log_softmax_of(self.spec, behaviour, observation, preference, mask))[:, 0]
        return self.policy.law(net, x, legal, p0)
