"""Minari sets that the test makes itself: read, trained on, played; broken and absent ones refused in a sentence."""

import shutil
import sys
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer

import qdfm
from qdfm.data import minari as reader
from qdfm.errors import QDFMError

SWINGS, CHOICES, CELLS = "tests/swings-v0", "tests/choices-v0", "tests/cells-v0"


def buffer(number: int, observations: np.ndarray, actions: np.ndarray, ended: bool) -> EpisodeBuffer:
    steps = len(actions)
    last = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        id=number, observations=list(observations), actions=list(actions), rewards=list(np.arange(steps, dtype=float)),
        terminations=list(last & ended), truncations=list(last & (not ended)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three small sets in a Minari folder of our own."""
    path = tmp_path_factory.mktemp("minari")
    patch = pytest.MonkeyPatch()
    patch.setenv("MINARI_DATASETS_PATH", str(path))
    rng = np.random.default_rng(0)
    box = spaces.Box(-10, 10, (3,), np.float32)
    push = spaces.Box(-2, 2, (1,), np.float32)
    for name, seen, acted, observe, act in (
        (SWINGS, box, push, lambda size: rng.normal(size=(size, 3)), lambda size: rng.uniform(-2, 2, (size, 1))),
        (CHOICES, box, spaces.Discrete(4), lambda size: rng.normal(size=(size, 3)), partial(rng.integers, 3)),
        (CELLS, spaces.Discrete(5), spaces.Discrete(2), partial(rng.integers, 5), partial(rng.integers, 2)),
    ):
        dtype = np.float32 if isinstance(seen, spaces.Box) else np.int64
        moved = np.float32 if isinstance(acted, spaces.Box) else np.int64
        episodes = [
            buffer(i, observe(size=n + 1).astype(dtype), act(size=n).astype(moved), ended=i == 0)
            for i, n in enumerate((4, 6))
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about an author, a description and an environment, which it has none of
            minari.create_dataset_from_buffers(
                name, buffer=episodes, observation_space=seen, action_space=acted, data_format="hdf5"
            )
    yield path
    patch.undo()


def test_continuous_actions_become_tokens(folder):
    data = qdfm.load_dataset(SWINGS, bins=5)
    assert len(data) == 10
    assert data.spec.choices == (5,)
    np.testing.assert_array_equal(data.reward[:, 0], [0, 1, 2, 3, 0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(np.flatnonzero(data.terminated), [3])
    np.testing.assert_array_equal(np.flatnonzero(data.truncated), [9])
    np.testing.assert_array_equal(data.episode, [0] * 4 + [1] * 6)
    np.testing.assert_array_equal(data.next_observation[:3], data.observation[1:4])
    assert qdfm.load_dataset(SWINGS, codebook=3).spec.choices == (3,)


def test_it_trains_and_plays(folder):
    agent = qdfm.BC(clone_steps=2, hidden=(8,)).fit(qdfm.load_dataset(SWINGS, bins=5), progress=False)
    assert (qdfm.evaluate(agent, "Pendulum-v1", episodes=1).lengths == 200).all()


def test_finite_choices_and_observations_know_their_number(folder):
    assert qdfm.load_dataset(CHOICES).spec.choices == (4,)  # though the data takes three
    data = qdfm.load_dataset(CELLS)
    assert (data.spec.observation_shape, data.spec.choices) == ((5,), (2,))
    assert (data.observation.sum(1) == 1).all()


class Clock(gymnasium.Env):
    """Shows a nested observation whose parts are not in the order of their names."""

    observation_space = spaces.Dict(
        time=spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3])]),
        hands=spaces.Dict(width=spaces.Box(-1, 1, (2, 2), np.float32), broken=spaces.MultiBinary(2)),
        age=spaces.Box(0, 9, (), np.float32),
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.left = 5
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), float(action), self.left == 0, False, {}


def collected(name: str, env: gymnasium.Env, episodes: int) -> list[np.ndarray]:
    """A set by Minari's own collector, and the observations of its steps as Gymnasium flattens them."""
    seen, collector = [], minari.DataCollector(env, record_infos=False)
    for episode in range(episodes):
        now, over = collector.reset(seed=episode)[0], False
        while not over:
            seen.append(spaces.flatten(env.observation_space, now))
            now, _, ended, cut, _ = collector.step(collector.action_space.sample())
            over = ended or cut
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector.create_dataset(name)
    return seen


@pytest.mark.parametrize(("env_id", "width"), [("FrozenLake-v1", 16), ("tests/Clock-v0", 3 + 5 + 4 + 2 + 1)])
def test_observations_are_flat_as_where_agents_play(folder, env_id, width):
    gymnasium.register("tests/Clock-v0", entry_point=f"{__name__}:Clock", max_episode_steps=9)
    try:
        env = gymnasium.make(env_id)
        assert width == spaces.flatdim(env.observation_space)
        seen = collected(f"tests/{env_id.replace('/', '-')}-v0", env, episodes=8)
        data = qdfm.load_dataset(f"tests/{env_id.replace('/', '-')}-v0")
        np.testing.assert_array_equal(data.observation, np.array(seen, np.float32))
        inside = ~(data.terminated | data.truncated)[:-1]
        np.testing.assert_array_equal(data.next_observation[:-1][inside], data.observation[1:][inside])
        agent = qdfm.BC(clone_steps=2, hidden=(8,)).fit(data, progress=False)
        assert len(qdfm.evaluate(agent, env_id, episodes=2).lengths) == 2
    finally:
        del gymnasium.registry["tests/Clock-v0"]


@pytest.mark.parametrize("space", [spaces.MultiBinary((2, 3)), spaces.MultiBinary(4), spaces.MultiBinary((2, 1, 2))])
def test_binary_observations_are_flat_as_where_agents_play(space):
    space.seed(0)
    seen = [space.sample() for _ in range(5)]
    flat = reader._flat("Episode 0", space, np.array(seen), 5)
    np.testing.assert_array_equal(flat, [spaces.flatten(space, one) for one in seen])


def test_what_cannot_be_read_is_refused(folder, monkeypatch):
    with pytest.raises(QDFMError, match="say how to discretise them: bins=21 or codebook=256"):
        qdfm.load_dataset(SWINGS)
    with pytest.raises(QDFMError, match="ways to discretise actions; give one"):
        qdfm.load_dataset(SWINGS, bins=5, codebook=5)
    with pytest.raises(QDFMError, match="fetch it with: minari download mujoco/hopper/medium-v0"):
        qdfm.load_dataset("mujoco/hopper/medium-v0", bins=5)
    with pytest.raises(QDFMError, match=r"or, if it is a Gymnasium id, install the package that registers it\)\.$"):
        qdfm.load_dataset("ALEX/Pong-v5")
    for space in (spaces.Text(3), spaces.Discrete(3, start=1), spaces.Box(0, 1, (2, 2)), spaces.Dict()):
        with pytest.raises(
            QDFMError, match=r"action space .*; only Discrete and MultiDiscrete ones that count from 0,"
        ):
            reader._actions("x/y-v0", space, None)
    with pytest.raises(QDFMError, match=r"Episode 0 has observations of the space Text.*, which has no fixed size;"):
        reader._flat("Episode 0", spaces.Text(3), ["a", "b"], 2)
    with pytest.raises(QDFMError, match=r"Episode 0 has observations outside Discrete\(3\); repair"):
        reader._flat("Episode 0", spaces.Discrete(3), np.array([2, 3]), 2)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(QDFMError, match=r'pip install "qdfm\[mujoco\]"'):
        qdfm.load_dataset(SWINGS, bins=5)


@pytest.mark.parametrize(
    ("field", "values", "sentence"),
    [
        ("rewards", None, "is damaged"),
        ("rewards", np.zeros(0), "Episode 0 of the Minari set tests/swings-v0 is empty"),
        ("rewards", np.zeros(3), r"observations of shape \(5, 3\) and type float32 where \(4, 3\) numbers"),
        ("actions", np.zeros((2, 1)), r"actions of shape \(2, 1\)"),
        ("rewards", np.full(4, np.nan), "reward is NaN or infinite in row 0"),
        (
            "actions",
            np.array([b"a", b"b", b"c", b"d"]),
            r"actions of shape \(4,\) and .* where \(4, 1\) numbers",
        ),
    ],
)
def test_broken_sets_are_refused(folder, tmp_path, monkeypatch, field, values, sentence):
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "copy"))
    with h5py.File(tmp_path / "copy" / SWINGS / "data" / "main_data.hdf5", "r+") as file:
        del file["episode_0"][field]
        if values is not None:
            file["episode_0"][field] = values
    with pytest.raises(QDFMError, match=sentence):
        qdfm.load_dataset(SWINGS, bins=5)


def test_a_set_without_episodes_is_refused(folder, monkeypatch):
    nothing = SimpleNamespace(
        observation_space=spaces.Box(0, 1, (1,)), action_space=spaces.Discrete(2), iterate_episodes=lambda: iter(())
    )
    monkeypatch.setattr(minari, "load_dataset", lambda name: nothing)
    with pytest.raises(QDFMError, match="has no episodes"):
        qdfm.load_dataset(SWINGS)


def test_a_gymnasium_id_with_a_slash_is_no_minari_id(monkeypatch):
    gymnasium.register("tests/Pole-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
    try:
        assert qdfm.load_dataset("tests/Pole-v0").spec.choices == (2,)
    finally:
        del gymnasium.registry["tests/Pole-v0"]
