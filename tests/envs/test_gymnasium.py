"""The Gymnasium adapter: Gymnasium's own checker, agreement with the pure environment, ids, and refusals."""

import itertools
import random
import sys
import warnings
from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from qdfm.algorithms import BC
from qdfm.collect.gymnasium import collect_gymnasium
from qdfm.data.actions import Discrete, MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.envs.gymnasium import Accumulating, GymEnv, action_masks, action_space_of, adapted, make, registered, seeded
from qdfm.envs.multigoal import MultiGoal
from qdfm.errors import QDFMError
from qdfm.evaluate import evaluate

UP, DOWN, LEFT, RIGHT = range(4)


@dataclass(frozen=True)
class Noisy:
    """Two parts of three and two choices; a random number is added to the state at every step."""

    objectives: int = 1
    horizon: int = 3

    @property
    def spec(self) -> Spec:
        return Spec((1,), MultiDiscrete((3, 2)), objectives=self.objectives)

    def reset(self, key: jax.Array) -> jax.Array:
        return jax.random.normal(key)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Step:
        reward = action.astype(jnp.float32)[: self.objectives]
        return Step(state + jax.random.normal(key), reward, jnp.array(False))

    def observation(self, state: jax.Array) -> jax.Array:
        return state[None]

    def mask(self, state: jax.Array) -> jax.Array:
        return jnp.array([[True, True, False], [True, True, False]])


@pytest.mark.parametrize("env", [MultiGoal(3), Noisy()], ids=["discrete", "multi-discrete"])
def test_passes_gymnasiums_checker_without_a_warning(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Nothing is rendered, and an environment outside the registry cannot have its render modes checked.
        check_env(GymEnv(env), skip_render_check=True)


def test_a_walk_to_a_goal():
    env = GymEnv(MultiGoal(5))
    assert env.action_space == spaces.Discrete(4)
    observation, info = env.reset(seed=0)
    assert np.flatnonzero(observation).tolist() == [5, 11]
    assert info["action_mask"].dtype == np.int8
    assert info["action_mask"].tolist() == [1, 1, 1, 1]
    steps = [env.step(action) for action in [LEFT, LEFT] + [UP] * 10]
    assert [s[1] for s in steps] == [0.0] * 11 + [10.0]
    assert [s[2] for s in steps] == [False] * 11 + [True]
    assert not any(s[3] for s in steps)
    assert np.flatnonzero(steps[-1][0]).tolist() == [3, 11 + 10]


def test_truncated_at_the_horizon_and_counted_anew_after_reset():
    env = GymEnv(MultiGoal(2))
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(DOWN)[3] for _ in range(60)] == [False] * 59 + [True]


def test_an_end_at_the_horizon_is_terminated_not_truncated():
    env = GymEnv(MultiGoal(2, horizon=3))
    env.reset()
    assert [env.step(UP)[2:4] for _ in range(3)] == [(False, False), (False, False), (True, False)]


def test_seed_decides_the_noise_and_every_step_has_its_own():
    def path(seed: int) -> list[float]:
        env = GymEnv(Noisy())
        return [float(env.reset(seed=seed)[0][0])] + [float(env.step([0, 0])[0][0]) for _ in range(3)]

    first, other = path(1), path(2)
    assert first == path(1)
    assert len({*first, *other}) == 8
    assert len({round(b - a, 5) for a, b in itertools.pairwise(first)}) == 3


def test_several_objectives_give_a_reward_vector():
    env = GymEnv(Noisy(objectives=2))
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [[1, 1, 0], [1, 1, 0]]
    reward = env.step(np.array([2, 1]))[1]
    assert reward.dtype == np.float32
    assert reward.tolist() == [2.0, 1.0]
    assert env.reward_space.shape == (2,)
    assert env.reward_space.contains(reward)


def test_misuse_is_refused():
    env = GymEnv(MultiGoal(2))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(UP)
    env.reset()
    with pytest.raises(QDFMError, match=r"action 4 is not in Discrete\(4\)"):
        env.step(4)


class Stub(gymnasium.Env):
    """An environment that has an action space and nothing else."""

    def __init__(self, space: spaces.Space) -> None:
        self.action_space = space


def test_action_spaces_become_ours():
    assert action_space_of(Stub(spaces.Discrete(7))) == Discrete(7)
    assert action_space_of(Stub(spaces.MultiDiscrete([3, 2, 5]))) == MultiDiscrete((3, 2, 5))
    assert action_space_of(GymEnv(MultiGoal(2))) == MultiGoal(2).spec.actions
    assert action_space_of(GymEnv(Noisy())) == Noisy().spec.actions


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-1, 1, (2,)), "neither Discrete nor MultiDiscrete"),
        (spaces.Discrete(3, start=1), "does not count from 0"),
        (spaces.MultiDiscrete([3, 2], start=[0, 1]), "does not count from 0"),
        (spaces.MultiDiscrete([[3, 2], [2, 2]]), "has 2 axes"),
    ],
)
def test_other_action_spaces_are_refused(space, message):
    with pytest.raises(QDFMError, match=message):
        action_space_of(Stub(space))


