"""What QDFM does in training and when it acts: the phases that `qdfm.py` configures, as pure functions."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Metrics, disturbed, draw_preference, halved, legal_choices
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
    promise,
    update_critic,
)
from qdfm.algorithms.qdfm_rows import Rows, State
from qdfm.algorithms.softmax import init_softmax, log_softmax_of
from qdfm.data.actions import Bins, Codebook
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


class Lots(NamedTuple):
    """Uniforms of a step of the flow: for the start `[B, D]`, the times, where the paths are by then, the endpoints."""

    start: jax.Array
    times: jax.Array
    path: jax.Array
    pick: jax.Array


class Drawn(NamedTuple):
    """What a step draws, whatever the state, with a key for what does depend on it."""

    batch: Dataset
    preference: jax.Array
    kept: Any  # what is cached of the batch's rows
    key: jax.Array
    seen: jax.Array | None = None  # the observations as the flow learns from them
    lots: Lots | None = None


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
        warmup = halved("warmup", config.warmup_steps, self.draw_warmup, self.warmup, imitates=True)
        critic = halved(
            "critic", config.critic_steps, self.draw, self.critic, None if network else self.freeze,
            self.rows.cache_next,
        )  # fmt: skip
        if config.together:
            critic = halved("critic", config.critic_steps, self.draw_improve, self.both, critic.prepare)
        taught = config.guidance == "energy"
        improve = halved(
            "improve", config.improve_steps, self.draw_improve, self.improve, None if taught else self.fit_guidance,
            self.rows.cache,
        )  # fmt: skip
        energy = halved("energy", config.energy_steps, self.draw, self.teach, self.fit_guidance, self.rows.cache_taught)
        clone = clone_phase(config, spec, config.clone_steps)
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
            evaluations=(1, 1) if config.averaged else self.evaluations(),
        )

    def evaluations(self) -> tuple[int, int]:
        """How often the flow is evaluated when an action is drawn, and when the most likely one is looked for."""
        tokens, choices = self.spec.tokens, self.spec.num_choices
        each = tokens * choices if self.config.rates == "energy" else 1
        law = 1 if self.policy.direct else choices * self.steps  # of one token
        greedy = law if self.single else 1 if self.policy.local else tokens
        return each * self.steps * self.config.candidates, each * greedy

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
            proposal=jax.tree.map(jnp.copy, net) if config.endpoints == "model" else None,
            step=jnp.int32(0),
        )

    # What steps draw

    def draw(self, dataset: Dataset, cache: Any, key: jax.Array) -> Drawn:
        """A batch, a preference for each of its rows, and what is cached of them."""
        rows, omega, later = jax.random.split(key, 3)
        index = jax.random.randint(rows, (self.config.batch_size,), 0, len(dataset))
        batch = dataset[index]
        kept = jax.tree.map(lambda x: x[index], cache)
        return Drawn(batch, draw_preference(self.config, self.spec, omega, batch), kept, later)

    def draw_warmup(self, dataset: Dataset, cache: None, key: jax.Array) -> Drawn:
        """The same, and the lots of the flow, which has one endpoint for each row."""
        return self.with_lots(self.draw(dataset, cache, key), 1)

    def draw_improve(self, dataset: Dataset, cache: Any, key: jax.Array) -> Drawn:
        """The same where the flow has M endpoints, unless these are the logged actions."""
        certain = self.config.endpoints == "data" and not self.single
        return self.with_lots(self.draw(dataset, cache, key), 1 if certain else self.config.samples)

    def with_lots(self, drawn: Drawn, endpoints: int) -> Drawn:
        """With the lots of the flow, for so many endpoints where the objective is the sum over all of them."""
        later, noise, *keys = jax.random.split(drawn.key, 6)
        literal, shape = self.config.objective == "literal", drawn.batch.action.shape
        each = (shape[0], endpoints) if literal else shape[:1]
        sizes = (shape, each, (*each, shape[1]), (shape[0], endpoints if literal else 1))
        lots = Lots(*(jax.random.uniform(k, size) for k, size in zip(keys, sizes, strict=True)))
        seen = disturbed(self.spec, drawn.batch.observation, self.config.observation_noise, noise)
        return drawn._replace(key=later, seen=seen, lots=lots)

    # Phase 1

    def warmup(self, state: State, drawn: Drawn) -> tuple[State, Metrics]:
        """The unweighted flow-matching loss."""
        batch, preference = drawn.batch, drawn.preference
        a1 = batch.action
        if self.config.warmup_endpoint == "behaviour":
            mu = jnp.exp(log_softmax_of(self.spec, state.behaviour.average, batch.observation, preference, batch.mask))
            a1 = inverse_cdf(jax.random.uniform(drawn.key, (*a1.shape, 1)), mu)[..., 0]
        return self.fit(state, drawn, self.source(drawn), self.certain(a1))

    def source(self, drawn: Drawn) -> jax.Array:
        """A0 `[B, D]` from the source."""
        assert drawn.lots is not None
        return self.policy.start(drawn.lots.start, legal_choices(self.spec, drawn.batch.mask, len(drawn.batch)))

    def certain(self, a1: jax.Array) -> Endpoints:
        """One endpoint `[B, D]` for each row."""
        if self.single:
            return Endpoints(None, one_hot(a1, self.spec.num_choices))
        return Endpoints(a1[:, None], jnp.ones((len(a1), 1)))

    # Phase 2

    def freeze(self, state: State, dataset: Dataset, key: jax.Array) -> State:
        """The behaviour is the warm-up flow as it stands."""
        return replace(state, behaviour=jax.tree.map(jnp.copy, state.flow.average))

    def critic(self, state: State, drawn: Drawn) -> tuple[State, Metrics]:
        """Bellman regression over the behaviour's support at the next observations."""
        batch, preference = drawn.batch, drawn.preference
        support = self.rows.next_support(state, batch, preference, drawn.key, drawn.kept)
        critic, metrics = update_critic(self.config, self.spec, state.critic, batch, preference, support)
        return replace(state, critic=critic), metrics

    def both(self, state: State, drawn: Drawn) -> tuple[State, Metrics]:
        """A step of the critic, which values states by the flow as it stands, and one of the flow towards its tilt."""
        config, spec, batch, preference = self.config, self.spec, drawn.batch, drawn.preference
        law = Support(self.rows.log_law(state.flow.average, batch.next_observation, preference, batch.next_mask))
        critic, metrics = update_critic(replace(config, backup="mean"), spec, state.critic, batch, preference, law)
        support = self.rows.support(state, batch, preference, drawn.key)
        critic = follow_beta(config, spec, critic, batch, preference, support, metrics["q_abs"])
        state, more = self.improve(replace(state, critic=critic), drawn)
        return state, metrics | more | {"loss": metrics["loss"], "flow_loss": more["loss"]}

    # Phase 3

    def fit_guidance(self, state: State, dataset: Dataset, key: jax.Array) -> State:
        """β in units of the finished critic; the proposal starts at the warm-up flow."""
        if self.config.endpoints == "model":
            state = replace(state, proposal=jax.tree.map(jnp.copy, state.flow.average))
        state = replace(state, step=jnp.int32(0))
        rows, omega, draws = jax.random.split(key, 3)
        batch = dataset.sample(rows, min(BETA_ROWS, len(dataset)))
        preference = draw_preference(self.config, self.spec, omega, batch)
        support = self.rows.support(state, batch, preference, draws)
        at = (batch, preference, support)
        critic = CriticState(state.critic.learner, fit_beta(self.config, self.spec, state.critic, *at))
        if self.config.worthwhile:
            enough = promise(self.config, self.spec, critic, *at) >= self.config.worthwhile
            critic = CriticState(critic.learner, jnp.where(enough, critic.beta, 0))
        return replace(state, critic=critic)

    def teach(self, state: State, drawn: Drawn) -> tuple[State, Metrics]:
        """The energy network learns the weights."""
        assert state.energy is not None
        batch, preference = drawn.batch, drawn.preference
        support, weights, share = self.rows.weighted(state, batch, preference, drawn.key, drawn.kept, None)
        at = (batch.observation, preference, support)
        energy, metrics = contrast(self.config, self.spec, state.energy, *at, weights)
        return replace(state, energy=energy), metrics | {"effective_share": share}

    def improve(self, state: State, drawn: Drawn) -> tuple[State, Metrics]:
        """One step of the flow towards reweighted endpoints: the Q-weighted flow-matching loss."""
        config, batch, preference = self.config, drawn.batch, drawn.preference
        renew = state.step % config.renew_every == 0
        if config.endpoints == "model":
            proposal = jax.tree.map(lambda new, old: jnp.where(renew, new, old), state.flow.average, state.proposal)
            state = replace(state, proposal=proposal)
        row_weight = None
        if config.endpoints == "data":
            weight = self.rows.logged_weight(state, batch, preference, drawn.key, drawn.kept)
            share = jnp.mean(weight) ** 2 / jnp.mean(weight**2)
            endpoints, row_weight = self.certain(batch.action), weight[:, 0]
        else:
            at = (batch, preference, drawn.key, drawn.kept)
            support, weights, share = self.rows.weighted(state, *at, state.energy)
            endpoints = Endpoints(support.actions, weights if support.actions is None else weights[:, 0])
        a0 = self.source(drawn) if config.improve_start == "source" else batch.action
        before = state.flow
        state, metrics = self.fit(state, drawn, a0, endpoints, row_weight)
        if config.worthwhile:  # a flow that is not guided stays what it was
            guided = state.critic.beta > 0
            state = replace(state, flow=jax.tree.map(lambda new, old: jnp.where(guided, new, old), state.flow, before))
        metrics |= {"effective_share": share, "beta": state.critic.beta}
        if config.endpoints == "model":  # the fixed point after k renewals is μ·exp(kβQ)
            metrics["renewals"] = (state.step // config.renew_every + 1).astype(jnp.float32)
        return replace(state, step=state.step + 1), metrics

    def fit(
        self, state: State, drawn: Drawn, a0: jax.Array, endpoints: Endpoints, row_weight: jax.Array | None = None
    ) -> tuple[State, Metrics]:
        """One gradient step of the flow towards weighted endpoints, the rows weighted too where they are."""
        config, lots = self.config, drawn.lots
        assert drawn.seen is not None and lots is not None
        legal = legal_choices(self.spec, drawn.batch.mask, len(drawn.batch))
        x = context(self.spec, drawn.seen, drawn.preference)

        def alone(net: RateNet) -> jax.Array:
            each = self.objective(self.policy.scores(net, x), a0, endpoints, legal, lots)
            return jnp.mean(each if row_weight is None else row_weight * each)

        def loss(net: RateNet) -> jax.Array:
            return jnp.sum(jax.vmap(alone)(net.members)) if isinstance(net, Ensemble) else alone(net)

        value, gradient = jax.value_and_grad(loss)(state.flow.net)
        flow = learner.descend(state.flow, gradient, config.flow_rate(), config.ema)
        return replace(state, flow=flow), {"loss": value / config.members}

    def objective(
        self, scores: losses.Scores, a0: jax.Array, endpoints: Endpoints, legal: jax.Array, lots: Lots
    ) -> jax.Array:
        """The loss of each row `[B]`: the literal sum, or what has the same gradient in expectation."""
        actions, weights = endpoints
        t = draw_times(lots.times, self.steps)
        if self.config.objective == "literal":
            if actions is None:  # draws from an enumerated law need no weights
                actions = inverse_cdf(lots.pick, weights[:, 0])[..., None]
                weights = jnp.full(actions.shape[:2], 1 / actions.shape[1])
            return losses.literal(self.matching, scores, a0, actions, weights, t, lots.path, legal)
        if self.single:
            law = weights if actions is None else losses.endpoint_law(actions, weights, self.spec.num_choices)
            if self.steps == 1:
                return losses.collapsed_at_start(self.matching, scores, a0, law, legal)
            return losses.collapsed(self.matching, scores, a0, law, t, lots.path[:, 0], legal)
        assert actions is not None  # several tokens have drawn endpoints only
        one = inverse_cdf(lots.pick, weights)  # [B, 1]
        a1 = jnp.take_along_axis(actions, one[..., None], 1)[:, 0]
        return losses.conditional(self.matching, scores, a0, a1, t, lots.path, legal)

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
        """The mean of the law: a mean needs each token's own law only, and these are known at the start."""
        assert isinstance(self.spec.actions, Bins | Codebook)
        legal = legal_choices(self.spec, mask, len(observation))
        law = jnp.exp(self.policy.first_law(policy[0], context(self.spec, observation, preference), legal))
        return self.spec.actions.mean(law), carry

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
