"""qdfm reproduce: what an experiment writes, and how it goes on."""

import json
import shlex
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command_line import png_size, refusal

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import BC, Config, GreedyQ
from qdfm.cli import main
from qdfm.experiments import multigoal


@pytest.fixture
def tiny_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"batch_size": 8, "hidden": (16,)}
    greedy = GreedyQ(clone_steps=40, critic_steps=40, **small)
    methods = {"BC": BC(clone_steps=40, **small), "GreedyQ": greedy}
    monkeypatch.setattr(multigoal, "METHODS", methods)
    monkeypatch.setattr(multigoal, "QUICK_METHODS", tuple(methods))
    monkeypatch.setattr(multigoal, "QUICK_SHARE", 0.05)


def test_reproduce(tiny_experiment, monkeypatch, capsys):
    assert main(["reproduce", "multigoal", "--quick", "--out", "r"]) == 0
    assert "Wrote cells.jsonl, multigoal.png, results.json, table.md to r." in capsys.readouterr().out
    written = json.loads(Path("r/results.json").read_text())
    made, results = written["provenance"], written["results"]
    assert made["command"] == "qdfm reproduce multigoal --quick --seeds 1"
    assert made["seeds"] == [0]
    assert made["steps"] == {"BC": 2, "GreedyQ": 4}
    assert made["commit"]
    assert made["device"].startswith(jax.default_backend())
    assert made["versions"]["qdfm"] == qdfm.__version__
    assert results.keys() == {"BC", "GreedyQ"}
    (row,) = results["BC"]["4"]["seeds"]
    assert sum(row["exact_shares"]) + row["exact_trap"] <= 1 + 1e-6
    # An episode visits the start at least once, and every step is a visit: at most 61 in all.
    visits = np.array(results["BC"]["4"]["visits"])
    assert visits[0, 5] >= 1
    assert 4 <= visits.sum() <= 61
    text = Path("r/table.md").read_text()
    greedy = next(line for line in text.splitlines() if line.startswith("| GreedyQ "))
    assert greedy.endswith("| -6.00 ± 5.5 / 0.00 |")  # the paper's figure for K = 4
    cloned = next(line for line in text.splitlines() if line.startswith("| BC "))
    numbers = (row["return"], row["coverage"], 100 * row["trap"])
    assert cloned.startswith("| BC | " + " | ".join(f"{x:.2f}" for x in numbers) + " |")
    assert "| KL optimum | 10.00 |" in text
    width, height = png_size(Path("r/multigoal.png"))
    assert width > height > 100

    # Going on computes nothing that is there, and only what is missing.
    trained = []
    train = multigoal.train

    def noted(config: Config, *args: Any, **options: Any) -> list[Agent]:
        trained.append(config.name)
        return train(config, *args, **options)

    monkeypatch.setattr(multigoal, "train", noted)
    before = Path("r/cells.jsonl").read_bytes()
    assert main(["reproduce", "multigoal", "--quick", "--out", "r", "--resume"]) == 0
    assert trained == []
    assert Path("r/cells.jsonl").read_bytes() == before
    assert json.loads(Path("r/results.json").read_text())["results"] == results
    lines = before.splitlines(keepends=True)
    Path("r/cells.jsonl").write_bytes(lines[1])
    assert main(["reproduce", "multigoal", "--quick", "--out", "r", "--resume"]) == 0
    assert trained == ["bc"]
    again = json.loads(Path("r/results.json").read_text())["results"]
    assert again["BC"]["4"]["seeds"] == results["BC"]["4"]["seeds"]


def test_reproduce_some_methods_and_seeds_by_the_command_that_it_notes(tiny_experiment, monkeypatch):
    monkeypatch.setattr(multigoal, "METHODS", {name: BC(hidden=(16,), clone_steps=1) for name in "ABC"})
    assert main(["reproduce", "multigoal", "--quick", "--only", "A", "B", "--seeds", "2", "--out", "r"]) == 0
    written = json.loads(Path("r/results.json").read_text())
    assert written["results"].keys() == {"A", "B"}
    assert [len(cell["4"]["seeds"]) for cell in written["results"].values()] == [2, 2]
    command = written["provenance"]["command"].split()
    assert command[0] == "qdfm"
    assert main([*command[1:], "--out", "s"]) == 0
    repeated = json.loads(Path("s/results.json").read_text())
    for name in "AB":
        assert repeated["results"][name]["4"]["seeds"] == written["results"][name]["4"]["seeds"]


def test_a_second_run_neither_destroys_nor_repeats_the_first(tiny_experiment, capsys):
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}

    quick = ["reproduce", "multigoal", "--quick", "--only", "BC"]
    assert main([*quick, "--resume"]) == 0  # with nothing there it begins
    before = files()
    assert {path.parent for path in before} == {Path("runs/reproduce-multigoal-quick")}  # a full run goes elsewhere
    said = refusal(capsys, *quick)
    assert "runs/reproduce-multigoal-quick already holds finished cells; go on with --resume" in said
    assert files() == before
    assert main([*quick, "--resume"]) == 0
    assert files() == before


@pytest.mark.parametrize(
    "words",
    [
        ("divisions", "--only", "bins-9", "BC"),
        ("smax", "--only", "2s3z", "medium-replay", "QDFM, qmix"),
        ("mujoco", "--only", "tokens", "CQL"),
        ("ablations", "--only", "inference", "hopper-medium"),
        ("ablations", "--quick", "--only", "inference"),
        ("runtime", "--only", "schedule", "scaling", "CQL"),
    ],
)
def test_names_that_select_nothing_together(words, capsys):
    said = refusal(capsys, "reproduce", *words)
    options = shlex.join(words[1:])
    assert said == f"qdfm: {options} selects nothing that this experiment tries; name others, or fewer.\n"
    assert list(Path().iterdir()) == []


def test_an_experiment_without_seeds(capsys):
    for seeds in ("0", "-1"):
        said = refusal(capsys, "reproduce", "multigoal", "--quick", "--out", "x", "--seeds", seeds)
        assert f"--seeds is {seeds}; give at least 1." in said


def test_a_place_that_cannot_be_written(capsys):
    Path("file").touch()
    said = refusal(capsys, "reproduce", "multigoal", "--quick", "--out", "file/r")
    assert "Cannot write to file/r (Not a directory)" in said
