"""OMAR and OMIGA on a game of two agents, whose fixed points are found by enumeration and Newton's method in NumPy.

In state 0 equal actions lead to state 1 and unequal ones to state 2, where the next step is the last. Both agents see
the state one-hot. In state 1 the second agent's third action is illegal. The reward does not add up over the agents,
and the logged actions of the two are not independent.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.algorithms import OMAR, OMIGA
from qdfm.algorithms.omar import rectified_loss
from qdfm.algorithms.omiga import value_loss

STATES, AGENTS, ACTIONS, GAMMA = 3, 2, 3, 0.8
EYE = np.eye(STATES, dtype=np.float32)
OPTIMISED = {"xla_backend_optimization_level": 1}
COMMON: dict[str, Any] = {
    "hidden": (32,), "gamma": GAMMA, "critic_learning_rate": 4e-3, "learning_rate": 3e-3, "target_rate": 0.02,
    "ema": 0.99, "train_steps": 2_000, "batch_size": 512, "critics": 1, "pessimism": "mean", "layer_norm": False,
}  # fmt: skip
ALPHA, PENALTY = 0.5, 0.6


def game() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Legal choices `[S, G, K]`, rewards and counts of the logged pairs `[S, K, K]`."""
    rng = np.random.default_rng(55)
    legal = np.ones((STATES, AGENTS, ACTIONS), bool)
    legal[1, 1, 2] = False
    reward = rng.normal(size=(STATES, ACTIONS, ACTIONS)).round(2)
    count = rng.integers(2, 6, (STATES, ACTIONS, ACTIONS)) + 4 * np.eye(ACTIONS, dtype=int)
    return legal, reward, count * (legal[:, 0, :, None] & legal[:, 1, None, :])


LEGAL, REWARD, COUNT = game()
FOLLOWS = np.where(np.eye(ACTIONS, dtype=bool), 1, 2)  # the state after each pair in state 0
JOINT = COUNT / COUNT.sum((1, 2), keepdims=True)
ALONE = np.stack([JOINT.sum(2), JOINT.sum(1)], 1)  # [S, G, K], each agent's own behaviour


def logged(state: bool = True, objectives: int = 1) -> qdfm.Dataset:
    """Every pair as often as it is counted; a second objective that is all noise."""
    s, a, b = np.repeat(np.stack(np.unravel_index(np.arange(COUNT.size), COUNT.shape)), COUNT.ravel(), 1)
    after = np.where(s == 0, FOLLOWS[a, b], s)
    here, there = (np.repeat(EYE[x][:, None], AGENTS, 1) for x in (s, after))
    reward = np.stack([REWARD[s, a, b], np.random.default_rng(1).normal(size=len(s))], 1)[:, :objectives]
    return qdfm.Dataset.from_arrays(
        here, np.stack([a, b], 1), reward, there, s > 0, num_actions=(ACTIONS,) * AGENTS, agents=AGENTS,
        mask=LEGAL[s], next_mask=LEGAL[after],
        state=EYE[s] if state else None, next_state=EYE[after] if state else None, normalise=False,
    )  # fmt: skip


def trained(config: qdfm.algorithms.Config, data: qdfm.Dataset) -> tuple[Any, np.ndarray]:
    """The state after training, and the policy's marginals `[S, G, K]`."""
    config = config.resolve(data.spec)
    algorithm = config.build(data.spec)
    placed = jax.device_put(data)

    def run(key: jax.Array) -> Any:
        def step(state: Any, k: jax.Array) -> Any:
            return algorithm.phases[0].update(state, placed, None, jax.random.fold_in(key, k))[0], None

        return jax.lax.scan(step, algorithm.init(key), jnp.arange(algorithm.phases[0].steps))[0]

    state = jax.jit(run, compiler_options=OPTIMISED)(jax.random.key(0))
    seen = jnp.repeat(EYE[:, None], AGENTS, 1)
    law = algorithm.probs(algorithm.policy(state), seen, omega(data.spec), LEGAL)
    law = np.asarray(law, np.float64)
    return state, np.stack([law.sum(2), law.sum(1)], 1)


