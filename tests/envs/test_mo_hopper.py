"""MO-Hopper: recorded steps and returns again, the robot's masses and the rewards by hand.

Recorded are two trajectories of random actions in our own port, written once, and, where QDFM_DATA has them, D4MORL's:
those of PGMORL's policies, in the MuJoCo of their time.
"""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import qdfm
from qdfm.algorithms import BC
from qdfm.data.actions import Bins
from qdfm.envs.gymnasium import Preferring, make, objectives_of
from qdfm.envs.mujoco import MO_HOPPER, make_plain
from qdfm.errors import QDFMError
from qdfm.metrics import hypervolume

OWN = Path(__file__).parent / "mo_hopper_recorded.npz"
REAL = Path(os.environ.get("QDFM_DATA", "nowhere")) / "mo_hopper"
RECORDED = [OWN, *sorted(REAL.glob("*_uniform.npz"))]
POLICIES = REAL / "pgmorl_policies.npz"
HIGH = np.array([2, 2, 4])


@pytest.fixture(scope="module")
def world():
    return make_plain(MO_HOPPER)


def recorded(file: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of a file, and at which step each of its trajectories begins."""
    with np.load(file) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    return held, np.cumsum(held["lengths"]) - held["lengths"]


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_steps_again(world, file):
    """The state is the observation and x, except where a velocity was cut off at ±10."""
    robot, (held, first) = world.unwrapped, recorded(file)
    rng = np.random.default_rng(0)
    rows = rng.permutation(held["lengths"].sum())[:300]
    trajectory = np.searchsorted(first, rows, "right") - 1
    seen, then = held["observations"][rows + trajectory], held["observations"][rows + trajectory + 1]
    whole = np.abs(seen[:, 5:]).max(1) < 10
    assert whole.sum() > 50
    for i in np.flatnonzero(whole):
        robot.set_state(np.r_[3.0, seen[i, :5]], seen[i, 5:])
        observation, reward, fallen, truncated, _ = robot.step(held["actions"][rows[i]])
        np.testing.assert_allclose(observation, then[i], atol=1e-5)
        np.testing.assert_allclose(reward, held["rewards"][rows[i]], atol=1e-4)
        step, length = rows[i] - first[trajectory[i]] + 1, held["lengths"][trajectory[i]]
        assert fallen == (step == length and held["terminated"][trajectory[i]])
        assert not truncated


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_rewards_by_hand(world, file):
    """Jumping from the height that was seen, running from where the robot went."""
    robot, (held, _) = world.unwrapped, recorded(file)
    length = held["lengths"][0]
    action, reward = held["actions"][:length].astype(float), held["rewards"][:length]
    both = 1 - 2e-4 * np.sum(action**2, 1)
    np.testing.assert_allclose(reward[:, 1], 12 * (held["observations"][1 : length + 1, 0] - 1.25) + both, atol=2e-5)
    robot.set_state(np.r_[0.0, held["observations"][0, :5]], held["observations"][0, 5:])
    x = [0.0]
    for one in action[:20]:
        robot.step(one)
        x.append(robot.data.qpos[0])
    np.testing.assert_allclose(reward[:20, 0], 1.5 * np.diff(x) / 0.01 + both[:20], atol=1e-3)


def plays(number: int):
    """One of PGMORL's policies: two tanh layers of standardised observations."""
    with np.load(POLICIES) as file:
        p = {name: file[name][number] for name in file.files}

    def act(observation: np.ndarray) -> np.ndarray:
        x = np.clip((observation - p["ob_mean"]) / np.sqrt(p["ob_var"] + 1e-8), -10, 10)
        for layer in (0, 2):
            x = np.tanh(p[f"base_actor_{layer}_weight"] @ x + p[f"base_actor_{layer}_bias"])
        return np.clip(p["dist_fc_mean_weight"] @ x + p["dist_fc_mean_bias"], -HIGH, HIGH)

    return act


def episode(world, policy, seed: int) -> tuple[np.ndarray, int, bool]:
    """The returns of one episode, its length, and whether it came to its end upright."""
    now, _ = world.reset(seed=seed)
    total, steps, over, truncated = np.zeros(2), 0, False, False
    while not over:
        now, reward, terminated, truncated, _ = world.step(policy(now))
        total, steps, over = total + reward, steps + 1, terminated or truncated
    return total, steps, truncated


def test_returns_of_recorded_actions_again(world):
    held, first = recorded(OWN)
    actions = iter(held["actions"])
    total, steps, upright = episode(world, lambda seen: next(actions), 0)
    np.testing.assert_allclose(total, np.add.reduceat(held["rewards"].astype(float), first)[0], rtol=0.03)
    assert (steps, upright) == (held["lengths"][0], False)


@pytest.mark.skipif(not POLICIES.exists(), reason="PGMORL's policies lie under QDFM_DATA")
def test_recorded_policies_reach_their_recorded_returns(world):
    """Each within 3 %. Medians: two of them stumble from some starts, as in one of their recorded episodes."""
    held, first = recorded(REAL / "expert_uniform.npz")
    returns = np.add.reduceat(held["rewards"].astype(float), first)
    players, stumbled = np.unique(held["policy"]), 0
    assert len(players) == 93
    for player in players:
        played = [episode(world, plays(player), seed) for seed in range(6)]
        found = np.median([total for total, *_ in played], 0)
        due = np.median(returns[held["policy"] == player], 0)
        np.testing.assert_allclose(found, due, rtol=0.03, err_msg=str(player))
        stumbled += sum(not upright for *_, upright in played)
    assert stumbled <= 6  # of 558


@pytest.mark.parametrize(
    ("file", "volume"), [(OWN, None), *((f, 2.092e7 if "expert" in f.stem else 1.961e7) for f in RECORDED[1:])]
)
def test_the_hypervolume_of_the_data(file, volume):
    returns = qdfm.load_dataset(file, codebook=4).returns()
    if volume is None:
        (a, b), held = returns, recorded(OWN)[0]
        np.testing.assert_allclose(a, held["rewards"][: held["lengths"][0]].sum(0), rtol=1e-5)
        low, high = np.minimum(a, b) + 1000, np.maximum(a, b) + 1000  # from (−1000, −1000)
        apart = (a[0] - b[0]) * (a[1] - b[1]) < 0
        rest = low[0] * (high[1] - low[1]) + low[1] * (high[0] - low[0]) if apart else np.prod(high) - np.prod(low)
        volume = np.prod(low) + rest
        assert hypervolume(returns, [-1000, -1000]) == pytest.approx(volume)
    else:
        assert hypervolume(returns, [0, 0]) == pytest.approx(volume, rel=5e-4)


def test_the_robot(world):
    model = world.unwrapped.model
    np.testing.assert_allclose(model.body_mass[1:], [3.534, 3.927, 2.714, 5.089], atol=5e-4)  # of the old MuJoCo
    # The torso as a cylinder: radius .05, length .45; m(3r² + l²)/12 across, mr²/2 along.
    mass = 1000 * np.pi * 0.05**2 * 0.45
    across = mass * (3 * 0.05**2 + 0.45**2) / 12
    np.testing.assert_allclose(model.body_inertia[1], [across, across, mass * 0.05**2 / 2])
    np.testing.assert_array_equal(model.actuator_ctrlrange, np.stack([-HIGH, HIGH], 1))
    np.testing.assert_array_equal(model.actuator_gear[:, 0], [200, 200, 300])
    np.testing.assert_array_equal(model.dof_damping, [0, 0, 0, 40, 40, 40])
    assert not model.jnt_limited.any()
    assert world.unwrapped.dt == pytest.approx(0.01)
    assert world.spec.max_episode_steps == 500


def test_the_interface(world):
    first, _ = world.reset(seed=5)
    again, _ = world.reset(seed=5)
    other, _ = world.reset(seed=6)
    np.testing.assert_array_equal(first, again)
    assert world.observation_space.contains(first)
    assert first[0] == 1.25 and other[0] == 1.25  # the height is not disturbed
    assert 0 < np.abs(first[1:]).max() < 1e-3
    assert not np.array_equal(first, other)
    _, reward, *_ = world.step(9 * HIGH)  # as much as 1 · HIGH
    assert reward.dtype == np.float32
    assert world.get_wrapper_attr("reward_space").contains(reward)
    world.reset(seed=6)
    np.testing.assert_array_equal(world.step(9 * HIGH)[1], (world.reset(seed=6), world.step(HIGH))[1][1])
    copied = pickle.loads(pickle.dumps(world.unwrapped))
    np.testing.assert_array_equal(copied.reset(seed=5)[0], first)


@pytest.mark.parametrize("part", range(1, 6))
def test_it_falls(world, part):
    """Too low, or an angle of the torso, thigh, leg or foot beyond a right one."""
    robot = world.unwrapped
    qpos = np.array([0, 3.0, -1.5, 0, 0, 0])  # in the air, leaning far back
    right = np.pi / 2
    cases = [(0.39, 0.42)] if part == 1 else [(right + 0.05, right - 0.05), (-right - 0.05, -right + 0.05)]
    for fallen, standing in cases:
        for value in (fallen, standing):
            qpos[part] = value
            robot.set_state(qpos, np.zeros(6))
            assert robot.step(np.zeros(3))[2] == (value == fallen)


def test_a_preference_for_each_episode(world):
    shown = Preferring(world)
    assert objectives_of(world) == 2
    assert objectives_of(make_plain("Hopper-v5")) == 1
    drawn = []
    for seed in range(400):
        seen, _ = shown.reset(seed=seed)
        drawn.append(seen[11:])
    np.testing.assert_array_equal(seen[:11], world.reset(seed=399)[0])
    np.testing.assert_allclose(np.sum(drawn, 1), 1)
    share = np.sort(np.array(drawn)[:, 0])
    assert np.abs(share - np.linspace(0, 1, 400)).max() < 1.95 / np.sqrt(400)  # Kolmogorov's, p = .001
    seen, _ = shown.reset(seed=3)
    then, reward, *_ = shown.step(np.ones(3))
    np.testing.assert_array_equal(then[11:], seen[11:])
    world.reset(seed=3)
    np.testing.assert_array_equal(reward, world.step(np.ones(3))[1])


@pytest.fixture(scope="module")
def agent():
    data = qdfm.load_dataset(OWN, bins=3)
    return BC(clone_steps=2, hidden=(8,)).fit(data, seed=0, progress=False)


def test_agents_play_there(agent):
    """By the name of the environment and by those of the data, each preference in an episode of its own."""
    omega = np.array([[1.0, 0.0], [0.2, 0.8]])
    played = qdfm.evaluate(agent, MO_HOPPER, 2, seed=4, greedy=True, preference=omega)
    named = qdfm.evaluate(agent, "mo-hopper-amateur", 2, seed=4, greedy=True, preference=omega)
    swept = qdfm.sweep(agent, "mo-hopper-expert", omega, seed=4, progress=False)
    for other in (named.returns, swept.returns):
        np.testing.assert_array_equal(played.returns, other)
    world = make(MO_HOPPER, agent.spec.actions)
    now, _ = world.reset(seed=int(np.random.default_rng(4).integers(2**31, size=2)[0]))
    total, over = 0.0, False
    while not over:
        action = agent.act(now.astype(np.float32), omega[0], greedy=True)
        now, reward, terminated, truncated, _ = world.step(np.clip(action, -HIGH, HIGH))
        total, over = total + reward.astype(float), terminated or truncated
    np.testing.assert_allclose(total, played.returns[0], rtol=1e-6)


def test_without_mujoco(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.delitem(sys.modules, "qdfm.envs.mo_hopper")
    with pytest.raises(QDFMError, match=r'mo-hopper-d4morl needs MuJoCo; install it with pip install "qdfm\[mujoco\]"'):
        make(MO_HOPPER, Bins(((0.0, 1.0),) * 3))
