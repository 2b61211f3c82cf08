"""SAC: its density, targets and temperature against closed forms, and a short run whose policy others can read."""

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from qdfm.collect import sac
from qdfm.collect.actor import Actor, Weights
from qdfm.collect.sac import SAC, Batch, Learner
from qdfm.errors import Diverged, QDFMError

CONFIG = SAC(
    "Pendulum-v1", Path("policy.npz"), steps=120, environments=3, turn=8, explore=48, evaluate_every=48, episodes=2,
    memory=72, batch=8, hidden=8,
)  # fmt: skip
STEP = jax.jit(partial(sac.update, CONFIG))


def constant_actor(mean: float, log_std: float) -> Weights:
    """One dimension, the same everywhere."""
    return (
        jnp.zeros((1, 8)),
        jnp.zeros(8),
        jnp.zeros((8, 8)),
        jnp.zeros(8),
        jnp.zeros((8, 2)),
        jnp.array([mean, log_std]),
    )


def constant_critic(value: float) -> Weights:
    return (jnp.zeros((2, 8)), jnp.zeros(8), jnp.zeros((8, 8)), jnp.zeros(8), jnp.zeros((8, 1)), jnp.array([value]))


def learner_of(actor: Weights, alpha: float) -> Learner:
    fresh = sac.initial(CONFIG, jax.random.key(0), 1, 1)
    targets = (constant_critic(3.0), constant_critic(5.0))
    return fresh._replace(actor=actor, targets=targets, log_alpha=jnp.log(alpha))


@pytest.mark.parametrize(("mean", "log_std"), [(0.3, -0.5), (-1.0, 0.2), (0.0, -2.0)])
def test_the_log_density(mean, log_std):
    noise = np.linspace(-7, 7, 4001)[:, None]
    action, log_prob = sac.draw(constant_actor(mean, log_std), jnp.zeros((4001, 1)), jnp.asarray(noise, jnp.float32))
    before = mean + math.exp(log_std) * noise[:, 0]
    expected = norm.logpdf(before, mean, math.exp(log_std)) + 2 * np.log(np.cosh(before))  # 1/(1 − tanh²) = cosh²
    np.testing.assert_allclose(log_prob, expected, atol=1e-4)
    np.testing.assert_allclose(action[:, 0], np.tanh(before), atol=1e-6)
    assert np.trapezoid(np.exp(expected), np.tanh(before)) == pytest.approx(1, abs=1e-3)


