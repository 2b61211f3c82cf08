"""qdfm train: what a run leaves behind, its options, and one sentence for every mistake."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CLONE, TINY, again, refusal, table

import qdfm
from qdfm.cli import main, train
from qdfm.envs.multigoal import MultiGoal
from qdfm.errors import Diverged


def test_options_follow_the_algorithm(capsys):
    for words, there, absent in (
        (["--algo", "bc"], "--clone-steps", "--improve-steps"),
        (["--algo=GreedyQ"], "--critic-steps", "--improve-steps"),
        (["--algo=qdfm"], "--improve-steps", "--tokens"),
    ):
        with pytest.raises(SystemExit):
            main(["train", *words, "--help"])
        out = capsys.readouterr().out
        assert there in out
        assert absent not in out


def test_what_a_run_leaves_behind(run):
    agents = {"agent-0.safetensors", "agent-1.safetensors"}
    assert {f.name for f in run.iterdir()} == {"config.json", "metrics.jsonl", "state.safetensors", *agents}
    config = json.loads((run / "config.json").read_text())
    assert config["schema"] == 1
    assert config["algorithm"] == "qdfm"
    assert config["seeds"] == [0, 1]
    assert config["config"]["hidden"] == [16]
    assert config["config"]["batch_size"] == 8
    assert config["spec"]["observation_shape"] == [22]


def test_metrics_have_a_line_per_chunk_and_seed(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    phases = ("warmup", "critic", "improve")
    expected = [(phase, step, seed) for phase in phases for step in (1, 2) for seed in (0, 1)]
    assert [(row["phase"], row["step"], row["seed"]) for row in rows] == expected
    assert all(np.isfinite(row["loss"]) for row in rows)
    assert len({row["loss"] for row in rows}) > 6  # seeds and steps differ


def test_agents_of_different_seeds_differ_and_load(run):
    first, second = (qdfm.load(run / f"agent-{seed}.safetensors") for seed in (0, 1))
    x = MultiGoal(4).observation(np.array([5, 0]))
    assert first.config.hidden == (16,)
    assert not np.array_equal(first.action_probabilities(x), second.action_probabilities(x))


def test_resuming_a_finished_run_changes_nothing(run, capsys):
    before = {f.name: f.read_bytes() for f in run.iterdir()}
    (run / "agent-1.safetensors").unlink()
    assert main(again(run, "--resume")) == 0
    assert {f.name: f.read_bytes() for f in run.iterdir()} == before
    assert f"Saved 2 agent(s) in {run}." in capsys.readouterr().out


def test_training_on_a_file_and_playing_at_the_end(capsys):
    assert main(["train", "multigoal-4", *CLONE, "--episodes", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Saved 1 agent(s) in runs/multigoal-4-bc." and lines[1].startswith("The data: ")
    assert json.loads(lines[2])["episodes"] == 3
    rows = [f"{i},{i % 3},{i % 2},{int(i == 5)}" for i in range(6)]
    log = table("my log.csv", "obs,action,reward,terminated", *rows)
    assert main(["train", log, *CLONE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Saved 1 agent(s) in runs/my log-bc."
    assert lines[1:] == ["The data: 6 transitions, mean return [3.0]."]  # 0 + 1 + 0 + 1 + 0 + 1
    assert qdfm.load("runs/my log-bc/agent-0.safetensors").spec.normalisation.observation_mean == (2.5,)


def test_quick_takes_a_tenth_of_the_default_steps_but_not_of_given_ones():
    words = ["--algo", "boltzbc", "--batch-size", "8", "--hidden", "16", "--clone-steps", "4", "--quick"]
    assert main(["train", "multigoal-4", *words, "--episodes", "0", "--out", "q"]) == 0
    config = json.loads(Path("q/config.json").read_text())["config"]
    assert (config["clone_steps"], config["critic_steps"]) == (4, 4_000)
    assert json.loads(Path("q/metrics.jsonl").read_text().splitlines()[-1])["step"] == 4_000


def test_divergence_has_its_own_exit_code(monkeypatch, capsys):
    def diverge(*_: Any, **__: Any) -> None:
        raise Diverged("loss became non-finite in phase critic.")

    monkeypatch.setattr("qdfm.cli.train.train", diverge)
    assert main(["train", "multigoal-4", *CLONE]) == 3
    assert capsys.readouterr().err == "qdfm: loss became non-finite in phase critic.\n"


def test_an_interrupted_run_exits_as_shells_expect(monkeypatch, capsys):
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["qdfm.evaluate"], "evaluate", interrupt)
    assert main(["train", "multigoal-4", *CLONE, "--out", "run"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Interrupted; the agents are saved in run."
    monkeypatch.setattr("qdfm.cli.train.train", interrupt)
    assert main(["train", "multigoal-4", *CLONE]) == 130
    assert capsys.readouterr().err == "Interrupted; nothing was saved yet.\n"


@pytest.mark.parametrize(
    ("sign", "says"),
    [("config.json", "Interrupted; nothing was saved yet."), ("state.safetensors", "Interrupted; saved in run. ")],
)
def test_ctrl_c_ends_a_run_with_one_sentence(sign, says):
    """While programs are compiled, when the folder has its config only, and later."""
    words = ["train", "multigoal-4", *TINY, "--out", "run", "--warmup-steps", "5", "--critic-steps", "100000000"]
    run = subprocess.Popen([sys.executable, "-m", "qdfm", *words], stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not Path("run", sign).exists():
        time.sleep(0.001)
    run.send_signal(signal.SIGINT)
    said = [line for line in run.communicate()[1].splitlines() if "steps/s" not in line]
    assert run.returncode == 130
    assert len(said) == 1 and said[0].startswith(says)
    assert any(Path("run").iterdir()) == (sign == "state.safetensors")  # where nothing was saved, nothing is left


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rates", "foo"], "Unknown qdfm rates 'foo'; choose one of: diffuse, energy, posterior, softplus."),
        (["--rates", "softplus"], "cross_entropy needs posterior or energy rates"),
        (["--loss", "l1"], "Unknown qdfm loss 'l1'; did you mean 'l2'?"),
        (["--backup", "hard"], "Unknown qdfm backup 'hard'"),
        (["--gamma", "1.5"], "gamma is 1.5"),
        (["--ema", "1"], "ema is 1.0"),
        (["--batch-size", "0"], "batch_size is 0; it must be at least 1."),
        (["--warmup-steps", "-1"], "warmup_steps is -1; it must be at least 0."),
        (["--seeds", "0"], "--seeds is 0; give at least 1."),
        (["--episodes", "-1"], "--episodes is -1; give at least 0."),
        (["--learning-rate", "-1"], "learning_rate is -1.0; it must be more than 0."),
        (["--hidden", "16", "0"], "hidden is (16, 0); it must be at least 1."),
        (["--renew-every", "0"], "renew_every is 0; it must be at least 1."),
        (["--chunk", "0"], "chunk is 0; give at least 1."),
    ],
)
def test_settings_that_make_no_sense(words, says, capsys):
    assert says in refusal(capsys, "train", "multigoal-4", *TINY, "--out", "x", *words)
    assert not Path("x").exists()


def test_an_environment_is_no_data(capsys):
    for name in ("cartpole", "smac-3m"):
        assert f"{name} is an environment without built-in data" in refusal(capsys, "train", name)
    said = refusal(capsys, "train", "smax-3m")
    assert "data from there: smax-3m-expert, smax-3m-medium, smax-3m-medium-replay, smax-3m-poor." in said


@pytest.mark.parametrize(("named", "place"), [("CartPole-v1", "CartPole-v1"), ("NoSuchRobot-v0", None), (None, None)])
def test_a_minari_set_is_played_in_the_environment_that_it_names(named, place, monkeypatch):
    monkeypatch.setattr(train, "environment_of", lambda task: named)
    assert train._place("some/set-v0") == place


def test_a_folder_that_cannot_be_made(capsys):
    Path("file").touch()
    said = refusal(capsys, "train", "multigoal-4", *CLONE, "--out", "file/run")
    assert "Cannot create file/run (Not a directory)" in said


def test_a_folder_that_holds_a_run(run, capsys):
    before = {f.name: f.read_bytes() for f in run.iterdir()}
    assert "already holds a run; go on with --resume" in refusal(capsys, *again(run))
    said = refusal(capsys, *again(run, "--resume", "--beta", "3"))
    assert "config.beta=10.0 but is resumed with config.beta=3.0" in said
    assert "chunk=1 but is resumed with chunk=7" in refusal(capsys, *again(run, "--resume", "--chunk", "7"))
    said = refusal(capsys, *again(run, "--resume", "--seeds", "1"))
    assert "seeds=[0, 1] but is resumed with seeds=[0]" in said
    other = again(run, "--resume")
    other[1] = "multigoal-5"
    assert "data=" in refusal(capsys, *other)
    assert {f.name: f.read_bytes() for f in run.iterdir()} == before


def test_a_folder_of_something_else_is_not_resumed(capsys):
    Path("mine").mkdir()
    Path("mine/letter.txt").touch()
    said = refusal(capsys, "train", "multigoal-4", *CLONE, "--out", "mine", "--resume")
    assert "holds no run to resume" in said
