"""MO-Hopper's data: what the actor does under its preference, what the environment answers, and what is written."""

import math

import gymnasium
import numpy as np
import pytest

import qdfm
from qdfm.collect import mo_hopper
from qdfm.collect.actor import Actor
from qdfm.collect.mo_hopper import Habit, collect_mo_hopper, habit_of, make_mo_hopper
from qdfm.data.actions import Bins
from qdfm.data.builtin import DEFAULT_BINS
from qdfm.envs.mujoco import MO_HOPPER
from qdfm.errors import QDFMError

HIGH = np.array([2.0, 2.0, 4.0])


@pytest.fixture(autouse=True, scope="module")
def short_lanes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mo_hopper, "IN_A_LANE", 2)
        yield


@pytest.fixture(scope="module")
def amateur() -> dict[str, np.ndarray]:
    """More than one lane."""
    return collect_mo_hopper("mo-hopper-amateur", 1300, seed=3, workers=1)


def test_the_rows_are_what_the_environment_does(amateur):
    """Lane by lane again, by hand, with the recorded actions."""
    world, row, lane = gymnasium.make(MO_HOPPER, disable_env_checker=True), 0, 0
    while row < 1300:
        generator = np.random.default_rng([3, lane])
        for number in (2 * lane, 2 * lane + 1):
            now, _ = world.reset(seed=int(generator.integers(2**31)))
            omega, over = world.unwrapped.np_random.dirichlet([1, 1]), False
            while not over and row < 1300:
                generator.standard_normal(3, np.float32)
                np.testing.assert_array_equal(amateur["observation"][row], now)
                now, reward, terminated, truncated, _ = world.step(amateur["action"][row])
                over = terminated or truncated
                np.testing.assert_array_equal(amateur["next_observation"][row], now)
                np.testing.assert_array_equal(amateur["reward"][row], reward)
                np.testing.assert_array_equal(amateur["preference"][row], omega)
                assert amateur["terminated"][row] == terminated
                assert amateur["truncated"][row] == (not terminated and (truncated or row == 1299))
                assert amateur["episode"][row] == number
                row += 1
        lane += 1
    assert lane > 1
    assert len(amateur["reward"]) == 1300


def test_the_actions_are_the_actors(amateur):
    actor = habit_of("mo-hopper-expert").actor
    w0, b0, w1, b1, w2, b2 = (w.astype(np.float64) for w in actor.weights)
    seen = np.concatenate([amateur["observation"], amateur["preference"]], 1)
    mean = np.maximum(np.maximum(seen @ w0 + b0, 0) @ w1 + b1, 0) @ w2[:, :3] + b2[:3]
    mode = np.tanh(mean) * HIGH
    expert = collect_mo_hopper("mo-hopper-expert", 3, seed=3)  # of the same first state and preference
    np.testing.assert_allclose(expert["action"][0], mode[0], atol=1e-5)
    np.testing.assert_array_equal(expert["preference"][0], amateur["preference"][0])
    # Where no entry is near zero or cut off, the factor can be seen.
    clear = (np.abs(mode) > 0.1).all(1) & (np.abs(amateur["action"]) < 0.999 * HIGH).all(1)
    factor = amateur["action"][clear] / mode[clear]
    np.testing.assert_allclose(factor, factor[:, :1].repeat(3, 1), rtol=1e-3)
    assert 0.349 < factor.min() < factor.max() < 1.651
    assert (np.abs(amateur["action"]) <= HIGH).all()


