"""The Chebyshev utility of accumulated and future returns: by hand, and against all plans of a small task."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.algorithms import BC, QDFM
from qdfm.data.dataset import Dataset
from qdfm.envs.accumulated import Accumulated
from qdfm.envs.base import Step
from qdfm.envs.tabular import Tabular
from qdfm.errors import QDFMError
from qdfm.evaluate import rollout

GAMMA = 0.5
ARRAYS = ("observation", "action", "reward", "next_observation", "terminated")
# Three steps; at each, action 0 pays (1, 0) and action 1 pays (0, 3) but both may differ by step. State = step.
PAYS = np.array([[[1.0, 0.0], [0.0, 3.0]], [[5.0, 0.0], [0.0, 1.0]], [[2.0, 1.0], [0.0, 4.0]]])


def task() -> Tabular:
    step = np.arange(3)
    ended = np.broadcast_to((step == 2)[:, None, None], (3, 2, 1))
    after = np.broadcast_to(np.minimum(step + 1, 2)[:, None, None], (3, 2, 1))
    return Tabular(np.eye(3, dtype=np.float32), 0, after, np.ones((3, 2, 1)), PAYS[:, :, None], ended, 3)


def logged() -> Dataset:
    """Every plan once."""
    plans = np.array(list(itertools.product((0, 1), repeat=3)))
    step, action = np.tile(np.arange(3), 8), plans.ravel()
    seen = np.eye(3, dtype=np.float32)
    after = seen[np.minimum(step + 1, 2)]
    return Dataset.from_arrays(seen[step], action, PAYS[step, action], after, step == 2, num_actions=2)


def plan_returns() -> dict[tuple[int, ...], np.ndarray]:
    plans = itertools.product((0, 1), repeat=3)
    return {p: sum(GAMMA**t * PAYS[t, a] for t, a in enumerate(p)) for p in plans}


def test_accumulated_returns_by_hand():
    data = logged().with_accumulated(GAMMA)
    plain = logged()
    assert data.observation.shape == (24, 3 + 2 + 1)
    np.testing.assert_array_equal(data.observation[:, :3], plain.observation)
    row = 3 * 3  # the plan (0, 1, 1)
    np.testing.assert_allclose(data.observation[row : row + 3, 3:], [[0, 0, 1], [1, 0, 0.5], [1, 0.5, 0.25]])
    np.testing.assert_allclose(data.next_observation[row : row + 3, 3:], [[1, 0, 0.5], [1, 0.5, 0.25], [1, 1.5, 0.125]])
    np.testing.assert_allclose((data.spec.accumulation.best, data.spec.accumulation.worst), spanned())
    paid, weight = data.spec.so_far(data.normalised().observation)
    best, worst = spanned()
    np.testing.assert_allclose(data.spec.normalisation.reward_scale, best - worst)
    np.testing.assert_allclose(paid, data.observation[:, 3:5] / (best - worst), atol=1e-6)
    np.testing.assert_allclose(weight, data.observation[:, 5:], atol=1e-6)


def test_the_observation_s_own_columns_are_seen_as_before():
    raw = Dataset.from_arrays(*(getattr(logged(), n) for n in ARRAYS), num_actions=2, normalise=False)
    for data in (raw, logged()):
        wide = data.with_accumulated(np.float32(GAMMA))
        np.testing.assert_allclose(wide.normalised().observation[:, :3], data.normalised().observation, atol=1e-6)
        assert wide.spec.categories == ()
        assert type(wide.spec).from_json(json.loads(json.dumps(wide.spec.to_json()))) == wide.spec


def test_the_environment_shows_what_the_data_has():
    env, data = Accumulated(task(), GAMMA), logged().with_accumulated(GAMMA)
    assert env.spec.observation_shape == data.spec.observation_shape
    state, key = env.reset(jax.random.key(0)), jax.random.key(1)
    for row, action in zip(range(9, 12), (0, 1, 1)):
        np.testing.assert_allclose(env.observation(state), data.observation[row])
        step: Step = env.step(state, jnp.array([action]), key)
        np.testing.assert_allclose(step.reward, data.reward[row])
        state = step.state


def spanned() -> tuple[np.ndarray, np.ndarray]:
    """The best returns, and the worst among those of plans that no plan beats in both objectives."""
    every = list(plan_returns().values())
    front = [a for a in every if not any((b >= a).all() and (b > a).any() for b in every)]
    return np.max(every, 0), np.min(front, 0)


def utility(z: np.ndarray, omega: np.ndarray) -> float:
    best, worst = spanned()
    gaps = [w * (b - x) / (b - a) for w, b, x, a in zip(omega, best, z, worst)]
    return -(max(gaps) + 0.01 * sum(gaps))


def test_the_policy_takes_the_plan_of_greatest_utility():
    data = logged().with_accumulated(GAMMA)
    config = QDFM(
        beta=100.0, beta_scale="none", utility="chebyshev", gamma=GAMMA, hidden=(64,), warmup_steps=300,
        critic_steps=3_000, improve_steps=1_500, critics=1, pessimism="mean", critic_learning_rate=3e-3,
        target_rate=0.05, batch_size=64,
    )  # fmt: skip
    agent = config.fit(logged(), progress=False)  # which accumulates by itself
    assert agent.spec == data.spec
    env, returns, linear_gaps, found = task(), plan_returns(), 0, set()
    for w in np.linspace(0.1, 0.9, 9):
        omega = np.array([w, 1 - w])
        ranked = sorted((utility(z, omega) for z in returns.values()), reverse=True)
        reward = rollout(agent, env, episodes=1, greedy=True, preference=omega).reward[:, 0]
        got = GAMMA ** np.arange(3) @ reward
        assert utility(got, omega) >= ranked[0] - 0.02, (w, got)
        plan = max(returns, key=lambda p: utility(returns[p], omega))
        found.add(plan)
        linear_gaps += max(returns, key=lambda p: returns[p] @ omega) != plan
    assert linear_gaps >= 2  # else a linear utility would have passed too
    assert len(found) >= 3


def test_the_value_of_an_action_is_the_utility_of_the_whole_return():
    data = logged().with_accumulated(GAMMA)
    config = QDFM(utility="chebyshev", gamma=GAMMA).resolve(data.spec)
    values = jnp.asarray(np.random.default_rng(0).normal(size=(24, 1, 2, 2)), jnp.float32)
    omega = np.tile([0.3, 0.7], (24, 1))
    got = config.worth(data.spec, values, jnp.asarray(omega), jnp.asarray(data.normalised().observation))
    for row, action in ((0, 0), (10, 1), (23, 0)):
        so_far, weight = data.observation[row, 3:5], data.observation[row, 5]
        future = np.subtract(*spanned()) * np.asarray(values)[row, 0, action]  # critics work in units of the range
        due = utility(so_far + weight * future, omega[row])
        assert float(got[row, 0, action]) == pytest.approx(due, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"critic": "scalarised"}, 'needs critic="vector"'),
        ({"backup": "soft"}, 'needs another backup than "soft"'),
        ({"gamma": 0.9}, "gamma is 0.9 but the data's returns were accumulated with 0.5"),
        ({"utility": "chebychev"}, "did you mean 'chebyshev'"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, sentence):
    config = QDFM(**{"utility": "chebyshev", "gamma": GAMMA, **changes})
    with pytest.raises(QDFMError, match=sentence):
        config.build(logged().with_accumulated(GAMMA).spec)


def test_the_utility_needs_accumulated_returns_with_a_range():
    with pytest.raises(QDFMError, match=r"use config.adapt\(data\)"):
        QDFM(utility="chebyshev").build(logged().spec)
    data = logged()
    flat = Dataset.from_arrays(
        data.observation, data.action, data.reward * [1, 0], data.next_observation, data.terminated
    )
    with pytest.raises(QDFMError, match="Objective 2 has the return 0 in every episode"):
        flat.with_accumulated(GAMMA)
    with pytest.raises(QDFMError, match=r"gamma is 1\.5"):
        data.with_accumulated(1.5)
    with pytest.raises(QDFMError, match="do not hold them yet"):
        data.with_accumulated(GAMMA).with_accumulated(GAMMA)


def test_an_objective_that_never_varies_is_named_before_training(capsys):
    data = logged()
    for reward, named in ((data.reward * [1, 0], [1]), (data.reward * 0 + [2, 1], [0, 1]), (data.reward, [])):
        one = Dataset.from_arrays(data.observation, data.action, reward, data.next_observation, data.terminated)
        assert one.constant_objectives() == named
    # The same in every row but not in every episode, as a price per step is: it does vary.
    first = np.r_[np.ones(3), np.zeros(21)].astype(bool)
    uneven = data.terminated | first  # the first episode falls into three
    price = Dataset.from_arrays(
        data.observation, data.action, np.stack([data.reward[:, 0], -np.ones(24)], 1), data.next_observation, uneven
    )
    assert price.constant_objectives() == []
    flat = Dataset.from_arrays(
        data.observation, data.action, data.reward * [1, 0], data.next_observation, data.terminated
    )
    BC(clone_steps=1, hidden=(4,)).fit(flat, progress=False)
    assert "Objective 2 never varies in the data, so no policy can follow it; leave it out." in capsys.readouterr().err
