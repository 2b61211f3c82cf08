"""The adapter to SMAC, played on a stand-in for its environment that the test defines, and what it says where SMAC is
missing or another package has its name."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
import pytest

from qdfm.agent import Agent
from qdfm.algorithms import BC
from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.gymnasium import make
from qdfm.envs.registry import GAMES, Game
from qdfm.envs.smac import SMAC
from qdfm.envs.vector import PARALLEL, copies_of
from qdfm.errors import QDFMError
from qdfm.evaluate import evaluate
from qdfm.video import record

LIMIT = 4
# How battle after battle ends, and after how many steps.
SCRIPT = (("won", 3), ("limit", LIMIT), ("lost", 2), ("crash", 1), ("won", LIMIT))


class StarCraft2Env:
    """Two agents with a no-op, a stop and two attacks; a step pays 0.5, a victory 10 more.

    Agent 1 is dead after the first step of a battle. What would be refused by the real one is refused here.
    """

    made: ClassVar[list["StarCraft2Env"]] = []
    broken: ClassVar[Exception | None] = None

    def __init__(self, map_name: str, seed: int | None = None, continuing_episode: bool = False) -> None:
        if map_name not in ("3m", "8m"):
            raise KeyError(map_name)
        self.seed, self.continuing, self.battle, self.steps, self.open = seed, continuing_episode, -1, 0, False
        self.made.append(self)

    def get_env_info(self) -> dict[str, int]:
        return {"n_agents": 2, "n_actions": 4, "obs_shape": 3, "state_shape": 5, "episode_limit": LIMIT}

    def reset(self) -> tuple[Any, Any]:
        if self.broken is not None:
            raise self.broken
        self.open, self.steps, self.battle = True, 0, self.battle + 1
        return self.get_obs(), np.zeros(5)

    def get_obs(self) -> list[np.ndarray]:
        return [np.array([self.battle, self.steps, agent], np.float32) for agent in range(2)]

    def get_avail_actions(self) -> list[list[int]]:
        return [[0, 1, 1, 0], [0, 0, 1, 1] if self.steps == 0 else [1, 0, 0, 0]]

    def step(self, actions: list[int]) -> tuple[float, bool, dict[str, Any]]:
        assert all(type(a) is int for a in actions)
        assert all(legal[a] for legal, a in zip(self.get_avail_actions(), actions, strict=True))
        ending, length = SCRIPT[self.battle % len(SCRIPT)]
        self.steps += 1
        if self.steps < length:
            return 0.5, False, {"battle_won": False}
        if ending == "crash":
            return 0, True, {}
        info = {"battle_won": ending == "won"}
        if ending == "limit" and self.continuing:
            info["episode_limit"] = True
        return 10.5 if ending == "won" else 0.5, True, info

    def close(self) -> None:
        self.open = False


@pytest.fixture
def game(monkeypatch) -> type[StarCraft2Env]:
    """A module smac.env that has the stand-in."""
    package, module = ModuleType("smac"), ModuleType("smac.env")
    package.__path__ = []
    package.__spec__ = ModuleSpec("smac", None, is_package=True)
    module.StarCraft2Env = StarCraft2Env
    monkeypatch.setitem(sys.modules, "smac", package)
    monkeypatch.setitem(sys.modules, "smac.env", module)
    monkeypatch.setattr(StarCraft2Env, "made", [])
    return StarCraft2Env


@pytest.fixture(scope="module")
def agent() -> Agent:
    spec = Spec((2, 3), MultiDiscrete((4, 4)), agents=2)
    algorithm = BC(hidden=(8,)).build(spec)
    return Agent(BC(hidden=(8,)), spec, algorithm.policy(algorithm.init(jax.random.key(0))))


def test_evaluation_against_the_script(game, agent):
    played = evaluate(agent, "smac-3m", episodes=6, seed=5)
    np.testing.assert_array_equal(played.lengths, [3, 4, 2, 1, 4, 3])
    np.testing.assert_allclose(played.returns[:, 0], [11.5, 2, 1, 0, 12, 11.5])
    np.testing.assert_array_equal(played.terminated, [True, False, True, False, True, True])
    np.testing.assert_array_equal(played.won, [True, False, False, False, True, True])
    assert played.summary()["win_rate"] == 0.5
    first, second = game.made  # one for the sizes, one with the seed of the first reset; only that one was started
    assert (first.seed, first.battle) == (None, -1)
    assert second.seed == np.random.default_rng(5).integers(2**31)
    assert not second.open
    np.testing.assert_array_equal(evaluate(agent, "smac-8m", episodes=1, seed=5).returns, [[11.5]])


@pytest.mark.parametrize(("name", "meant"), [("smac3m", "smac-3m"), ("smac_corridor", "smac-corridor")])
def test_a_map_is_offered_for_a_misspelt_name(name, meant):
    with pytest.raises(QDFMError, match=f"Unknown environment '{name}'; did you mean '{meant}'"):
        make(name)


def test_one_game_at_a_time_or_one_per_worker():
    assert [copies_of("smac-3m", 50, workers) for workers in (1, 3)] == [1, 3]
    assert copies_of("smac-3m", 2, 3) == 2
    assert [copies_of("CartPole-v1", n, 1) for n in (5, 1000)] == [5, PARALLEL]


def test_another_game(monkeypatch):
    poles = {"short": "CartPole-v0", "long": "CartPole-v1"}
    game = Game(lambda pole, **options: gymnasium.make(poles[pole], **options), tuple(poles), 2, "Poles")
    monkeypatch.setitem(GAMES, "pole", game)
    assert make("pole-long").spec.max_episode_steps == 500
    assert [copies_of("pole-long", n, 1) for n in (1, 50)] == [1, 2]
    with pytest.raises(QDFMError, match="did you mean 'pole-short'"):
        make("pole_shrt")


def test_each_step(game):
    env = SMAC("3m")
    seen, info = env.reset()
    assert seen.dtype == np.float32
    assert seen.tolist() == [[0, 0, 0], [0, 0, 1]]
    assert info["action_mask"].tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    assert env.action_space.nvec.tolist() == [4, 4]
    ends = []
    for battle, (ending, length) in enumerate(SCRIPT):
        assert battle == 0 or env.reset()[0][0, 0] == battle
        for t in range(length):
            seen, reward, terminated, truncated, info = env.step(np.array([1, 3 if t == 0 else 0]))
            assert seen.tolist() == [[battle, t + 1, 0], [battle, t + 1, 1]]
            assert info["action_mask"].tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
            assert (terminated or truncated) == (t == length - 1)
            assert info["won"] == (ending == "won" and t == length - 1)
            assert isinstance(reward, float)
        ends.append((terminated, truncated))
    assert ends == [(True, False), (False, True), (True, False), (False, True), (True, False)]
    assert len(game.made) == 1  # no seed, no second one
    env.close()
    assert not game.made[0].open


def test_illegal_actions_are_refused(game):
    env = SMAC("3m")
    env.reset()
    for action in ([0, 2], [1, 4], [1]):
        with pytest.raises(QDFMError, match=r'are not all allowed by info\["action_mask"\]'):
            env.step(np.array(action))


def test_gymnasium_accepts_the_spaces(game):
    env = make("smac-3m")
    assert env.observation_space.shape == (2, 3)
    assert env.observation_space.contains(env.reset(seed=1)[0])


def test_a_game_that_does_not_start(game, agent, monkeypatch):
    monkeypatch.setattr(game, "broken", FileNotFoundError("Failed to run StarCraft II at\n/opt/StarCraftII."))
    with pytest.raises(QDFMError) as error:
        evaluate(agent, "smac-3m", episodes=1)
    assert str(error.value) == (
        "StarCraft II cannot be started for smac-3m (Failed to run StarCraft II at /opt/StarCraftII); install "
        "it and SMAC's maps by install_sc2.sh of github.com/oxwhirl/smac and set SC2PATH to its folder."
    )


def test_names_agents_and_films_that_do_not_fit(game, agent, tmp_path):
    with pytest.raises(QDFMError, match=r"SMAC has no map '4m'; list those it has by python -m smac\.bin\.map_list"):
        evaluate(agent, "smac-4m", episodes=1)
    other = Spec((3, 30), MultiDiscrete((9, 9, 9)), agents=3)
    with pytest.raises(QDFMError, match=r"observations of shape \(3, 30\) but the environment has \(2, 3\)"):
        evaluate(Agent(agent.config, other, agent.policy), "smac-3m", episodes=1)
    with pytest.raises(QDFMError, match="smac-3m draws no pictures"):
        record(agent, "smac-3m", tmp_path / "a.gif")


def test_without_the_package_or_with_another_of_its_name(agent, monkeypatch):
    monkeypatch.setitem(sys.modules, "smac", None)
    with pytest.raises(QDFMError, match=r"smac-3m needs SMAC and StarCraft II; begin with pip install git\+https"):
        evaluate(agent, "smac-3m", episodes=1)
    optimiser = ModuleType("smac")
    optimiser.__path__ = []
    optimiser.__spec__ = ModuleSpec("smac", None, is_package=True)
    monkeypatch.setitem(sys.modules, "smac", optimiser)
    monkeypatch.delitem(sys.modules, "smac.env", raising=False)
    with pytest.raises(QDFMError, match=r"package smac is PyPI's.*; pip uninstall smac, then pip install git\+https"):
        evaluate(agent, "smac-3m", episodes=1)


def test_a_package_that_lacks_what_it_needs(agent, monkeypatch, tmp_path):
    (tmp_path / "smac").mkdir()
    (tmp_path / "smac" / "__init__.py").touch()
    (tmp_path / "smac" / "env.py").write_text("import no_such_pysc2\n")
    for name in ("smac", "smac.env"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(QDFMError, match=r"smac-3m cannot be played \(No module named 'no_such_pysc2'\); install what"):
        evaluate(agent, "smac-3m", episodes=1)
    for name in ("smac", "smac.env"):
        sys.modules.pop(name, None)
