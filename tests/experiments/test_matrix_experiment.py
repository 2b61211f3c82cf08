"""The matrix experiment: laws in the right order, figures by hand, tables from made-up cells, and a tiny run."""

import json
import math

import jax
import numpy as np
import pytest

from qdfm.agent import Agent
from qdfm.algorithms import BC, QDFM
from qdfm.envs.matrix import Matrix
from qdfm.experiments import matrix
from qdfm.experiments.cells import Settings
from qdfm.experiments.matrix import METHODS, closed_forms, joint_laws, judge
from qdfm.experiments.matrix_report import (
    CLOSED_FORMS,
    DETERMINISTIC,
    LOGGED,
    LOGGED_APART,
    OPTIMUM,
    OPTIMUM_APART,
    STOCHASTIC,
    headlines,
    tabulate,
)


def agreeing(chance: np.ndarray) -> np.ndarray:
    """Policies `[n, 2, 3, 3]` that choose (1, 1) with a given chance and (0, 2) else."""
    policies = np.zeros((len(chance), 2, 3, 3))
    policies[:, :, 1, 1], policies[:, :, 0, 2] = chance[:, None], 1 - chance[:, None]
    return policies


def test_the_laws_come_by_preference_and_context():
    config, spec = BC(hidden=(8,)), Matrix().spec
    algorithm = config.build(spec)
    agent = Agent(config, spec, algorithm.policy(algorithm.init(jax.random.key(0))))
    laws = joint_laws(agent)
    assert laws.shape == (101, 2, 3, 3)
    np.testing.assert_allclose(laws.sum((2, 3)), 1, rtol=1e-5)
    for weight, context in ((0, 1), (30, 0), (100, 1)):
        seen = np.eye(2, dtype=np.float32)[[context, context]]
        alone = agent.action_probabilities(seen, (weight / 100, 1 - weight / 100))
        np.testing.assert_allclose(laws[weight, context], alone, rtol=1e-5)
    assert np.abs(laws[0, 0] - laws[100, 0]).max() > 0.01  # an untrained network does heed them, else this says little
    assert np.abs(laws[0, 0] - laws[0, 1]).max() > 0.01


def test_judging_by_hand():
    judged = judge(agreeing(np.linspace(0, 1, 101)))
    np.testing.assert_allclose(judged["coordination"], np.linspace(0, 1, 101))
    assert judged["spread"] == pytest.approx(math.sqrt((101**2 - 1) / 12) / 100)  # of evenly spaced points
    # Points (10p − 2, −3.35p) over (0, −8): steps .1 wide from r₁ = 0 on, each as high as its right end.
    steps = sum(0.1 * (8 - 3.35 * p / 100) for p in range(21, 101))
    assert judged["hypervolume"] == pytest.approx(steps)
    halves = judge(agreeing(np.repeat([0.2, 0.6], [50, 51])))
    assert halves["spread"] == pytest.approx(0.4 * math.sqrt(50 * 51) / 101)
    assert halves["hypervolume"] == pytest.approx(4 * (8 - 3.35 * 0.6))


def test_closed_forms():
    exact = closed_forms()
    volumes = {OPTIMUM: 47.577, OPTIMUM_APART: 41.353, LOGGED: 32.681, LOGGED_APART: 30.075, STOCHASTIC: 47.919}
    volumes[DETERMINISTIC] = 3 * 6.325 + 5 * 4.65
    assert {name: judged["hypervolume"] for name, judged in exact.items()} == pytest.approx(volumes, abs=1e-3)
    for name, first, last in ((OPTIMUM, 0.283, 1.0), (OPTIMUM_APART, 0.445, 0.887), (LOGGED, 0.824, 0.824)):
        assert exact[name]["coordination"][0] == pytest.approx(first, abs=5e-4)
        assert exact[name]["coordination"][-1] == pytest.approx(last, abs=5e-4)
    assert exact[LOGGED_APART]["spread"] == pytest.approx(0)
    assert set(CLOSED_FORMS) == set(METHODS)


def made_up(volume: float, low: float, high: float, distance: float) -> dict[str, object]:
    """A seed whose coordination rises evenly."""
    chance = np.linspace(low, high, 101).tolist()
    return {"hypervolume": volume, "spread": 0.25, "coordination": chance, "distance": distance}


def test_the_table_and_the_headlines():
    exact = closed_forms() | {STOCHASTIC: {"hypervolume": 50.0}, DETERMINISTIC: {"hypervolume": 40.0}}
    exact[OPTIMUM] = made_up(48.0, 0.3, 1.0, 0.0)
    cells = {"QDFM, centralised": {"seeds": [made_up(45.0, 0.31, 0.99, 0.01), made_up(47.0, 0.25, 0.97, 0.03)]}}
    rows = {row[0]: row[1:] for row in tabulate(cells, exact).rows}
    assert rows["QDFM, centralised"] == [
        "46.000 ± 1.414", "0.920 ± 0.028", "1.150 ± 0.035", "0.250 ± 0.000", "0.980 ± 0.014", "0.630 ± 0.028",
        "0.280 ± 0.042", "0.020 ± 0.014", "47.667 ± 0.529", "0.616 ± 0.072", "0.283 ± 0.028",
    ]  # fmt: skip
    assert rows[STOCHASTIC] == ["50.000", "1.000", "1.250", *["–"] * 8]
    assert rows[LOGGED][4:7] == ["0.824"] * 3
    shown = {line.what.partition(": ")[2]: (line.ours, line.paper) for line in headlines(cells, exact)}
    assert shown["hypervolume"] == (pytest.approx(46), 47.667)
    assert shown["share of the hypervolume of all policies"] == (pytest.approx(0.92), None)
    assert shown["coordination at (0, 1)"] == (pytest.approx(0.28), 0.283)
    # The second seed at (0, 1): .25 where .3 is due.
    gap, _ = shown["coordination of the worst seed at either end, distance to the closed form"]
    assert gap == pytest.approx(0.05)


def test_a_tiny_run_leaves_its_files(tmp_path, monkeypatch):
    short = {"hidden": (8,), "batch_size": 16, "warmup_steps": 20, "critic_steps": 20, "improve_steps": 20}
    tiny = {
        "QDFM, centralised": QDFM(**short, samples=2, steps=2, execution="centralised"),
        "BC, independent": BC(hidden=(8,), batch_size=16, clone_steps=20),
    }
    monkeypatch.setattr(matrix, "METHODS", tiny)
    matrix.run(Settings(tmp_path, seeds=1, progress=False))
    payload = json.loads((tmp_path / "results.json").read_text())
    assert list(payload["results"]["trained"]) == list(tiny)
    assert payload["provenance"]["steps"] == {"QDFM, centralised": 60, "BC, independent": 20}
    assert (tmp_path / "matrix.png").stat().st_size > 10_000
    for cell in payload["results"]["trained"].values():
        (seed,) = cell["seeds"]
        assert len(seed["coordination"]) == 101
        assert 0 < seed["distance"] < 1
    assert [line["what"] for line in payload["headlines"]].count("BC, independent: hypervolume") == 1
