"""MODULI: a diffusion planner for offline multi-objective RL (Yuan et al., 2025), for data with preferences.

A transformer learns to denoise sequences of H states that begin at the observed one, told the preference ω under which
an episode was collected and its return g, relative to the returns under near preferences: E‖x̂(x_t, t, ω, g) − x_0‖².
Acting denoises a plan in a few DDIM steps for (ω, g = 1), by x̂ = w x̂(x_t, t, ω, g) + (1 − w) x̂(x_t, t), and takes the
action that an inverse dynamics network finds between the first two states. A preference ω that the data does not have
is reached by sliding: the plan is made for the nearest ω₀ that it has, and each prediction moves by
S(x_t, t, ω₀, g)(ω − ω₀), where S, the slider, was taught how the frozen planner's predictions change with ω.
Deviations, from the authors' code where the paper leaves it open: S has one output per objective, so that ω may move in
any direction, and learns differences between a row's ω and one moved towards another row's, which stays within the data
(theirs: two objectives, ω ± δ). Near preferences share cells of a grid, of side .005 by default (theirs: within .001,
of 50,000 episodes). The return is that of the window's first row (theirs: a discounted mean over the window); where
near returns are all the same it is 1. Windows reach past the end of an episode, where nothing is learned (theirs end
with it). Adam without weight decay. Bins are learned from their centres; for other actions the inverse dynamics is a
classifier, whose best legal choice is taken. Greedy plans start at the mean of the noise, others at `temperature` times
the noise, as theirs do. `MODULI.paper()` has the authors' sizes; `MODULI()` is small enough for a CPU and has no
penalty for ending a task.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdfm.algorithms import learner
from qdfm.algorithms.base import Algorithm, Config, Metrics, Phase, legal_choices
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.moduli_data import conditions, last_rows, windows
from qdfm.algorithms.softmax import log_likelihood
from qdfm.data.actions import Bins
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.diffusion import FIRST, ddim, noised, normals
from qdfm.errors import QDFMError
from qdfm.nets import MLP, feature_size, features
from qdfm.plannernets import Planner, guided

KNOWN = 1024  # preferences of the data that an agent remembers
FAR = 0.01 * 2**0.5  # a preference farther than this from all of them is reached by sliding (the authors)
REACH = 0.1  # the most that a preference is moved to teach the slider (the authors)


@dataclass(frozen=True)
class MODULI(Config):
    """Multi-objective diffusion planner with sliding guidance."""

    batch_size: int = 64
    """Windows, or transitions, per gradient step."""
    ema: float = 0.999
    """Decay of the averaged weights, which act (the authors: .995)."""
    inverse_learning_rate: float = 5e-4
    """Adam's step size for the inverse dynamics."""
    plan_steps: int = 30_000
    """Gradient steps of the planner."""
    inverse_steps: int = 20_000
    """Gradient steps of the inverse dynamics, whose hidden layers are `hidden`."""
    slide_steps: int = 5_000
    """Gradient steps of the slider (0: none; the planner is asked for every preference as it is)."""
    horizon: int = 8
    """H, states of a plan, the observed one included."""
    width: int = 64
    """Of the transformers."""
    depth: int = 2
    """Blocks of the transformers."""
    heads: int = 4
    """Attention heads; they divide the width."""
    steps: int = 10
    """DDIM steps of a plan."""
    guidance: float = 1.5
    """w, the weight of the condition: 1 asks for it, 0 leaves it out."""
    dropout: float = 0.25
    """How often the planner is not told the condition in training."""
    temperature: float = 0.5
    """Scale of the noise that plans start from."""
    next_weight: float = 10.0
    """Weight of the plan's second state in the loss, which the action depends on; the others have 1."""
    neighbourhood: float = 0.005
    """Preferences within this distance are near."""
    terminal_penalty: float = 0.0
    """What ending the task costs, of every objective's return."""

    name = "moduli"
    about = "data with preferences: diffusion planner over states, inverse dynamics"
    preferences_only = True

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The authors' sizes and steps, for MO-Hopper."""
        printed: dict[str, Any] = {
            "learning_rate": 2e-4, "ema": 0.995, "hidden": (1024, 1024), "plan_steps": 200_000,
            "inverse_steps": 500_000, "slide_steps": 200_000, "horizon": 32, "width": 384, "depth": 4, "heads": 6,
            "neighbourhood": 1e-3, "terminal_penalty": 100.0,
        }  # fmt: skip
        return cls(**{**printed, **changes})

    def resolve(self, spec: Spec) -> Self:
        """Check the values."""
        for field, low in (("horizon", 2), ("width", 1), ("depth", 1), ("heads", 1), ("steps", 1)):
            if getattr(self, field) < low:
                raise QDFMError(f"moduli: {field} is {getattr(self, field)}; it must be at least {low}.")
        if self.width % self.heads:
            raise QDFMError(f"moduli: heads is {self.heads}; it must divide the width {self.width}.")
        if not 0 <= self.dropout < 1:
            raise QDFMError(f"moduli: dropout is {self.dropout}; it must be at least 0 and below 1.")
        if self.neighbourhood <= 0:
            raise QDFMError(f"moduli: neighbourhood is {self.neighbourhood}; it must be above 0.")
        for field in ("guidance", "temperature", "next_weight", "terminal_penalty"):
            if getattr(self, field) < 0:
                raise QDFMError(f"moduli: {field} is {getattr(self, field)}; it must be at least 0.")
        if self.preference is not None or self.corners > 0 or self.preferences != "drawn":
            raise QDFMError(
                "moduli learns the data's own preferences; leave preference, preferences and corners as they are."
            )
        return super().resolve(spec)

    def adapt(self, dataset: Dataset) -> Dataset:
        """The same rows, whose preference is followed by the return relative to those of near preferences."""
        self.resolve(dataset.spec)
        dataset = super().adapt(dataset)
        assert dataset.preference is not None
        if dataset.preference.shape[1] == 2 * dataset.spec.objectives:  # it has been done
            return dataset
        return replace(dataset, preference=conditions(dataset, self.neighbourhood, self.terminal_penalty))

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        return Parts(self.resolve(spec), spec).algorithm()