def omega(spec: qdfm.Spec) -> jax.Array:
    return jnp.tile(jnp.eye(spec.objectives)[0], (STATES, 1))


def contexts(spec: qdfm.Spec) -> jax.Array:
    """All states as critics see them."""
    seen = jnp.repeat(EYE[:, None], AGENTS, 1).reshape(STATES, -1)
    parts = [seen, *([omega(spec)] if spec.objectives > 1 else []), *([EYE] if spec.state_shape else [])]
    return jnp.concatenate(parts, -1)


def backed_up(value: np.ndarray) -> np.ndarray:
    """r + γ V(s') of all pairs `[S, K, K]`, for values `[S]`."""
    return REWARD + GAMMA * np.where(np.arange(STATES)[:, None, None] == 0, value[FOLLOWS], 0)


def conservative(y: np.ndarray, mu: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """The minimiser of E_μ (q − y)² + α (log Σ exp q − E_μ q) over legal choices `[K]`, by Newton's method."""
    mu, at = mu[legal], y[legal]
    q = at.copy()
    for _ in range(100):
        p = np.exp(q - q.max())
        p = p / p.sum()
        slope = 2 * mu * (q - at) + PENALTY * (p - mu)
        q = q - np.linalg.solve(np.diag(2 * mu + PENALTY * p) - PENALTY * np.outer(p, p), slope)
    out = np.full(len(y), -np.inf)
    out[legal] = q
    return out


@cache
def omar_exact() -> np.ndarray:
    """Every agent's conservative values `[S, G, K]`, −inf where illegal; each takes the other for part of the world."""
    q = np.zeros((STATES, AGENTS, ACTIONS))
    for _ in range(3):  # two steps reach every end
        new = np.empty_like(q)
        for i in range(AGENTS):
            y = backed_up(np.where(LEGAL[:, i], q[:, i], -np.inf).max(1))
            mean = (JOINT * y).sum(2 - i) / np.where(LEGAL[:, i], ALONE[:, i], 1)
            new[:, i] = [conservative(mean[s], ALONE[s, i], LEGAL[s, i]) for s in range(STATES)]
        q = new
    return q


@cache
def omiga_exact() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q_tot `[S, K, K]` as far as it adds up over agents, V_tot `[S]`, and the agents' laws `[S, G, K]`."""
    value = np.zeros(STATES)
    for _ in range(3):
        y = backed_up(value)
        total, law, value = np.zeros_like(y), np.zeros(ALONE.shape), np.zeros(STATES)
        for s in range(STATES):
            design = np.array(
                [[*np.eye(ACTIONS)[a], *np.eye(ACTIONS)[b]] for a in range(ACTIONS) for b in range(ACTIONS)]
            )
            root = np.sqrt(JOINT[s].ravel())
            share = np.linalg.lstsq(root[:, None] * design, root * y[s].ravel(), rcond=None)[0].reshape(AGENTS, ACTIONS)
            total[s] = share[0][:, None] + share[1]
            weighed = ALONE[s] * np.exp(share / ALPHA)
            value[s] = ALPHA * np.log(weighed.sum(1)).sum()
            law[s] = weighed / weighed.sum(1, keepdims=True)
    return total, value, law


def test_omar_has_its_fixed_point():
    """Conservative values of each agent alone, and the best legal action of each."""
    data = logged(state=False)
    config = OMAR(**COMMON, penalty=PENALTY, rectification=0.5)
    state, law = trained(config, data)
    q = np.asarray(state.critic.average(contexts(data.spec)), np.float64)[0, ..., 0]
    exact = omar_exact()
    assert np.abs(q - exact)[LEGAL].max() < 0.04 * np.abs(exact[LEGAL]).max()
    best = np.eye(ACTIONS)[exact.argmax(2)]
    assert np.abs(law - best).sum(2).max() / 2 < 0.04
    assert (law[~LEGAL] == 0).all()


@pytest.mark.parametrize(("objectives", "state"), [(1, True), (2, False)])
def test_omiga_has_its_fixed_point(objectives, state):
    """With a second objective that the preference leaves out, and no global state, it is the same."""
    data = logged(state, objectives=objectives)
    preference = (1.0, 0.0) if objectives == 2 else None
    config = OMIGA(**COMMON, alpha=ALPHA, preference=preference)
    got, law = trained(config, data)
    x = contexts(data.spec)
    pairs = jnp.tile(jnp.stack(jnp.divmod(jnp.arange(ACTIONS**2), ACTIONS), 1), (STATES, 1, 1))
    net = got.critic.average
    total = np.asarray(net.values(x, pairs), np.float64)[0, :, 0, :, 0].reshape(REWARD.shape)
    value = np.asarray(net.mix(x, got.value.average(x)), np.float64)[0, :, 0, 0]
    exact_total, exact_value, exact_law = omiga_exact()
    scale = np.abs(exact_total).max()
    assert np.abs(total - exact_total)[COUNT > 0].max() < 0.04 * scale
    assert np.abs(value - exact_value).max() < 0.04 * scale
    assert np.abs(law - exact_law).sum(2).max() / 2 < 0.04
    assert (law[~LEGAL] == 0).all()


def test_the_fixed_points_are_worth_telling_apart():
    """What makes the tests above mean something: the caution, what does not add up, and the penalty count."""
    q, (total, value, law) = omar_exact(), omiga_exact()
    own = (JOINT * REWARD).sum(2) / ALONE[:, 0]  # of the first agent, in states 1 and 2 without caution
    assert np.abs(q[1:, 0] - own[1:]).max() > 0.15
    assert np.abs(total - backed_up(value))[COUNT > 0].max() > 0.3
    assert np.abs(value - (JOINT * total).sum((1, 2))).min() > 0.1
    assert np.abs(value - [total[s][COUNT[s] > 0].max() for s in range(STATES)]).min() > 0.1
    assert np.abs(law - ALONE).sum(2).max(1).min() / 2 > 0.1


@pytest.mark.parametrize("rectification", [0.0, 0.3, 1.0])
def test_the_gradient_of_the_rectified_loss(rectification):
    """By the logits of one softmax: −(1 − τ) π (q − E q) + τ (π − 1[best]), the best of the legal ones."""
    logits, q = np.array([0.3, -0.2, 0.5, 0.1]), np.array([1.0, 2.0, -1.0, 9.0])
    legal = np.array([True, True, True, False])
    p = np.where(legal, np.exp(logits), 0) / np.exp(logits)[legal].sum()
    by_hand = -(1 - rectification) * p * (q - p @ q) + rectification * (p - np.eye(4)[1])

    def loss(scores):
        log_pi = jax.nn.log_softmax(jnp.where(legal, scores, -jnp.inf))[None, None]
        return rectified_loss(log_pi, jnp.asarray(q)[None, None], jnp.asarray(legal)[None, None], rectification)

    got = jax.grad(loss)(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(np.asarray(got)[legal], by_hand[legal], atol=1e-6)


def test_the_gradient_of_omiga_s_value_loss():
    """(w/α) (1 − exp z) by ⟨ω, V⟩, over exp(max z), with a slope that stays beyond the bound; and the rest of V."""
    alpha, bound = 0.5, 2.0
    rng = np.random.default_rng(0)
    value, q, share = rng.normal(size=(5, 2, 2)), rng.normal(size=(5, 2, 2)), rng.random((5, 2)) + 0.5
    q[0] += 3.0
    omega = np.array([0.3, 0.7])
    z = share * ((q - value) @ omega) / alpha
    assert (z > bound).any()
    assert (z < bound).any()
    risen = np.exp(np.minimum(z, bound))
    by_worth = share / alpha * (1 - risen)
    rest = (value - q) - ((value - q) @ omega)[..., None]
    risen = risen * np.where(z > bound, 1 + z - bound, 1)
    by_rest = 2 * risen[..., None] * (rest - rest.sum(-1, keepdims=True) * omega)  # V_r is in the rest, and in ⟨ω, V⟩
    by_hand = (by_worth[..., None] * omega + by_rest) / np.exp(bound) / z.size
    args = (jnp.asarray(q), jnp.asarray(share), jnp.tile(jnp.asarray(omega), (5, 1)), alpha, bound)
    got = jax.grad(lambda v: value_loss(v, *args))(jnp.asarray(value))
    np.testing.assert_allclose(np.asarray(got), by_hand, rtol=1e-4, atol=1e-5)


def test_omiga_s_value_comes_back_from_far_below_the_bound():
    """Where every exponent is beyond the bound the loss still pushes V up; a clipped one would push it down."""
    q, share, omega = jnp.full((3, 2, 1), 50.0), jnp.ones((3, 2)), jnp.ones((3, 1))
    slope = jax.grad(lambda v: value_loss(v, q, share, omega, 1.0, 10.0))(jnp.zeros((3, 2, 1)))
    np.testing.assert_allclose(slope, (np.exp(-10.0) - 1) / 6, rtol=1e-5)


@pytest.mark.parametrize("config", [OMAR(**COMMON), OMIGA(**COMMON)], ids=["omar", "omiga"])
def test_what_networks_say_of_an_illegal_action_changes_nothing(config):
    """Action 2 is illegal to all: with enormous scores and values for it, a step of training is the same."""
    data = logged()
    data = data[np.flatnonzero((data.action < 2).all(1))]
    mask = np.broadcast_to(np.arange(ACTIONS) < 2, (len(data), AGENTS, ACTIONS))
    data = jax.device_put(replace(data, mask=mask, next_mask=mask))
    algorithm = config.build(data.spec)
    step = jax.jit(lambda state: algorithm.phases[0].update(state, data, None, jax.random.key(1)))
    state = algorithm.init(jax.random.key(0))

    def heads(state):
        nets = (state.policy.net, state.policy.average)
        values = [getattr(net, "own", net) for net in (state.critic.net, state.critic.average)]
        return [net.trunk.head.bias for net in (*nets, *(v.members for v in values))]

    loud = eqx.tree_at(heads, state, [bias.at[..., 2].set(1e3) for bias in heads(state)])
    (plain, metrics), (other, metrics_loud) = step(state), step(loud)
    for key, value in metrics.items():
        assert metrics_loud[key] == value, key
    other = eqx.tree_at(heads, other, [b.at[..., 2].set(a[..., 2]) for a, b in zip(heads(plain), heads(other))])
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    seen, preference = data.observation[:4], jnp.ones((4, 1))
    laws = [algorithm.probs(algorithm.policy(s), seen, preference, mask[:4]) for s in (state, loud)]
    np.testing.assert_array_equal(*laws)
    assert (laws[0][:, 2] == 0).all() and (laws[0][:, :, 2] == 0).all()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (OMAR(penalty=-1.0), "penalty is -1"),
        (OMAR(rectification=1.5), "rectification is 1.5"),
        (OMAR(critic="scalarised"), 'leave critic="vector"'),
        (OMIGA(alpha=0.0), "alpha is 0"),
        (OMIGA(exponent_max=0.0), "exponent_max is 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(config, says):
    with pytest.raises(qdfm.QDFMError, match=says):
        config.build(logged(objectives=2).spec)


@pytest.mark.parametrize("config", [OMAR(), OMIGA()], ids=["omar", "omiga"])
def test_one_agent_is_no_team(config):
    obs = np.zeros((4, 2))
    data = qdfm.Dataset.from_arrays(obs, np.arange(4) % 2, np.zeros(4), obs, np.ones(4))
    with pytest.raises(qdfm.QDFMError, match=f"{config.name} is for teams but this data has one agent"):
        config.fit(data, progress=False)
