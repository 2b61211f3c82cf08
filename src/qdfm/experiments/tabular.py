"""A small table world whose KL optimum μ·exp(βQ)/C is known, and QDFM trained on it with the true Q as its critic.

What is left between the trained law and the closed form is then the flow's own: fitting, sampling steps, endpoints.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.algorithms import QDFM
from qdfm.algorithms.guidedcritic import CriticState
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.metrics import total_variation

STATES, ACTIONS, ROWS = 8, 6, 24_000
GRID, LOG_LOW, LOG_HIGH = 4001, -50.0, 7.0  # of the integral in self_normalised, over log s


class World(NamedTuple):
    """The behaviour and the values of every action, both `[S, K]`."""

    mu: np.ndarray
    q: np.ndarray

    def optimum(self, beta: float) -> np.ndarray:
        """μ·exp(βQ)/C in float64."""
        law = self.mu * np.exp(beta * (self.q - self.q.max(1, keepdims=True)))
        return law / law.sum(1, keepdims=True)


def table(seed: int = 0) -> World:
    """Random μ, uniform on the simplex, and standard normal Q."""
    rng = np.random.default_rng(seed)
    return World(rng.dirichlet(np.ones(ACTIONS), size=STATES), rng.normal(size=(STATES, ACTIONS)))


def data_of(mu: np.ndarray, rows: int = ROWS) -> Dataset:
    """Rows whose action frequencies are μ up to rounding, as many for each state."""
    each = rows // STATES
    counts = [np.diff(np.round(np.cumsum(np.r_[0, m]) * each)).astype(int) for m in mu]
    actions = np.concatenate([np.repeat(np.arange(ACTIONS), c) for c in counts])
    observation = np.eye(STATES)[np.repeat(np.arange(STATES), [c.sum() for c in counts])]
    done, reward = np.ones(len(actions), bool), np.zeros(len(actions))
    return Dataset.from_arrays(observation, actions, reward, observation, done, num_actions=ACTIONS, normalise=False)


class KnownCritic:
    """Stands where the critic stands and returns the table's values."""

    def __init__(self, q: jax.Array):
        self.q = q

    def values(self, x: jax.Array, actions: jax.Array | None = None) -> jax.Array:
        """`[1, B, 1, M, 1]` at one-hot states, of given actions `[B, M, 1]` or of all."""
        out = (x @ self.q)[None, :, None, :, None]
        return out if actions is None else jnp.take_along_axis(out, actions[None, :, None], 3)


jax.tree_util.register_pytree_node(KnownCritic, lambda c: ((c.q,), None), lambda _, c: KnownCritic(c[0]))


def trained_laws(
    config: QDFM, worlds: Sequence[World], seeds: Sequence[int], beta: float, parts: int = 1
) -> np.ndarray:  # fmt: skip
    """Exact laws `[seeds, 1 + parts, S, K]` of the policy: after the warm-up, then after each part of the improvement.

    All phases, with the known values in place of the critic phase and β unscaled; one world per seed, side by side.
    The objective is that of the improvement: a warm-up has one endpoint per row, and the literal sum repeats it.
    """
    datasets = [data_of(world.mu) for world in worlds]
    data = jax.tree.map(lambda *x: jnp.stack(x), *datasets)
    keys = jnp.stack([jax.random.key(seed, impl="threefry2x32") for seed in seeds])
    q = jnp.asarray(np.stack([world.q for world in worlds]), jnp.float32)
    config = dataclasses.replace(config, beta=1.0, beta_scale="none")  # β is an input: one program serves them all
    laws = _program(config, datasets[0].spec, parts)(keys, data, q, jnp.float32(beta))
    return np.asarray(laws, np.float64)


@lru_cache(maxsize=64)
def _program(config: QDFM, spec: Spec, parts: int) -> Callable[..., jax.Array]:
    """One compiled run of all seeds."""
    algorithm = dataclasses.replace(config, objective="collapsed").build(spec)
    improve = config.build(spec).phases[-1]
    assert algorithm.probs is not None
    probs = algorithm.probs

    def law(state: Any) -> jax.Array:
        return probs(algorithm.policy(state), jnp.eye(STATES), jnp.ones((STATES, 1)), None)

    def run(key: jax.Array, data: Dataset, q: jax.Array, beta: jax.Array) -> jax.Array:
        state = algorithm.init(jax.random.fold_in(key, 0))
        for number, phase in enumerate((*algorithm.phases[:-1], improve), 1):
            phase_key = jax.random.fold_in(key, number)
            if phase.prepare is not None:
                state = phase.prepare(state, data, jax.random.fold_in(phase_key, 2**31 - 1))

            def step(k: jax.Array, state: Any, phase: Any = phase, key: jax.Array = phase_key) -> Any:
                return phase.update(state, data, None, jax.random.fold_in(key, k))[0]

            if phase.name == "critic":
                known = dataclasses.replace(state.critic.learner, average=KnownCritic(q))
                state = dataclasses.replace(state, critic=CriticState(known, beta))
            elif phase.name != "improve":
                state = jax.lax.fori_loop(0, phase.steps, step, state)
        state = dataclasses.replace(state, critic=CriticState(state.critic.learner, beta))  # `prepare` set its own β
        warm, each = law(state), improve.steps // parts

        def part(state: Any, i: jax.Array) -> tuple[Any, jax.Array]:
            state = jax.lax.fori_loop(i * each, (i + 1) * each, step, state)
            return state, law(state)

        laws = jax.lax.scan(part, state, jnp.arange(parts))[1]
        return jnp.concatenate([warm[None], laws])

    return jax.jit(jax.vmap(run, in_axes=(0, 0, 0, None)))


def variation(p: np.ndarray, q: np.ndarray) -> float:
    """Mean total variation over the states."""
    return float(total_variation(p, q).mean())


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Mean KL(p‖q) over the states."""
    return float(np.sum(p * np.log(np.where(p > 0, p / q, 1)), 1).mean())


def exponent(law: np.ndarray, world: World, beta: float) -> float:
    """The k at which log π/μ is best explained as kβQ + c(s): least squares weighted by π, all states together.

    k̂ = Σ_s Cov_π(log π/μ, βQ) / Σ_s Var_π(βQ).
    """
    x = beta * world.q
    x = x - (law * x).sum(1, keepdims=True)
    y = np.log(np.where(law > 0, law / world.mu, 1))
    return float((law * x * y).sum() / (law * x**2).sum())


def self_normalised(mu: np.ndarray, values: np.ndarray, samples: int) -> np.ndarray:
    """The expected law of M draws of μ whose weights w = exp(values) are divided by their own sum, all `[S, K]`.

    With 1/x = ∫ exp(−sx) ds and multinomial counts it is one integral for each action, taken over log s:
    M·μ_a·w_a ∫ exp(−s·w_a) (Σ_b μ_b exp(−s·w_b))^(M−1) ds.
    """
    log_w = (values - values.max(1, keepdims=True))[..., None]  # [S, K, 1]
    log_s = np.linspace(LOG_LOW, LOG_HIGH - log_w.min(), GRID)
    sw = np.exp(log_s + log_w)  # [S, K, GRID]
    decay = np.exp(-sw)
    others = (mu[..., None] * decay).sum(1, keepdims=True) ** (samples - 1)
    return samples * mu * (sw * decay * others).sum(-1) * (log_s[1] - log_s[0])
