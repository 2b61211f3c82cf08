"""What an experiment leaves behind: tables, provenance, files."""

import json
import subprocess
import sys
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import jax
import numpy as np

import qdfm
from qdfm.experiments import report
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.report import Headline, Table, finish, made_here, provenance, write_report


def test_a_table_as_markdown_and_on_the_terminal(capsys):
    table = Table("Two", ("method", "return"))
    table.add("QDFM", 1.5)
    table.add("BC", "−2.00 ± 0.10")
    assert table.markdown() == ("### Two\n\n| method | return |\n|---|---|\n| QDFM | 1.5 |\n| BC | −2.00 ± 0.10 |\n")
    table.show()
    shown = capsys.readouterr().out
    assert "−2.00 ± 0.10" in shown
    assert "method" in shown


def test_provenance_names_what_a_result_was_made_with(monkeypatch):
    monkeypatch.delenv("QDFM_COMMIT", raising=False)
    made = provenance("qdfm reproduce x", seeds=[0, 1])
    assert made["command"] == "qdfm reproduce x"
    assert made["seeds"] == [0, 1]
    assert made["device"].startswith(jax.default_backend())
    assert made["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert made["versions"]["jax"] == jax.__version__
    assert made["versions"]["numpy"] == np.__version__
    for name in ("gymnasium", "mujoco", "minari"):
        assert made["versions"][name] == import_module(name).__version__
    assert {"jaxmarl", "mo-gymnasium"} <= made["versions"].keys()
    here = Path(qdfm.__file__).parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True)
    if head.returncode:
        assert made["commit"] == "unknown"
        return
    name = made["commit"].removesuffix("-dirty") + "^{commit}"
    named = subprocess.run(["git", "rev-parse", name], cwd=here, capture_output=True, text=True, check=True)
    assert named.stdout == head.stdout


def test_what_is_not_installed_has_no_version(monkeypatch):
    def version(name: str) -> str:
        if name in ("mujoco", "minari"):
            raise PackageNotFoundError(name)
        return "1.2"

    monkeypatch.setattr("qdfm.experiments.report.version", version)
    versions = made_here()["versions"]
    assert {name for name, shown in versions.items() if shown == "1.2"} == {
        "jax", "equinox", "optax", "numpy", "gymnasium", "jaxmarl", "mo-gymnasium",
    }  # fmt: skip
    assert set(versions).isdisjoint(("mujoco", "minari"))


def test_what_cells_were_made_with_is_merged():
    """By two machines, of which one lacks a package; the process that draws the table made nothing of it."""
    cells = [
        {"made": {"commit": commit, "device": "cpu: x", "versions": {"qdfm": "0.1", "jax": jax_, **more}}}
        for commit, jax_, more in (("b", "0.11", {}), ("a", "0.10", {"minari": "0.5"}), ("b", "0.11", {}))
    ]
    assert provenance("x", cells, seeds=[0]) == {
        "command": "x",
        "commit": "a, b",
        "device": "cpu: x",
        "versions": {"qdfm": "0.1", "jax": "0.10, 0.11", "minari": "0.5"},
        "seeds": [0],
    }


def test_no_git_no_commit(monkeypatch):
    monkeypatch.setattr(report, "checkout", lru_cache(report.checkout.__wrapped__))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("QDFM_COMMIT", raising=False)
    assert provenance("x")["commit"] == "unknown"
    monkeypatch.setenv("QDFM_COMMIT", "abc123")
    assert provenance("x")["commit"] == "abc123"
    assert provenance("x", commit="def456")["commit"] == "def456"  # a fact overrules


def test_a_process_has_one_commit_whatever_changes_under_it(monkeypatch):
    monkeypatch.delenv("QDFM_COMMIT", raising=False)
    monkeypatch.setattr(report, "checkout", lru_cache(report.checkout.__wrapped__))
    first = provenance("x")["commit"]
    monkeypatch.setenv("PATH", "")  # git could not be asked again
    assert provenance("x")["commit"] == first


def test_a_commit_is_dirty_where_the_code_is_changed_not_the_results(tmp_path, monkeypatch):
    monkeypatch.delenv("QDFM_COMMIT", raising=False)

    def git(*words: str) -> str:
        person = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        done = subprocess.run(["git", *person, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    for name in ("src/deep/code.py", "results/table.md", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    git("init")
    git("add", "-A")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")[:12]
    code = tmp_path / "src" / "deep"
    (tmp_path / "results" / "table.md").write_text("second")
    assert report.checkout.__wrapped__(code) == head
    for name in ("src/deep/code.py", "pyproject.toml"):
        (tmp_path / name).write_text("second")
        assert report.checkout.__wrapped__(code) == f"{head}-dirty"
        (tmp_path / name).write_text("first")
    (code / "new.py").write_text("")
    assert report.checkout.__wrapped__(code) == f"{head}-dirty"


def test_a_report_on_disk(tmp_path):
    table = Table("T", ("a",))
    table.add("b")
    made = provenance("qdfm reproduce x", seeds=[0])
    write_report(tmp_path, "Heading", made, {"r": 1}, [table, table], "Notes here.", [Headline("x", 3.0, 2.0)])
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "heading": "Heading",
        "provenance": made,
        "headlines": [{"what": "x", "ours": 3.0, "paper": 2.0}],
        "results": {"r": 1},
    }
    text = (tmp_path / "table.md").read_text()
    assert text.startswith("# Heading\n\n`qdfm reproduce x`\n")
    assert text.count(table.markdown()) == 2
    assert "Notes here." in text
    assert "seeds [0]" in text


def test_the_end_of_a_run(tmp_path, capsys):
    cells = Cells(Settings(tmp_path))
    results = {"r": cells.get({"a": 1}, lambda: {"value": 2.0})["value"]}
    table = Table("T", ("a",))
    table.add("b")
    finish(cells, "qdfm reproduce x", "Heading", results, [table], "Notes.", [Headline("x", 3.0)], "Own.", seeds=[0])
    assert "T" in capsys.readouterr().out
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["provenance"] == provenance("qdfm reproduce x", cells.used, seeds=[0])
    assert (written["results"], written["source"]) == ({"r": 2.0}, "Own.")
    assert table.markdown() in (tmp_path / "table.md").read_text()
