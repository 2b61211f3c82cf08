"""Preference sweeps on finite decision processes: policies known to be optimal, mixtures and scores by hand."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from qdfm.algorithms import CQL, QDFM
from qdfm.experiments import deepsea, fronts, resource
from qdfm.experiments.cells import Settings
from qdfm.experiments.frontruns import PerPreference
from qdfm.experiments.fronts import Problem, followed, judge, mixtures, score, true_front, volumes
from qdfm.metrics import hypervolume, simplex

SEA = Problem("deep-sea-treasure", 0.99, (0.0, -50.0))


def planner(problem: Problem) -> SimpleNamespace:
    """Stands in for an agent: the best stationary policy for each preference, by value iteration."""
    table = problem.table

    def probabilities(observation: np.ndarray, preference: np.ndarray) -> np.ndarray:
        states = len(table.observations)
        omegas = np.asarray(preference)[::states]
        np.testing.assert_array_equal(observation[:states], table.observations)
        reward = np.einsum("sao,saor,pr->psa", table.probability, table.reward, omegas)
        goes_on = np.where(table.terminated, 0.0, table.probability)
        value = np.zeros((len(omegas), states))
        for _ in range(400):
            q = reward + problem.gamma * np.einsum("sao,psao->psa", goes_on, value[:, table.next_state])
            value = q.max(-1)
        return np.eye(q.shape[-1])[q.argmax(-1)].reshape(-1, q.shape[-1])

    return SimpleNamespace(spec=SimpleNamespace(accumulation=None), action_probabilities=probabilities)


@pytest.mark.parametrize(("task", "points"), [("deep-sea-treasure", 10), ("deep-sea-treasure-concave", 2)])
def test_exact_plans_reach_all_that_linear_preferences_can(task, points):
    problem = replace(SEA, task=task)
    judged = judge(planner(problem), problem)
    for played in ("greedy", "sampled"):  # a policy without chance is the same either way
        assert judged[played]["points"] == judged[played]["nd"] == points
    if points == 10:
        assert judged["greedy"]["hv_front"] == pytest.approx(1, abs=1e-12)
        best = np.max(problem.preferences @ true_front(problem).T, 1).mean()
        assert judged["greedy"]["utility"] == pytest.approx(best, abs=1e-9)
    else:
        ends = true_front(problem)[[0, -1]]
        due = hypervolume(ends, problem.reference) / volumes(problem)["front"]
        assert judged["greedy"]["hv_front"] == pytest.approx(due, abs=1e-12)
        assert due < 0.95


def test_mixtures_of_two_points_fill_the_triangle_between_them():
    mixed = mixtures(np.array([[0.0, 1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(mixed.sum(1), 1)
    n = fronts.MIXED - 1
    assert hypervolume(mixed, (0.0, 0.0)) == pytest.approx((n - 1) / (2 * n))  # a staircase under the line


def test_fewer_points_than_objectives_mix_too():
    two = np.array([[-1.0, -1.0, -1.0], [1.0, 0.0, 0.0]])
    mixed = mixtures(two)
    np.testing.assert_allclose(mixed[:, 1], mixed[:, 2])
    np.testing.assert_allclose(mixed[:, 0], 1 + 2 * mixed[:, 1], atol=1e-12)  # on the line between them
    np.testing.assert_allclose(mixtures(two[:1]), two[:1])


def test_what_is_lost_by_not_heeding_the_preference():
    front, omega = true_front(SEA), SEA.preferences
    best = front[(omega @ front.T).argmax(1)]
    assert followed(best, SEA) == pytest.approx(0, abs=1e-12)
    reversed_ = followed(best[::-1], SEA)  # the same points, each at the wrong preference
    due = np.mean([w @ b - w @ c for w, b, c in zip(omega, best, best[::-1])])
    assert reversed_ == pytest.approx(due)
    assert reversed_ > 3


def test_scores_by_hand(monkeypatch):
    front = np.array([[0.0, 4.0], [1.0, 3.0], [3.0, 0.5]])
    monkeypatch.setattr(fronts, "true_front", lambda problem: front)
    monkeypatch.setattr(fronts, "volumes", lambda problem: {"front": 8.0, "hull": 10.0, "data": 4.0})
    problem = replace(SEA, reference=(-1.0, 0.0))
    points = np.array([[0.0, 4.0], [1.0, 2.0], [1.0, 1.0], [0.0, 4.0 - 1e-5]])
    got = score(points, problem, simplex(2, 3))
    volume = 1 * 4 + 1 * 2  # steps from −1 to 0 and from 0 to 1
    assert got["hv_front"] == pytest.approx(volume / 8)
    assert got["hv_data"] == pytest.approx(volume / 4)
    assert (got["points"], got["nd"]) == (1, 2)
    assert got["utility"] == pytest.approx((4 + 2 + 1) / 3)


def test_resource_gathering_is_swept_between_gold_and_diamond():
    problem = Problem("resource-gathering", 0.9, resource.REFERENCE)
    assert problem.preferences.shape == (496, 3)
    assert volumes(problem)["hull"] > volumes(problem)["front"]
    judged = judge(planner(problem), problem)["greedy"]
    assert 0.99 < judged["hv_front"] <= 1 + 1e-12


def test_a_tiny_run_leaves_tables_pictures_and_cells(tmp_path, monkeypatch, capsys):
    tiny = {"hidden": (8,), "batch_size": 16}
    methods = {
        "QDFM": QDFM(**tiny, warmup_steps=50, critic_steps=50, improve_steps=50, gamma=0.99),
        "CQL": CQL(**tiny, train_steps=50),
        "CQL per preference": PerPreference(CQL(**tiny, train_steps=50), 2),
    }
    monkeypatch.setattr(deepsea, "CONVEX", methods)
    deepsea.run(Settings(tmp_path, quick=True, only=tuple(methods), progress=False))
    payload = json.loads((tmp_path / "results.json").read_text())
    rows = payload["results"]["Convex map"]
    assert list(rows) == ["the behaviours", "random", *methods]
    assert len(rows["QDFM"]["seeds"][0]["greedy"]["returns"]) == 501
    assert len(rows["CQL per preference"]["seeds"][0]["greedy"]["returns"]) == 2
    assert payload["provenance"]["volumes"]["Convex map"]["front"] == pytest.approx(volumes(SEA)["front"])
    assert (tmp_path / "convex-map.png").stat().st_size > 10_000
    assert "treasure: " in capsys.readouterr().out  # the front in the terminal
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 4
    assert "--only QDFM CQL 'CQL per preference'" in payload["provenance"]["command"]
    # The mean return of the random behaviour, found again in the data within its noise.
    random = rows["random"]["seeds"][0]["sampled"]["returns"][0]
    data = fronts.data_returns(SEA)[-500:]
    np.testing.assert_allclose(random, data.mean(0), atol=4 * (data.std(0) / np.sqrt(500)).max())
