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
from command_line import CLONE, TINY, again, png_size, refusal, table

import qdfm
from qdfm.algorithms import ALGORITHMS
from qdfm.cli import main, train
from qdfm.cli.settings import check_beforehand
from qdfm.data.actions import Codebook, Discrete, MultiDiscrete
from qdfm.data.spec import Accumulation, Spec
from qdfm.envs.multigoal import MultiGoal
from qdfm.errors import Diverged, QDFMError


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
    files = {"config.json", "metrics.jsonl", "curves.png", "state.safetensors", *agents}
    assert {f.name for f in run.iterdir()} == files
    assert min(png_size(run / "curves.png")) > 100
    config = json.loads((run / "config.json").read_text())
    assert config["schema"] == 1
    assert config["algorithm"] == "qdfm"
    assert config["seeds"] == [0, 1]
    assert config["config"]["hidden"] == [16]
    assert config["config"]["batch_size"] == 8
    assert config["spec"]["observation_shape"] == [22]
    assert (config["source"], config["version"], "columns" in config) == ("multigoal-4", qdfm.__version__, False)


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
    assert lines[0].startswith("The data: ") and lines[1] == "Saved 1 agent(s) in runs/multigoal-4-bc."
    assert json.loads(lines[2])["episodes"] == 3
    rows = [f"{i},{i % 3},{i % 2},{int(i == 5)}" for i in range(6)]
    log = table("my log.csv", "obs,action,reward,terminated", *rows)
    assert main(["train", log, *CLONE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The data: 6 transitions, mean return [3.0]."  # 0 + 1 + 0 + 1 + 0 + 1
    assert lines[1:] == ["Saved 1 agent(s) in runs/my log-bc."]
    assert qdfm.load("runs/my log-bc/agent-0.safetensors").spec.normalisation.observation_mean == (2.5,)


def test_the_data_is_told_of_before_training(monkeypatch, capsys):
    def begun(*_: Any, **__: Any) -> None:
        assert capsys.readouterr().out.startswith("The data: ")
        raise QDFMError("Enough.")

    monkeypatch.setattr("qdfm.cli.train.train", begun)
    assert refusal(capsys, "train", "multigoal-4", *CLONE) == "qdfm: Enough.\n"


def test_the_end_compares_the_agents_with_the_data(monkeypatch, capsys):
    """Means over seeds; the columns are what there is of returns, scores and victories."""
    told = {(0, False): 10.0, (1, False): 20.0, (0, True): 2000.0, (1, True): 4000.0}

    def played(agent: Any, env: str, episodes: int, seed: int, greedy: bool, progress: bool) -> qdfm.Evaluation:
        returns = np.full((episodes, 1), told[seed, greedy])
        won = np.array([greedy] * episodes) if env == "multigoal-2" else None
        return qdfm.Evaluation(returns, np.ones(episodes), np.ones(episodes), won=won)

    monkeypatch.setattr(sys.modules["qdfm.evaluate"], "evaluate", played)
    rows = {}
    for task in ("multigoal-4", "multigoal-2"):
        assert main(["train", task, *CLONE, "--seeds", "2", "--episodes", "3"]) == 0
        out = capsys.readouterr().out
        assert [json.loads(line)["return_mean"] for line in out.splitlines() if line[0] == "{"] == [[10.0], [20.0]]
        assert "mean of 2 seeds" in out
        rows[task] = [[cell.strip() for cell in line[1:-1].split("│")] for line in out.splitlines() if "│" in line]
        assert ("win rate" in out, "score" in out) == (task == "multigoal-2", False)
    mean = f"{qdfm.load_dataset('multigoal-4').returns().mean():.4g}"
    assert rows["multigoal-4"] == [["the data", mean], ["drawn actions", "15"], ["most likely actions", "3000.0"]]
    assert [row[2] for row in rows["multigoal-2"]] == ["–", "0.000", "1.000"]


def test_a_run_on_a_table_says_which(capsys):
    log = table("log.csv", "obs,did,reward,terminated,ward", *(f"{i},{i % 2},1,1,a" for i in range(4)))
    assert main(["train", log, *CLONE, "--columns.action", "did", "--out", "run"]) == 0
    described = json.loads(Path("run/config.json").read_text())
    assert (described["source"], described["task"]) == ("log.csv", None)
    columns = {"observation": ["obs"], "action": ["did"], "reward": ["reward"], "terminated": ["terminated"]}
    assert described["columns"] == columns
    Path(log).rename("moved.csv")  # the same rows from elsewhere, so that nothing is mixed up
    assert main(["train", "moved.csv", *CLONE, "--columns.action", "did", "--out", "run", "--resume"]) == 0
    table("log.csv", "obs,did,reward,terminated", *(f"{i},{i % 2},2,1" for i in range(4)))
    words = ["train", "log.csv", *CLONE, "--columns.action", "did", "--out", "run", "--resume"]
    assert "was run with data=" in refused_at_last(capsys, *words)


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

    for place, out in (("qdfm.evaluate.evaluate", "run"), ("qdfm.cli.train.draw_curves", "other")):
        with monkeypatch.context() as stopped:
            module, _, name = place.rpartition(".")
            stopped.setattr(sys.modules[module], name, interrupt)
            assert main(["train", "multigoal-4", *CLONE, "--out", out]) == 130
        assert capsys.readouterr().err.splitlines()[-1] == f"Interrupted; the agents are saved in {out}."
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
        (["--endpoints", "model", "--renew-every", "0"], "renew_every is 0; it must be at least 1."),
        (["--beta", "-1"], "qdfm: beta is -1.0; it must be at least 0."),  # the name once, though it is QDFM's too
        (
            ["--clone-steps", "20000"],
            "--clone-steps does not concern qdfm unless behaviour is network; leave it out, or give --algo bc or "
            "--behaviour network.",
        ),
        (["--energy_steps=5"], "unless guidance is energy; leave it out, or give --guidance energy."),
        (["--renew-every", "5"], "unless endpoints is model; leave it out, or give --endpoints model."),
        (["--beta", "5", "--share-target", ".35"], "finds β, but --beta 5 gives it; leave one of them out."),
        (["--beta-scale=none", "--share-target=.35"], "unless beta_scale is share; leave it out, or give --beta-scale"),
        (["--share-target", ".35"], "unless beta_scale is share"),  # with this data: none of the words says otherwise
        (["--critics", "1", "--caution", "2"], "--caution 2 discounts what critics disagree on, but there is only one"),
    ],
)
def test_settings_that_make_no_sense(words, says, capsys):
    said = refusal(capsys, "train", "multigoal-4", *TINY, "--out", "x", *words)
    assert says in said
    assert "qdfm: qdfm" not in said
    assert not Path("x").exists()