class State(eqx.Module):
    """The networks, and preferences that the data has."""

    planner: Learner
    inverse: Learner
    slider: Learner | None
    known: jax.Array  # [KNOWN, objectives]


class Policy(eqx.Module):
    """What acting needs of it."""

    planner: Planner
    inverse: MLP
    slider: Planner | None
    known: jax.Array


@dataclass(frozen=True)
class Parts:
    """The functions of one config and spec."""

    config: MODULI
    spec: Spec

    def algorithm(self) -> Algorithm:
        """All of them together."""
        config = self.config
        phases = [
            Phase("plan", config.plan_steps, self.plan, prepare=self.remember, cache=self.ends),
            Phase("inverse", config.inverse_steps, self.invert),
        ]
        if config.slide_steps:
            phases.append(Phase("slide", config.slide_steps, self.slide, cache=self.ends))
        return Algorithm(
            init=self.init,
            phases=tuple(phases),
            policy=lambda s: Policy(s.planner.average, s.inverse.average, s.slider and s.slider.average, s.known),
            act=self.act,
            noise=(config.horizon - 1) * feature_size(self.spec),
            probs=None,
            actions=None if self.spec.levels is None else self.actions,
            evaluations=(2 * config.steps * config.horizon,) * 2,  # with and without the condition, at each state
        )

    def init(self, key: jax.Array) -> State:
        """Fresh networks."""
        config, spec = self.config, self.spec
        k1, k2, k3 = jax.random.split(key, 3)
        size, wanted = feature_size(spec), 2 * spec.objectives
        shape = (config.horizon, config.width, config.depth, config.heads)
        outputs = spec.tokens * (spec.num_choices if spec.levels is None else 1)
        slider = Planner(size, wanted, size * spec.objectives, *shape, k3)
        return State(
            learner.start(Planner(size, wanted, size, *shape, k1), config.learning_rate),
            learner.start(MLP(2 * size, config.hidden, outputs, False, k2), config.inverse_learning_rate),
            learner.start(slider, config.learning_rate) if config.slide_steps else None,
            jnp.zeros((KNOWN, spec.objectives)),
        )

    def remember(self, state: State, dataset: Dataset, key: jax.Array) -> State:
        """Note preferences of rows that are evenly spread over the data."""
        rows = np.linspace(0, len(dataset) - 1, KNOWN).astype(int)
        return replace(state, known=jnp.asarray(dataset.preference)[rows, : self.spec.objectives])

    def ends(self, state: State, dataset: Dataset, key: jax.Array) -> jax.Array:
        """The last row of every row's episode."""
        return last_rows(jnp.asarray(dataset.episode))

    def noisy(self, dataset: Dataset, last: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
        """A batch: states `[B, H, F]`, their weights `[B, H]`, conditions `[B, C]`, noised states, times `[B]`."""
        config = self.config
        k1, k2, k3 = jax.random.split(key, 3)
        start = jax.random.randint(k1, (config.batch_size,), 0, len(dataset))
        states, real = windows(dataset, last, start, config.horizon)
        t = jax.random.uniform(k2, start.shape, minval=FIRST, maxval=1.0)
        x = begin(noised(states, t, jax.random.normal(k3, states.shape)), states[:, 0])
        weight = jnp.ones(config.horizon).at[:2].set(jnp.array([0.0, config.next_weight]))  # the first state is given
        return states, jnp.where(real, weight, 0), jnp.asarray(dataset.preference)[start], x, t

    def plan(self, state: State, dataset: Dataset, last: jax.Array, key: jax.Array) -> tuple[State, Metrics]:
        """One step of the planner."""
        config = self.config
        k1, k2 = jax.random.split(key)
        states, weight, condition, x, t = self.noisy(dataset, last, k1)
        kept = jax.random.uniform(k2, t.shape) >= config.dropout

        def loss(net: Planner) -> jax.Array:
            return weighted((net(x, t, condition, kept) - states) ** 2, weight)

        value, gradient = jax.value_and_grad(loss)(state.planner.net)
        planner = learner.descend(state.planner, gradient, config.learning_rate, config.ema)
        return replace(state, planner=planner), {"loss": value}

    def invert(self, state: State, dataset: Dataset, cache: None, key: jax.Array) -> tuple[State, Metrics]:
        """One step of the inverse dynamics."""
        config, spec = self.config, self.spec
        batch = dataset.sample(key, config.batch_size)
        here, there = (features(spec, s) for s in (batch.observation, batch.next_observation))
        legal = legal_choices(spec, batch.mask, len(batch))

        def loss(net: MLP) -> jax.Array:
            found = self.between(net, here, there, legal)
            if spec.levels is None:
                return -jnp.mean(log_likelihood(found, batch.action))
            taken = jnp.asarray(spec.levels)[jnp.arange(spec.tokens), batch.action]  # [B, D]
            return jnp.mean((found - taken) ** 2)

        value, gradient = jax.value_and_grad(loss)(state.inverse.net)
        inverse = learner.descend(state.inverse, gradient, config.inverse_learning_rate, config.ema)
        return replace(state, inverse=inverse), {"loss": value}

    def slide(self, state: State, dataset: Dataset, last: jax.Array, key: jax.Array) -> tuple[State, Metrics]:
        """One step of the slider, towards differences of the planner's predictions."""
        assert state.slider is not None
        config, spec = self.config, self.spec
        k1, k2, k3 = jax.random.split(key, 3)
        _, weight, condition, x, t = self.noisy(dataset, last, k1)
        omega = condition[:, : spec.objectives]
        move = jnp.roll(omega, 1, 0) - omega  # towards the preference of another row
        size = jnp.max(jnp.abs(move), 1, keepdims=True)
        move = move * jax.random.uniform(k2, size.shape) * jnp.minimum(1, REACH / jnp.maximum(size, 1e-6))
        known = jnp.ones(len(t), bool)
        here, there = (
            state.planner.average(x, t, jnp.concatenate([w, condition[:, spec.objectives :]], 1), known)
            for w in (omega, omega + move)
        )
        kept = jax.random.uniform(k3, t.shape) < 0.5

        def loss(net: Planner) -> jax.Array:
            return weighted((along(net(x, t, condition, kept), move) - (there - here)) ** 2, weight)

        value, gradient = jax.value_and_grad(loss)(state.slider.net)
        slider = learner.descend(state.slider, gradient, config.learning_rate, config.ema)
        return replace(state, slider=slider), {"loss": value}

    def between(self, net: MLP, here: jax.Array, there: jax.Array, legal: jax.Array) -> jax.Array:
        """What led from one state to another: levels `[B, D]` of bins, otherwise log-probabilities `[B, D, K]`."""
        out = net(jnp.concatenate([here, there], -1))
        if self.spec.levels is not None:
            return jnp.tanh(out)
        return jax.nn.log_softmax(jnp.where(legal, out.reshape(legal.shape), -jnp.inf), -1)

    def plans(
        self, policy: Policy, noise: jax.Array, observation: jax.Array, preference: jax.Array, greedy: bool
    ) -> jax.Array:
        """Plans `[B, H, F]` from observations on, by uniforms `[B, (H − 1) · F]`."""
        config, now = self.config, features(self.spec, observation)
        z = normals(noise).reshape(len(now), config.horizon - 1, -1) * (0.0 if greedy else config.temperature)
        near, off = nearest(policy.known, preference) if policy.slider else (preference, None)
        condition = jnp.concatenate([near, jnp.ones_like(near)], 1)

        def denoise(x: jax.Array, t: jax.Array) -> jax.Array:
            times = jnp.broadcast_to(t, len(x))
            plan = guided(policy.planner, x, times, condition, config.guidance)
            if policy.slider is None or off is None:
                return plan

            def slid() -> jax.Array:
                assert policy.slider is not None
                return plan + along(guided(policy.slider, x, times, condition, config.guidance), off)

            return jax.lax.cond(jnp.any(off != 0), slid, lambda: plan)

        return ddim(denoise, jnp.concatenate([now[:, None], z], 1), config.steps, lambda x: begin(x, now))

    def found(
        self, policy: Policy, noise: jax.Array, observation: jax.Array, preference: jax.Array, legal: jax.Array,
        greedy: bool,
    ) -> jax.Array:  # fmt: skip
        """What leads to the second state of a plan, as `between` tells it."""
        plan = self.plans(policy, noise, observation, preference, greedy)
        return self.between(policy.inverse, plan[:, 0], plan[:, 1], legal)

    def act(
        self, policy: Policy, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
        carry: Any, greedy: bool = False,
    ) -> tuple[jax.Array, Any]:  # fmt: skip
        """Tokens `[B, D]`: the likeliest choices, or the bins nearest to the action."""
        legal = legal_choices(self.spec, mask, len(observation))
        score = self.found(policy, noise, observation, preference, legal, greedy)
        if self.spec.levels is not None:
            score = jnp.where(legal, -jnp.abs(score[..., None] - self.spec.levels), -jnp.inf)
        return jnp.argmax(score, -1).astype(jnp.int32), carry

    def actions(
        self, policy: Policy, noise: jax.Array, observation: jax.Array, preference: jax.Array, mask: jax.Array | None,
        carry: Any, greedy: bool = False,
    ) -> tuple[jax.Array, Any]:  # fmt: skip
        """Actions `[B, D]` between the least and the largest of the bins."""
        assert isinstance(self.spec.actions, Bins) and self.spec.levels is not None
        low, high = (jnp.array([v[end] for v in self.spec.actions.values]) for end in (0, -1))
        legal = legal_choices(self.spec, mask, len(observation))
        level = self.found(policy, noise, observation, preference, legal, greedy)
        return low + (level + 1) / 2 * (high - low), carry


def begin(x: jax.Array, state: jax.Array) -> jax.Array:
    """Sequences `[B, H, F]` that begin with the given states `[B, F]`."""
    return x.at[:, 0].set(state)


def weighted(error: jax.Array, weight: jax.Array) -> jax.Array:
    """The mean of errors `[B, H, F]` by weights `[B, H]`."""
    return jnp.sum(weight * jnp.mean(error, -1)) / jnp.sum(weight)


def along(slope: jax.Array, move: jax.Array) -> jax.Array:
    """How sequences move `[B, H, F]` by slopes `[B, H, F · objectives]` as their preferences do `[B, objectives]`."""
    return jnp.einsum("bhfo,bo->bhf", slope.reshape(*slope.shape[:2], -1, move.shape[1]), move)


def nearest(known: jax.Array, preference: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For preferences `[B, objectives]` those to plan for (their own, or far from all known ones the nearest of these),
    and the rest of the way."""
    distance = jnp.linalg.norm(preference[:, None] - known, axis=-1)  # [B, KNOWN]
    near = jnp.where(jnp.min(distance, 1, keepdims=True) > FAR, known[jnp.argmin(distance, 1)], preference)
    return near, preference - near