def test_the_log_density_far_out_and_in_two_dimensions():
    _, log_prob = sac.draw(constant_actor(40.0, 0.0), jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    # log(1 − tanh²(40)) = log 4 − 80 + …, where 1 − tanh² itself is 0 in single precision.
    assert float(log_prob[0]) == pytest.approx(-math.log(2 * math.pi) / 2 - math.log(4) + 80, rel=1e-6)
    two = (*constant_actor(0, 0)[:4], jnp.zeros((8, 4)), jnp.array([0.3, -1.0, -0.5, 0.2]))
    noise = jnp.array([[0.7, -0.4]])
    parts = [
        sac.draw(constant_actor(mean, log_std), jnp.zeros((1, 1)), noise[:, i : i + 1])[1]
        for i, (mean, log_std) in enumerate(((0.3, -0.5), (-1.0, 0.2)))
    ]
    np.testing.assert_allclose(sac.draw(two, jnp.zeros((1, 1)), noise)[1], sum(parts), rtol=1e-6)


def test_the_target_by_hand():
    batch = Batch(jnp.zeros((2, 1)), jnp.zeros((2, 1)), jnp.array([1.0, 2.0]), jnp.zeros((2, 1)), jnp.array([0.0, 1.0]))
    y = sac.bootstrap(learner_of(constant_actor(0, 0), 0.5), batch, jnp.zeros((2, 1)), gamma=0.9)
    entropy_bonus = 0.5 * math.log(2 * math.pi) / 2  # at the mode the log-density is −log √2π
    np.testing.assert_allclose(
        y, [1 + 0.9 * (3 + entropy_bonus), 2], rtol=1e-6
    )  # the lower critic; nothing after the end


def test_an_update():
    """The temperature rises where the policy is narrower than wanted, and falls where it is wider; targets follow."""
    rng = np.random.default_rng(0)
    batch = Batch(
        *(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((8, 1), (8, 1), (8,), (8, 1))), jnp.zeros(8)
    )
    for log_std, direction in ((-5.0, 1), (0.0, -1)):  # entropy about −3.6 and .6 where −1 is wanted
        before = learner_of(constant_actor(0, log_std), 0.5)
        after, loss = STEP(before, batch, jax.random.key(1))
        moved = float(after.log_alpha - before.log_alpha)
        assert moved * direction == pytest.approx(CONFIG.learning_rate, rel=1e-3)  # Adam's first step
        y = sac.bootstrap(before, batch, jax.random.normal(jax.random.key(1), (2, 8, 1))[0], CONFIG.gamma)
        said = [sac.values(before.critics, batch.observation, batch.action)[i] for i in (0, 1)]
        assert float(loss) == pytest.approx(sum(float(np.mean((q - y) ** 2)) for q in said), rel=1e-5)
        for old, new, target in zip(*map(jax.tree.leaves, (before.targets, after.critics, after.targets))):
            np.testing.assert_allclose(target, 0.995 * old + 0.005 * new, atol=1e-6)
        assert all(np.any(a != b) for a, b in zip(jax.tree.leaves(after.critics), jax.tree.leaves(before.critics)))
    slope = jax.grad(sac.temperature_loss)(jnp.zeros(()), jnp.array([2.0, 4.0]), 1)
    assert float(slope) == -2.0  # −(3 − 1): log π is 3 on average, and 1 is wanted


def test_new_rows_take_the_place_of_old_ones():
    fields = [jnp.zeros((6, 1)), jnp.zeros((6, 1)), jnp.zeros(6), jnp.zeros((6, 1)), jnp.zeros(6)]
    memory = Batch(*fields)
    for turn in range(4):
        memory = sac.remember(
            memory, jax.tree.map(lambda x, t=turn: x[:2] + t + 1, Batch(*map(jnp.zeros_like, fields))), 2 * turn % 6
        )
    np.testing.assert_array_equal(memory.reward, [4, 4, 2, 2, 3, 3])


def test_a_turn_is_what_the_environments_did():
    players = sac.Players(CONFIG)
    turn = players.play(None)
    assert turn.observation.shape == (24, 3)
    assert np.abs(turn.action).max() <= 1
    for lane in range(3):
        world, generator = gymnasium.make("Pendulum-v1"), np.random.default_rng((0, lane))
        now, _ = world.reset(seed=int(generator.integers(2**31)))
        for row in range(lane, 24, 3):
            np.testing.assert_array_equal(turn.observation[row], now)
            push = np.float32(2 * generator.uniform(-1, 1, 1))
            np.testing.assert_allclose(turn.action[row], push / 2, rtol=1e-6)
            now, reward, *_ = world.step(push)
            assert float(turn.reward[row]) == pytest.approx(reward, rel=1e-6)
            np.testing.assert_array_equal(turn.next_observation[row], now)


def test_a_turn_under_preferences():
    """The preference follows the observation, and the reward is ⟨preference, reward⟩."""
    players = sac.Players(replace(CONFIG, env="mo-hopper-d4morl"))
    turn = players.play(None)
    assert turn.observation.shape == turn.next_observation.shape == (24, 13)
    assert turn.reward.shape == (24,)
    for lane in range(3):
        world, generator = (
            gymnasium.make("mo-hopper-d4morl", disable_env_checker=True),
            np.random.default_rng((0, lane)),
        )
        now, _ = world.reset(seed=int(generator.integers(2**31)))
        omega = world.unwrapped.np_random.dirichlet([1, 1])
        for row in range(lane, 24, 3):
            np.testing.assert_allclose(turn.observation[row], np.r_[now, omega], rtol=1e-6)
            push = np.float32(generator.uniform(-1, 1, 3) * [2, 2, 4])
            np.testing.assert_allclose(turn.action[row], push / [2, 2, 4], rtol=1e-6)
            now, reward, *_ = world.step(push)
            assert float(turn.reward[row]) == pytest.approx(omega @ reward, rel=1e-5)
            np.testing.assert_allclose(turn.next_observation[row], np.r_[now, omega], rtol=1e-6)
    players.close()


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_short_run_writes_policies(here, capsys):
    returns = sac.train(CONFIG)
    assert list(returns) == [48, 96, 120]
    assert "step 96: return" in capsys.readouterr().err
    for file, expected in (("policy.npz", max(returns.values())), ("policy-last.npz", returns[120])):
        actor = Actor.read(here / file, np.array([2.0]))
        played = []
        for lane in (0, 1):
            world, generator = gymnasium.make("Pendulum-v1"), np.random.default_rng((1, lane))
            now, _ = world.reset(seed=int(generator.integers(2**31)))
            total, over = 0.0, False
            while not over:
                now, reward, _, over, _ = world.step(
                    actor.act(now[None], generator.standard_normal((1, 1), np.float32))[0]
                )
                total += reward
            played.append(total)
        assert np.mean(played) == pytest.approx(expected, rel=1e-3)
    assert sorted(path.name for path in here.iterdir()) == ["policy-last.npz", "policy.npz"]
    assert sac.train(CONFIG, progress=False) == returns


def test_a_policy_that_sees_the_preference(here):
    """An evaluation is the mean of ⟨preference, return⟩."""
    small = replace(CONFIG, env="mo-hopper-d4morl", steps=24, evaluate_every=24, episodes=1)
    returns = sac.train(small, progress=False)
    actor = Actor.read(here / "policy.npz", np.array([2.0, 2.0, 4.0]))
    assert actor.weights[0].shape == (13, 8)
    world, generator = gymnasium.make("mo-hopper-d4morl", disable_env_checker=True), np.random.default_rng((1, 0))
    now, _ = world.reset(seed=int(generator.integers(2**31)))
    omega, total, over = world.unwrapped.np_random.dirichlet([1, 1]), 0.0, False
    while not over:
        noise = generator.standard_normal(3, np.float32)[None]
        now, reward, terminated, truncated, _ = world.step(actor.act(np.r_[now, omega][None], noise)[0])
        total, over = total + omega @ reward, terminated or truncated
    assert returns == {24: pytest.approx(total, rel=1e-3)}


def test_it_stops_at_a_return(here):
    assert list(sac.train(replace(CONFIG, explore=999, until=-1e9), progress=False)) == [48]


def test_a_loss_that_is_none_stops_it(here, monkeypatch, worlds, capsys):
    monkeypatch.setattr(sac, "learn", lambda config, learner, *rest: (learner, jnp.array(np.nan)))
    with pytest.raises(Diverged, match="loss is nan at step 72"):
        sac.train(CONFIG, progress=False)
    assert worlds.made > CONFIG.environments
    assert not worlds.open
    for file in ("policy.npz", "policy-last.npz"):  # what the evaluation at step 48 wrote
        assert Actor.read(here / file, np.array([2.0])).weights[0].shape == (3, 8)
    monkeypatch.setattr("tyro.cli", lambda config: CONFIG)
    with pytest.raises(SystemExit) as left:
        sac.main()
    assert left.value.code == 3  # as that of qdfm
    assert capsys.readouterr().err.endswith(
        "qdfm: The critics' loss is nan at step 72; the files hold the policies before.\n"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"out": Path("policy")}, "does not end in .npz"),
        ({"out": Path("nowhere/policy.npz")}, r"Cannot write nowhere/policy\.npz \(No such file or directory\)"),
        ({"env": "Pendulm-v1"}, "did you mean 'Pendulum-v1'"),
        ({"env": "CartPole-v1"}, "SAC needs a Box between"),
    ],
)
def test_refusals(here, changes, sentence):
    with pytest.raises(QDFMError, match=sentence):
        sac.train(replace(CONFIG, **changes))


def test_an_environment_without_a_time_limit(here):
    gymnasium.register("Endless-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv")
    try:
        with pytest.raises(QDFMError, match="Endless-v0 has no time limit"):
            sac.train(replace(CONFIG, env="Endless-v0"))
    finally:
        del gymnasium.registry["Endless-v0"]


def test_the_command_line(here, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sac", "--env", "CartPole-v1", "--out", "a.npz", "--until", "3"])
    with pytest.raises(SystemExit) as left:
        sac.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("qdfm: CartPole-v1 has the action space")
