"""Cells of an experiment: computed once, found again, kept when a run ends badly."""

import json
from pathlib import Path
from typing import Any

import pytest

from qdfm.algorithms import CQL
from qdfm.errors import QDFMError
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.report import made_here


def compute(value: float, calls: list[float]) -> Any:
    def run() -> dict[str, float]:
        calls.append(value)
        return {"value": value}

    return run


def test_cells_are_computed_once_and_found_again(tmp_path):
    calls: list[float] = []
    cells = Cells(Settings(tmp_path / "deep" / "down"))
    for _ in range(2):
        assert cells.get({"a": 1, "seeds": (0, 1)}, compute(1.0, calls))["value"] == 1.0
    kept = cells.get({"a": 2, "seeds": (0, 1)}, compute(2.0, calls))
    assert kept == {"value": 2.0, "made": made_here()}
    assert calls == [1.0, 2.0]
    resumed = Cells(Settings(tmp_path / "deep" / "down", resume=True))
    assert resumed.get({"seeds": [0, 1], "a": 2}, compute(-1.0, calls)) == kept
    assert resumed.get({"a": 2, "seeds": (0, 1, 2)}, compute(3.0, calls))["value"] == 3.0
    assert calls == [1.0, 2.0, 3.0]


def test_a_cell_outlives_new_settings_of_its_method(tmp_path):
    """Written when the method had fewer settings; one that is not at its default now is another cell."""
    calls: list[float] = []
    then = {name: value for name, value in CQL(gamma=0.9).described().items() if name not in ("penalty", "corners")}
    described = {"configs": [{"one": then}], "seeds": [0]}
    (tmp_path / "cells.jsonl").write_text(json.dumps({"cell": described, "result": {"value": 1.0}}) + "\n")
    cells = Cells(Settings(tmp_path, resume=True))
    for config, value in ((CQL(gamma=0.9), 1.0), (CQL(gamma=0.9, penalty=2.0), 2.0), (CQL(), 3.0)):
        found = cells.get({"configs": [{"one": config.described()}], "seeds": (0,)}, compute(value, calls))
        assert found["value"] == value
    assert calls == [2.0, 3.0]


def test_finished_cells_are_not_begun_anew(tmp_path):
    calls: list[float] = []
    Cells(Settings(tmp_path))  # ended before its first cell
    Cells(Settings(tmp_path)).get({"a": 1}, compute(1.0, calls))
    before = (tmp_path / "cells.jsonl").read_bytes()
    for settings in (Settings(tmp_path), Settings(tmp_path, quick=True)):
        with pytest.raises(QDFMError, match=r"holds finished cells; go on with --resume .* --out\.$") as refused:
            Cells(settings)
        assert str(tmp_path) in str(refused.value)
    assert (tmp_path / "cells.jsonl").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["cells.jsonl"]


@pytest.mark.parametrize("kept", [1, 20, -2])
def test_a_half_written_last_line_is_computed_again(tmp_path, kept):
    calls: list[float] = []
    cells = Cells(Settings(tmp_path))
    for a in (1, 2):
        cells.get({"a": a}, compute(a, calls))
    first, second = (tmp_path / "cells.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cells.jsonl").write_text(first + second[:kept])
    for _ in range(2):  # what is computed after the half line is kept too
        resumed = Cells(Settings(tmp_path, resume=True))
        assert resumed.get({"a": 1}, compute(-1, calls))["value"] == 1
        assert resumed.get({"a": 2}, compute(2, calls))["value"] == 2
    assert calls == [1, 2, 2]


def test_a_crash_inside_a_cell_keeps_the_others(tmp_path):
    calls: list[float] = []
    cells = Cells(Settings(tmp_path))
    cells.get({"a": 1}, compute(1, calls))

    def crash() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cells.get({"a": 2}, crash)
    assert Cells(Settings(tmp_path, resume=True)).known.keys() == cells.known.keys()
    assert len(cells.known) == 1


def test_a_full_disk_is_one_sentence_and_keeps_the_other_cells(tmp_path):
    calls: list[float] = []
    cells = Cells(Settings(tmp_path))
    cells.get({"a": 1}, compute(1, calls))
    cells.file = Path("/dev/full")
    with pytest.raises(QDFMError, match=r"Cannot write /dev/full \(No space left on device\); choose"):
        cells.get({"a": 2}, compute(2, calls))
    resumed = Cells(Settings(tmp_path, resume=True))
    assert resumed.get({"a": 1}, compute(-1, calls))["value"] == 1
    assert resumed.get({"a": 2}, compute(3, calls))["value"] == 3


def test_cells_in_an_unwritable_place(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(QDFMError, match=r"Cannot write to .*Not a directory"):
        Cells(Settings(tmp_path / "file" / "below"))
