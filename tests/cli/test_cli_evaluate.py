"""qdfm evaluate: what it prints, and checkpoints, places and preferences that it refuses."""

import json
from pathlib import Path

import pytest
from command_line import refusal, save_agent, table
from safetensors.numpy import load_file, save_file

import qdfm
from qdfm.checkpoint import FORMAT_VERSION
from qdfm.cli import main
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.multigoal import MultiGoal
from qdfm.envs.registry import ENVIRONMENTS


def test_evaluate_prints_one_object(run, capsys):
    file = str(run / "agent-0.safetensors")
    assert main(["evaluate", file, "--episodes", "20", "--seed", "3"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["env"] == "multigoal-4"  # from the folder's name
    assert shown["algorithm"] == "qdfm"
    assert shown["greedy"] is False
    assert shown["episodes"] == 20
    same = qdfm.evaluate(qdfm.load(file), "multigoal-4", 20, seed=3)
    assert shown["return_mean"] == [same.returns.mean()]
    assert shown["length_mean"] == same.lengths.mean()


def test_evaluate_greedily_somewhere_else(run, capsys):
    file = str(run / "agent-0.safetensors")
    words = ["--env", "multigoal-2", "--episodes", "4", "--greedy", "--preference", "1"]
    assert main(["evaluate", file, *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["env"] == "multigoal-2"
    assert shown["greedy"] is True
    assert shown["return_std"] == [0.0]  # nothing is random


def test_evaluate_with_a_discount(run, capsys):
    file = str(run / "agent-0.safetensors")
    assert main(["evaluate", file, "--episodes", "20", "--seed", "3", "--gamma", "0.9"]) == 0
    shown = json.loads(capsys.readouterr().out)
    plain = qdfm.evaluate(qdfm.load(file), "multigoal-4", 20, seed=3)
    # All of an episode's reward comes in its last step.
    assert shown["return_mean"] == pytest.approx([(0.9 ** (plain.lengths - 1) * plain.returns[:, 0]).mean()])


def test_damaged_checkpoints(run, capsys):
    content = (run / "agent-0.safetensors").read_bytes()
    flipped = bytearray(content)
    flipped[12] ^= 0xFF
    cut = [content[:length] for length in (0, 7, 100, len(content) // 2, len(content) - 1)]
    for damaged in (*cut, bytes(flipped), b"x" * 99):
        Path("x.safetensors").write_bytes(damaged)
        said = refusal(capsys, "evaluate", "x.safetensors", "--env", "multigoal-4")
        assert "x.safetensors is corrupt or no safetensors file; train the agent again." in said


def test_other_checkpoints(run, capsys):
    arrays = load_file(run / "agent-0.safetensors")
    meta = {"format": "qdfm-agent", "version": "99", "qdfm": "9.9", "header": "{}"}
    for metadata, says in (
        (None, "is not a qdfm agent but another program"),
        ({"format": "pt"}, "is not a qdfm agent but pt."),
        (meta, "was written by qdfm 9.9, which is newer than this; upgrade qdfm."),
        ({**meta, "version": "one"}, "has a damaged header"),
        ({**meta, "version": "1"}, "was written by an older qdfm (9.9) whose networks were others; train it again"),
        ({**meta, "version": str(FORMAT_VERSION)}, "Unknown algorithm"),
    ):
        save_file(arrays, "x.safetensors", metadata)
        assert says in refusal(capsys, "evaluate", "x.safetensors", "--env", "multigoal-4")
    state = run / "state.safetensors"
    assert "is not a qdfm agent but qdfm-state" in refusal(capsys, "evaluate", state, "--env", "multigoal-4")
    assert "There is no file nothing" in refusal(capsys, "evaluate", "nothing", "--env", "multigoal-4")
    assert f"such as {run}/agent-0.safetensors." in refusal(capsys, "evaluate", run)


def test_checkpoints_of_another_world(capsys):
    narrow = save_agent(Path("narrow.safetensors"), Spec((3,), Discrete(4)))
    said = refusal(capsys, "evaluate", narrow, "--env", "multigoal-4")
    assert "observations of shape (3,) but the environment has (22,)" in said
    two = save_agent(Path("two.safetensors"), Spec((22,), Discrete(4), objectives=2))
    words = ("evaluate", two, "--env", "multigoal-4")
    assert "objectives 2 but the environment has 1" in refusal(capsys, *words, "--preference", "0.5", "0.5")


def test_where_to_play(run, capsys):
    agent = save_agent(Path("agent.safetensors"), MultiGoal(4).spec)
    assert "does not say where to play; give --env NAME." in refusal(capsys, "evaluate", agent)
    said = refusal(capsys, "evaluate", agent, "--env", "multigoal4")
    assert "Unknown environment 'multigoal4'; did you mean 'multigoal-4'?" in said
    assert "give at least 1" in refusal(capsys, "evaluate", agent, "--env", "multigoal-4", "--episodes", "0")


@pytest.mark.parametrize(
    ("preference", "says"),
    [
        (["-1"], "has a negative entry"),
        (["0.5"], "does not sum to 1"),
        (["0.5", "0.5"], "has 2 entries but the reward has 1 objectives"),
        (["nan"], "NaN or infinite"),
    ],
)
def test_preferences_that_are_none(run, capsys, preference, says):
    assert says in refusal(capsys, "evaluate", run / "agent-0.safetensors", "--preference", *preference)


@pytest.mark.parametrize(
    ("preference", "says"),
    [
        ([], "give weights that sum to 1, such as preference=[1, 0] (on the command line --preference 1 0)."),
        (["--preference", "-0.5", "1.5"], "has a negative entry"),
        (["--preference", "0.5", "0.6"], "does not sum to 1"),
        (["--preference", "1"], "has 1 entries but the reward has 2 objectives"),
    ],
)
def test_preferences_over_two_objectives(capsys, monkeypatch, preference, says):
    class Twofold(MultiGoal):
        """The grid, which claims a second objective."""

        spec = Spec((22,), Discrete(4), objectives=2)

    monkeypatch.setitem(ENVIRONMENTS, "twofold", lambda: Twofold(4))
    agent = save_agent(Path("agent.safetensors"), Twofold.spec)
    assert says in refusal(capsys, "evaluate", agent, "--env", "twofold", *preference)


def test_evaluate_by_a_log(run, capsys):
    data = qdfm.load_dataset("multigoal-4")
    data[data.episode < 30].save("log.npz")
    file = run / "agent-0.safetensors"
    assert main(["evaluate", str(file), "--data", "log.npz", "--steps", "2", "--seed", "3"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    shown = json.loads(first)
    found = qdfm.estimate(qdfm.load(file), qdfm.load_dataset("log.npz"), seed=3, steps=2, progress=False)
    assert shown == {"data": "log.npz", "algorithm": "qdfm", "preference": None, **found.summary()}
    assert shown["gamma"] == 0.99
    text = "\n".join(rows)
    for name, value in (("log", "log_return"), ("importance sampling", "importance"), ("fitted Q", "fitted")):
        assert f"{shown[value][0]:.4g}" in next(row for row in rows if name in row and "│" in row)
    assert ("means little" in text) == (found.effective_episodes < 10)


def test_evaluate_by_a_table_that_shows_few_choices_and_few_episodes(capsys):
    agent = save_agent(Path("agent.safetensors"), Spec((1,), Discrete(4)))
    table("log.csv", "patient,x,dose,reward", "a,0.5,0,1", "a,0.1,1,2", "b,0.3,1,3", "c,0.2,0,5")
    words = ["--columns.observation", "x", "--columns.action", "dose", "--columns.episode", "patient"]
    assert main(["evaluate", str(agent), "--data", "log.csv", *words, "--gamma", "0.5", "--steps", "2"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert json.loads(first)["log_return"] == pytest.approx([(1 + 0.5 * 2 + 3 + 5) / 3])
    assert any("3.333" in row for row in rows)
    said = f"The effective sample size is {json.loads(first)['effective_episodes']:.1f} episodes, below 10: the figure"
    assert rows[-1] == f"{said} by importance sampling means little."


def test_options_that_have_no_effect(run, capsys):
    agent = run / "agent-0.safetensors"
    for words, says in (
        (["--data", "log.csv", "--env", "multigoal-4"], "--env concerns playing; leave it out, or --data."),
        (["--data", "log.csv", "--greedy"], "--greedy concerns playing"),
        (["--data", "log.csv", "--episodes", "7"], "--episodes concerns playing"),
        (["--steps", "7"], "--steps and the options of a log concern estimates; give the log as --data"),
        (["--columns.action", "dose"], "--steps and the options of a log concern estimates"),
    ):
        assert says in refusal(capsys, "evaluate", agent, *words)
    assert "There is no file nothing.csv" in refusal(capsys, "evaluate", agent, "--data", "nothing.csv")
