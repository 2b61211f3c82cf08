"""How finely actions are divided: which methods are tried where, tables by hand, a tiny run."""

import json
from typing import Any

import pytest
from made_up_cells import row

from qdfm.algorithms import BC
from qdfm.experiments import EXPERIMENTS, control, divisions
from qdfm.experiments.cells import Settings
from qdfm.experiments.control import Coding, Size
from qdfm.experiments.control_methods import METHODS
from qdfm.experiments.divisions import BINNED, CODINGS, COMPARED, run, tried
from qdfm.experiments.divisions_report import PAPER_16, PAPER_SWEEP, draw, headlines, tabulate
from qdfm.tasks import TASKS

HOPPER, EXPERT = "hopper-medium", "hopper-expert"


def test_what_is_tried_where():
    assert tried(COMPARED, EXPERT) == METHODS["codebook"]
    assert tried("codebook-64", EXPERT).keys() == {"QDFM"}
    assert tried("bins-9", HOPPER) == {"QDFM": BINNED}
    assert tried("bins-9", EXPERT) == {}
    assert sum(len(tried(coding, task)) for coding in CODINGS for task in TASKS) == 6 * (11 + 4) + 3 * 5
    # The cells at 256 joint actions and at 41 bins are those of `mujoco`.
    assert tried("codebook-256", HOPPER)["QDFM"] is METHODS["codebook"]["QDFM"]
    for figures in (*PAPER_SWEEP.values(), *PAPER_16.values()):
        assert figures.keys() == TASKS.keys()
    assert [round(PAPER_16["QDFM"][task]) for task in sorted(TASKS)] == [-191, 310, 173, 287, 255, 125]
    # The paper averages all tasks and methods in its own summary; QDFM's alone rises from 16 to 256 too.
    assert sum(PAPER_SWEEP["codebook-256"].values()) == pytest.approx(1664.13)


def results() -> dict[str, dict[str, dict[str, Any]]]:
    """Two codebooks, the finer one on both data sets, and one kind of bins."""
    return {
        "codebook-64": {HOPPER: row(HOPPER, 30, QDFM=[20, 22]), EXPERT: row(EXPERT, 50, QDFM=[40, 42])},
        "codebook-16": {HOPPER: row(HOPPER, 10, QDFM=[5, 7], CQL=[0, 0])},
        "bins-9": {HOPPER: row(HOPPER, 39, QDFM=[38, 38])},
    }


def test_tables_headlines_and_picture_of_made_up_cells(tmp_path):
    found = results()
    tables = {table.title: table for table in tabulate(found, "codebook-16")}
    left = tables["What the quantiser leaves, by K_act: error / behaviour, replayed"]
    assert left.columns == ["data", "16", "64"]
    assert left.rows == [[HOPPER, "0.125 / 10.0", "0.125 / 30.0"], [EXPERT, "–", "0.125 / 50.0"]]
    sweep = tables["QDFM by K_act, sampled: normalised score"]
    assert sweep.rows[:3] == [
        [HOPPER, "6.0 ± 1.4 [5.0, 7.0]", "21.0 ± 1.4 [20.0, 22.0]"],
        [EXPERT, "–", "41.0 ± 1.4 [40.0, 42.0]"],
        ["mean", "–", "31.0 ± 1.4 [30.0, 32.0]"],
    ]
    raw = tables["QDFM by K_act, sampled: raw return"]
    # 6, 21 and 41 of 100 between −20.27 and 3234.3; 41 of the expert's, who is on the same scale.
    assert raw.rows[0] == [HOPPER, "175 ± 46", "663 ± 46"]
    assert raw.rows[1] == [f"paper: {HOPPER}", "349", "7"]
    assert raw.rows[2] == [EXPERT, "–", "1314 ± 46"]
    bins = tables["QDFM by bins per dimension, greedy: normalised score"]
    assert bins.rows == [[HOPPER, "39.0 ± 0.0 [39.0, 39.0]"]]
    compared = tables["All methods at K_act = 16, sampled: raw return"]
    # 6 of 100 between −20.27 and 3234.3 is 175; the seeds are 2 of 100 apart, which is 65, over √2.
    assert compared.rows[0] == ["QDFM", "**175 ± 46**"]
    assert compared.rows[1] == ["paper: QDFM", "287"]
    assert compared.rows[2] == ["CQL", "-20 ± 0"]
    assert compared.rows[-2:] == [["behaviour, replayed", "305"], ["behaviour, data", "370"]]
    lines = {line.what: (line.ours, line.paper) for line in headlines(found, "codebook-16")}
    assert lines[f"K_act = 16, {HOPPER}: QDFM, raw return"] == (pytest.approx(175.0, abs=0.01), 286.67)
    assert lines[f"codebook-64: QDFM, mean score over {HOPPER}, {EXPERT}"] == (31, None)
    draw(tmp_path, found)
    assert (tmp_path / "divisions.png").stat().st_size > 5_000


def test_a_tiny_run(tmp_path, monkeypatch):
    bc = BC(clone_steps=2, batch_size=8, hidden=(8,))
    monkeypatch.setattr(divisions, "METHODS", {"codebook": {"QDFM": bc, "CQL": bc}})
    monkeypatch.setattr(divisions, "BINNED", bc)
    monkeypatch.setattr(divisions, "CODINGS", {"codebook-16": Coding("codebook", 16), "bins-3": Coding("bins", 3)})
    monkeypatch.setattr(divisions, "FULL", Size(transitions=200, episodes=1))
    monkeypatch.setattr(control, "FRESH", 50)
    monkeypatch.setattr(control, "REPLAYED", 2)
    run(Settings(tmp_path, seeds=1, only=(HOPPER,), progress=False))
    payload = json.loads((tmp_path / "results.json").read_text())
    assert payload["provenance"]["command"] == f"qdfm reproduce divisions --only {HOPPER} --seeds 1"
    found = payload["results"]
    assert {coding: list(rows[HOPPER]["methods"]) for coding, rows in found.items()} == {
        "codebook-16": ["QDFM", "CQL"],
        "bins-3": ["QDFM"],
    }
    errors = {coding: rows[HOPPER]["behaviour"]["data"]["quantisation_error"] for coding, rows in found.items()}
    assert all(0 < error < 1.5 for error in errors.values())
    assert EXPERIMENTS["divisions"].load() is run
