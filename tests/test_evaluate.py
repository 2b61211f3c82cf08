"""Rollouts: against a simulation by hand, exact numbers for fixed policies, and the Gymnasium path."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mo_gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from qdfm.agent import Agent
from qdfm.algorithms import BC, Config
from qdfm.algorithms.base import Algorithm
from qdfm.collect.gymnasium import collect_gymnasium
from qdfm.data.actions import Discrete, MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.gymenv import GymEnv
from qdfm.envs.gymnasium import adapted
from qdfm.envs.multigoal import MultiGoal
from qdfm.envs.vector import PARALLEL
from qdfm.errors import QDFMError
from qdfm.evaluate import Evaluation, evaluate, rollout
from qdfm.experiments.grid_exact import propagate
from qdfm.tasks import PLACES, Place

UP, DOWN, LEFT, RIGHT = range(4)
DELTA = {UP: (0, 1), DOWN: (0, -1), LEFT: (-1, 0), RIGHT: (1, 0)}


@dataclass(frozen=True)
class Table(Config):
    """A policy that is a table of probabilities [121, 4] over the cells of the grid; it learns nothing."""

    name = "table"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def probs(table: Any, observation: Any, preference: Any, mask: Any) -> Any:
            x, y = observation[:, :11].argmax(1), observation[:, 11:].argmax(1)
            return table[11 * y + x]

        def act(table, noise, observation, preference, mask, carry, greedy=False):
            p = probs(table, observation, preference, mask)
            drawn = (noise >= jnp.cumsum(p, 1)[:, :-1]).sum(1)
            return (p.argmax(1) if greedy else drawn)[:, None].astype(jnp.int32), carry

        return Algorithm(lambda key: jnp.zeros((121, 4)), (), lambda state: state, act, 1, probs)


def grid_agent(table: np.ndarray) -> Agent:
    return Agent(Table(), MultiGoal(4).spec, jnp.asarray(table, jnp.float32))


def always(move: int) -> np.ndarray:
    return np.tile(np.eye(4)[move], (121, 1))


def wandering() -> np.ndarray:
    return np.tile([0.5, 0.02, 0.24, 0.24], (121, 1))


def cloner(spec: Spec, seed: int = 0) -> Agent:
    """A behaviour network with random weights."""
    algorithm = BC(hidden=(16,)).build(spec)
    return Agent(BC(hidden=(16,)), spec, algorithm.policy(algorithm.init(jax.random.key(seed))))


# Built-in environments


def test_rollout_against_a_simulation_by_hand():
    played = rollout(grid_agent(wandering()), MultiGoal(4), 100, seed=3)
    assert played.states.shape == (61, 100, 2)
    ends = {(x, 10): 10.0 for x in (1, 3, 7, 9)} | {(5, y): -10.0 for y in range(3, 10)}
    seen = set()
    for e in range(100):
        here, done = (5, 0), False
        for t in range(60):
            assert tuple(played.states[t, e]) == here
            assert played.running[t, e] == (not done)
            after = tuple(int(v) for v in played.states[t + 1, e])
            if done:
                assert after == here
                assert played.reward[t, e, 0] == 0
                continue
            reachable = {tuple(np.clip(np.add(here, d), 0, 10).tolist()) for d in DELTA.values()}
            assert after in reachable
            assert played.reward[t, e, 0] == ends.get(after, 0.0)
            here, done = after, after in ends
        assert played.terminated[e] == done
        seen.add(here if done else None)
    assert len(seen) > 5  # goals, several cells of the trap, and the horizon


def test_rollout_takes_the_moves_of_a_fixed_policy():
    table = always(UP)
    table[[5, 4]] = np.eye(4)[LEFT]  # at (5, 0) and (4, 0)
    played = rollout(grid_agent(table), MultiGoal(4), 2)
    path = [(5, 0), (4, 0), *((3, y) for y in range(11))]
    assert [tuple(s) for s in played.states[:13, 1].tolist()] == path
    assert (played.states[12:] == [3, 10]).all()


@pytest.mark.parametrize(
    ("move", "value", "length", "ended"),
    [(UP, -10.0, 3, True), (DOWN, 0.0, 60, False), (LEFT, 0.0, 60, False)],
)
@pytest.mark.parametrize("greedy", [False, True])
def test_numbers_of_a_fixed_policy(move, value, length, ended, greedy):
    done = evaluate(grid_agent(always(move)), "multigoal-4", episodes=7, greedy=greedy)
    np.testing.assert_array_equal(done.returns, np.full((7, 1), value))
    np.testing.assert_array_equal(done.lengths, np.full(7, length))
    np.testing.assert_array_equal(done.terminated, np.full(7, ended))


def test_discounted_returns():
    done = evaluate(grid_agent(always(UP)), "multigoal-4", episodes=2, gamma=0.5)
    np.testing.assert_array_equal(done.returns, [[-2.5], [-2.5]])  # −10 in the third step
    played = evaluate(parts_agent(2), Parts(2, [[0, 0, 1], [0, 1, 0]]), 2, preference=[0.5, 0.5], gamma=0.5)
    np.testing.assert_array_equal(played.returns, [[3.5, 1.75]] * 2)  # (2, 1) in each of three steps
    for gamma in (-0.1, 1.1, np.nan):
        with pytest.raises(QDFMError, match="must be at least 0 and at most 1"):
            evaluate(grid_agent(always(UP)), "multigoal-4", gamma=gamma)


def test_an_end_in_the_last_step_counts_as_terminated():
    done = evaluate(grid_agent(always(UP)), MultiGoal(4, horizon=3), episodes=2)
    assert done.terminated.all()
    cut = evaluate(grid_agent(always(UP)), MultiGoal(4, horizon=2), episodes=2)
    assert not cut.terminated.any()
    assert (cut.returns == 0).all()


def test_the_seed_decides():
    agent = grid_agent(wandering())
    one, again, other = (evaluate(agent, "multigoal-4", 50, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.lengths, again.lengths)
    np.testing.assert_array_equal(one.returns, again.returns)
    assert not np.array_equal(one.lengths, other.lengths)


def test_episodes_are_independent_and_follow_the_policy():
    exact = propagate(MultiGoal(4), wandering())
    n = 4000
    played = rollout(grid_agent(wandering()), MultiGoal(4), n, seed=0)
    outcome = np.asarray(MultiGoal(4).outcome(played.states[-1]))
    law = np.r_[exact.shares, exact.timeout]
    counts = np.bincount(np.where(outcome < 0, 5, outcome), minlength=6)
    error = np.sqrt(n * law * (1 - law))
    assert (np.abs(counts - n * law) < 4 * error + 1e-9).all()
    assert (law[:5] > 0.01).all()  # all of them are put to the test


def test_summary_of_known_episodes():
    returns = np.array([[1.0, 0.0], [3.0, 0.0], [8.0, 3.0]])
    summary = Evaluation(returns, np.array([1, 2, 6]), np.array([True, False, True])).summary()
    assert summary["episodes"] == 3
    assert summary["return_mean"] == [4.0, 1.0]
    assert summary["return_std"] == pytest.approx([13**0.5, 3**0.5])
    assert summary["length_mean"] == 3.0
    assert summary["terminated"] == pytest.approx(2 / 3)
    assert Evaluation(returns[:1], np.array([1]), np.array([True])).summary()["return_std"] == [0.0, 0.0]


# Gymnasium


CARTPOLE = Spec((4,), Discrete(2))


def test_cartpole_by_id_and_by_instance_play_the_same_episodes():
    agent, episodes = cloner(CARTPOLE), PARALLEL + 4
    by_id = evaluate(agent, "CartPole-v1", episodes, seed=5, greedy=True)
    with gymnasium.make("CartPole-v1") as env:
        by_one = evaluate(agent, env, episodes, seed=5, greedy=True)
        other = evaluate(agent, env, episodes, seed=6, greedy=True)
    np.testing.assert_array_equal(by_id.lengths, by_one.lengths)
    np.testing.assert_array_equal(by_id.terminated, by_one.terminated)
    np.testing.assert_array_equal(by_id.returns[:, 0], by_id.lengths)  # +1 per step
    assert len(set(by_id.lengths)) > 1
    assert not np.array_equal(by_one.lengths, other.lengths)


def test_cartpole_drawn_actions_follow_from_the_seed():
    agent = cloner(CARTPOLE)
    agent.act(np.zeros(4))  # the agent's own generator must not matter
    one, again, other = (evaluate(agent, "CartPole-v1", 5, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.returns, again.returns)
    assert not np.array_equal(one.returns, other.returns)


def test_drawn_episodes_do_not_depend_on_the_copies_beside_them():
    agent = cloner(CARTPOLE)
    many = evaluate(agent, "CartPole-v1", 6, seed=4)
    with gymnasium.make("CartPole-v1") as env:
        one_by_one = evaluate(agent, env, 6, seed=4)
        np.testing.assert_array_equal(many.lengths, one_by_one.lengths)
        env.reset()  # still open
        first = evaluate(agent, env, 1, seed=4)
    assert first.lengths[0] == many.lengths[0]
    assert len(set(many.lengths)) > 1


def test_a_task_plays_in_its_environment_and_has_scores_where_it_has_a_scale(monkeypatch):
    monkeypatch.setitem(PLACES, "cart-medium", Place("CartPole-v1", lambda returns: 5 * (returns - 10)))
    monkeypatch.setitem(PLACES, "cart-poor", Place("CartPole-v1"))
    agent = cloner(CARTPOLE)
    scored, plain = evaluate(agent, "cart-medium", 4, seed=1), evaluate(agent, "CartPole-v1", 4, seed=1)
    np.testing.assert_array_equal(scored.returns, plain.returns)
    np.testing.assert_allclose(scored.scores, 5 * (plain.lengths - 10))
    assert scored.summary()["score_mean"] == pytest.approx(5 * (plain.lengths.mean() - 10))
    assert plain.scores is evaluate(agent, "cart-poor", 1).scores is None
    assert "score_mean" not in plain.summary()
    assert evaluate(agent, "cart-medium", 1, gamma=0.9).scores is None  # a scale of plain returns


def test_multigoal_behind_gymnasium_is_the_same_world():
    exact, n = propagate(MultiGoal(4), wandering()), 250
    due = exact.shares[-1]
    done = evaluate(grid_agent(wandering()), GymEnv(MultiGoal(4)), n, seed=0)
    trap = (done.returns[:, 0] == -10).mean()
    assert abs(trap - due) < 4 * np.sqrt(due * (1 - due) / n)
    reward_std = np.sqrt(100 * (1 - exact.timeout) - exact.expected_return**2)
    assert abs(done.returns.mean() - exact.expected_return) < 4 * reward_std / np.sqrt(n)
    assert abs((~done.terminated).mean() - exact.timeout) < 4 * np.sqrt(exact.timeout / n) + 1e-9
    compiled = evaluate(grid_agent(wandering()), "multigoal-4", 4000, seed=0)
    spread = np.sqrt(compiled.lengths.var() * (1 / n + 1 / 4000))
    assert abs(done.lengths.mean() - compiled.lengths.mean()) < 4 * spread


class Parts(gymnasium.Env):
    """Two parts of three and two choices; the reward is the action, as a number or a vector."""

    def __init__(self, objectives: int = 1, legal: Any = None, steps: int = 3):
        self.observation_space = spaces.Box(-1, 1, (2,))
        self.action_space = spaces.MultiDiscrete([3, 2])
        self.objectives, self.legal, self.steps = objectives, legal, steps
        self.taken: list[list[int]] = []
        if objectives > 1:
            self.reward_space = spaces.Box(0, 3, (objectives,))

    def report(self) -> tuple[np.ndarray, dict[str, Any]]:
        info = {} if self.legal is None else {"action_mask": np.array(self.legal, np.int8)}
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.steps
        return self.report()

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        assert self.action_space.contains(np.asarray(action, np.int64))
        self.left -= 1
        self.taken.append(action.tolist())
        reward = np.array(action, float) if self.objectives > 1 else float(action[0] + 10 * action[1])
        seen, info = self.report()
        if self.left <= 0 and "action_mask" in info:
            info["action_mask"][:] = 0  # as many environments report it: nothing is legal after the end
        return seen, reward, False, self.left == 0, info


def parts_agent(objectives: int = 1) -> Agent:
    return cloner(Spec((2,), MultiDiscrete((3, 2)), objectives=objectives))


def test_a_decision_of_several_parts():
    env = Parts()
    done = evaluate(parts_agent(), env, 40, seed=0)
    taken = np.array(env.taken).reshape(40, 3, 2)
    assert set(taken[..., 0].ravel()) == {0, 1, 2}
    assert set(taken[..., 1].ravel()) == {0, 1}
    np.testing.assert_array_equal(done.returns[:, 0], (taken @ [1, 10]).sum(1))
    np.testing.assert_array_equal(done.lengths, 3)
    assert not done.terminated.any()


@pytest.mark.parametrize("greedy", [False, True])
def test_masks_that_the_environment_reports_are_kept(greedy):
    env = Parts(legal=[[0, 0, 1], [1, 0, 0]])
    done = evaluate(parts_agent(), env, 4, seed=0, greedy=greedy)
    np.testing.assert_array_equal(done.returns, np.full((4, 1), 6.0))


class OneByOne(Parts):
    """Copies of one, two, three steps; stepping one that is over is a mistake."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        super().__init__(legal=[[0, 0, 1], [1, 0, 0]], steps=type(self).made)

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        assert self.left > 0
        return super().step(action)


