"""The runtime tables: the schedules that are timed, extrapolation by hand, a tiny run. No duration is asserted."""

import json
from typing import Any

import numpy as np
import pytest

from qdfm.algorithms import ALGORITHMS, BC, QDFM
from qdfm.data.actions import Discrete
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.experiments import EXPERIMENTS, runtime, timing
from qdfm.experiments.cells import Settings
from qdfm.experiments.control_methods import PAPER_STEPS
from qdfm.experiments.runtime import METHODS, QUICK_NAMES, Scale, noise, report, run
from qdfm.experiments.runtime_report import PAPER_SCALING, draw, headlines, tabulate
from qdfm.experiments.timing import Timing, extrapolated, phase_rates


def test_every_method_has_the_papers_schedule():
    spec = Spec((11,), Discrete(256))
    totals = {name: config.total_steps(spec) for name, config in METHODS.items()}
    assert totals.pop("QDFM.paper") == 2 * PAPER_STEPS  # the behaviour is cloned first
    assert set(totals.values()) == {PAPER_STEPS}
    alone = {name for name, c in ALGORITHMS.items() if not (c.teams_only or c.preferences_only)}
    assert {config.name for config in METHODS.values()} == alone
    ours, printed = METHODS["QDFM"], METHODS["QDFM.paper"]
    assert isinstance(ours, QDFM)
    assert isinstance(printed, QDFM)
    for field in ("warmup_steps", "critic_steps", "improve_steps"):
        assert getattr(ours, field) == getattr(printed, field)
    assert set(QUICK_NAMES["method"]) <= METHODS.keys()


def test_noise_has_the_shape_of_hopper_and_can_be_trained_on():
    data = noise(2000, 5)
    timed = phase_rates(BC(clone_steps=7, batch_size=8, hidden=(8,)), data, 2, Timing(seconds=0.0, chunk=2))
    assert timed.keys() == {"clone"}
    assert timed["clone"]["steps"] == 7
    assert data.spec.observation_shape == (11,)
    assert data.spec.choices == (5,)
    assert set(np.unique(data.action)) == set(range(5))
    assert np.asarray(data.terminated).sum() == 2


def test_calls_are_timed_in_turn(monkeypatch):
    """By a clock that the calls themselves set forward: the first round is slow, then a's median is 3 and b's 20 ms."""
    lasts = {"a": iter([9.0, 0.001, 0.003, 0.008]), "b": iter([9.0, 0.020, 0.020, 0.500])}
    clock, called = [0.0], []

    def call(name: str) -> None:
        called.append(name)
        clock[0] += next(lasts[name])

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(timing, "BURST", 2)
    found = timing.in_turn({"a": lambda: call("a"), "b": lambda: call("b")}, 3, warm=1)
    assert called == ["a", "a", "b", "b"] * 2
    np.testing.assert_allclose([found["a"], found["b"]], [3, 20])


def test_one_action_is_the_mean_over_preferences(monkeypatch):
    """By made-up times: 2 ms under (1, 0), 4 ms under (0, 1); the batch is asked for evenly, or not at all."""
    asked = []

    def in_turn(calls, count):
        (call,) = calls.values()
        asked.append((call.args[1].tolist(), len(call.args[0].shape), count))
        return dict.fromkeys(calls, 2.0 + 2 * call.args[1][1])

    monkeypatch.setattr(timing, "in_turn", in_turn)
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((6, 2))
    data = Dataset.from_arrays(seen, rng.integers(3, size=6), rng.random((6, 2)), seen, np.zeros(6, bool))
    config = BC(clone_steps=1, hidden=(4,))
    found = timing.act_times({"bc": config}, data, 40, 3, np.eye(2))
    assert found == {"bc": {"one": 3.0, "each": [2.0, 4.0], "batch": 3.0}}
    assert asked == [([1.0, 0.0], 1, 20), ([0.0, 1.0], 1, 20), ([0.5, 0.5], 2, 4)]
    assert timing.act_times({"bc": config}, data, 40, 0) == {"bc": {"one": 3.0, "each": [3.0], "batch": None}}


def speeds(**phases: tuple[int, float]) -> dict[str, Any]:
    """A cell of steps and speeds by phase."""
    return {"phases": {name: {"steps": n, "steps_per_second": s} for name, (n, s) in phases.items()}}


