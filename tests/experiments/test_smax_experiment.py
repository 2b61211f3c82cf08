"""The experiment `smax`: equal steps, what its tables say of made-up cells, and a small run."""

import json

import numpy as np
import pytest

from qdfm.algorithms import ALGORITHMS, BC, QDFM
from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.experiments import EXPERIMENTS, smax
from qdfm.experiments.cells import Settings
from qdfm.experiments.smax import METHODS, STEPS, run
from qdfm.experiments.smax_report import OURS, PAPER, PAPER_METHODS, draw, headlines, tabulate
from qdfm.tasks import BATTLES

TEAM = Spec((3, 4), MultiDiscrete((5,) * 3), agents=3, state_shape=(6,))


def test_all_methods_have_equally_many_steps():
    assert {config.total_steps(TEAM) for config in METHODS.values()} == {STEPS}
    teams = {name for name, config in ALGORITHMS.items() if config.teams_only}
    assert {config.name for config in METHODS.values()} == teams | {"qdfm", "bc"}
    executions = {name: METHODS[name].resolve(TEAM).execution for name in OURS}
    assert executions == {
        "QDFM": "decentralised", "QDFM, qmix": "decentralised", "QDFM, qmix, centralised": "centralised",
    }  # fmt: skip
    assert set(PAPER) <= set(BATTLES) and set(PAPER_METHODS) <= set(METHODS)


def cell(returns: list[float], won: list[float]) -> dict:
    seeds = [
        {how: {"return": r + add, "won": w} for how, add in (("sampled", 0), ("greedy", 1))}
        for r, w in zip(returns, won)
    ]
    data = {"transitions": 90, "fingerprint": "f", "episodes": 7, "return_mean": 5.0, "win_rate": 0.25}
    return {"seeds": seeds, "train_seconds": 1.5, "steps": 10, "data": data}


def test_tables_and_headlines_of_made_up_cells():
    results = {
        "smax-3m-medium": {"QDFM": cell([10, 12], [0.5, 0.7]), "BC": cell([4, 4], [0.1, 0.1])},
        "smax-2s3z-poor": {"QDFM": cell([6, 6], [0.2, 0.2]), "BC": cell([7, 9], [0.3, 0.1])},
    }
    tables = tabulate(results)
    assert [t.title for t in tables] == [
        "sampled: mean return", "greedy: mean return", "sampled: share of battles won", "greedy: share of battles won",
        "Data",
    ]  # fmt: skip
    rows = {row[0]: row[1:] for row in tables[0].rows}
    assert rows["QDFM"] == [
        "**11.00 ± 1.41 [10.00, 12.00]** •",
        "6.00 ± 0.00 [6.00, 6.00]",
        "**8.50 ± 0.71 [8.00, 9.00]** •",
    ]
    assert rows["BC"][1] == "**8.00 ± 1.41 [7.00, 9.00]** •"
    assert rows["paper: QDFM"] == ["– (.29)", "–", "–"]
    assert rows["data"] == ["5.00", "5.00", "5.00"]
    assert tables[4].rows[0] == ["smax-3m-medium", "all", "7", "90", "5.00", "0.250"]
    found = {h.what: h.ours for h in headlines(results)}
    assert found["QDFM, sampled: mean return, mean over data sets"] == pytest.approx(8.5)
    assert found["best baseline, greedy: mean return, mean over data sets"] == pytest.approx(7.0)
    assert found["QDFM, sampled: mean return near the best, of 2 data sets"] == 1
    assert found["QDFM, sampled: share of battles won near the best, of 2 data sets"] == 2  # .2 is not below [.1, .3]


def test_variants_stand_beside():
    """The best of all, a variant of QDFM, is neither bold nor whom QDFM is compared with."""
    results = {
        task: {
            "QDFM": cell([10, 12], [0.5, 0.7]),
            "QDFM, qmix": cell([18, 19], [0.9, 1.0]),
            "BC": cell([4, 4], [0.1, 0.1]),
        }
        for task in ("smax-3m-medium", "smax-2s3z-poor")
    }
    for table in tabulate(results)[:4]:
        rows = {row[0]: row[1:] for row in table.rows}
        assert all(text.startswith("**") for text in rows["QDFM"])
        assert not any("**" in text for text in rows["QDFM, qmix"] + rows["BC"])
    found = {h.what: h.ours for h in headlines(results)}
    assert found["QDFM, qmix, sampled: mean return, mean over data sets"] == pytest.approx(18.5)
    for how, most in (("sampled", 4), ("greedy", 5)):
        assert found[f"best baseline, {how}: mean return, mean over data sets"] == pytest.approx(most)
        assert found[f"QDFM, {how}: mean return near the best, of 2 data sets"] == 2
        assert found[f"QDFM, {how}: share of battles won near the best, of 2 data sets"] == 2
    alone = {task: {"QDFM, qmix": row["QDFM, qmix"]} for task, row in results.items()}
    assert tabulate(alone)[0].rows[0][1].startswith("**18.50")  # where nothing else was run


