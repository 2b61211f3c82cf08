"""The value methods of teams, MACQL and CFCQL, against a two-step game solved in NumPy, and against enumeration.

Two agents with three choices each see which of two steps it is; the first step leads to the second, which ends. At the
second the first agent must not take its last choice. All other joint actions are in the data, good ones rarely.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax

import qdfm
from qdfm.algorithms import ALGORITHMS
from qdfm.algorithms.critic import vector_values
from qdfm.algorithms.macql import propose
from qdfm.algorithms.qmix import own_values
from qdfm.algorithms.softmax import log_softmax_of

GAMMA, ALPHA, SHARPNESS, CHOICES = 0.8, 0.15, 3.0, 3
COUNTS = np.array([[[12, 8, 6], [8, 6, 5], [6, 5, 4]], [[14, 10, 8], [12, 9, 7], [0, 0, 0]]])  # [steps, first, second]
LEGAL = np.array([[[True] * 3, [True] * 3], [[True, True, False], [True] * 3]])  # [steps, agents, choices]
LAW = COUNTS / COUNTS.sum((1, 2), keepdims=True)
FIRST, SECOND = np.array([0.0, 0.7, 1.2]), np.array([0.0, 0.5, 1.5])
SHARED = np.add.outer(FIRST, SECOND) + 1.2 * np.outer(FIRST, SECOND)  # good choices are better still together
REWARD = np.stack([SHARED, SHARED + FIRST[:, None] / 2])
JOINT = np.stack(np.meshgrid(np.arange(CHOICES), np.arange(CHOICES), indexing="ij"), -1).reshape(-1, 2)
POSSIBLE = LEGAL[:, 0, :, None] & LEGAL[:, 1, None, :]


def macql_slope(q: np.ndarray, step: int) -> np.ndarray:
    """Of the log-sum-exp over all legal joint actions, −inf at the others."""
    return softmax(q)


def cfcql_slope(q: np.ndarray, step: int, sharpness: float = SHARPNESS) -> np.ndarray:
    """Of Σ_i λ_i log Σ_k exp Q(k, a_−i) in the mean over the logged joint actions, λ held fixed."""
    law = LAW[step]
    with np.errstate(divide="ignore", invalid="ignore"):
        pi, log_pi = [softmax(q, i) for i in range(2)], [log_softmax(q, i) for i in range(2)]
        mu = [law.sum(1)[:, None], law.sum(0)[None]]
        away = [np.where(POSSIBLE[step], p * (lp - np.log(m)), 0) for p, lp, m in zip(pi, log_pi, mu, strict=True)]
    away = [away[0].sum(0)[None] + np.zeros((3, 1)), away[1].sum(1)[:, None] + np.zeros((1, 3))]  # at every (a, b)
    weight = softmax(sharpness * np.stack(away), 0)
    return sum(pi[i] * (law * weight[i]).sum(i, keepdims=True) for i in range(2))


def solved(slope: Callable[[np.ndarray, int], np.ndarray], alpha: float = ALPHA) -> np.ndarray:
    """Q `[steps, first, second]` where the gradient of the objective vanishes, −inf at illegal joint actions."""
    result, value = np.zeros_like(REWARD), 0.0
    for step in (1, 0):
        y = REWARD[step] + GAMMA * value
        q = np.where(POSSIBLE[step], y, -np.inf)
        for _ in range(4_000):
            change = LAW[step] * (np.where(POSSIBLE[step], q, 0) - y) + alpha * (slope(q, step) - LAW[step])
            q = np.where(POSSIBLE[step], q - change, -np.inf)
        assert np.abs(change[POSSIBLE[step]]).max() < 1e-9
        result[step], value = q, q.max()
    return result


EXACT = {"macql": lambda: solved(macql_slope), "cfcql": lambda: solved(cfcql_slope)}
CHANGES: dict[str, dict[str, Any]] = {"macql": {"samples": 16}, "cfcql": {"clone_steps": 1_000, "sharpness": SHARPNESS}}
SMALL: dict[str, Any] = {
    "hidden": (32,), "batch_size": 64, "gamma": GAMMA, "critic_learning_rate": 2e-3, "target_rate": 0.02,
    "train_steps": 2_500, "penalty": ALPHA,
}  # fmt: skip
TOLERANCE = 0.1  # of values up to 7
OPTIMISED = {"xla_backend_optimization_level": 1}


def logged(state: bool = True) -> qdfm.Dataset:
    """Rows in the behaviour's proportions; the global state says which step it is, too."""
    step, a, b = np.repeat(np.indices(COUNTS.shape).reshape(3, -1), COUNTS.ravel(), 1)
    eye = np.eye(2, dtype=np.float32)
    here, there = eye[step], eye[np.ones_like(step)]
    extra = {"state": here, "next_state": there} if state else {}
    return qdfm.Dataset.from_arrays(
        np.repeat(here[:, None], 2, 1), np.stack([a, b], 1), REWARD[step, a, b], np.repeat(there[:, None], 2, 1),
        step == 1, mask=LEGAL[step], next_mask=LEGAL[np.ones_like(step)], num_actions=(3, 3), agents=2,
        normalise=False, episode=np.arange(len(step)), **extra,
    )  # fmt: skip