def registered(monkeypatch: pytest.MonkeyPatch, entry: type, **options: Any) -> str:
    """The id of an environment that this module alone knows."""
    spec = gymnasium.envs.registration.EnvSpec("here-v0", entry, kwargs=options)
    monkeypatch.setitem(gymnasium.registry, "here-v0", spec)
    return "here-v0"


def test_a_copy_that_has_nothing_left_rests(monkeypatch):
    done = evaluate(parts_agent(), registered(monkeypatch, OneByOne), 3, seed=0)
    assert sorted(done.lengths.tolist()) == [1, 2, 3]
    np.testing.assert_array_equal(done.returns[:, 0], 2.0 * done.lengths)


def test_workers_play_the_same_episodes_with_masks_and_vectors_of_rewards(monkeypatch):
    name = registered(monkeypatch, Parts, objectives=2, legal=[[1, 1, 1], [0, 1, 0]])
    alone, beside = (evaluate(parts_agent(2), name, 5, 2, False, [0.5, 0.5], workers=workers) for workers in (1, 2))
    np.testing.assert_array_equal(alone.returns, beside.returns)
    np.testing.assert_array_equal(alone.lengths, beside.lengths)
    assert (alone.returns[:, 1] == 3).all()  # the mask leaves one choice of two
    assert len(set(alone.returns[:, 0])) > 1


