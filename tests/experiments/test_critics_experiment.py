"""The critics experiment: its prediction by least squares, its best policy by enumeration, and a tiny run."""

import itertools
import json

import numpy as np
import pytest

from qdfm.algorithms import QDFM
from qdfm.envs.exact import expected_returns
from qdfm.experiments import critics
from qdfm.experiments.cells import Settings
from qdfm.experiments.critics import KEPT, PREFERENCES, best_utility, logged, predicted_utility, task


def test_the_best_linear_fit_of_going_on_is_three_quarters_everywhere():
    omega = np.linspace(0, 1, 100_001)
    x = np.stack([omega, 1 - omega], 1)
    q, *_ = np.linalg.lstsq(x, np.maximum(omega, 1 - omega), rcond=None)
    np.testing.assert_allclose(q, 0.75, atol=1e-4)


@pytest.mark.parametrize("kept", KEPT)
def test_the_best_policy_and_the_predicted_one_by_enumeration(kept):
    policies = [np.eye(2)[list(choice)] for choice in itertools.product((0, 1), repeat=2)]
    returns = expected_returns(task(kept), np.stack(policies))
    np.testing.assert_allclose(best_utility(kept), (PREFERENCES @ returns.T).max(1))
    # Policies (first, second); a critic without ω knows the second choice and takes going on for ¾.
    second = np.where(PREFERENCES[:, 0] >= 0.5, 0, 1)
    first = np.argmax([kept, 0.75])
    took = returns[2 * first + second]
    np.testing.assert_allclose(predicted_utility(kept), (PREFERENCES * took).sum(1))
    assert (best_utility(kept) - predicted_utility(kept)).max() > 0.09


def test_the_data_has_every_action_equally_often():
    data = logged(0.7)
    assert len(data) == 200
    np.testing.assert_allclose(data.reward[(data.observation[:, 0] == 1) & (data.action[:, 0] == 0)], 0.7)


def test_the_two_critics_part_where_predicted(tmp_path, monkeypatch):
    kept = 0.7
    settings = {
        "gamma": 1.0, "hidden": (32,), "batch_size": 64, "critic_learning_rate": 5e-3, "target_rate": 0.05,
        "beta": 100.0, "beta_scale": "none", "warmup_steps": 200, "critic_steps": 1_500, "improve_steps": 600,
    }  # fmt: skip
    monkeypatch.setattr(critics, "KEPT", (kept,))
    monkeypatch.setattr(
        critics, "METHODS", {"with": QDFM(**settings), "without": QDFM(**settings, critic="scalarised")}
    )
    critics.run(Settings(tmp_path, seeds=1, progress=False))
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    loss = {name: best_utility(kept) - np.array(row[str(kept)]["seeds"][0]) for name, row in results.items()}
    assert loss["with"].max() < 0.08
    assert loss["without"].max() == pytest.approx(0.2, abs=0.01)  # at ω = ½ it goes on, for ½ instead of .7
    assert (tmp_path / "critics.png").stat().st_size > 10_000
