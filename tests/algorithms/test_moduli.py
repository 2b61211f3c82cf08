"""MODULI: its windows and returns by hand, its guidance and plans, and a task whose best plan is known."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.algorithms.moduli import MODULI, Parts, along, nearest
from qdfm.algorithms.moduli_data import conditions, last_rows, windows
from qdfm.plannernets import Planner, guided

SMALL = {"batch_size": 32, "hidden": (32,), "width": 16, "heads": 2, "depth": 1, "horizon": 4, "ema": 0.99}
SPEED, STEPS = 0.5, 3


def walks(lengths: tuple[int, ...], **changes) -> qdfm.Dataset:
    """Episodes of a walk: episode e is at 10 e + t after t steps. A step pays (1, e)."""
    where = np.concatenate([10.0 * e + np.arange(n) for e, n in enumerate(lengths)])
    episode = np.repeat(np.arange(len(lengths)), lengths)
    given = {
        "preference": np.full((len(where), 2), 0.5),
        "reward": np.stack([np.ones(len(where)), episode], 1),
        "terminated": np.zeros(len(where)),
    }
    given |= changes
    obs = where[:, None]
    return qdfm.Dataset.from_arrays(
        obs, np.zeros(len(where), int), given["reward"], obs + 1, given["terminated"], episode=episode,
        num_actions=2, normalise=False, preference=given["preference"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def heading() -> tuple[qdfm.Dataset, qdfm.Agent]:
    """Under ω one walks from 0 by SPEED · ω at every step, in every other episode half as fast; a step pays what it
    moves. The data has the ω with .3 ≤ ω₁ ≤ .7."""
    omega = np.repeat(np.linspace(0.3, 0.7, 41), 2)
    omega = np.stack([omega, 1 - omega], 1)
    speed = np.where(np.arange(len(omega)) % 2, SPEED, SPEED / 2)
    move = np.repeat(omega * speed[:, None], STEPS, 0)
    here = np.tile(np.arange(STEPS), len(omega))[:, None] * move
    data = qdfm.Dataset.from_arrays(
        here, move, move, here + move, np.zeros(len(here)), np.tile(np.arange(STEPS) == STEPS - 1, len(omega)),
        preference=np.repeat(omega, STEPS, 0), actions=qdfm.Bins.fit(np.array([[0.0, 0.0], [0.5, 0.5]]), 41),
    )  # fmt: skip
    config = MODULI(
        **SMALL, guidance=1.0, plan_steps=1_500, inverse_steps=1_500, slide_steps=1_000, learning_rate=3e-3,
        inverse_learning_rate=3e-3,
    )  # fmt: skip
    return data, config.fit(data, progress=False)


@cache
def compiled_plans(agent: qdfm.Agent):
    return jax.jit(partial(Parts(agent.config, agent.spec).plans, greedy=False))


def planned(agent: qdfm.Agent, noise: np.ndarray, observation: np.ndarray, preference: np.ndarray) -> np.ndarray:
    """Plans for observations as the networks see them."""
    return np.asarray(compiled_plans(agent)(agent.policy, noise, observation, preference))


def test_windows_stay_within_their_episode():
    lengths, horizon = (3, 1, 5), 4
    data = walks(lengths)
    states, real = windows(data, last_rows(jnp.asarray(data.episode)), jnp.arange(len(data)), horizon)
    row = 0
    for e, n in enumerate(lengths):
        for t in range(n):
            expected = [10 * e + min(t + k, n) for k in range(horizon)]  # the last state is repeated
            np.testing.assert_array_equal(states[row, :, 0], expected)
            np.testing.assert_array_equal(real[row], [t + k <= n for k in range(horizon)])
            row += 1


def test_returns_are_relative_to_those_of_near_preferences():
    """Episodes of 2, 1 and 3 steps have near preferences, a fourth is far from them and alone."""
    lengths = (2, 1, 3, 1)
    omega = np.repeat([0.205, 0.21, 0.222, 0.6], lengths)
    reward = np.array([[1, 0], [2, 0], [5, 0], [0, 1], [1, 1], [1, 1], [7, 7]], float)
    data = walks(lengths, preference=np.stack([omega, 1 - omega], 1), reward=reward)
    # Returns-to-go of the first objective: 3, 2; 5; 2, 2, 1. At step 0 they span 2 to 5, at step 1 0 to 2 (the second
    # episode is over), at step 2 0 to 1. Those of the second: 0, 0; 0; 3, 2, 1.
    first, second = [1 / 3, 1, 1, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]
    told = conditions(data, 0.02, 0.0)
    np.testing.assert_allclose(told[:, :2], data.preference)
    np.testing.assert_allclose(told[:, 2:], np.stack([first, second], 1), atol=1e-6)
    # Of a grid of side .01 the cells of .205 and .21 adjoin, as those of .21 and .222, not those of .205 and .222.
    np.testing.assert_allclose(conditions(data, 0.01, 0.0)[:2, 2], [0, 1], atol=1e-6)
    ended = np.zeros(7)
    ended[2] = 1
    fined = walks(lengths, preference=data.preference, reward=reward, terminated=ended)
    np.testing.assert_allclose(conditions(fined, 0.02, 4.0)[:4, 2], [1, 1, 0, 1 / 2], atol=1e-6)  # 3, 2; 1; 2


def test_guidance_mixes_the_model_with_and_without_the_condition():
    blank = jax.eval_shape(lambda: Planner(2, 4, 2, 3, 8, 1, 2, jax.random.key(0)))
    leaves, structure = jax.tree.flatten(blank)
    rng = np.random.default_rng(0)
    net = jax.tree.unflatten(structure, [rng.normal(size=x.shape, scale=0.5).astype(np.float32) for x in leaves])
    x, t, told = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 3, 2), (5,), (5, 4)))
    model, mixed = jax.jit(Planner.__call__), jax.jit(guided)
    kept, dropped = (np.asarray(model(net, x, t, told, np.full(5, flag))) for flag in (True, False))
    assert np.abs(kept - dropped).max() > 0.1
    np.testing.assert_array_equal(dropped, model(net, x, t, -told, np.zeros(5, bool)))
    for weight, expected in ((1.0, kept), (0.0, dropped), (1.5, 1.5 * kept - 0.5 * dropped)):
        np.testing.assert_allclose(mixed(net, x, t, told, weight), expected, atol=1e-5)


def test_preferences_far_from_the_data_are_slid_to():
    known = jnp.array([[0.3, 0.7], [0.5, 0.5]])
    near, off = nearest(known, jnp.array([[0.305, 0.695], [0.9, 0.1], [0.31, 0.69], [0.32, 0.68]]))
    np.testing.assert_allclose(near, [[0.305, 0.695], [0.5, 0.5], [0.31, 0.69], [0.3, 0.7]], atol=1e-6)
    np.testing.assert_allclose(off, [[0, 0], [0.4, -0.4], [0, 0], [0.02, -0.02]], atol=1e-6)
    slope = jnp.array([[[1.0, 2.0, 3.0, 4.0]]])  # features (1, 2) and (3, 4) by objective
    np.testing.assert_allclose(along(slope, jnp.array([[0.5, -0.25]])), [[[0.0, 0.5]]])


def test_sequences_begin_at_the_observed_state(heading):
    data, agent = heading
    parts, plain = Parts(agent.config, data.spec), data.normalised()
    adapted = agent.config.adapt(data)
    assert agent.config.adapt(adapted) is adapted  # once is enough
    adapted = adapted.normalised()
    states, weight, told, x, _ = jax.jit(parts.noisy)(adapted, last_rows(data.episode), jax.random.key(0))
    np.testing.assert_array_equal(x[:, 0], states[:, 0])
    assert np.abs(x[:, 1:] - states[:, 1:]).min(2).max() > 0.1
    np.testing.assert_array_equal(weight[:, 0], 0)
    assert set(np.unique(weight[:, 1])) == {10.0} and set(np.unique(weight[:, 2:])) == {0.0, 1.0}
    assert told.shape == (32, 4)
    noise = np.random.default_rng(0).random((9, 6), np.float32)
    half = np.full((9, 2), 0.5, np.float32)
    np.testing.assert_array_equal(planned(agent, noise, plain.observation[:9], half)[:, 0], plain.observation[:9])


def test_plans_follow_the_preference_and_the_best_return(heading):
    """Full speed along ω, where the data has it; beyond, the same by sliding."""
    data, agent = heading
    norm = data.spec.normalisation
    start = np.zeros((9, 2), np.float32)
    for least, most, error in ((0.3, 0.7, 0.05), (0.1, 0.9, 0.1)):
        omega = np.linspace(least, most, 9)
        preference = np.stack([omega, 1 - omega], 1).astype(np.float32)
        noise = np.random.default_rng(0).random((9, 6), np.float32)
        plans = planned(agent, noise, data.spec.normalise_observation(start), preference)
        states = plans * norm.observation_std + norm.observation_mean
        np.testing.assert_allclose(states[:, 1] / SPEED, preference, atol=error)


def test_actions_lead_to_the_planned_state(heading):
    _, agent = heading
    omega = np.linspace(0.3, 0.7, 9)
    preference = np.stack([omega, 1 - omega], 1)
    for greedy in (True, False):
        actions = agent.act(np.zeros((9, 2)), preference=preference, greedy=greedy, seed=0)
        np.testing.assert_allclose(actions / SPEED, preference, atol=0.05)


def test_actions_are_quantities_and_tokens_the_nearest_of_them(heading):
    data, agent = heading
    rows, preference = np.arange(0, 200, 7), np.array([0.5, 0.5])
    actions = agent.act(data.observation[rows], preference=preference, seed=1)
    assert actions.shape == (len(rows), 2)
    levels = np.asarray(data.spec.actions.values)
    assert np.abs(actions[:, :, None] - levels).min(-1).max() > 1e-3  # not those of the bins
    assert (actions >= 0).all() and (actions <= 0.5).all()
    noise = np.random.default_rng(1).random((len(rows), 6), np.float32)
    told = np.broadcast_to(preference, (len(rows), 2))
    tokens, _ = agent.compiled.act(agent.policy, noise, data.observation[rows], told, None, None, False)
    np.testing.assert_array_equal(tokens, data.spec.actions.encode(actions))
    mask = np.zeros((2, 41), bool)
    mask[:, [0, 40]] = True
    masked = agent.act(data.observation[rows], preference=preference, mask=mask, seed=1)
    np.testing.assert_allclose(masked, np.where(actions > 0.25, 0.5, 0.0), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"heads": 3}, "heads is 3; it must divide the width 64"),
        ({"horizon": 1}, "horizon is 1; it must be at least 2"),
        ({"dropout": 1.0}, "dropout is 1"),
        ({"guidance": -1.0}, "guidance is -1"),
        ({"neighbourhood": 0.0}, "neighbourhood is 0"),
        ({"preference": (0.5, 0.5)}, "leave preference, preferences and corners"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes, says):
    with pytest.raises(qdfm.QDFMError, match=says):
        MODULI(**changes).fit(walks((2, 2)), progress=False)


def test_data_without_preferences_is_refused():
    obs = np.zeros((4, 1))
    data = qdfm.Dataset.from_arrays(obs, np.arange(4) % 2, np.zeros((4, 2)), obs, np.ones(4))
    with pytest.raises(
        qdfm.QDFMError, match=r"moduli learns from the preference .* this data has none; give preference="
    ):
        MODULI().fit(data, progress=False)


def test_the_authors_sizes():
    """About 11 million weights of the transformer, which a block of 384 · 384 · 18 and its biases are most of."""
    data = walks((2, 2))
    state = jax.eval_shape(MODULI.paper().build(data.spec).init, jax.random.key(0))
    weights = sum(x.size for x in jax.tree.leaves(state.planner.net))
    assert 4 * 18 * 384**2 < weights < 1.1 * 4 * 18 * 384**2
    assert [phase.name for phase in MODULI.paper(slide_steps=0).build(data.spec).phases] == ["plan", "inverse"]
