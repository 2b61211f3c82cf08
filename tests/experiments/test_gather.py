"""RESULTS.md: paper, ours and their ratio for each experiment found, and the committed page is up to date."""

from pathlib import Path

import pytest

from qdfm.errors import QDFMError
from qdfm.experiments.gather import gather, main
from qdfm.experiments.report import Headline, provenance, write_report

ROOT = Path(__file__).parents[2]


def test_a_page_with_ratios(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    cells = [{"made": {"commit": c, "device": "cpu: x", "versions": {}}} for c in "ed"]
    made = provenance("qdfm reproduce b", cells, seeds=[0, 1])
    lines = [
        Headline("return", 3.0, 2.0),
        Headline("trap", 0.5),
        Headline("solved", 1.0, 0.0),
        Headline("gap", -1.0, 2.0),
    ]
    write_report(tmp_path / "b", "Second", made, {}, [], "", lines, "Data of our own.")
    write_report(tmp_path / "a", "First", provenance("qdfm reproduce a"), {}, [], "")
    main([str(tmp_path), str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert page.index("## First") < page.index("## Second")
    assert "`qdfm reproduce b` on cpu: x, commit d, e, seeds [0, 1]; [the whole table](results/b/table.md)." in page
    assert "(results/b/table.md).\n\nData of our own.\n\n| |" in page
    assert "[the whole table](results/a/table.md).\n\n| |" in page  # nothing to say of its data
    assert "| return | 2 | 3 | 1.5 |" in page
    assert "| trap | – | 0.5 | – |" in page
    assert "| solved | 0 | 1 | – |" in page
    assert "| gap | 2 | -1 | – |" in page  # a ratio of opposite signs says nothing


def test_nothing_to_gather(tmp_path, capsys):
    with pytest.raises(QDFMError, match="qdfm reproduce"):
        gather(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), str(tmp_path / "page.md")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("qdfm: There is no */results.json in ")
    assert list(tmp_path.iterdir()) == []


def test_the_page_in_the_repository_is_what_its_results_say():
    assert (ROOT / "RESULTS.md").read_text() == gather(ROOT / "results")
