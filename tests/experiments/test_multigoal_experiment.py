"""The multigoal experiment: judging policies whose numbers are known, cells, tables and provenance."""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import ALGORITHMS, Config
from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.critic import CriticConfig
from qdfm.algorithms.guidedcritic import GuidedConfig
from qdfm.data.spec import Spec
from qdfm.envs.exact import kl_optimum
from qdfm.envs.grid import behaviour
from qdfm.envs.multigoal import MultiGoal
from qdfm.errors import QDFMError
from qdfm.experiments import report
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.multigoal import METHODS, PAPER, QUICK_METHODS, judge, optimum
from qdfm.experiments.report import Headline, Table, made_here, provenance, write_report

UP, DOWN, LEFT, RIGHT = np.eye(4)


@dataclass(frozen=True)
class Given(Config):
    """A policy that is a table of probabilities [121, 4] over the cells of the grid."""

    name = "given"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def probs(table: Any, observation: Any, preference: Any, mask: Any) -> Any:
            return table[11 * observation[:, 11:].argmax(1) + observation[:, :11].argmax(1)]

        def act(table, noise, observation, preference, mask, carry, greedy=False):
            p = probs(table, observation, preference, mask)
            drawn = (noise >= jnp.cumsum(p, 1)[:, :-1]).sum(1)
            return (p.argmax(1) if greedy else drawn)[:, None].astype(jnp.int32), carry

        return Algorithm(lambda key: jnp.zeros((121, 4)), (), lambda state: state, act, 1, probs)


def given(table: np.ndarray, goals: int = 4) -> Agent:
    return Agent(Given(), MultiGoal(goals).spec, jnp.asarray(table, jnp.float32))


# judge


def test_the_optimum_itself_has_no_gap_and_no_trap():
    data = qdfm.load_dataset("multigoal-4")
    judged = judge(
        given(kl_optimum(MultiGoal(4).table(), behaviour(MultiGoal(4), data), beta=5.0, gamma=0.99)), 4, seed=0
    )
    assert judged["share_gap"] == pytest.approx(0, abs=1e-6)
    assert judged["exact_trap"] == 0
    assert judged["exact_return"] == pytest.approx(10, abs=1e-5)
    assert judged["return"] == 10
    assert judged["coverage"] == 1
    assert judged["trap"] == 0
    assert judged["greedy_return"] == 10
    assert judged["greedy_coverage"] == 0.25  # one walk finds one goal


def test_walking_straight_up_is_the_trap():
    judged = judge(given(np.tile(UP, (121, 1))), 4, seed=0, episodes=20)
    assert judged["exact_shares"] == [0, 0, 0, 0]
    assert judged["share_gap"] == pytest.approx(max(optimum(4)["shares"]))
    for prefix in ("", "greedy_"):
        assert judged[f"{prefix}return"] == -10
        assert judged[f"{prefix}trap"] == 1
        assert judged[f"{prefix}coverage"] == 0
    assert judged["exact_trap"] == 1


def test_a_policy_of_two_goals():
    table = np.tile(UP, (121, 1))
    table[5] = 0.25 * LEFT + 0.75 * RIGHT  # the start, (5, 0)
    table[4], table[6] = LEFT, RIGHT  # on to the columns of the goals at x = 3 and x = 7
    judged = judge(given(table), 4, seed=0, episodes=400)
    np.testing.assert_allclose(judged["exact_shares"], [0, 0.25, 0.75, 0])
    best = np.array(optimum(4)["shares"])
    assert judged["share_gap"] == pytest.approx(np.abs(best - [0, 0.25, 0.75, 0]).max())
    assert judged["coverage"] == 0.5
    assert judged["greedy_coverage"] == 0.25
    assert judged["return"] == judged["exact_return"] == 10


@pytest.mark.parametrize("goals", [2, 3, 4, 5])
def test_the_optimum_reaches_every_goal_and_nothing_else(goals):
    best = optimum(goals)
    assert sum(best["shares"]) == pytest.approx(1)
    assert min(best["shares"]) > 0.05
    # The grid is symmetric, the data nearly so.
    np.testing.assert_allclose(best["shares"], best["shares"][::-1], atol=0.1)
    assert best["trap"] == 0
    assert best["return"] == pytest.approx(10)


def test_methods_are_all_compared_under_the_same_guidance():
    assert set(QUICK_METHODS) <= set(METHODS)
    assert set(PAPER) <= set(METHODS)
    alone = {name for name, c in ALGORITHMS.items() if not (c.teams_only or c.preferences_only)}
    assert {config.name for config in METHODS.values()} == alone
    guided = [config for config in METHODS.values() if isinstance(config, GuidedConfig)]
    valued = [config for config in METHODS.values() if isinstance(config, CriticConfig)]
    for configs, field in (
        (guided, "beta"), (guided, "beta_scale"), (guided, "critic_steps"), (valued, "gamma"),
        (valued, "critic_learning_rate"), (METHODS.values(), "batch_size"), (METHODS.values(), "hidden"),
    ):  # fmt: skip
        assert len({getattr(config, field) for config in configs}) == 1
    spec = MultiGoal(4).spec
    for name, config in METHODS.items():
        if not name.startswith("QDFM"):
            assert sum(phase.steps for phase in config.build(spec).phases) == 30_000  # as the paper's baselines


# Cells


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


def test_without_resume_cells_start_anew(tmp_path):
    calls: list[float] = []
    Cells(Settings(tmp_path)).get({"a": 1}, compute(1.0, calls))
    Cells(Settings(tmp_path)).get({"a": 1}, compute(2.0, calls))
    assert calls == [1.0, 2.0]
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 1


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


def test_cells_in_an_unwritable_place(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(QDFMError, match=r"Cannot write to .*Not a directory"):
        Cells(Settings(tmp_path / "file" / "below"))


# Reports


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
        "jax", "equinox", "optax", "numpy", "gymnasium",
    }  # fmt: skip
    assert set(versions).isdisjoint(("mujoco", "minari"))


def test_no_git_no_commit(monkeypatch):
    monkeypatch.setattr(report, "_checkout", lru_cache(report._checkout.__wrapped__))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("QDFM_COMMIT", raising=False)
    assert provenance("x")["commit"] == "unknown"
    monkeypatch.setenv("QDFM_COMMIT", "abc123")
    assert provenance("x")["commit"] == "abc123"
    assert provenance("x", commit="def456")["commit"] == "def456"  # a fact overrules


def test_a_process_has_one_commit_whatever_changes_under_it(monkeypatch):
    monkeypatch.delenv("QDFM_COMMIT", raising=False)
    monkeypatch.setattr(report, "_checkout", lru_cache(report._checkout.__wrapped__))
    first = provenance("x")["commit"]
    monkeypatch.setenv("PATH", "")  # git could not be asked again
    assert provenance("x")["commit"] == first


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