def made_up() -> dict[str, Any]:
    """Every part."""
    qdfm, cql = speeds(warmup=(100, 50.0), critic=(300, 100.0)), speeds(train=(1000, 500.0))
    times = {"QDFM": {"one": 0.25, "batch": 1.5}, "CQL": {"one": 0.125, "batch": 1.0}}
    cpu = {name: {what: 2 * ms for what, ms in values.items()} for name, values in times.items()}
    return {
        "steps": {"QDFM": {"1": qdfm, "5": qdfm}, "CQL": {"1": cql, "5": cql}},
        "schedule": {
            "1": {"seconds": 100.0, "steps": 400, "share": 1.0},
            "5": {"seconds": 250.0, "steps": 100, "share": 0.25},
        },
        "act": {"device": times, "cpu": cpu},
        "scaling": {"QDFM": {"64": {"–": qdfm}}, "QDFM.paper": {"64": {"32": cql, "64": qdfm}}},
    }


def test_tables_headlines_and_picture_of_made_up_cells(tmp_path):
    found = made_up()
    assert extrapolated(found["steps"]["QDFM"]["1"]) == 5.0  # 100 / 50 + 300 / 100
    training, schedule, acting, scaling = tabulate(found)
    assert training.rows[0][:3] == ["QDFM", "warmup 50, critic 100", "5"]
    assert training.rows[1] == ["CQL", "train 500", "2", "train 500", "2", "1,729"]
    assert schedule.rows == [
        ["1", "400", "100.0", "100.0", "2,209"],
        ["5", "100", "250.0", "1,000.0 (extrapolated)", "2,209"],
    ]
    assert acting.rows[0] == ["QDFM", "0.250", "1.500", "0.500", "3.000", "6.26"]
    assert [line[-1] for line in acting.rows[2:]] == ["5.87", "75.05", "55.86", "27.26"]
    assert scaling.columns[:4] == ["|A|", "QDFM", "QDFM.paper, M = 32", "QDFM.paper, M = 64"]
    assert scaling.rows == [["64", "5", "2", "5", "1,527", "1,469", "1,481"]]
    assert PAPER_SCALING["512"]["128"] == 1869
    lines = {line.what: (line.ours, line.paper) for line in headlines(found)}
    assert lines["QDFM(), the schedule, seeds: 1, s"] == (100, 2209)
    assert lines["QDFM(), the schedule, seeds: 5, extrapolated, s"] == (1000, None)
    assert lines["CQL: 1M steps, one seed, s (extrapolated)"] == (2, 1729)
    assert lines["QDFM: one action, ms"] == (0.25, 6.26)
    assert lines["QDFM: one action on a CPU, ms"] == (0.5, 6.26)
    draw(tmp_path, found)
    assert (tmp_path / "runtime.png").stat().st_size > 5_000
    assert headlines({}) == tabulate({}) == []


def test_a_tiny_run(tmp_path, monkeypatch):
    small: dict[str, Any] = {"batch_size": 8, "hidden": (8,)}
    flow: dict[str, Any] = {"warmup_steps": 2, "critic_steps": 2, "improve_steps": 2, "critics": 1}
    methods = {"QDFM": QDFM(**flow, **small), "BC": BC(clone_steps=10, **small)}
    monkeypatch.setattr(runtime, "METHODS", methods)
    scale = Scale(
        transitions=200, choices=4, seeds=1, seconds=0.0, chunk=2, calls=10, batch=3, actions=(4,), rows=50,
        schedule=(1.0, 1.0),
    )  # fmt: skip
    report(Settings(tmp_path, progress=False), scale)
    payload = json.loads((tmp_path / "results.json").read_text())
    assert payload["provenance"]["command"] == "qdfm reproduce runtime"
    found = payload["results"]
    phases = found["steps"]["QDFM"]["1"]["phases"]
    assert {name: phase["steps"] for name, phase in phases.items()} == {"warmup": 2, "critic": 2, "improve": 2}
    assert all(phase["steps_per_second"] > 0 for phase in phases.values())
    assert found["schedule"]["1"]["steps"] == 6
    assert found["act"]["device"].keys() == found["act"]["cpu"].keys() == methods.keys()
    assert found["act"]["device"]["BC"].keys() == {"one", "each", "batch"}
    assert found["scaling"]["QDFM"].keys() == {"4"}
    lines = (tmp_path / "cells.jsonl").read_text()
    report(Settings(tmp_path, resume=True, only=("steps", "BC"), progress=False), scale)
    assert (tmp_path / "cells.jsonl").read_text() == lines
    assert list(json.loads((tmp_path / "results.json").read_text())["results"]) == ["steps"]
    assert EXPERIMENTS["runtime"].load() is run


def test_seeds_have_no_meaning(tmp_path):
    with pytest.raises(QDFMError, match="runtime measures time alone, with one seed and with several, so 3 seeds"):
        run(Settings(tmp_path / "new", seeds=3))
    assert not (tmp_path / "new").exists()