# Environments by id


def test_ids_of_mo_gymnasium_give_vectors_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make("deep-sea-treasure-v0")
        first, _ = env.reset(seed=0)
        # Right and down twice: 8.2 in the third step.
        rewards = [env.step(action)[1].tolist() for action in (3, 1, 1)]
    assert first.tolist() == [0, 0]
    np.testing.assert_allclose(rewards, [[0, -1], [0, -1], [8.2, -1]])


def test_observations_become_one_array():
    lake = make("FrozenLake-v1")
    assert lake.reset(seed=0)[0].tolist() == [1] + [0] * 15
    hand = make("Blackjack-v1")  # of (0..31, 0..10, 0..1)
    assert np.flatnonzero(hand.reset(seed=0)[0]).size == 3
    assert hand.observation_space.shape == (32 + 11 + 2,)
    # Carried 0..2, delivered 0..2, dropped at each of three places, location 0..4, of which the last comes first.
    bottles = make("breakable-bottles-v0").reset(seed=0)[0]
    assert bottles.tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_boxes_stay_as_they_are():
    env = gymnasium.make("CartPole-v1")
    assert adapted(env) is env


def test_returns_so_far_are_those_of_the_data():
    data = collect_gymnasium("deep-sea-treasure-v0", 60, seed=1)
    accumulated = data.with_accumulated(0.9)
    env = Accumulating(make("deep-sea-treasure-v0"), 2, 0.9)
    rows, over = [], True
    for action in data.action[:, 0]:
        if over:
            seen, _ = env.reset(seed=0)  # nothing is random there
        before = seen
        seen, _, terminated, truncated, _ = env.step(action)
        rows.append((before, seen))
        over = terminated or truncated
    assert env.observation_space.shape == (5,)
    np.testing.assert_allclose([before for before, _ in rows], accumulated.observation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([after for _, after in rows], accumulated.next_observation, rtol=1e-5, atol=1e-6)
    agent = BC(hidden=(8,), clone_steps=1).fit(accumulated, progress=False)
    assert evaluate(agent, "deep-sea-treasure-v0", 1, preference=[0.5, 0.5]).returns[0, 1] < 0


def test_masks_of_taxi():
    env = make("Taxi-v4")
    _, info = env.reset(seed=0)
    masks = action_masks(action_space_of(env), [info, info])
    assert masks.shape == (2, 1, 6)
    np.testing.assert_array_equal(masks[:, 0], [info["action_mask"] == 1] * 2)
    assert not masks.all()
    with pytest.raises(QDFMError, match="missing in some steps"):
        action_masks(action_space_of(env), [info, {}])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Pendulum-v1", "neither Discrete nor MultiDiscrete"),
        ("water-reservoir-v0", "neither Discrete nor MultiDiscrete"),
        ("CartPole-v7", "Unknown environment 'CartPole-v7'; did you mean 'CartPole-v1'?"),
        ("minecart-v7", "did you mean 'minecart-v0'?"),
        ("absent-v0", "absent-v0 needs the module no_such_module, which is not installed"),
        ("endless-v0", "has no fixed size; wrap the environment"),
    ],
)
def test_ids_that_cannot_be_made(name, says, monkeypatch):
    class Endless(Stub):
        """Observations of any length."""

        observation_space = spaces.Sequence(spaces.Discrete(2))

    registry = {
        "absent-v0": gymnasium.envs.registration.EnvSpec("absent-v0", "no_such_module:Env"),
        "endless-v0": gymnasium.envs.registration.EnvSpec("endless-v0", lambda: Endless(spaces.Discrete(2))),
    }
    for key, spec in registry.items():
        monkeypatch.setitem(gymnasium.registry, key, spec)
    with pytest.raises(QDFMError) as error:
        make(name)
    assert says in str(error.value)


def test_without_mo_gymnasium(monkeypatch):
    monkeypatch.setitem(sys.modules, "mo_gymnasium", None)  # its import fails
    monkeypatch.delitem(gymnasium.registry, "minecart-v0", raising=False)
    with pytest.raises(
        QDFMError, match=r'\(MO-Gymnasium cannot be imported: pip install "qdfm\[morl\]"\); did you mean'
    ):
        make("minecart-v0")


@pytest.mark.parametrize(("name", "asked"), [("multigoal4", False), ("cartpole", False), ("a-v1", True), ("a/b", True)])
def test_mo_gymnasium_is_asked_only_for_what_looks_like_an_id(name, asked, monkeypatch):
    asks = []
    monkeypatch.setattr("qdfm.envs.gymnasium._import_mo_gymnasium", lambda: asks.append(name))
    assert not registered(name)
    assert bool(asks) is asked


def test_seeding_the_global_generators_for_a_while():
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    expected = np.random.RandomState(1).random_sample(), random.Random(1).random()
    inside = []
    for _ in range(2):
        with seeded(5):
            inside.append((np.random.random(), random.random()))  # noqa: NPY002
    assert inside[0] == inside[1] == (np.random.RandomState(5).random_sample(), random.Random(5).random())
    assert (np.random.random(), random.random()) == expected  # noqa: NPY002
