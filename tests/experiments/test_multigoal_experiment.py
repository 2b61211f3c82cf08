"""The multigoal experiment: judging policies whose numbers are known."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import ALGORITHMS, Config
from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.critic import CriticConfig
from qdfm.algorithms.guidedcritic import GuidedConfig
from qdfm.data.spec import Spec
from qdfm.envs.exact import kl_optimum
from qdfm.envs.multigoal import MultiGoal
from qdfm.experiments.grid_exact import behaviour
from qdfm.experiments.multigoal import METHODS, PAPER, QUICK_METHODS, judge, optimum

UP, DOWN, LEFT, RIGHT = np.eye(4)


@dataclass(frozen=True)
class Given(Config):
    """A policy that is a table of probabilities [121, 4] over the cells of the grid."""

    name = "given"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def probs(table: Any, observation: Any, preference: Any, mask: Any) -> Any:
            return table[11 * observation[:, 11:].argmax(1) + observation[:, :11].argmax(1)]

        def act(table, noise, observation, preference, mask, carry, greedy=False):
            p = probs(table, observation, preference, mask)
            drawn = (noise >= jnp.cumsum(p, 1)[:, :-1]).sum(1)
            return (p.argmax(1) if greedy else drawn)[:, None].astype(jnp.int32), carry

        return Algorithm(lambda key: jnp.zeros((121, 4)), (), lambda state: state, act, 1, probs)


def given(table: np.ndarray, goals: int = 4) -> Agent:
    return Agent(Given(), MultiGoal(goals).spec, jnp.asarray(table, jnp.float32))


# judge


def test_the_optimum_itself_has_no_gap_and_no_trap():
    data = qdfm.load_dataset("multigoal-4")
    judged = judge(
        given(kl_optimum(MultiGoal(4).table(), behaviour(MultiGoal(4), data), beta=5.0, gamma=0.99)), 4, seed=0
    )
    assert judged["share_gap"] == pytest.approx(0, abs=1e-6)
    assert judged["exact_trap"] == 0
    assert judged["exact_return"] == pytest.approx(10, abs=1e-5)
    assert judged["return"] == 10
    assert judged["coverage"] == 1
    assert judged["trap"] == 0
    assert judged["greedy_return"] == 10
    assert judged["greedy_coverage"] == 0.25  # one walk finds one goal


def test_walking_straight_up_is_the_trap():
    judged = judge(given(np.tile(UP, (121, 1))), 4, seed=0, episodes=20)
    assert judged["exact_shares"] == [0, 0, 0, 0]
    assert judged["share_gap"] == pytest.approx(max(optimum(4)["shares"]))
    for prefix in ("", "greedy_"):
        assert judged[f"{prefix}return"] == -10
        assert judged[f"{prefix}trap"] == 1
        assert judged[f"{prefix}coverage"] == 0
    assert judged["exact_trap"] == 1


def test_a_policy_of_two_goals():
    table = np.tile(UP, (121, 1))
    table[5] = 0.25 * LEFT + 0.75 * RIGHT  # the start, (5, 0)
    table[4], table[6] = LEFT, RIGHT  # on to the columns of the goals at x = 3 and x = 7
    judged = judge(given(table), 4, seed=0, episodes=400)
    np.testing.assert_allclose(judged["exact_shares"], [0, 0.25, 0.75, 0])
    best = np.array(optimum(4)["shares"])
    assert judged["share_gap"] == pytest.approx(np.abs(best - [0, 0.25, 0.75, 0]).max())
    assert judged["coverage"] == 0.5
    assert judged["greedy_coverage"] == 0.25
    assert judged["return"] == judged["exact_return"] == 10


@pytest.mark.parametrize("goals", [2, 3, 4, 5])
def test_the_optimum_reaches_every_goal_and_nothing_else(goals):
    best = optimum(goals)
    assert sum(best["shares"]) == pytest.approx(1)
    assert min(best["shares"]) > 0.05
    # The grid is symmetric, the data nearly so.
    np.testing.assert_allclose(best["shares"], best["shares"][::-1], atol=0.1)
    assert best["trap"] == 0
    assert best["return"] == pytest.approx(10)


def test_methods_are_all_compared_under_the_same_guidance():
    assert set(QUICK_METHODS) <= set(METHODS)
    assert set(PAPER) <= set(METHODS)
    alone = {name for name, c in ALGORITHMS.items() if not (c.teams_only or c.preferences_only)}
    assert {config.name for config in METHODS.values()} == alone
    guided = [config for config in METHODS.values() if isinstance(config, GuidedConfig)]
    valued = [config for config in METHODS.values() if isinstance(config, CriticConfig)]
    for configs, field in (
        (guided, "beta"), (guided, "beta_scale"), (guided, "critic_steps"), (valued, "gamma"),
        (valued, "critic_learning_rate"), (METHODS.values(), "batch_size"), (METHODS.values(), "hidden"),
    ):  # fmt: skip
        assert len({getattr(config, field) for config in configs}) == 1
    spec = MultiGoal(4).spec
    for name, config in METHODS.items():
        if not name.startswith("QDFM"):
            assert sum(phase.steps for phase in config.build(spec).phases) == 30_000  # as the paper's baselines