def test_options_of_the_preset_and_of_a_quick_run_are_not_idle(monkeypatch, capsys):
    """They have been given only if they are among the words."""
    monkeypatch.setattr("qdfm.cli.train._run_training", lambda args, config, given: print(config.clone_steps))
    for words, steps in (
        (["--quick"], 2_000),
        (["--paper"], 1_000_000),
        (["--paper", "--clone-steps", "7", "--renew-every", "3"], 7),
        (["--share-target", ".35", "--quick"], 2_000),  # of tokens, perhaps
        (["--share-target", ".35", "--beta-scale", "share", "--quick"], 2_000),
        (["--caution", "0", "--critics", "1", "--quick"], 2_000),
        (["--caution", "2", "--critics", "2", "--quick"], 2_000),
        (["--behaviour", "network", "--clone-steps", "7"], 7),
        (["--algo", "bc", "--clone-steps", "7"], 7),
    ):
        assert main(["train", "multigoal-4", *words]) == 0
        assert capsys.readouterr().out == f"{steps}\n"


def test_an_environment_is_no_data(capsys):
    for name in ("cartpole", "smac-3m"):
        assert f"{name} is an environment without built-in data" in refusal(capsys, "train", name)
    said = refusal(capsys, "train", "smax-3m")
    assert "data from there: smax-3m-expert, smax-3m-medium, smax-3m-medium-replay, smax-3m-poor." in said


@pytest.mark.parametrize(("named", "place"), [("CartPole-v1", "CartPole-v1"), ("NoSuchRobot-v0", None), (None, None)])
def test_a_minari_set_is_played_in_the_environment_that_it_names(named, place, monkeypatch):
    monkeypatch.setattr(train, "environment_of", lambda task: named)
    assert train._place("some/set-v0") == place


