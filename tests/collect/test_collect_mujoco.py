"""MuJoCo data: what the policy does, what the environment answers, whoever collects it and wherever it is kept."""

import math
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest

import qdfm
from qdfm.collect import mujoco
from qdfm.collect.actor import POLICIES, Actor, write_actor
from qdfm.collect.mujoco import Trajectories, actor_of, collect_mujoco, make_minari, replayed, whole_returns
from qdfm.collect.rollouts import Job, play
from qdfm.data.actions import Bins
from qdfm.data.builtin import DEFAULT_BINS
from qdfm.envs.gymnasium import make
from qdfm.envs.mujoco import make_plain
from qdfm.errors import QDFMError
from qdfm.tasks import TASKS

HOPPER = "hopper-medium"


@pytest.fixture(scope="module")
def hopper() -> Trajectories:
    """Nine lanes, collected here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mujoco, "LANE", 700)
        return collect_mujoco(HOPPER, 5800, seed=3, workers=1)


@pytest.fixture
def short_lanes(monkeypatch):
    monkeypatch.setattr(mujoco, "LANE", 700)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def same(a: Trajectories, b: Trajectories) -> None:
    for name, x, y in zip(a._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, name)


def test_an_actor_by_hand(tmp_path):
    # One input, one unit per layer: 2 → relu(2·3 − 1) = 5 → relu(5·.5 + 0) = 2.5 → mean .5, log-std −1 or out of range.
    weights = [[[3.0]], [-1.0], [[0.5]], [0.0], [[0.2, 0.0]], [0.0, -1.0]]
    write_actor(tmp_path / "a.npz", [np.array(w, np.float32) for w in weights])
    actor = Actor.read(tmp_path / "a.npz", np.array([2.0]))
    seen = np.array([[2.0], [2.0], [-9.0]])
    expected = [2 * math.tanh(0.5), 2 * math.tanh(0.5 + 1.5 * math.exp(-1)), 2 * math.tanh(-math.exp(-1))]
    np.testing.assert_allclose(actor.act(seen, np.array([[0.0], [1.5], [-1.0]]))[:, 0], expected, rtol=1e-6)
    for log_std, std in ((9.0, math.exp(2)), (-99.0, math.exp(-10))):
        wide = Actor((*actor.weights[:5], np.array([0, log_std], np.float32)), actor.high)
        assert wide.act(seen[2:], np.array([[0.1]]))[0, 0] == pytest.approx(2 * math.tanh(0.1 * std), rel=1e-5)
    np.savez(tmp_path / "b.npz", w0=np.zeros(1))
    with pytest.raises(QDFMError, match=r"b\.npz is no policy: it holds w0 instead of w0, b0"):
        Actor.read(tmp_path / "b.npz", np.ones(1))


def test_every_task_has_a_policy_of_its_size():
    assert len(TASKS) == 6
    for task in TASKS.values():
        world = make_plain(task.env)
        actor = Actor.read(POLICIES / f"{task.policy}.npz", world.action_space.high)
        assert actor.weights[0].shape == (*world.observation_space.shape, 256)
        assert actor.weights[-1].shape == (2 * world.action_space.shape[0],)


def test_the_rows_are_what_the_environment_does(hopper):
    """Each lane again, by hand, with the recorded actions."""
    world, row, number = gymnasium.make("Hopper-v5"), 0, -1
    for lane, length in enumerate([700] * 8 + [200]):
        generator, end, over = np.random.default_rng([3, lane]), row + length, True
        while row < end:
            if over:
                now, _ = world.reset(seed=int(generator.integers(2**31)))
                number += 1
            generator.standard_normal(3, np.float32)
            np.testing.assert_array_equal(hopper.observation[row], now)
            now, reward, terminated, truncated, _ = world.step(hopper.action[row])
            over = terminated or truncated
            np.testing.assert_array_equal(hopper.next_observation[row], now)
            assert hopper.reward[row] == reward
            assert hopper.terminated[row] == terminated
            assert hopper.truncated[row] == (row == end - 1 and not terminated)  # no episode lasts 1,000 steps here
            assert hopper.episode[row] == number
            row += 1
    assert row == len(hopper.reward) == 5800
    assert hopper.terminated.any()


def test_the_actions_are_the_policys(hopper):
    generator = np.random.default_rng([3, 0])
    generator.integers(2**31)  # the seed of the reset
    noise = generator.standard_normal(3, np.float32)
    with np.load(POLICIES / "hopper_medium.npz") as file:
        w = {name: file[name].astype(np.float64) for name in file.files}
    x = hopper.observation[0]
    for i in (0, 1):
        x = np.maximum(x @ w[f"w{i}"] + w[f"b{i}"], 0)
    out = x @ w["w2"] + w["b2"]
    np.testing.assert_allclose(hopper.action[0], np.tanh(out[:3] + np.exp(out[3:]) * noise), atol=1e-5)


def test_the_number_of_workers_does_not_matter(hopper, short_lanes):
    same(collect_mujoco(HOPPER, 5800, seed=3, workers=2), hopper)


def test_fewer_are_the_first_of_more(hopper, short_lanes):
    some = collect_mujoco(HOPPER, 900, seed=3, workers=1)
    first = Trajectories(*(x[:900].copy() for x in hopper))
    first.truncated[-1] = not first.terminated[-1]
    same(some, first)
    assert not np.array_equal(collect_mujoco(HOPPER, 10, seed=4).action, hopper.action[:10])


def test_the_time_limit_truncates():
    data = collect_mujoco("halfcheetah-medium", 1100, workers=1)
    np.testing.assert_array_equal(np.flatnonzero(data.truncated), [999, 1099])
    assert not data.terminated.any()
    returns = whole_returns("halfcheetah-medium", data)  # the second episode is cut off
    np.testing.assert_allclose(returns, [data.reward[:1000].sum()])


def test_returns_of_whole_episodes(hopper):
    complete = [e for e in range(hopper.episode[-1] + 1) if hopper.terminated[hopper.episode == e].any()]
    expected = [hopper.reward[hopper.episode == e].sum() for e in complete]
    np.testing.assert_allclose(whole_returns(HOPPER, hopper), expected)


def test_behaviour_through_a_quantiser(hopper):
    bins = Bins(((-1.0, -0.2, 0.5, 1.0),) * 3)
    grid = np.array(bins.values[0], np.float32)
    (data,) = play(Job("Hopper-v5", actor_of(TASKS[HOPPER]), 3, (0,), (60,), bins))
    assert np.isin(data.action, grid).all()
    np.testing.assert_array_equal(data.action[0], grid[np.abs(hopper.action[0][:, None] - grid).argmin(1)])
    world = gymnasium.make("Hopper-v5")
    world.reset(seed=int(np.random.default_rng([3, 0]).integers(2**31)))
    for action, reward in zip(data.action[:20], data.reward):
        assert world.step(action)[1] == reward


def test_replayed_returns(hopper):
    episode = hopper.episode == 0
    assert hopper.terminated[episode].any()
    returns = replayed(HOPPER, None, episodes=5, seed=3)
    assert returns.shape == (5,)
    assert returns[0] == pytest.approx(hopper.reward[episode].sum())
    still = replayed(HOPPER, Bins(((0.0, 0.001),) * 3), episodes=1, seed=3)  # hardly moves, and falls
    assert still[0] < returns.min()


def test_environments_are_closed(worlds):
    actor = actor_of(TASKS[HOPPER])
    assert (worlds.made, worlds.open) == (1, [])
    too_few = Bins(((0.0, 1.0),))  # for one of three dimensions
    with pytest.raises(QDFMError, match="3 dimensions but 1 are needed"):
        play(Job("Hopper-v5", actor, 0, (0, 1), (5, 5), too_few))
    assert (worlds.made, worlds.open) == (3, [])


def test_a_minari_set_holds_the_same(hopper, folder, monkeypatch):
    monkeypatch.setattr(mujoco, "collect_mujoco", lambda *args: hopper)
    assert make_minari(HOPPER, 5800, seed=3) == "qdfm/hopper/medium-v0"
    source = minari.load_dataset("qdfm/hopper/medium-v0")
    episodes = list(source.iterate_episodes())
    for name, values in (
        ("actions", hopper.action), ("rewards", hopper.reward), ("terminations", hopper.terminated),
        ("truncations", hopper.truncated),
    ):  # fmt: skip
        np.testing.assert_array_equal(np.concatenate([getattr(e, name) for e in episodes]), values)
    np.testing.assert_array_equal(np.concatenate([e.observations[:-1] for e in episodes]), hopper.observation)
    np.testing.assert_array_equal(np.concatenate([e.observations[1:] for e in episodes]), hopper.next_observation)
    kept = source.storage.metadata
    mean = whole_returns(HOPPER, hopper).mean()
    assert (kept["policy"], kept["seed"]) == ("hopper_medium", 3)
    assert kept["mean_return"] == pytest.approx(mean)
    assert kept["normalised_score"] == pytest.approx(minari.get_normalized_score(source, mean) * 100)
    assert source.recover_environment().spec.id == "Hopper-v5"

    read = qdfm.load_dataset("qdfm/hopper/medium-v0", bins=9)
    np.testing.assert_array_equal(read.observation, hopper.observation.astype(np.float32))
    np.testing.assert_array_equal(read.episode, hopper.episode)
    np.testing.assert_array_equal(read.action, Bins.fit(hopper.action, 9).encode(hopper.action))
    with pytest.raises(QDFMError, match="has 5800 transitions, not 5801; ask for fewer"):
        qdfm.load_dataset("qdfm/hopper/medium-v0", bins=9, transitions=5801)
    with pytest.raises(QDFMError, match=r"0 transitions .* cannot be read"):
        qdfm.load_dataset("qdfm/hopper/medium-v0", bins=9, transitions=0)

    with pytest.raises(QDFMError, match=r"already there; renew it with qdfm data make hopper-medium --replace"):
        make_minari(HOPPER)
    monkeypatch.setattr(mujoco, "collect_mujoco", lambda *args: Trajectories(*(x[:50] for x in hopper)))
    make_minari(HOPPER, replace=True)
    again = minari.load_dataset("qdfm/hopper/medium-v0").storage.metadata
    assert (again["total_steps"], again["mean_return"], again["normalised_score"]) == (50, None, None)
    names = {path.name for path in (folder / "qdfm" / "hopper").iterdir()}
    assert names == {"medium-v0", "namespace_metadata.json"}
    assert minari.list_local_datasets().keys() == {"qdfm/hopper/medium-v0"}


def test_half_a_set_is_not_kept_and_a_whole_one_is(hopper, folder, monkeypatch):
    place = folder / "qdfm" / "hopper"
    monkeypatch.setattr(mujoco, "collect_mujoco", lambda *args: hopper)
    for error, expected in ((OSError("disk full"), QDFMError), (KeyboardInterrupt(), KeyboardInterrupt)):

        def fail(*args, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("minari.dataset._storages.hdf5_storage.HDF5Storage.update_episodes", fail)
            with pytest.raises(expected):
                make_minari(HOPPER)
            assert [path.name for path in place.iterdir()] == ["namespace_metadata.json"]
        make_minari(HOPPER, seed=3)
        with monkeypatch.context() as patch:
            patch.setattr("minari.dataset._storages.hdf5_storage.HDF5Storage.update_episodes", fail)
            with pytest.raises(expected):
                make_minari(HOPPER, seed=4, replace=True)
        kept = minari.load_dataset("qdfm/hopper/medium-v0")
        assert (kept.storage.metadata["seed"], kept.total_steps) == (3, 5800)
        shutil.rmtree(place / "medium-v0")
    assert os.environ["MINARI_DATASETS_PATH"] == str(folder)


def test_an_incomplete_set_names_the_command_that_renews_it(hopper, folder, monkeypatch):
    (folder / "qdfm" / "hopper" / "medium-v0").mkdir(parents=True)
    with pytest.raises(QDFMError, match=r"is incomplete; renew it with qdfm data make hopper-medium --replace \("):
        qdfm.load_dataset(HOPPER)
    monkeypatch.setattr(mujoco, "collect_mujoco", lambda *args: hopper)
    make_minari(HOPPER, replace=True)
    assert len(qdfm.load_dataset(HOPPER)) == 5800


def test_load_dataset_knows_the_tasks(hopper, folder, monkeypatch):
    asked = []

    def collect(task, transitions, seed=0, workers=None, progress=False):
        asked.append((transitions, seed))
        return Trajectories(*(x[: min(transitions, 5800)] for x in hopper))

    monkeypatch.setattr(mujoco, "collect_mujoco", collect)
    data = qdfm.load_dataset(HOPPER, transitions=30, seed=3)  # collected, and not kept
    assert (len(data), data.spec.choices, asked) == (30, (DEFAULT_BINS,) * 3, [(30, 3)])
    np.testing.assert_array_equal(data.reward[:, 0], hopper.reward[:30].astype(np.float32))
    assert not list(folder.iterdir())

    data = qdfm.load_dataset(HOPPER, codebook=5, normalise=False)  # all of a million, kept
    assert (len(data), data.spec.choices, asked[1:]) == (5800, (5,), [(1_000_000, 0)])
    assert not data.spec.normalisation.observation_mean
    assert (folder / "qdfm" / "hopper" / "medium-v0").exists()

    first = qdfm.load_dataset(HOPPER, bins=7, transitions=40)
    np.testing.assert_array_equal(first.observation, hopper.observation[:40].astype(np.float32))
    np.testing.assert_array_equal(np.flatnonzero(first.truncated), [39])
    assert len(qdfm.load_dataset(HOPPER, bins=7)) == 5800
    assert len(asked) == 2  # from the set
    qdfm.load_dataset(HOPPER, bins=7, transitions=5801)  # more than it has
    qdfm.load_dataset(HOPPER, bins=7, transitions=40, seed=1)  # of another seed
    qdfm.load_dataset(HOPPER, bins=7, seed=1)
    assert asked[2:] == [(5801, 0), (40, 1), (1_000_000, 1)]
    make_minari(HOPPER, seed=8, replace=True)
    assert len(qdfm.load_dataset(HOPPER)) == 5800  # whatever its seed
    qdfm.load_dataset(HOPPER, transitions=5, seed=0)
    assert asked[5:] == [(1_000_000, 8), (5, 0)]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (partial(collect_mujoco, HOPPER, 0), "0 transitions cannot be collected"),
        (partial(collect_mujoco, HOPPER, 1, workers=-1), "workers is -1; give at least 1"),
        (partial(collect_mujoco, "hopper", 1), "Unknown MuJoCo task 'hopper'; did you mean 'hopper-"),
        (partial(replayed, "walker-medium", None), "did you mean 'walker2d-medium'"),
        (partial(qdfm.load_dataset, HOPPER, bins=3, codebook=3), "give one"),
        (partial(qdfm.load_dataset, "fork", bins=3), "bins does not concern fork; leave it out"),
        (partial(qdfm.load_dataset, "log.npz", seed=3), r"seed does not concern log\.npz; leave it out"),
        (partial(qdfm.load_dataset, "tests/none-v0", seed=3), "seed does not concern tests/none-v0"),
        (partial(qdfm.load_dataset, "CartPole-v1", codebook=3), "codebook does not concern CartPole-v1"),
    ],
)
def test_refusals(call, sentence):
    with pytest.raises(QDFMError, match=sentence):
        call()


def test_options_reach_a_gymnasium_id():
    data = qdfm.load_dataset("CartPole-v1", transitions=12, seed=5)
    again = qdfm.load_dataset("CartPole-v1", transitions=12, seed=6)
    assert len(data) == 12
    assert not np.array_equal(data.observation, again.observation)


def test_without_mujoco(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(QDFMError, match=r'Hopper-v5 needs MuJoCo; install it with pip install "qdfm\[mujoco\]"'):
        collect_mujoco(HOPPER, 5)
    with pytest.raises(QDFMError, match=r'Hopper-v5 needs MuJoCo; install it with pip install "qdfm\[mujoco\]"'):
        make("Hopper-v5", Bins(((0.0, 1.0),) * 3))  # where agents play