def test_an_amateurs_lots():
    """As often and as much as they should, and the same factor for the whole action."""
    zero = (np.zeros((1, 1)), np.zeros(1), np.zeros((1, 1)), np.zeros(1), np.zeros((1, 6)))
    push = np.array([0.25, -0.5, 0.125])
    actor = Actor((*zero, np.r_[np.arctanh(push), np.zeros(3)]), HIGH)
    n = 20_000
    noise = np.random.default_rng(0).standard_normal((n, 3))
    action = Habit(actor, amateur=True).act(np.zeros((n, 1)), noise)
    factor = action / (push * HIGH)
    np.testing.assert_allclose(factor, factor[:, :1].repeat(3, 1), rtol=1e-5)
    shaken = np.abs(factor[:, 0] - 1) > 1e-6
    assert abs(shaken.mean() - 0.65) < 4 * math.sqrt(0.65 * 0.35 / n)
    spread = np.sort(factor[shaken, 0])
    assert np.abs(spread - np.linspace(0.35, 1.65, len(spread))).max() < 1.3 * 1.95 / math.sqrt(len(spread))
    np.testing.assert_allclose(Habit(actor, amateur=False).act(np.zeros((n, 1)), noise), [push * HIGH] * n, rtol=1e-6)
    far = Actor((*zero, np.r_[np.arctanh([0.9, -0.9, 0.9]), np.zeros(3)]), HIGH)
    assert np.abs(Habit(far, amateur=True).act(np.zeros((n, 1)), noise) / HIGH).max() == 1  # cut off


def test_workers_and_fewer(amateur):
    other = collect_mo_hopper("mo-hopper-amateur", 1300, seed=3, workers=2)
    for name, values in amateur.items():
        np.testing.assert_array_equal(values, other[name], name)
    some = collect_mo_hopper("mo-hopper-amateur", 40, seed=3, workers=1)
    for name in set(amateur) - {"truncated"}:
        np.testing.assert_array_equal(some[name], amateur[name][:40], name)
    np.testing.assert_array_equal(np.flatnonzero(some["truncated"]), [39])
    assert not np.array_equal(collect_mo_hopper("mo-hopper-amateur", 5, seed=4)["action"], amateur["action"][:5])


def test_whole_trajectories_without_a_number(monkeypatch):
    monkeypatch.setattr(mo_hopper, "TRAJECTORIES", 4)
    rows = collect_mo_hopper("mo-hopper-expert", workers=1)
    last = np.flatnonzero(np.diff(rows["episode"], append=9))
    lengths = np.diff(last, prepend=-1)
    assert len(last) == 4
    np.testing.assert_array_equal(rows["terminated"][last], lengths < 500)
    np.testing.assert_array_equal(rows["truncated"][last], ~rows["terminated"][last])
    assert len(np.unique(rows["preference"], axis=0)) == 4


def test_load_dataset_and_the_file(amateur, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(mo_hopper, "collect_mo_hopper", lambda *args, **_: asked.append(args) or amateur)
    data = qdfm.load_dataset("mo-hopper-amateur", transitions=1300, seed=3)
    assert asked[0][:3] == ("mo-hopper-amateur", 1300, 3)
    assert data.spec.choices == (DEFAULT_BINS,) * 3
    assert (data.spec.objectives, data.spec.observation_shape) == (2, (11,))
    make_mo_hopper("mo-hopper-amateur", tmp_path / "a.npz", 1300, 3)
    read = qdfm.load_dataset(tmp_path / "a.npz", bins=9)
    for name in ("observation", "reward", "next_observation", "preference"):
        np.testing.assert_array_equal(getattr(data, name), amateur[name].astype(np.float32))
        np.testing.assert_array_equal(getattr(read, name), getattr(data, name))
    for name in ("terminated", "truncated", "episode"):
        np.testing.assert_array_equal(getattr(read, name), amateur[name])
    np.testing.assert_array_equal(read.action, Bins.fit(amateur["action"], 9).encode(amateur["action"]))
    assert qdfm.load_dataset("mo-hopper-expert", codebook=4).spec.choices == (4,)


def test_refusals():
    with pytest.raises(QDFMError, match="did you mean 'mo-hopper-expert'"):
        collect_mo_hopper("mo-hopper-expret")
    with pytest.raises(QDFMError, match="0 transitions cannot be collected; give at least 1"):
        collect_mo_hopper("mo-hopper-expert", 0)
