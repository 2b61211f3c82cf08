"""Each algorithm against its own fixed point on a small MDP, found another way: linear solves and iteration in NumPy.

The behaviour is poor (the better an action, the rarer it is), so every improved policy must also beat the clone of it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.algorithms import ALGORITHMS
from qdfm.algorithms.critic import preferred_values

STATES, ACTIONS, GAMMA, ROWS = 6, 3, 0.8, 20
SHARES = (
    np.array([[14, 4, 2], [10, 6, 4]]) / ROWS
)  # of the worst, the middle and the best action, at two kinds of state


def world() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Next state, reward and end of every (s, a) `[S, A]`, and the poor behaviour."""
    rng = np.random.default_rng(7)
    after = rng.integers(0, STATES, (STATES, ACTIONS))
    reward = rng.normal(0, 1, (STATES, ACTIONS))
    end = rng.random((STATES, ACTIONS)) < 0.2
    best = iterate(lambda q: q.max(1), after, reward, end)
    mu = np.zeros((STATES, ACTIONS))
    for s in range(STATES):
        mu[s, np.argsort(best[s])] = SHARES[s % 2]
    return after, reward, end, mu


def iterate(
    value: Callable[[np.ndarray], np.ndarray], after: np.ndarray, reward: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Q at the fixed point of Q = r + γ (1 − end) value(Q)."""
    q = np.zeros_like(reward)
    for _ in range(400):
        q = reward + GAMMA * np.where(end, 0, value(q)[after])
    return q


AFTER, REWARD, END, MU = world()


def solved(value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return iterate(value, AFTER, REWARD, END)


def normal(p: np.ndarray) -> np.ndarray:
    return p / p.sum(1, keepdims=True)


def tilted(q: np.ndarray, beta: float, mu: np.ndarray = MU) -> np.ndarray:
    return normal(mu * np.exp(beta * (q - q.max(1, keepdims=True))))


def one_hot(index: np.ndarray) -> np.ndarray:
    return np.eye(ACTIONS)[index]


def mean(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return (p * q).sum(1)


def expectile(q: np.ndarray, tau: float) -> np.ndarray:
    """The root of Σ μ |τ − 1(q < v)| (q − v) in each state, by bisection."""
    low, high = q.min(1), q.max(1)
    for _ in range(60):
        v = (low + high) / 2
        side = (MU * np.where(q < v[:, None], 1 - tau, tau) * (q - v[:, None])).sum(1)
        low, high = np.where(side > 0, v, low), np.where(side > 0, high, v)
    return (low + high) / 2


def conservative(y: np.ndarray, alpha: float) -> np.ndarray:
    """The minimiser of ½ E_μ (Q − y)² + α (log Σ exp Q − E_μ Q) in each state, by Newton's method."""
    q = y.copy()
    for _ in range(20):
        p = normal(np.exp(q - q.max(1, keepdims=True)))
        slope = MU * (q - y) + alpha * (p - MU)
        curve = np.einsum("sa,ab->sab", MU + alpha * p, np.eye(ACTIONS)) - alpha * p[:, :, None] * p[:, None, :]
        q = q - np.linalg.solve(curve, slope[..., None])[..., 0]
    return q


@cache
def cql(alpha: float) -> np.ndarray:
    q = np.zeros_like(REWARD)
    for _ in range(400):
        q = conservative(REWARD + GAMMA * np.where(END, 0, q.max(1)[AFTER]), alpha)
    return q


def bounded(advantage: np.ndarray, temperature: float, largest: float) -> np.ndarray:
    return normal(MU * np.minimum(np.exp(advantage / temperature), largest))


def awac(temperature: float) -> tuple[np.ndarray, np.ndarray]:
    q = solved(lambda q: mean(tilted(q, 1 / temperature), q))
    return q, tilted(q, 1 / temperature)


def iql(tau: float, temperature: float, largest: float) -> tuple[np.ndarray, np.ndarray]:
    q = solved(lambda q: expectile(q, tau))
    return q, bounded(q - expectile(q, tau)[:, None], temperature, largest)


def awbc(temperature: float, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """The behaviour's values by one linear solve."""
    move = np.zeros((STATES, STATES))
    for s in range(STATES):
        for a in range(ACTIONS):
            move[s, AFTER[s, a]] += MU[s, a] * (not END[s, a])
    v = np.linalg.solve(np.eye(STATES) - GAMMA * move, mean(MU, REWARD))
    q = REWARD + GAMMA * np.where(END, 0, v[AFTER])
    return q, bounded(q - v[:, None], temperature, largest)


def bcq(threshold: float) -> tuple[np.ndarray, np.ndarray]:
    allowed = threshold * MU.max(1, keepdims=True) <= MU
    q = solved(lambda q: np.where(allowed, q, -np.inf).max(1))
    return q, one_hot(np.where(allowed, q, -np.inf).argmax(1))


def brac(alpha: float) -> tuple[np.ndarray, np.ndarray]:
    q = solved(lambda q: alpha * np.log((MU * np.exp(q / alpha)).sum(1)))
    return q, tilted(q, 1 / alpha)


def guided(beta: float) -> np.ndarray:
    return solved(lambda q: mean(tilted(q, beta), q))


STEPS = 5_000
OPTIMISED = {"xla_backend_optimization_level": 1}  # thousands of steps are worth more than the tests' cheapest code
CRITIC: dict[str, Any] = {
    "hidden": (32,), "batch_size": 128, "gamma": GAMMA, "critic_learning_rate": 2e-3, "target_rate": 0.02,
    "learning_rate": 2e-3, "ema": 0.998, "critics": 1, "pessimism": "mean",
}  # fmt: skip
GUIDED: dict[str, Any] = {
    **CRITIC, "beta": 2.0, "beta_scale": "none", "support_share": 0.0, "critic_steps": STEPS
}  # fmt: skip
# The settings, and (Q, law) at the fixed point; Q is None where there is none, or the state does not show it.
CASES: dict[str, tuple[dict[str, Any], Callable[[], tuple[np.ndarray | None, np.ndarray]]]] = {
    "bc": ({"hidden": (32,), "batch_size": 128, "clone_steps": STEPS, "ema": 0.998}, lambda: (None, MU)),
    "qdfm": (
        {**GUIDED, "warmup_steps": 3_000, "improve_steps": 3_000},
        lambda: (guided(2.0), tilted(guided(2.0), 2.0)),
    ),
    "boltzbc": ({**GUIDED, "clone_steps": 3_000}, lambda: (guided(2.0), tilted(guided(2.0), 2.0))),
    "greedyq": ({**GUIDED, "clone_steps": 3_000}, lambda: (guided(2.0), one_hot(guided(2.0).argmax(1)))),
    "boltzq": ({**GUIDED, "clone_steps": 3_000}, lambda: (guided(2.0), tilted(guided(2.0), 2.0, np.ones_like(MU)))),
    "cql": (
        {**CRITIC, "train_steps": STEPS, "penalty": 0.3},
        lambda: (cql(0.3), normal(np.exp(cql(0.3)))),
    ),
    "iql": ({**CRITIC, "train_steps": STEPS, "expectile": 0.8}, lambda: iql(0.8, 1 / 3, 100.0)),
    "awac": ({**CRITIC, "train_steps": STEPS, "temperature": 0.3}, lambda: awac(0.3)),
    "awbc": ({**CRITIC, "train_steps": STEPS, "temperature": 0.5, "weight_max": 5.0}, lambda: awbc(0.5, 5.0)),
    "bcq": ({**CRITIC, "train_steps": STEPS, "threshold": 0.25}, lambda: bcq(0.25)),
    "brac": ({**CRITIC, "clone_steps": 3_000, "train_steps": STEPS, "penalty": 0.5}, lambda: brac(0.5)),
}


def logged(objectives: int = 1) -> qdfm.Dataset:
    """Twenty rows per state, the actions in the behaviour's proportions; a second objective that is all noise."""
    s, a = np.repeat(np.divmod(np.arange(STATES * ACTIONS), ACTIONS), np.rint(MU.ravel() * ROWS).astype(int), 1)
    eye = np.eye(STATES, dtype=np.float32)
    reward = np.stack([REWARD[s, a], np.random.default_rng(1).normal(size=len(s))], 1)[:, :objectives]
    return qdfm.Dataset.from_arrays(
        eye[s], a, reward, eye[AFTER[s, a]], END[s, a], num_actions=ACTIONS, normalise=False
    )


def fitted(name: str, data: qdfm.Dataset, **changes: Any) -> tuple[np.ndarray | None, np.ndarray]:
    """Q_ω `[S, ...]` of the trained critic where there is one, and the policy's law, at one-hot observations."""
    config = ALGORITHMS[name](**{**CASES[name][0], **changes}).resolve(data.spec)
    algorithm = config.build(data.spec)
    placed = jax.device_put(data)

    def run(key: jax.Array) -> Any:
        state = algorithm.init(jax.random.fold_in(key, 0))
        for number, phase in enumerate(algorithm.phases, 1):
            if phase.prepare is not None:
                state = phase.prepare(state, placed, key)

            def step(state: Any, k: jax.Array, phase: Any = phase, number: int = number) -> Any:
                return phase.update(state, placed, None, jax.random.fold_in(jax.random.fold_in(key, number), k))

            state = jax.lax.scan(step, state, jnp.arange(phase.steps))[0]
        return state

    state = jax.jit(run, compiler_options=OPTIMISED)(jax.random.key(0))
    eye = jnp.eye(data.spec.observation_shape[0])
    omega = jnp.tile(jnp.asarray(config.preference or (1.0,)), (len(eye), 1))
    law = np.asarray(algorithm.probs(algorithm.policy(state), eye, omega, None), np.float64)
    critic = state if name == "cql" else getattr(state, "critic", None)
    if name == "bc":
        return None, law
    average = getattr(critic, "learner", critic).average
    return np.asarray(preferred_values(config, data.spec, average, eye, omega), np.float64)[:, 0], law


@cache
def trained(name: str) -> tuple[np.ndarray | None, np.ndarray]:
    return fitted(name, logged())


def worth(law: np.ndarray) -> float:
    """The mean over states of a policy's exact value."""
    move = np.zeros((STATES, STATES))
    np.add.at(move, (np.repeat(np.arange(STATES), ACTIONS), AFTER.ravel()), (law * ~END).ravel())
    return float(np.linalg.solve(np.eye(STATES) - GAMMA * move, mean(law, REWARD)).mean())


def test_every_algorithm_has_a_case():
    """Those for teams have theirs in test_team_actors.py and test_team_values.py, the planner in test_moduli.py."""
    assert CASES.keys() == {name for name, c in ALGORITHMS.items() if not (c.teams_only or c.preferences_only)}


@pytest.mark.parametrize("name", CASES)
def test_fixed_point(name):
    q, law = trained(name)
    exact_q, exact_law = CASES[name][1]()
    if exact_q is not None:
        assert np.abs(q - exact_q).max() < 0.04 * np.abs(exact_q).max()
    assert np.abs(law - exact_law).sum(1).max() / 2 < 0.04
    if name != "bc":
        assert worth(law) > worth(trained("bc")[1]) + 0.1 * (
            worth(one_hot(solved(lambda q: q.max(1)).argmax(1))) - worth(MU)
        )


def test_conservative_values_of_the_best_action_are_those_of_cql():
    q, law = fitted("qdfm", logged(), conservatism=0.3, backup="max")
    assert np.abs(q - cql(0.3)).max() < 0.04 * np.abs(cql(0.3)).max()
    assert np.abs(law - tilted(cql(0.3), 2.0)).sum(1).max() / 2 < 0.04


def test_a_flow_beside_its_critic_has_qdfm_s_fixed_point():
    """The flow's own value is the tilt's, once it is the tilt; no last phase is needed."""
    q, law = fitted("qdfm", logged(), together=True, improve_steps=0)
    exact_q, exact_law = CASES["qdfm"][1]()
    assert np.abs(q - exact_q).max() < 0.04 * np.abs(exact_q).max()
    assert np.abs(law - exact_law).sum(1).max() / 2 < 0.04


def test_an_energy_network_as_guidance_has_qdfm_s_fixed_point():
    q, law = fitted("qdfm", logged(), guidance="energy", energy_steps=3_000)
    exact_q, exact_law = CASES["qdfm"][1]()
    assert np.abs(q - exact_q).max() < 0.04 * np.abs(exact_q).max()
    assert np.abs(law - exact_law).sum(1).max() / 2 < 0.04


@pytest.mark.parametrize(
    ("name", "critic"), [("cql", "vector"), ("cql", "scalarised"), ("iql", "vector"), ("brac", "vector")]
)
def test_with_two_objectives_a_preference_for_one_gives_its_fixed_point(name, critic):
    q, law = fitted(name, logged(2), preference=(1.0, 0.0), critic=critic)
    exact_q, exact_law = CASES[name][1]()
    assert np.abs(q - exact_q).max() < 0.04 * np.abs(exact_q).max()
    assert np.abs(law - exact_law).sum(1).max() / 2 < 0.04


def two_parts() -> tuple[qdfm.Dataset, list[np.ndarray], list[np.ndarray]]:
    """A bandit whose reward is the sum over two parts of unequal size, chosen independently; μ and r of each part."""
    mu, reward = [np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4])], [np.array([0.0, 0.5, 1.0]), np.array([-0.2, 0.6])]
    counts = np.rint(100 * np.outer(*mu)).astype(int)
    a, b = np.repeat(np.divmod(np.arange(6), 2), counts.ravel(), 1)
    obs = np.ones((100, 1), np.float32)
    data = qdfm.Dataset.from_arrays(
        obs, np.stack([a, b], 1), reward[0][a] + reward[1][b], obs, np.ones(100), num_actions=(3, 2), normalise=False
    )
    return data, mu, reward


