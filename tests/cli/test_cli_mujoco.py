"""The MuJoCo tasks and Minari sets on the command line: made, inspected, trained on and played."""

import json
import re
from pathlib import Path

import minari
import numpy as np
import pytest
from command_line import CLONE, TINY, refusal, save_agent
from PIL import Image

import qdfm
from qdfm.cli import main
from qdfm.data.actions import Discrete
from qdfm.data.builtin import QUICK_TRANSITIONS
from qdfm.data.spec import Spec
from qdfm.metrics import hypervolume
from qdfm.tasks import normalised


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Minari keeps a small set of hopper-medium."""
    folder = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        assert main(["data", "make", "hopper-medium", "--steps", "1500"]) == 0
    return folder


@pytest.fixture
def hopper(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(sets))


def test_a_task_is_made_as_a_minari_set(hopper, capsys):
    said = refusal(capsys, "data", "make", "hopper-medium", "--steps", "300")
    assert "renew it with qdfm data make hopper-medium --replace" in said
    assert main(["data", "make", "hopper-medium", "--steps", "1500", "--seed", "0", "--replace"]) == 0
    shown = capsys.readouterr().out
    rewards = [episode.rewards for episode in minari.load_dataset("qdfm/hopper/medium-v0") if any(episode.terminations)]
    mean = np.mean([r.sum() for r in rewards])
    score = 100 * (mean + 20.272305) / (3234.3 + 20.272305)
    numbers = f"mean return {mean:.1f}, normalised score {score:.1f}"
    assert shown == f"Wrote 1500 transitions, {numbers}, to the Minari set qdfm/hopper/medium-v0.\n"


def test_options_that_do_not_concern_a_source(hopper, capsys):
    assert "--out does not concern hopper-medium" in refusal(capsys, "data", "make", "hopper-medium", "--out", "x.npz")
    for option in ("bins", "codebook", "transitions"):
        said = refusal(capsys, "data", "inspect", "multigoal-2", f"--{option}", "5")
        assert f"{option} does not concern multigoal-2" in said
    for source in ("hopper-medium", "qdfm/hopper/medium-v0", "multigoal-2", "CartPole-v1"):
        said = refusal(capsys, "data", "inspect", source, "--columns.reward", "foo")
        assert f"columns does not concern {source}; leave it out" in said
        said = refusal(capsys, "data", "inspect", source, "--num-actions", "7")
        assert f"num_actions does not concern {source}; leave it out" in said
    both = refusal(capsys, "train", "hopper-medium", *CLONE, "--bins", "5", "--codebook", "5")
    assert "ways to discretise actions; give one" in both


def test_inspecting_continuous_data(hopper, capsys):
    for words, tokens in ((["--bins", "5"], "3 × 5"), (["--codebook", "7"], "1 × 7"), ([], "3 × 41")):
        assert main(["data", "inspect", "hopper-medium", "--transitions", "400", *words]) == 0
        out = capsys.readouterr().out
        assert re.search(rf"tokens × choices\s+{tokens}\s*$", out, re.MULTILINE), words
        assert re.search(r"^transitions\s+400\s*$", out, re.MULTILINE)


def test_training_on_a_task_and_on_its_set(hopper, capsys):
    words = [*CLONE, "--bins", "5", "--transitions", "600", "--episodes", "2"]
    assert main(["train", "hopper-medium", *words]) == 0
    told, saved, played, *compared = capsys.readouterr().out.splitlines()
    assert told.startswith("The data: 600 transitions, mean return [")
    assert saved == "Saved 1 agent(s) in runs/hopper-medium-bc."
    shown = json.loads(played)
    cells = {line.split("│")[1].strip(): line.split("│")[2:4] for line in compared if line.startswith("│")}
    few = qdfm.load_dataset("hopper-medium", transitions=600)
    ended = [e for e in set(few.episode.tolist()) if few.terminated[few.episode == e].any()]  # the others are cut off
    data = np.mean([few.reward[few.episode == e].sum() for e in ended])
    for row, mean in (("the data", data), ("drawn actions", shown["return_mean"][0])):
        assert [float(cell) for cell in cells[row]] == [
            pytest.approx(mean, rel=1e-3), pytest.approx(float(normalised("hopper-medium", mean)), abs=0.06)
        ]  # fmt: skip
    assert "most likely actions" in cells
    assert shown["score_mean"] == pytest.approx(float(normalised("hopper-medium", shown["return_mean"][0])))
    file = "runs/hopper-medium-bc/agent-0.safetensors"
    assert qdfm.load(file).spec.choices == (5, 5, 5)
    assert main(["evaluate", file, "--episodes", "2"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["env"] == "hopper-medium"
    assert again["score_mean"] == shown["score_mean"]  # both with seed 0

    assert main(["train", "qdfm/hopper/medium-v0", *words, "--out", "set"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[2])["return_mean"] == shown["return_mean"]
    assert main(["evaluate", "set/agent-0.safetensors", "--episodes", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["env"] == "Hopper-v5"  # which the set names


def test_averaged_actions_are_played_once(hopper, capsys):
    """They draw nothing, so that either way of playing gives what the one row says."""
    words = ["--bins", "5", "--transitions", "600", "--episodes", "2", "--averaged", "--out", "run"]
    assert main(["train", "hopper-medium", *TINY, *words]) == 0
    _, _, played, *compared = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in compared if line.startswith("│")]
    agent = qdfm.load("run/agent-0.safetensors")
    ways = [qdfm.evaluate(agent, "hopper-medium", 2, greedy=greedy, progress=False) for greedy in (False, True)]
    assert [json.loads(played)["return_mean"]] * 2 == [way.summary()["return_mean"] for way in ways]
    assert [name for name, _ in rows] == ["the data", "averaged actions"]
    assert float(rows[1][1]) == pytest.approx(ways[0].returns.mean(), rel=1e-3)


@pytest.mark.parametrize("source", ["hopper-medium", "qdfm/hopper/medium-v0"])
def test_a_log_is_read_with_the_actions_of_an_agent(hopper, capsys, source):
    """Few transitions, of which a codebook found anew would be another."""
    assert main(["train", "hopper-medium", *CLONE, "--codebook", "6", "--transitions", "900", "--episodes", "0"]) == 0
    file = "runs/hopper-medium-bc/agent-0.safetensors"
    words = ["evaluate", file, "--data", source, "--transitions", "400", "--steps", "2"]
    capsys.readouterr()
    assert main(words) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[0])
    agent = qdfm.load(file)
    centres = np.asarray(agent.spec.actions.centres, np.float32)
    taken = np.concatenate([episode.actions for episode in minari.load_dataset("qdfm/hopper/medium-v0")])[:400]
    seen = np.concatenate([episode.observations[:-1] for episode in minari.load_dataset("qdfm/hopper/medium-v0")])[:400]
    token = ((taken[:, None] - centres) ** 2).sum(2).argmin(1)
    p = agent.action_probabilities(seen)[np.arange(400), token]
    assert shown["log_prob_agent"] == pytest.approx(np.log(p).mean(), rel=1e-4)
    said = refusal(capsys, *words, "--bins", "5")
    assert "on 6 actions of a codebook but the data has 3 parts of 5 bins" in said


def test_a_quick_run_takes_at_most_100_000_transitions(hopper, monkeypatch, tmp_path, capsys):
    """The first of a set, however long that is, or newly collected where there is none."""
    asked = []

    def noted(name: str, **options: object) -> qdfm.Dataset:
        asked.append(options["transitions"])
        raise qdfm.QDFMError("Enough.")

    monkeypatch.setattr("qdfm.cli.common.load_dataset", noted)
    refusal(capsys, "train", "hopper-medium", "--quick")
    with monkeypatch.context() as long:
        long.setattr("qdfm.data.builtin.local_set", lambda name: {"total_steps": 1_000_000})
        refusal(capsys, "train", "hopper-medium", "--quick")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    refusal(capsys, "train", "hopper-medium", "--quick")
    refusal(capsys, "train", "hopper-medium", "--quick", "--transitions", "7")
    refusal(capsys, "train", "hopper-medium")
    refusal(capsys, "train", "multigoal-2", "--quick")
    refusal(capsys, "train", "mo-hopper-expert", "--quick")
    refusal(capsys, "train", "mo-hopper-expert")
    assert asked == [1500, QUICK_TRANSITIONS, QUICK_TRANSITIONS, 7, None, None, QUICK_TRANSITIONS, None]


def test_mo_hopper(capsys):
    """Made, inspected, trained on, and a front of three preferences where the data was played."""
    assert main(["data", "make", "mo-hopper-amateur", "--steps", "200", "--seed", "1"]) == 0
    made = capsys.readouterr().out
    with np.load("mo-hopper-amateur.npz") as file:
        lengths, rewards = file["lengths"], file["rewards"]
    mean = [round(float(r), 1) for r in rewards.astype(np.float64).sum(0) / len(lengths)]
    trajectories = f"{len(lengths)} trajectories, mean return {mean}"
    assert made == f"Wrote 200 transitions of {trajectories}, to mo-hopper-amateur.npz.\n"
    assert main(["data", "inspect", "mo-hopper-amateur.npz", "--bins", "5"]) == 0
    assert re.search(r"tokens × choices\s+3 × 5\s*$", capsys.readouterr().out, re.MULTILINE)
    assert main(["train", "mo-hopper-amateur", *CLONE, "--transitions", "200"]) == 0
    assert "play with qdfm evaluate --preference or qdfm pareto" in capsys.readouterr().out
    agent = "runs/mo-hopper-amateur-bc/agent-0.safetensors"
    assert main(["pareto", agent, "--preferences", "3", "--reference", "-500", "-500"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[0])
    rows = np.loadtxt("runs/mo-hopper-amateur-bc/agent-0-front.csv", delimiter=",", skiprows=1)
    swept = qdfm.sweep(qdfm.load(agent), "mo-hopper-d4morl", rows[:, :2], progress=False)
    np.testing.assert_allclose(swept.returns, rows[:, 2:4])
    assert shown["hypervolume"] == pytest.approx(hypervolume(swept.returns, [-500, -500]))
    said = refusal(capsys, "data", "make", "mo-hopper-amateur", "--steps", "200")
    assert "mo-hopper-amateur.npz is already there; renew it with --replace, or give another --out." in said


def test_an_episode_to_look_at(capsys):
    agent = str(save_agent(Path("agent.safetensors"), Spec((4,), Discrete(2))))
    words = ["evaluate", agent, "--env", "CartPole-v1", "--episodes", "1", "--seed", "5"]
    assert main([*words, "--video", "films/cart.png"]) == 0
    shown, wrote = capsys.readouterr().out.splitlines()
    length = int(json.loads(shown)["length_mean"])
    assert wrote == f"Wrote an episode of {length} steps, return {length}, to films/cart.png."
    assert Image.open("films/cart.png").size == (8 * 240, 160)  # eight moments of 600 × 400, made smaller
    assert "Unknown kind of film '.avi'" in refusal(capsys, *words, "--video", "cart.avi")
    words[3] = "multigoal-4"  # where this agent cannot even play
    assert "multigoal-4 draws no pictures" in refusal(capsys, *words, "--video", "grid.gif")


def test_where_and_by_how_many_an_agent_plays(capsys):
    agent = str(save_agent(Path("agent.safetensors"), Spec((4,), Discrete(2))))
    words = ["evaluate", agent, "--episodes", "1", "--env"]
    said = refusal(capsys, *words, "hopper-medum")
    assert "Unknown environment 'hopper-medum'; did you mean 'hopper-medium'?" in said
    words.append("CartPole-v1")
    assert "workers is 0" in refusal(capsys, *words, "--workers", "0")
