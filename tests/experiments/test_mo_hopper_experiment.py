"""The experiment `mo-hopper`: what its tables say of made-up cells, and a small run."""

import json

import numpy as np
import pytest

from qdfm.algorithms import BC, MODULI, QDFM
from qdfm.data.actions import Bins
from qdfm.data.spec import Spec
from qdfm.experiments import EXPERIMENTS, mo_hopper
from qdfm.experiments.cells import Settings
from qdfm.experiments.mo_hopper import run, source
from qdfm.experiments.mo_hopper_report import AUTHORS, headlines, tabulate

ROBOT = Spec((11,), Bins(((-1.0, 0.0, 1.0),) * 3), objectives=2, preference_range=((0.3, 0.6), (0.4, 0.7)))


def test_data_are_ours_where_no_other_are_at_hand(monkeypatch, tmp_path):
    monkeypatch.delenv("QDFM_DATA", raising=False)
    assert source("expert") == "mo-hopper-expert"
    monkeypatch.setenv("QDFM_DATA", str(tmp_path))
    assert source("expert") == "mo-hopper-expert"
    file = tmp_path / "mo_hopper" / "expert_uniform.npz"
    file.parent.mkdir()
    file.touch()
    assert source("expert") == "mo_hopper/expert_uniform.npz"


def cell(volumes: list[float]) -> dict:
    seeds = [{"hypervolume": v, "sparsity": 2e3, "points": 3, "returns": [[1.0, 3.0], [2.0, 2.0]]} for v in volumes]
    return {"seeds": seeds, "train_seconds": 1.5, "steps": 10}


def test_tables_and_headlines_of_made_up_cells():
    data = {"source": "expert_uniform", "episodes": 7, "bound": 2e7, "returns": [[1.0, 3.0]]}
    times = {"QDFM": {"one": 0.5, "batch": 1.0}, "MODULI": {"one": 20.0, "batch": 40.0}}
    times[AUTHORS] = {"one": 30.0, "batch": 60.0}
    methods = {"QDFM": cell([1.9e7, 2.1e7]), "MODULI": cell([1.8e7, 1.8e7])}
    results = {"expert": {"data": data, "methods": methods, "times": {"device": times, "cpu": times}}}
    (table,) = tabulate(results)
    assert table.title == "expert: 7 trajectories of expert_uniform, bound 20.000"
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["QDFM"][:2] == ["20.00 ± 1.41 [19.00, 21.00]", "100.00 ± 7.07 [95.00, 105.00]"]
    taken = ["20.00", "40.00"]
    assert rows["MODULI"][1:] == ["90.00 ± 0.00 [90.00, 90.00]", "2.0 ± 0.0", "3 ± 0", "1.5", "10", *taken, "20.00"]
    assert rows[AUTHORS] == ["–"] * 6 + ["30.00", "60.00", "30.00"]
    assert rows["paper: MODULI"][:2] == ["20.25", "96.02"] and "paper: CQL(P)" not in rows
    found = {h.what: (h.ours, h.paper) for h in headlines(results)}
    assert found["QDFM, expert: hypervolume, % of the data's bound"] == (pytest.approx(100), 98.88)
    assert found["expert: time of MODULI's action, in QDFM's, on the cpu"] == (40.0, None)
    assert found[f"expert: time of {AUTHORS}'s action, in QDFM's, on the cpu"] == (60.0, None)


def test_a_small_run_and_its_resumption(monkeypatch, tmp_path):
    monkeypatch.delenv("QDFM_DATA", raising=False)
    small = {"hidden": (8,), "batch_size": 8}
    flow = QDFM(warmup_steps=2, critic_steps=2, improve_steps=2, samples=2, preferences="logged", **small)
    planner = MODULI(
        plan_steps=2, inverse_steps=2, slide_steps=2, width=8, heads=2, depth=1, horizon=2, steps=2, **small
    )
    clone = BC(clone_steps=6, preferences="logged", **small)
    monkeypatch.setattr(mo_hopper, "METHODS", {"QDFM": flow, "MODULI": planner, "BC(P)": clone})
    for name, value in (("QUICK_SHARE", 1.0), ("QUICK_PREFERENCES", 3), ("QUICK_TRANSITIONS", 300)):
        monkeypatch.setattr(mo_hopper, name, value)
    monkeypatch.setattr(mo_hopper, "TIMED", mo_hopper.Scale(calls=10, batch=3))
    assert EXPERIMENTS["mo-hopper"].load() is run
    settings = Settings(tmp_path, quick=True, only=("QDFM", "MODULI", "BC(P)"), progress=False)
    run(settings)
    kept = json.loads((tmp_path / "results.json").read_text())["results"]["expert"]
    assert list(kept["methods"]) == ["QDFM", "MODULI", "BC(P)"] and kept["data"]["source"] == "mo-hopper-expert"
    for method in kept["methods"].values():
        (seed,) = method["seeds"]
        returns = np.array(seed["returns"])
        assert returns.shape == (3, 2) and np.isfinite(returns).all() and 1 <= seed["points"] <= 3
    assert (tmp_path / "mo-hopper-expert.png").stat().st_size > 5000
    lines = (tmp_path / "cells.jsonl").read_text()
    monkeypatch.setattr(mo_hopper, "train", None)  # nothing is left to train
    run(Settings(tmp_path, quick=True, only=settings.only, resume=True, progress=False))
    assert (tmp_path / "cells.jsonl").read_text() == lines
