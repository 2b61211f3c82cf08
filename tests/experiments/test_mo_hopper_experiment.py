"""The experiment `mo-hopper`: what its tables say of made-up cells, and a small run."""

import json
from dataclasses import replace

import numpy as np
import pytest

from qdfm.algorithms import BC, MODULI, QDFM
from qdfm.data.actions import Bins
from qdfm.data.spec import Spec
from qdfm.experiments import EXPERIMENTS, mo_hopper
from qdfm.experiments.cells import Settings
from qdfm.experiments.mo_hopper import run, source
from qdfm.experiments.mo_hopper_report import AUTHORS, headlines, provided, tabulate

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


def cell(volumes: list[float], **facts) -> dict:
    seeds = [{"hypervolume": v, "sparsity": 2e3, "points": 3, "returns": [[1e3, 3e3], [2e3, 2e3]]} for v in volumes]
    return {"seeds": seeds, "train_seconds": 1.5, "steps": 10, **facts}


def test_tables_and_headlines_of_made_up_cells():
    """Two preferences are asked for, 0 and 1; the data have those up to .5."""
    data = {
        "source": "expert_uniform",
        "transitions": 499_906,
        "episodes": 7,
        "bound": 2e7,
        "returns": [[1.0, 3.0]],
        "preferences": [0, 0.5],
    }
    times = {"QDFM": {"one": 0.5, "each": [0.4, 0.6], "batch": 1.0}, "MODULI": {"one": 20.0, "each": [10.0, 30.0]}}
    times[AUTHORS] = {"one": 30.0, "each": [20.0, 40.0]}
    methods = {"QDFM": cell([1.9e7, 2.1e7], guided=[True, False]), "MODULI": cell([1.8e7, 1.8e7], guided=None)}
    results = {"expert": {"data": data, "methods": methods, "times": {"device": times, "cpu": times}}}
    (table,) = tabulate(results)
    assert table.title == "expert: 7 trajectories of expert_uniform, bound 20.000"
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["QDFM"]["hypervolume"] == "20.00 ± 1.41 [19.00, 21.00]" and rows["QDFM"]["guided"] == "1 of 2"
    assert rows["QDFM"]["% of the bound"] == "100.00 ± 7.07 [95.00, 105.00]"
    assert rows["QDFM"]["%, the data's preferences"] == "15.00"  # 1e3 · 3e3 of 2e7: the second return is left out
    clocks = ("one action on the CPU, ms", "in the data on the CPU, ms", "beyond on the CPU, ms")
    assert [rows["MODULI"][c] for c in clocks] == ["20.00", "10.00", "30.00"] and rows["MODULI"]["guided"] == "–"
    assert [rows[AUTHORS][c] for c in clocks] == ["30.00", "20.00", "40.00"] and rows[AUTHORS]["hypervolume"] == "–"
    assert rows["paper: MODULI"]["hypervolume"] == "20.25" and "paper: CQL(P)" not in rows
    found = {h.what: (h.ours, h.paper) for h in headlines(results)}
    assert found["QDFM, expert: hypervolume, % of the data's bound"] == (pytest.approx(100), 98.88)
    assert found["QDFM, expert: hypervolume, millions"] == (pytest.approx(20), 20.85)
    ratios = {w.rsplit(", ", 1)[1]: r for w, (r, _) in found.items() if "cpu, MODULI / QDFM" in w}
    assert ratios == {"all preferences": 40, "preferences of the data": 25, "preferences beyond": 50}
    assert found[f"expert: action time on the cpu, {AUTHORS} / QDFM, all preferences"] == (60.0, None)
    assert provided(results).startswith("D4MORL-equivalent expert data: trajectories played anew")
    for name, whose in (("mo-hopper-expert", "of our own actor"), ("expert_uniform", "under QDFM_DATA")):
        other = {"expert": {"data": {"source": name, "transitions": 1000}}}
        assert provided(other).startswith(f"Trajectories {whose} ({name}, 1,000 transitions)")


def test_a_small_run_and_its_resumption(monkeypatch, tmp_path):
    monkeypatch.delenv("QDFM_DATA", raising=False)
    small = {"hidden": (8,), "batch_size": 8}
    flow = QDFM(warmup_steps=2, critic_steps=2, improve_steps=2, samples=2, preferences="logged", **small)
    planner = MODULI(
        plan_steps=2, inverse_steps=2, slide_steps=2, width=8, heads=2, depth=1, horizon=2, steps=2, **small
    )
    clone, idle = BC(clone_steps=6, preferences="logged", **small), {"QDFM, unguided": replace(flow, improve_steps=0)}
    monkeypatch.setattr(mo_hopper, "METHODS", {"QDFM": flow, **idle, "MODULI": planner, "BC(P)": clone})
    for name, value in (("QUICK_SHARE", 1.0), ("QUICK_PREFERENCES", 3), ("QUICK_TRANSITIONS", 300)):
        monkeypatch.setattr(mo_hopper, name, value)
    monkeypatch.setattr(mo_hopper, "TIMED", mo_hopper.Timing(calls=10, batch=3))
    assert EXPERIMENTS["mo-hopper"].load() is run
    settings = Settings(tmp_path, quick=True, only=("QDFM", "QDFM, unguided", "MODULI", "BC(P)"), progress=False)
    run(settings)
    kept = json.loads((tmp_path / "results.json").read_text())["results"]["expert"]
    assert list(kept["methods"]) == list(settings.only) and kept["data"]["source"] == "mo-hopper-expert"
    for method in kept["methods"].values():
        (seed,) = method["seeds"]
        returns = np.array(seed["returns"])
        assert returns.shape == (3, 2) and np.isfinite(returns).all() and 1 <= seed["points"] <= 3
    assert kept["methods"]["QDFM"]["guided"] == [True] and kept["methods"]["QDFM, unguided"]["guided"] == [False]
    assert kept["methods"]["MODULI"]["guided"] is None
    low, high = kept["data"]["preferences"]
    assert 0 <= low <= high <= 1  # so few transitions may be one episode
    assert (tmp_path / "mo-hopper-expert.png").stat().st_size > 5000
    lines = (tmp_path / "cells.jsonl").read_text()
    for how in ("fit", "Family"):
        monkeypatch.setattr(mo_hopper, how, lambda *_: None)  # nothing is left to train
    run(Settings(tmp_path, quick=True, only=settings.only, resume=True, progress=False))
    assert (tmp_path / "cells.jsonl").read_text() == lines