def test_a_variant_that_was_not_run_everywhere(tmp_path):
    one = {"QDFM": cell([10, 12], [0.5, 0.7]), "BC": cell([4, 4], [0.1, 0.1])}
    results = {"smax-3m-medium": one, "smax-2s3z-poor": one | {"QDFM, qmix": cell([20, 20], [1.0, 1.0])}}
    tables = tabulate(results)
    assert next(row for row in tables[0].rows if row[0] == "QDFM, qmix")[1:] == [
        "–", "20.00 ± 0.00 [20.00, 20.00] •", "–",
    ]  # fmt: skip
    assert not any(h.what.startswith("QDFM, qmix") for h in headlines(results))
    results["smax-2s3z-poor"]["QDFM, qmix"]["data"] = {**one["BC"]["data"], "fingerprint": "g", "win_rate": 0.5}
    assert [row[:2] + row[-1:] for row in tabulate(results)[4].rows] == [
        ["smax-3m-medium", "all", "0.250"],
        ["smax-2s3z-poor", "QDFM; BC", "0.250"],
        ["smax-2s3z-poor", "QDFM, qmix", "0.500"],
    ]
    draw(tmp_path, results)
    assert (tmp_path / "smax.png").stat().st_size > 5000


def test_variants_that_took_too_long_on_some_data(monkeypatch, tmp_path):
    """Where no method is left there is no column; in each column those that were run are compared."""
    monkeypatch.setattr(smax, "trained", lambda *_: cell([1.0, 2.0], [0.5, 0.5]))
    mixed, joint = "QDFM, qmix", "QDFM, qmix, centralised"
    poor, replay = "smax-2s3z-poor", "smax-2s3z-medium-replay"
    run(Settings(tmp_path / "one", only=(mixed,), progress=False))
    found = json.loads((tmp_path / "one" / "results.json").read_text())["results"]
    assert len(found) == 7 and replay not in found and all(list(row) == [mixed] for row in found.values())
    run(Settings(tmp_path / "both", only=(mixed, joint), progress=False))
    found = json.loads((tmp_path / "both" / "results.json").read_text())["results"]
    assert len(found) == 8 and list(found[replay]) == [joint] and list(found[poor]) == [mixed]
    best = "**1.50 ± 0.71 [1.00, 2.00]** •"
    rows = {row[0]: row[1:] for row in tabulate(found)[0].rows}
    assert rows[mixed] == [best if mixed in row else "–" for row in found.values()] + ["–"]
    assert rows[joint][list(found).index(replay)] == best


@pytest.mark.parametrize(("only", "maps"), [((), {"3m", "2s3z"}), (("5m_vs_6m", "BC"), {"5m_vs_6m"})])
def test_maps_of_a_full_run(monkeypatch, tmp_path, only, maps):
    asked = []
    monkeypatch.setattr(smax, "trained", lambda _, task, *rest: asked.append(task) or cell([1.0], [0.5]))
    run(Settings(tmp_path, only=only, progress=False))
    assert {task.split("-")[1] for task in asked} == maps
    assert len(asked) == (4 if only else 8 * len(METHODS) - len(smax.LEFT_OUT))


def test_a_small_run_and_its_resumption(monkeypatch, tmp_path):
    small = {"hidden": (8,), "batch_size": 8}
    flow = QDFM(warmup_steps=2, critic_steps=2, improve_steps=2, mixing="qmix", samples=2, **small)
    monkeypatch.setattr(smax, "METHODS", {"QDFM": flow, "BC": BC(clone_steps=6, **small)})
    monkeypatch.setattr(smax, "QUICK_SHARE", 1.0)
    monkeypatch.setattr(smax, "QUICK_EPISODES", 4)
    from qdfm.collect.smax import collect_smax

    monkeypatch.setattr(smax, "load_dataset", lambda task: collect_smax(task, 300))
    assert EXPERIMENTS["smax"].load() is run
    run(Settings(tmp_path, quick=True, progress=False))
    kept = json.loads((tmp_path / "results.json").read_text())
    row = kept["results"]["smax-3m-medium"]
    assert list(row) == ["QDFM", "BC"]
    assert row["QDFM"]["data"]["transitions"] == 300 and row["QDFM"]["steps"] == 6
    assert all(np.isfinite(seed[how]["return"]) for m in row.values() for seed in m["seeds"] for how in seed)
    assert (tmp_path / "smax.png").stat().st_size > 5000
    lines = (tmp_path / "cells.jsonl").read_text()
    monkeypatch.setattr(smax, "train", None)  # nothing is left to train
    run(Settings(tmp_path, quick=True, resume=True, progress=False))
    assert (tmp_path / "cells.jsonl").read_text() == lines