def test_several_objectives_give_a_return_each():
    env = Parts(objectives=2, legal=[[0, 0, 1], [0, 1, 0]])
    done = evaluate(parts_agent(2), env, 4, seed=0, preference=[0.25, 0.75])
    np.testing.assert_array_equal(done.returns, np.tile([6.0, 3.0], (4, 1)))
    with pytest.raises(QDFMError, match="preference over 2 objectives"):
        evaluate(parts_agent(2), env, 4)


# MO-Gymnasium


def mo_gymnasium_agent(name: str) -> Agent:
    return BC(hidden=(16,), clone_steps=3, batch_size=8).fit(collect_gymnasium(name, 200), progress=False)


def eval_mo(agent: Agent, env: gymnasium.Env, w: np.ndarray, gamma: float, seed: int) -> tuple[Any, ...]:
    """One episode as MORL-Baselines plays it: scalarised and vector returns, plain and discounted."""
    obs, _ = env.reset(seed=seed)
    done, discount = False, 1.0
    vector, discounted = np.zeros_like(w), np.zeros_like(w)
    while not done:
        obs, reward, terminated, truncated, _ = env.step(agent.eval(obs, w))
        done = terminated or truncated
        vector += reward
        discounted += discount * np.asarray(reward)
        discount *= gamma
    return w @ vector, w @ discounted, vector, discounted


