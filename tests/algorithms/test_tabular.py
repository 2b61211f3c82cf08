"""Trained networks against closed forms on small tables: the tilt μ·exp(βQ)/C, the bias of drawn endpoints."""

import dataclasses
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.algorithms.guidedcritic import CriticState

STATES, ACTIONS, BETA = 8, 6, 2.0


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random μ, random Q, and the law μ·exp(βQ)/C in float64."""
    rng = np.random.default_rng(seed)
    mu = rng.dirichlet(np.ones(ACTIONS), size=STATES)
    q = rng.normal(size=(STATES, ACTIONS))
    law = mu * np.exp(BETA * q)
    return mu, q, law / law.sum(1, keepdims=True)


def data_of(mu: np.ndarray, rows: int = 24_000) -> qdfm.Dataset:
    """Rows whose action frequencies are μ up to rounding."""
    actions = [np.repeat(np.arange(ACTIONS), np.diff(np.round(np.cumsum(np.r_[0, m]) * rows / STATES))
                         .astype(int)) for m in mu]  # fmt: skip
    state = np.concatenate([np.full(len(a), s) for s, a in enumerate(actions)])
    obs = np.eye(STATES)[state]
    done = np.ones(len(state), bool)
    return qdfm.Dataset.from_arrays(
        obs, np.concatenate(actions), np.zeros(len(state)), obs, done, num_actions=ACTIONS, normalise=False
    )


class KnownCritic:
    """Stands where the critic stands and returns the table's values."""

    def __init__(self, q: np.ndarray):
        self.q = jnp.asarray(q, jnp.float32)

    def values(self, x, actions=None):
        out = (x @ self.q)[None, :, None, :, None]
        return out if actions is None else jnp.take_along_axis(out, actions[None, :, None], 3)


jax.tree_util.register_pytree_node(KnownCritic, lambda c: ((c.q,), None), lambda _, c: KnownCritic(c[0]))


def trained_law(config: qdfm.QDFM, mu: np.ndarray, q: np.ndarray) -> np.ndarray:
    """All phases, with the known critic in place of the critic phase; the exact law of the policy."""
    data = data_of(mu)
    algorithm = config.resolve(data.spec).build(data.spec)

    def run(key: jax.Array) -> Any:
        state = algorithm.init(jax.random.fold_in(key, 0))
        for i, phase in enumerate(algorithm.phases):
            if phase.name == "critic":
                state = phase.prepare(state, placed, key) if phase.prepare else state
                known = dataclasses.replace(state.critic.learner, average=KnownCritic(q))
                state = dataclasses.replace(state, critic=CriticState(known, jnp.float32(BETA)))
                continue

            def step(state: Any, k: jax.Array, phase: Any = phase, number: int = i + 1) -> Any:
                return phase.update(state, placed, None, jax.random.fold_in(jax.random.fold_in(key, number), k))

            state = jax.lax.scan(step, state, jnp.arange(phase.steps))[0]
        return algorithm.policy(state)

    placed = jax.device_put(data)
    policy = jax.jit(run)(jax.random.key(0))
    return np.asarray(algorithm.probs(policy, jnp.eye(STATES), jnp.ones((STATES, 1)), None), np.float64)


def variation(p: np.ndarray, q: np.ndarray) -> float:
    """Mean total variation over the states."""
    return float(np.abs(p - q).sum(1).mean() / 2)


BASE = qdfm.QDFM(
    beta=BETA, beta_scale="none", support_share=0.0, clone_steps=6_000, warmup_steps=3_000, improve_steps=4_000,
    hidden=(64, 64), critics=1, pessimism="mean",
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"steps": 20, "behaviour": "network"},
        {"steps": 20, "behaviour": "network", "rates": "softplus", "loss": "l2", "improve_steps": 12_000},
    ],
    ids=["posterior, one step", "posterior, 20 steps", "softplus, 20 steps"],
)
def test_a_trained_flow_has_the_boltzmann_law(changes):
    mu, q, law = table()
    assert variation(mu, law) > 0.2  # the tilt is no small one
    found = trained_law(dataclasses.replace(BASE, **changes), mu, q)
    assert variation(found, law) < 0.02


@pytest.mark.parametrize(
    "changes",
    [{"rates": "energy"}, {"rates": "diffuse", "loss": "l2", "steps": 3, "behaviour": "network"}],
    ids=["energy, one step", "diffuse, 3 steps"],
)
def test_the_alternative_rates_reach_it_too(changes):
    """Smaller and shorter than the above, so less exact."""
    mu, q, law = table()
    small = dataclasses.replace(BASE, hidden=(32, 32), batch_size=64, clone_steps=3_000, improve_steps=3_000)
    found = trained_law(dataclasses.replace(small, **changes), mu, q)
    assert variation(found, law) < 0.04


def self_normalised(mu: np.ndarray, q: np.ndarray, m: int, sets: int) -> np.ndarray:
    """The expected law of M self-normalised draws, by plain Monte Carlo: what drawn endpoints tend to."""
    rng = np.random.default_rng(1)
    out = np.zeros_like(mu)
    for s in range(STATES):
        draws = rng.choice(ACTIONS, p=mu[s], size=(sets, m))
        w = np.exp(BETA * q[s][draws])
        w /= w.sum(1, keepdims=True)
        out[s] = np.bincount(draws.ravel(), w.ravel(), ACTIONS) / sets
    return out


def test_drawn_endpoints_are_biased_as_self_normalisation_says():
    """At M = 16 and 64: the trained law is at the self-normalised law, off the Boltzmann law, the more the fewer."""
    mu, q, law = table()
    off = []
    for m in (16, 64):
        expected = self_normalised(mu, q, m, sets=20_000)
        found = trained_law(dataclasses.replace(BASE, endpoints="behaviour", samples=m), mu, q)
        assert variation(found, expected) < 0.02
        bias = variation(expected, law)
        off.append(bias)
        print(f"M={m}: bias of the endpoints {bias:.4f}, trained {variation(found, law):.4f}")
    for few, many in pairwise(off):
        assert 3 < few / many < 5  # falls as 1/M
