"""qdfm pareto: the front of an agent, its files and measures, and agents that have none."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import CLONE, png_size, refusal, save_agent

from qdfm.cli import main
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec

SEA = Spec((2,), Discrete(4), objectives=2)


def test_training_in_an_id_and_its_front(capsys):
    assert main(["train", "deep-sea-treasure-v0", *CLONE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Saved 1 agent(s) in runs/deep-sea-treasure-v0-bc."
    assert "follow a preference" in lines[2]
    run = Path("runs/deep-sea-treasure-v0-bc")
    words = ["pareto", str(run / "agent-0.safetensors"), "--preferences", "3", "--episodes", "2", "--sampled"]
    assert main([*words, "--gamma", "0.9", "--reference", "0", "-50"]) == 0
    shown, wrote = capsys.readouterr().out.splitlines()
    measures = json.loads(shown)
    assert wrote == f"Wrote agent-0-front.png and agent-0-front.csv to {run}."
    assert (measures["env"], measures["algorithm"]) == ("deep-sea-treasure-v0", "bc")
    assert (measures["preferences"], measures["episodes"], measures["greedy"]) == (3, 2, False)
    table = np.genfromtxt(run / "agent-0-front.csv", delimiter=",", names=True)
    assert table["preference_1"].tolist() == [0, 0.5, 1]
    kept = table[table["non_dominated"] == 1]
    assert measures["non_dominated"] == len(kept)
    # The area between the reference and a staircase, strip by strip from the largest treasure down.
    order = kept[np.argsort(-kept["return_1"])]
    heights = np.diff(np.r_[-50, order["return_2"]])
    assert measures["hypervolume"] == pytest.approx((order["return_1"] * heights).sum())
    assert min(png_size(run / "agent-0-front.png")) > 100


def test_the_front_of_an_agent_elsewhere(capsys):
    agent = save_agent(Path("agent.safetensors"), SEA)
    words = ["pareto", str(agent), "--env", "deep-sea-treasure-v0", "--preferences", "4", "--out", "new/front"]
    assert main(words) == 0
    shown, single, said, _ = capsys.readouterr().out.splitlines()
    assert "Each point is a single episode" in single
    assert "worst of the sweep minus 10 % of its range" in said
    table = np.genfromtxt("new/front/agent-front.csv", delimiter=",", names=True)
    for i, reference in enumerate(json.loads(shown)["reference"]):
        returns = table[f"return_{i + 1}"]
        assert reference == pytest.approx(returns.min() - 0.1 * (np.ptp(returns) or 1.0))
    utility = sum(table[f"preference_{i}"] * table[f"return_{i}"] for i in (1, 2)).mean()
    assert json.loads(shown)["mean_utility"] == pytest.approx(utility)


def test_agents_that_have_no_front(run, capsys):
    assert "has one objective" in refusal(capsys, "pareto", run / "agent-0.safetensors")
    fixed = save_agent(Path("fixed.safetensors"), SEA, (0.5, 0.5))
    said = refusal(capsys, "pareto", fixed, "--env", "deep-sea-treasure-v0")
    assert "trained for the preference [0.5, 0.5] only" in said
    free = save_agent(Path("free.safetensors"), SEA)
    assert "does not say where to play" in refusal(capsys, "pareto", free)
    sea = ("pareto", free, "--env", "deep-sea-treasure-v0")
    assert "--reference has 3 numbers; give 2" in refusal(capsys, *sea, "--reference", "0", "0", "0")
    assert "1 preferences cannot hold" in refusal(capsys, *sea, "--preferences", "1")
    Path("file").touch()
    assert "Cannot create file/x" in refusal(capsys, *sea, "--out", "file/x")