@pytest.mark.parametrize(
    ("name", "w"), [("deep-sea-treasure-v0", [0.25, 0.75]), ("breakable-bottles-v0", [0.5, 0.25, 0.25])]
)
def test_the_loop_of_morl_baselines_plays_the_same_episodes(name, w):
    agent, w = mo_gymnasium_agent(name), np.array(w)
    env = adapted(mo_gymnasium.make(name))  # flattens the dictionary of bottles
    scalar, scalar_discounted, vector, discounted = eval_mo(agent, env, w, 0.9, first_seed(5))
    plain, faded = (evaluate(agent, name, 1, seed=5, greedy=True, preference=w, gamma=g) for g in (1.0, 0.9))
    np.testing.assert_allclose(plain.returns[0], vector, rtol=1e-6)
    np.testing.assert_allclose(faded.returns[0], discounted, rtol=1e-6)
    np.testing.assert_allclose([plain.returns[0] @ w, faded.returns[0] @ w], [scalar, scalar_discounted], rtol=1e-6)


def first_seed(seed: int) -> int:
    """What `evaluate` resets its first episode with."""
    return int(np.random.default_rng(seed).integers(2**31, size=1)[0])


@dataclass(frozen=True)
class Downward(Config):
    """A policy of a single move, which finds a treasure of .7 in the deep sea at once."""

    name = "downward"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def act(policy, noise, observation, preference, mask, carry, greedy=False):
            return jnp.full((len(observation), 1), DOWN, jnp.int32), carry

        return Algorithm(lambda key: jnp.zeros(1), (), lambda state: state, act, 1, None)


