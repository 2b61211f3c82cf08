"""MAPPO: advantages, laws and losses by hand, a team's bandit that it must solve, and what it refuses."""

import math
import sys
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.collect import ppo
from qdfm.collect.actor import NAMES, Weights
from qdfm.collect.ppo import PPO, History, Nets, Rows
from qdfm.data.actions import MultiDiscrete
from qdfm.data.arrays import read_arrays
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.errors import QDFMError

CONFIG = PPO(
    "bandit", Path("run.npz"), steps=32 * 4 * 2 * 20, environments=32, turn=4, epochs=2, minibatches=2, checkpoint=2,
    hidden=8, learning_rate=0.02, entropy=0.0, scale=1.0,
)  # fmt: skip
RIGHT = (2, 1)


@dataclass(frozen=True)
class Bandit:
    """Two agents with three choices each, which pays 1 where both take the RIGHT one; the second may not take its last.

    A state is the number of steps taken.
    """

    horizon: int = 1

    @property
    def spec(self) -> Spec:
        return Spec((2, 1), MultiDiscrete((3, 3)), agents=2, state_shape=(1,))

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def step(self, state, action, key) -> Step:
        reward = (action == jnp.array(RIGHT)).all().astype(jnp.float32)
        return Step(state + 1, reward[None], jnp.array(False))

    def observation(self, state):
        return jnp.ones((2, 1))

    def mask(self, state):
        return jnp.array([[True, True, True], [True, True, False]])

    def global_state(self, state):
        return jnp.ones(1)

    def won(self, state):
        return state == 1


def flat(outputs: int, *bias: float) -> Weights:
    """Networks of two inputs more than agents that say the same everywhere."""
    sizes = ((3, 4), (4,), (4, 4), (4,), (4, outputs))
    return (*(jnp.zeros(s) for s in sizes), jnp.array(bias))


@pytest.fixture(scope="module")
def run() -> History:
    return ppo.train(CONFIG, Bandit(), progress=False)


def test_advantages_by_hand():
    # γλ = .5: A₃ = 4, A₂ = 3 + .5·4 = 5, A₁ = 2 (it ended there), A₀ = 1 + .5·2 = 2; and beside it nothing ends.
    delta = jnp.array([[1.0, 1.0], [2.0, 0.0], [3.0, 0.0], [4.0, 8.0]])
    ended = jnp.array([[False, False], [True, False], [False, False], [True, False]])
    found = ppo.advantages(delta, ended, gamma=1.0, trace=0.5)
    np.testing.assert_allclose(found, [[2, 2], [2, 2], [5, 4], [4, 8]])


def test_the_law_and_the_draws():
    mask = jnp.array([[True, True, False], [False, False, True]])
    law = ppo.log_law(flat(3, math.log(3), 0.0, 5.0), jnp.ones((2, 1)), mask)
    np.testing.assert_allclose(np.exp(law), [[0.75, 0.25, 0], [0, 0, 1]], atol=1e-6)
    uniforms = jax.random.uniform(jax.random.key(0), (20_000, 2, 3))
    drawn = np.asarray(ppo.draw(law, uniforms))
    assert set(drawn[:, 1]) == {2}
    assert (drawn[:, 0] == 0).mean() == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 20_000))
    assert (drawn[:, 0] < 2).all()
    extremes = ppo.draw(law, jnp.stack([jnp.zeros((2, 3)), jnp.full((2, 3), 1 - 2**-24)]))
    assert mask[jnp.arange(2), extremes].all()


def test_agents_are_told_apart_by_their_numbers():
    weights = list(flat(2, 0.0, 0.0))
    weights[0] = weights[0].at[2, 0].set(1.0)  # the second agent's number
    weights[2] = weights[2].at[0, 0].set(1.0)
    weights[4] = weights[4].at[0, 1].set(math.log(4))
    law = ppo.log_law(tuple(weights), jnp.zeros((2, 1)), jnp.ones((2, 2), bool))
    np.testing.assert_allclose(np.exp(law), [[0.5, 0.5], [0.2, 0.8]], rtol=1e-6)


def test_the_loss_by_hand():
    """Two rows of two agents; the second agent has no choice and does not count."""
    mask = jnp.array([[[True, True], [True, False]]] * 2)
    rows = Rows(
        observation=jnp.zeros((2, 2, 1)),
        mask=mask,
        action=jnp.array([[0, 0], [1, 0]]),
        log_prob=jnp.log(jnp.array([[0.4, 1.0], [0.8, 1.0]])),
        state=jnp.zeros((2, 3)),
        advantage=jnp.array([5.0, 1.0]),
        target=jnp.array([2.0, 0.0]),
    )
    config = PPO("bandit", Path("run.npz"), clip=0.2, entropy=0.1)
    value = ppo.loss(config, Nets(flat(2, 0.0, 0.0), flat(1, 0.5)), rows)
    # Ratios .5/.4 = 1.25 and .5/.8 = .625, advantages 1 and −1: min(1.25, 1.2) and min(−.625, −.8).
    gain = (1.2 - 0.8) / 2 + 0.1 * math.log(2)
    assert float(value) == pytest.approx((1.5**2 + 0.5**2) / 2 - gain, rel=1e-5)


