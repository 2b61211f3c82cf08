"""Built-in environments as Gymnasium's: its own checker, agreement with the pure environment, and refusals."""

import itertools
import warnings
from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import qdfm
from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.envs.gymenv import GymEnv
from qdfm.envs.gymnasium import action_space_of
from qdfm.envs.multigoal import MultiGoal
from qdfm.errors import QDFMError

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
    with pytest.raises(QDFMError, match="Unknown built-in environment 'multigoal-9'; did you mean 'multigoal-"):
        GymEnv("multigoal-9")


def test_by_name_from_the_package():
    assert qdfm.GymEnv is GymEnv
    assert qdfm.GymEnv("multigoal-3").jax_env == MultiGoal(3)
    with pytest.raises(AttributeError, match="no attribute 'GymnasiumEnv'"):
        qdfm.GymnasiumEnv  # noqa: B018


def test_the_action_space_is_the_same_again():
    for env in (MultiGoal(2), Noisy()):
        assert action_space_of(GymEnv(env)) == env.spec.actions