def test_wrappers_of_mo_gymnasium():
    def walk(objectives: int) -> Agent:
        return Agent(Downward(), Spec((2,), Discrete(4), objectives=objectives), jnp.zeros(1))

    def sea() -> gymnasium.Env:
        return mo_gymnasium.make("deep-sea-treasure-v0")

    linear = mo_gymnasium.wrappers.LinearReward(sea(), np.array([10.0, 1.0]))
    np.testing.assert_allclose(evaluate(walk(1), linear, 2).returns, [[6.0], [6.0]], rtol=1e-6)
    clipped = mo_gymnasium.wrappers.MOClipReward(sea(), 0, 0.0, 0.5)
    np.testing.assert_allclose(evaluate(walk(2), clipped, 2, preference=[0.5, 0.5]).returns, [[0.5, -1.0]] * 2)
    normalised = mo_gymnasium.wrappers.MONormalizeReward(sea(), idx=1)
    done = evaluate(walk(2), normalised, 2, preference=[0.5, 0.5])
    np.testing.assert_allclose(done.returns[:, 0], 0.7, rtol=1e-6)
    assert (done.returns[:, 1] < 0).all()
    with pytest.raises(QDFMError, match="objectives 2 but the environment has 1"):
        evaluate(walk(2), linear, 2, preference=[0.5, 0.5])


# Refusals


@pytest.mark.parametrize(
    ("spec", "env", "says"),
    [
        (Spec((3,), Discrete(4)), "multigoal-4", r"shape \(3,\) but the environment has \(22,\)"),
        (Spec((22,), Discrete(5)), "multigoal-4", r"choices \(5,\) but the environment has \(4,\)"),
        (Spec((22,), MultiDiscrete((4, 4))), "multigoal-4", r"choices \(4, 4\) but the .* has \(4,\)"),
        (Spec((3,), Discrete(2)), "CartPole-v1", r"shape \(3,\) but the environment has \(4,\)"),
        (Spec((4,), Discrete(3)), "CartPole-v1", r"choices \(3,\) but the environment has \(2,\)"),
        (Spec((3,), Discrete(3)), "Pendulum-v1", "neither Discrete nor MultiDiscrete"),
        (CARTPOLE, "CartPole-v7", "Unknown environment 'CartPole-v7'; did you mean 'CartPole-v1'"),
        (CARTPOLE, "multigoal4", "did you mean 'multigoal-4'"),
    ],
)
def test_an_environment_that_does_not_fit(spec, env, says):
    with pytest.raises(QDFMError, match=says):
        evaluate(cloner(spec), env, 2)


@pytest.mark.parametrize(("env", "spec"), [("multigoal-4", MultiGoal(4).spec), ("CartPole-v1", CARTPOLE)])
def test_other_objectives_than_the_environments(env, spec):
    agent = cloner(Spec(spec.observation_shape, spec.actions, objectives=2))
    with pytest.raises(QDFMError, match="objectives 2 but the environment has 1"):
        evaluate(agent, env, 2, preference=[0.5, 0.5])


@pytest.mark.parametrize(
    ("preference", "says"),
    [([0.5], "does not sum to 1"), ([-1.0], "negative"), ([0.5, 0.5], "2 entries"), ([np.nan], "NaN")],
)
@pytest.mark.parametrize("env", ["multigoal-4", "gymnasium"])
def test_a_preference_that_is_none(env, preference, says):
    agent = grid_agent(wandering())
    with pytest.raises(QDFMError, match=says):
        evaluate(agent, GymEnv(MultiGoal(4)) if env == "gymnasium" else env, 2, preference=preference)


def test_preferences_that_are_not_one_per_episode():
    with pytest.raises(QDFMError, match="There are 3 preferences for 2 episodes; give one, or one for each"):
        evaluate(parts_agent(2), Parts(2), 2, preference=np.full((3, 2), 0.5))


def test_workers_that_cannot_be():
    with pytest.raises(QDFMError, match="workers is 0; give at least 1"):
        evaluate(cloner(CARTPOLE), "CartPole-v1", 2, workers=0)
    with pytest.raises(QDFMError, match="cannot be copied to several workers; give its id"):
        evaluate(parts_agent(), Parts(), 2, workers=2)


def test_no_episodes():
    with pytest.raises(QDFMError, match="0 episodes cannot be evaluated; give at least 1"):
        evaluate(grid_agent(wandering()), "multigoal-4", 0)


@pytest.mark.parametrize(
    ("agent", "env", "says"),
    [
        ("ok.safetensors", "multigoal-4", r"The agent is a str; give an Agent, as fit and qdfm\.load\(path\) give one"),
        (None, None, "The environment is a NoneType; give a name, a Gymnasium id or an environment itself"),
        (None, MultiGoal, "give a name, a Gymnasium id or an environment itself"),
    ],
)
def test_what_is_no_agent_or_no_environment(agent, env, says):
    with pytest.raises(QDFMError, match=says):
        evaluate(agent or cloner(MultiGoal(4).spec), env)  # type: ignore[arg-type]
