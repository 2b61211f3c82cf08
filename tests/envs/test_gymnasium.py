"""Gymnasium's environments as ours: ids, observations, actions, masks, and refusals."""

import random
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from qdfm.algorithms import BC
from qdfm.collect.gymnasium import collect_gymnasium
from qdfm.data.actions import Discrete, MultiDiscrete
from qdfm.envs.gymnasium import Accumulating, action_masks, action_space_of, adapted, make, registered, seeded
from qdfm.errors import QDFMError
from qdfm.evaluate import evaluate


class Stub(gymnasium.Env):
    """An environment that has an action space and nothing else."""

    def __init__(self, space: spaces.Space) -> None:
        self.action_space = space


def test_action_spaces_become_ours():
    assert action_space_of(Stub(spaces.Discrete(7))) == Discrete(7)
    assert action_space_of(Stub(spaces.MultiDiscrete([3, 2, 5]))) == MultiDiscrete((3, 2, 5))


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
