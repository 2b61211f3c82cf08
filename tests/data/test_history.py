"""Observations that remember: against a loop over rows, in environments of both kinds, and where memory is needed."""

from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.envs.remembered import Remembered
from qdfm.envs.vector import remembering

LENGTHS = (1, 3, 5)


def logged(shape: tuple[int, ...], **options) -> qdfm.Dataset:
    rng = np.random.default_rng(0)
    n = sum(LENGTHS)
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    last = np.r_[episode[1:] != episode[:-1], True]
    seen, then = rng.integers(3, size=(2, n, *shape)).astype(np.float32)
    inside = np.flatnonzero(~last)
    then[inside] = seen[inside + 1]
    action = rng.integers(2, size=(n, options.get("agents", 1)))
    return qdfm.Dataset.from_arrays(seen, action, rng.normal(size=n), then, last, episode=episode, **options)


@pytest.mark.parametrize(("shape", "options"), [((4,), {}), ((2, 3), {"agents": 2}), ((2, 2, 3), {})])
def test_rows_against_a_loop(shape, options):
    plain = logged(shape, **options)
    data = plain.with_history(3)
    assert data.spec.history == 3 and data.spec.observation_shape == (*shape[:-1], 3 * shape[-1])
    first = 0
    for row, number in enumerate(plain.episode):
        if row and number != plain.episode[row - 1]:
            first = row
        here = [plain.observation[max(first, row - ago)] for ago in (2, 1, 0)]
        np.testing.assert_array_equal(data.observation[row], np.concatenate(here, -1))
        there = [*here[1:], plain.next_observation[row]]
        np.testing.assert_array_equal(data.next_observation[row], np.concatenate(there, -1))
    for name in ("action", "reward", "terminated", "episode"):
        np.testing.assert_array_equal(getattr(data, name), getattr(plain, name))


def test_every_observation_is_normalised_as_it_was_alone():
    plain = logged((2, 3), agents=2, categories=(3, 0, 0))
    seen, alone = plain.with_history(2).normalised(), plain.normalised()
    assert plain.with_history(2).spec.categories == (3, 0, 0) * 4
    np.testing.assert_allclose(seen.observation[..., 3:], alone.observation)
    np.testing.assert_allclose(seen.observation[2][..., :3], alone.observation[1])
    np.testing.assert_allclose(seen.next_observation[..., 3:], alone.next_observation)


def test_gymnasium_shows_what_the_data_hold():
    world = remembering(gymnasium.make("CartPole-v1"), 3)
    plain = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(0)
    shown, rows = [], []
    for seed in range(2):
        here, mine = plain.reset(seed=seed)[0], world.reset(seed=seed)[0]
        over = False
        while not over:
            action = int(rng.integers(2))
            then, reward, over, *_ = plain.step(action)
            shown.append(mine)
            rows.append((here, action, reward, then, over))
            here, mine = then, world.step(action)[0]
    data = qdfm.Dataset.from_arrays(*map(np.array, zip(*rows, strict=True))).with_history(3)
    np.testing.assert_array_equal(np.array(shown), data.observation)
    assert world.observation_space.shape == (12,) == data.spec.observation_shape


@dataclass(frozen=True)
class Recall:
    """Two agents see a cue each, which is gone one step later, when it should be named: 1 is paid where both do."""

    horizon = 2
    spec = Spec((2, 3), MultiDiscrete((2, 2)), agents=2)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.random.randint(key, (2,), 0, 2), jnp.int32(0)

    def step(self, state: tuple[jax.Array, jax.Array], action: jax.Array, key: jax.Array) -> Step:
        cue, t = state
        paid = (t == 1) & jnp.all(action == cue)
        return Step((cue, t + 1), paid.astype(jnp.float32)[None], t == 1)

    def observation(self, state: tuple[jax.Array, jax.Array]) -> jax.Array:
        cue, t = state
        return jnp.where(t == 0, jnp.concatenate([jax.nn.one_hot(cue, 2), jnp.zeros((2, 1))], -1), jnp.eye(3)[2])

    def mask(self, state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.ones((2, 2), bool)

    def won(self, state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return state[1] == 2


def demonstrations(episodes: int) -> qdfm.Dataset:
    """Anything first, then the cue."""
    rng = np.random.default_rng(1)
    cue = rng.integers(2, size=(episodes, 2))
    first = np.concatenate([np.eye(2)[cue], np.zeros((episodes, 2, 1))], -1)
    later = np.broadcast_to(np.eye(3)[2], first.shape)
    seen = np.stack([first, later], 1).reshape(-1, 2, 3)
    then = np.stack([later, later], 1).reshape(-1, 2, 3)
    action = np.stack([rng.integers(2, size=cue.shape), cue], 1).reshape(-1, 2)
    end = np.arange(2 * episodes) % 2 == 1
    return qdfm.Dataset.from_arrays(seen, action, end, then, end, agents=2, num_actions=(2, 2))


def test_a_team_that_remembers_names_what_it_saw(tmp_path):
    """By chance both name their cues in a quarter of the episodes; with a memory of one step in all of them."""
    steps = {"warmup_steps": 600, "critic_steps": 1, "improve_steps": 0}
    config = qdfm.QDFM(**steps, learning_rate=1e-2, hidden=(32,), batch_size=128)
    data = demonstrations(500)
    blind = config.fit(data, progress=False)
    assert abs(qdfm.evaluate(blind, Recall(), 2000).returns.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)
    config.fit(data.with_history(2), progress=False).save(tmp_path / "team.safetensors")
    team = qdfm.load(tmp_path / "team.safetensors")
    played = qdfm.evaluate(team, Recall(), 500)
    assert played.returns.mean() > 0.99
    assert played.won.all()  # told by the environment's own last state


def test_the_environment_shows_the_first_observation_until_there_are_others():
    world = Remembered(Recall(), 3)
    state = world.reset(jax.random.key(0))
    cue = np.asarray(Recall().observation(state.state))
    np.testing.assert_array_equal(world.observation(state), np.concatenate([cue] * 3, -1))
    after = world.step(state, jnp.zeros(2, int), jax.random.key(1)).state
    blank = np.broadcast_to(np.eye(3)[2], (2, 3))
    np.testing.assert_array_equal(world.observation(after), np.concatenate([cue, cue, blank], -1))
    assert world.spec.observation_shape == world.observation(after).shape


@pytest.mark.parametrize("history", [0, -1, 2.0, True])
def test_a_history_is_a_whole_number(history):
    with pytest.raises(qdfm.QDFMError, match=r"history is .*; give a whole number from 1"):
        logged((4,)).with_history(history)


def test_histories_are_not_nested_and_agents_say_what_they_see():
    data = logged((4,)).with_history(2)
    with pytest.raises(qdfm.QDFMError, match="hold a history or accumulated returns already"):
        data.with_history(2)
    assert logged((4,)).with_history(1).spec == logged((4,)).spec
    agent = qdfm.BC(clone_steps=1, hidden=(4,)).fit(data, progress=False)
    with pytest.raises(qdfm.QDFMError, match="trained on \\(8,\\) per row, the last 2 observations side by side"):
        agent.act(np.zeros((3, 4)))