@cache
def trained(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Q_tot `[steps, first, second]` of the trained critic and the policy's law."""
    data = logged()
    config = ALGORITHMS[name](**SMALL, **CHANGES[name]).resolve(data.spec)
    algorithm, placed = config.build(data.spec), jax.device_put(data)

    def run(key: jax.Array) -> Any:
        state = algorithm.init(jax.random.fold_in(key, 0))
        for number, phase in enumerate(algorithm.phases, 1):

            def step(state: Any, k: jax.Array, phase: Any = phase, number: int = number) -> Any:
                return phase.update(state, placed, None, jax.random.fold_in(jax.random.fold_in(key, number), k))

            state = jax.lax.scan(step, state, jnp.arange(phase.steps))[0]
        return algorithm.policy(state)

    critic = jax.jit(run, compiler_options=OPTIMISED)(jax.random.key(0))
    rows, one = np.searchsorted(np.asarray(data.terminated), [0, 1]), jnp.ones((2, 1))
    both = placed[rows]
    q = vector_values(config, data.spec, critic, config.seen(both), one, jnp.tile(jnp.asarray(JOINT), (2, 1, 1)))
    law = algorithm.probs(critic, both.observation, one, both.mask)
    return np.asarray(q, np.float64)[:, 0, :, 0].reshape(2, 3, 3), np.asarray(law)


@pytest.mark.parametrize("name", EXACT)
def test_fixed_point(name):
    q, law = trained(name)
    exact = EXACT[name]()
    assert np.abs(q - exact)[POSSIBLE].max() < TOLERANCE
    for step in range(2):  # the law is the best legal joint action, for certain
        np.testing.assert_array_equal(law[step], exact[step] == exact[step].max())


def test_the_fixed_points_are_worth_telling_apart():
    macql, cfcql, plain, alike = (
        q[POSSIBLE]
        for q in (
            *(solve() for solve in EXACT.values()),
            solved(macql_slope, alpha=0.0),
            solved(lambda q, step: cfcql_slope(q, step, sharpness=0.0)),
        )
    )
    for first, second in ((macql, plain), (cfcql, plain), (macql, cfcql), (cfcql, alike)):
        assert np.abs(first - second).max() > 2 * TOLERANCE


def untrained(name: str, data: qdfm.Dataset, **changes: Any) -> tuple[Any, Any, Any]:
    """The resolved config, the compiled step of the values, and a state whose target is another network."""
    config = ALGORITHMS[name](**{**SMALL, "batch_size": 16, **changes}).resolve(data.spec)
    algorithm = config.build(data.spec)
    state, other = (algorithm.init(jax.random.key(seed)) for seed in range(2))
    update = jax.jit(lambda state, data: algorithm.phases[-1].update(state, data, None, jax.random.key(2)))
    return config, update, eqx.tree_at(lambda s: critic_of(s).average, state, critic_of(other).net)


def critic_of(state: Any) -> Any:
    return getattr(state, "critic", state)


def test_one_step_by_hand():
    """CFCQL's loss on a single row of the first step, from the tables of both networks and the clone's."""
    data = logged()[np.array([45])]
    config, update, state = untrained("cfcql", data, sharpness=SHARPNESS)
    action, one = data.action[0], jnp.ones((1, 1))
    table, target = (
        np.asarray(vector_values(config, data.spec, net, seen, one, jnp.asarray(JOINT)[None]), np.float64).reshape(3, 3)
        for net, seen in ((state.critic.net, config.seen(data)), (state.critic.average, config.seen_next(data)))
    )
    own = np.asarray(own_values(config, data.spec, state.critic.net, data.next_observation, one))[0]
    best = np.where(LEGAL[1], own, -np.inf).argmax(-1)
    log_mu = np.asarray(log_softmax_of(data.spec, state.behaviour.average, data.observation, one, None))[0]
    lines = [table[:, action[1]], table[action[0]]]  # what either agent could have done instead
    away = [softmax(q) @ (log_softmax(q) - m) for q, m in zip(lines, log_mu, strict=True)]
    gap = softmax(SHARPNESS * np.array(away)) @ [logsumexp(q) for q in lines] - table[*action]
    error = table[*action] - (data.reward[0, 0] + GAMMA * target[*best])
    loss = float(update(state, data)[1]["loss"])
    assert loss == pytest.approx(error**2 + 2 * ALPHA * gap, rel=1e-4)
    assert abs(target.max() - target[*best]) > 1e-3  # the target's own maximum would be another


@pytest.mark.parametrize("name", EXACT)
def test_an_illegal_action_is_in_no_sum_no_maximum_and_no_policy(name):
    """The last choice is illegal for all; it may be worth anything to the networks and nothing changes."""
    data = logged()
    mask = np.broadcast_to([True, True, False], (len(data), 2, 3))
    data = replace(data, action=np.minimum(data.action, 1), mask=mask, next_mask=mask)
    config, update, state = untrained(name, data)
    tempting = state
    for place in ("net", "average"):
        bias = lambda s, place=place: getattr(critic_of(s), place).members.utility.trunk.head.bias  # noqa: E731
        tempting = eqx.tree_at(bias, tempting, bias(tempting).at[:, 2].add(50.0))
    (new, metrics), (tempted, same) = update(state, data), update(tempting, data)
    assert {k: float(v) for k, v in metrics.items()} == {k: float(v) for k, v in same.items()}
    for a, b in zip(
        jax.tree.leaves(critic_of(new).optimiser), jax.tree.leaves(critic_of(tempted).optimiser), strict=True
    ):
        np.testing.assert_array_equal(a, b)  # Adam's moments: the gradients
    probs = config.build(data.spec).probs
    p = np.asarray(probs(critic_of(tempted).average, data.observation[:5], jnp.ones((5, 1)), data.mask[:5]))
    assert (p[:, 2] == 0).all()
    assert (p[:, :, 2] == 0).all()
    free = replace(data, mask=None, next_mask=None)
    assert float(update(tempting, free)[1]["loss"]) > 10 * float(same["loss"])
    everything = np.asarray(probs(critic_of(tempted).average, data.observation[:5], jnp.ones((5, 1)), None))
    assert (everything[:, 2, 2] == 1).all()


def test_proposals_have_the_mixture_s_density_and_estimate_the_sum_over_all_joint_actions():
    rng = np.random.default_rng(0)
    own, q, legal = rng.normal(size=(2, 3)), rng.normal(size=(3, 3)), LEGAL[1]
    actions, log_density = propose(
        jax.random.key(0), jnp.asarray(own, jnp.float32)[None], jnp.asarray(legal)[None], 20_000
    )
    actions, log_density = np.asarray(actions)[0], np.asarray(log_density, np.float64)[0]
    uniform, chosen = (np.outer(*softmax(np.where(legal, u, -np.inf), -1)) for u in (np.zeros((2, 3)), own))
    np.testing.assert_allclose(np.exp(log_density), (uniform + chosen)[tuple(actions.T)] / 2, rtol=1e-5)
    exact = logsumexp(np.where(POSSIBLE[1], q, -np.inf))
    estimate = logsumexp(q[tuple(actions.T)] - log_density) - np.log(len(actions))
    assert estimate == pytest.approx(exact, abs=0.01)
    assert abs(logsumexp(q) - exact) > 0.05  # what the illegal ones would add


@pytest.mark.parametrize("name", EXACT)
def test_a_team_without_a_global_state(name):
    data = logged(state=False)
    config = ALGORITHMS[name](**SMALL, **CHANGES[name]).scaled(1e-3)
    agent = config.fit(data, progress=False)
    step = np.asarray(data.terminated).astype(int)
    actions = agent.act(data.observation, mask=data.mask)
    assert np.take_along_axis(LEGAL[step], actions[..., None], -1).all()


@pytest.mark.parametrize(
    ("name", "field", "value"), [("macql", "penalty", -1.0), ("macql", "samples", 0), ("cfcql", "sharpness", -1.0)]
)
def test_a_config_that_makes_no_sense_is_refused(name, field, value):
    with pytest.raises(qdfm.QDFMError, match=f"{name}: {field} is {value}; it must be at least"):
        ALGORITHMS[name](**{field: value}).build(logged().spec)


@pytest.mark.parametrize("name", EXACT)
def test_what_is_no_team_is_refused(name):
    alone = qdfm.Dataset.from_arrays(np.zeros((4, 2)), np.arange(4) % 2, np.zeros(4), np.zeros((4, 2)), np.ones(4))
    with pytest.raises(qdfm.QDFMError, match=f"{name} is for teams but this data has one agent"):
        ALGORITHMS[name]().fit(alone, progress=False)
    two = replace(logged().spec, objectives=2)
    with pytest.raises(qdfm.QDFMError, match='leave critic="vector"'):
        ALGORITHMS[name](critic="scalarised").build(two)