def refused_at_last(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """The sentence of a refusal by what trains, when the data has been told of."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("The data: ") and out.count("\n") == err.count("\n") == 1
    return err


def test_a_folder_that_cannot_be_made(capsys):
    Path("file").touch()
    said = refusal(capsys, "train", "multigoal-4", *CLONE, "--out", "file/run")
    assert "Cannot create file/run (Not a directory)" in said
    assert "chunk is 0; give at least 1." in refused_at_last(capsys, "train", "multigoal-4", *CLONE, "--chunk", "0")


def test_a_folder_that_holds_a_run(run, capsys):
    before = {f.name: f.read_bytes() for f in run.iterdir()}
    assert "already holds a run; go on with --resume" in refusal(capsys, *again(run))
    said = refused_at_last(capsys, *again(run, "--resume", "--beta", "3"))
    assert "config.beta=10.0 but is resumed with config.beta=3.0" in said
    assert "chunk=1 but is resumed with chunk=7" in refused_at_last(capsys, *again(run, "--resume", "--chunk", "7"))
    said = refused_at_last(capsys, *again(run, "--resume", "--seeds", "1"))
    assert "seeds=[0, 1] but is resumed with seeds=[0]" in said
    other = again(run, "--resume")
    other[1] = "multigoal-5"
    assert "data=" in refused_at_last(capsys, *other)
    assert {f.name: f.read_bytes() for f in run.iterdir()} == before


def test_a_folder_of_something_else_is_not_resumed(capsys):
    Path("mine").mkdir()
    Path("mine/letter.txt").touch()
    said = refusal(capsys, "train", "multigoal-4", *CLONE, "--out", "mine", "--resume")
    assert "holds no run to resume" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gamma", "2"], "gamma is 2.0"),
        (["--gamma", "2", "--averaged"], "gamma is 2.0"),
        (["--algo", "omar", "--gamma", "2"], "gamma is 2.0"),
        (["--rates", "foo"], "Unknown qdfm rates 'foo'"),
        (["--preference", "0.5", "0.6"], "does not sum to 1"),
        (["--beta", "5", "--share-target", ".35"], "--share-target finds β, but --beta 5 gives it"),
        (["--averaged", "--clone-steps", "7"], "--clone-steps does not concern qdfm unless behaviour is network"),
        (["--paper", "--caution", "2"], "discounts what critics disagree on, but there is only one"),
        (["--tensorboard"], "TensorBoard files need an extra"),
        (["--out", "taken"], "already holds a run; go on with --resume"),
        (["--out", "file"], "Cannot create file (Not a directory)"),
        (["--out", "mine", "--resume"], "holds no run to resume"),
    ],
)
def test_what_needs_no_data_is_refused_before_it_is_collected(words, says, capsys, monkeypatch):
    monkeypatch.setattr("qdfm.cli.common.load_dataset", lambda *_, **__: pytest.fail("collected"))
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    table("file", "")
    for folder, name in (("taken", "config.json"), ("mine", "letter.txt")):
        Path(folder).mkdir()
        table(f"{folder}/{name}", '{"schema": 1}')
    before = sorted(Path().rglob("*"))
    assert says in refusal(capsys, "train", "hopper-medium", *words)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({"averaged": True}, {"actions": Codebook(((0.0,), (1.0,), (3.0,)))}),
        ({"candidates": 4}, {"actions": MultiDiscrete((3, 2, 2))}),
        ({"together": True, "conservatism": 0.5}, {"actions": Discrete(5)}),
        ({"mixing": "qmix"}, {"actions": MultiDiscrete((3, 3, 3)), "agents": 3}),
        ({"mixing": "apart", "conservatism": 0.5}, {"actions": MultiDiscrete((3, 3)), "agents": 2}),
        ({"utility": "chebyshev", "gamma": 0.9}, {"accumulation": Accumulation(0.9, (1.0, 2.0), (0.0, 0.0))}),
        ({"preferences": "logged"}, {"preference_range": ((0.2, 0.8), (0.2, 0.8))}),
        ({"preference": (0.5, 0.5)}, {}),
    ],
)
def test_what_some_data_suits_waits_for_the_data(settings, data):
    config = qdfm.QDFM(**settings)
    shape = (data.get("agents", 1), 3)
    config.resolve(Spec(shape, **{"actions": Discrete(4), "objectives": 2, **data}))
    check_beforehand(config, frozenset(settings))


@pytest.mark.parametrize("config", [make() for c in ALGORITHMS.values() for make in (c, getattr(c, "paper", c))])
def test_no_preset_is_refused_before_the_data_is_there(config):
    check_beforehand(config, frozenset())


def test_what_is_to_be_said_about_data_is_a_sentence(capsys):
    log = table("cut.csv", "episode,obs,action,reward,terminated", *(f"{i // 4},{i},{i % 2},1,0" for i in range(12)))
    assert main(["train", log, *CLONE]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(said) == 1 and said[0].startswith("qdfm: 3 last rows of episodes were left out of cut.csv")