def test_a_bandit_is_solved(run):
    law = ppo.log_law(tuple(jnp.asarray(w[-1]) for w in run.actor), jnp.ones((2, 1)), Bandit().mask(0))
    assert np.exp(law)[np.arange(2), RIGHT].min() > 0.9
    first, last = run.returned[0], run.returned[-1]
    assert first < 0.5 < 0.9 < last  # 1/6 by chance
    np.testing.assert_array_equal(run.steps, 256 * np.arange(20))
    np.testing.assert_array_equal(run.won, 1)  # it says so after the first step
    assert run.actor[0].shape == (20, 3, 8)


def test_the_seed_decides(run):
    again = ppo.train(CONFIG, Bandit(), progress=False)
    for one, other in zip(run.actor, again.actor):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(run.returned, again.returned)


def test_a_turn_begins_anew_where_an_episode_ends():
    env, config = Bandit(horizon=3), PPO("bandit", Path("run.npz"), environments=2, turn=7, hidden=4)
    learner = ppo.initial(config, env, jax.random.key(0))
    after, turn = ppo.play(config, env, learner, jax.random.key(1))
    np.testing.assert_array_equal(turn.ended[:, 0], [0, 0, 1, 0, 0, 1, 0])
    assert not turn.terminated.any()
    np.testing.assert_array_equal(after.clock, [1, 1])
    paid = np.asarray(turn.reward)
    np.testing.assert_allclose(turn.returned[2], paid[:3].sum(0))
    np.testing.assert_allclose(turn.returned[5], paid[3:6].sum(0))
    np.testing.assert_array_equal(paid, (np.asarray(turn.action) == RIGHT).all(-1))


def test_the_command_line(tmp_path, monkeypatch, capsys, run):
    def said(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ppo", *words])
        with pytest.raises(SystemExit) as stop:
            ppo.main()
        assert stop.value.code == 2
        return capsys.readouterr().err

    assert "run.txt does not end in .npz" in said("smax-3m", str(tmp_path / "run.txt"))
    assert "run.npz (No such file or directory)" in said("smax-3m", str(tmp_path / "none" / "run.npz"))
    assert "cartpole is played by one agent" in said("cartpole", str(tmp_path / "run.npz"))
    monkeypatch.setattr(ppo, "train", lambda config, keep: run)
    monkeypatch.setattr(sys, "argv", ["ppo", "smax-3m", str(tmp_path / "run.npz")])
    ppo.main()
    arrays = read_arrays(tmp_path / "run.npz")
    np.testing.assert_array_equal(arrays["w2"], run.actor[4])
    np.testing.assert_array_equal(arrays["returned"], run.returned)


def test_an_interrupted_run_leaves_a_file(tmp_path, monkeypatch, run):
    def write_and_stop(path: Path, history: History) -> None:
        write(path, history)
        if len(history.steps) == 3:
            raise KeyboardInterrupt

    write = ppo.write_history
    monkeypatch.setattr(ppo, "write_history", write_and_stop)
    monkeypatch.setattr(ppo, "environment", lambda name: Bandit())
    monkeypatch.setattr(ppo, "SECONDS", 0.0)
    monkeypatch.setattr("tyro.cli", lambda *_, **__: replace(CONFIG, out=tmp_path / "run.npz"))
    with pytest.raises(KeyboardInterrupt):
        ppo.main()
    arrays = read_arrays(tmp_path / "run.npz")
    for name in ("steps", "won", "returned"):
        np.testing.assert_array_equal(arrays[name], getattr(run, name)[:3])
    for name, layer in zip(NAMES, run.actor, strict=True):
        np.testing.assert_array_equal(arrays[name], layer[:3])


def test_a_minute_passes_between_two_writings(monkeypatch):
    monkeypatch.setattr(ppo, "time", SimpleNamespace(monotonic=count(step=16).__next__))
    kept: list[int] = []
    ppo.train(replace(CONFIG, steps=32 * 4 * 2 * 10), Bandit(), False, lambda history: kept.append(len(history.steps)))
    assert kept == [4, 8]  # at 16 seconds a checkpoint


def test_refusals():
    with pytest.raises(QDFMError, match="cartpole is played by one agent"):
        ppo.environment("cartpole")
    with pytest.raises(QDFMError, match="Unknown environment 'smax-3n'"):
        ppo.environment("smax-3n")
    with pytest.raises(QDFMError, match="3 minibatches do not divide"):
        ppo.train(PPO("bandit", Path("run.npz"), minibatches=3), Bandit(), progress=False)