def conservative_part(mu: np.ndarray, reward: np.ndarray, alpha: float) -> np.ndarray:
    """softmax of the part's share of CQL's values: they solve μ (v − s) + α (softmax(v) − μ) = 0, s centred."""
    s = reward - mu @ reward
    v = s.copy()
    for _ in range(20_000):
        p = np.exp(v) / np.exp(v).sum()
        v = v - 0.5 * (mu * (v - s) + alpha * (p - mu))
    return p


@pytest.mark.parametrize("name", ["boltzbc", "cql", "iql", "awac", "bcq", "brac"])
def test_with_two_parts_the_law_is_the_product_of_the_parts(name):
    data, mu, reward = two_parts()
    _, law = fitted(name, data, **({"threshold": 0.5} if name == "bcq" else {}))
    exact = []
    for m, r in zip(mu, reward, strict=True):
        sharpness = {"boltzbc": 2.0, "iql": 3.0, "awac": 1 / 0.3, "brac": 2.0}.get(name)
        if name == "bcq":  # at half of the largest probability the best choice of the first part is filtered out
            exact.append(np.eye(len(m))[np.argmax(np.where(m >= 0.5 * m.max(), r, -np.inf))])
        elif name == "cql":
            exact.append(conservative_part(m, r, 0.3))
        else:
            exact.append(m * np.exp(sharpness * r) / (m @ np.exp(sharpness * r)))
    joint = np.outer(*exact)
    assert np.abs(law[0, :, :2] - joint).sum() / 2 < 0.04


def test_the_fixed_points_are_worth_telling_apart():
    """What makes the tests above mean something: filters, bounds, penalties and expectiles that change the answer."""
    assert np.abs(cql(0.3) - cql(0.0)).max() > 0.3
    assert np.abs(iql(0.8, 1 / 3, 100.0)[0] - iql(0.5, 1 / 3, 100.0)[0]).max() > 0.1
    assert np.abs(awbc(0.5, 5.0)[1] - awbc(0.5, 1e9)[1]).max() > 0.05
    assert (bcq(0.25)[1] != bcq(0.0)[1]).any()
    assert np.abs(awac(0.5)[0] - brac(0.5)[0]).max() > 0.1  # the divergence counts in BRAC's values
    laws = [case[1]()[1] for name, case in CASES.items() if name != "boltzbc"]  # which is QDFM's
    for i, a in enumerate(laws):
        assert all(np.abs(a - b).max() > 0.05 for b in laws[:i])
