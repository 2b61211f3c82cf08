"""The command line: what each command writes and prints, and one sentence for every mistake."""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import ALGORITHMS, BC, Config, GreedyQ
from qdfm.cli import main
from qdfm.collect.gymnasium import collect_gymnasium
from qdfm.data.actions import Discrete
from qdfm.data.sources import GENERATORS
from qdfm.data.spec import Spec
from qdfm.envs.multigoal import MultiGoal
from qdfm.envs.registry import ENVIRONMENTS
from qdfm.errors import Diverged
from qdfm.experiments import multigoal

SMALL = ["--batch-size", "8", "--hidden", "16"]
TINY = [*SMALL, "--warmup-steps", "2", "--critic-steps", "2", "--improve-steps", "2"]
CLONE = ["--algo", "bc", *SMALL, "--clone-steps", "2"]
COMMAND = Path(sys.executable).with_name("qdfm")


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QDFM_DATA", raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of two seeds, two chunks per phase."""
    out = tmp_path_factory.mktemp("runs") / "multigoal-4-qdfm"
    assert main(again(out)) == 0
    return out


def again(run: Path, *words: str) -> list[str]:
    tail = ["--seeds", "2", "--chunk", "1", "--episodes", "0", "--out", str(run)]
    return ["train", "multigoal-4", *TINY, *tail, *words]


def save_agent(path: Path, spec: Spec, preference: tuple[float, ...] | None = None) -> Path:
    """An agent with random weights."""
    config: Config = BC(hidden=(16,), preference=preference)
    algorithm = config.build(spec)
    Agent(config, spec, algorithm.policy(algorithm.init(jax.random.key(0)))).save(path)
    return path


def table(path: str, header: str, *rows: str) -> str:
    Path(path).write_text("\n".join([header, *rows]) + "\n")
    return path


def refusal(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """The sentence with which a command is refused."""
    capsys.readouterr()
    code = main([str(w) for w in words])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("qdfm: ")
    assert err.rstrip().endswith((".", "?"))
    assert re.search(r"[.?!] [A-Z]", err) is None  # one sentence
    return err


# list and help


def test_list_names_everything(capsys):
    from qdfm.experiments import EXPERIMENTS

    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (*GENERATORS, *ALGORITHMS, *ENVIRONMENTS, *EXPERIMENTS):
        assert re.search(rf"^\s*{re.escape(name)}\s", out, re.MULTILINE), name


def test_version_and_usage(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == qdfm.__version__
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert main([]) == 2
    assert capsys.readouterr().out == usage
    for command in ("list", "train", "evaluate", "pareto", "reproduce", "data inspect", "data make"):
        assert f"qdfm {command}" in usage


@pytest.mark.parametrize("command", ["train", "evaluate", "pareto", "reproduce", "data inspect", "data make", "list"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    assert f"usage: qdfm {command}" in capsys.readouterr().out


def test_options_follow_the_algorithm(capsys):
    for words, there, absent in (
        (["--algo", "bc"], "--clone-steps", "--improve-steps"),
        (["--algo=greedyq"], "--critic-steps", "--improve-steps"),
        (["--algo=qdfm"], "--improve-steps", "--tokens"),
    ):
        with pytest.raises(SystemExit):
            main(["train", *words, "--help"])
        out = capsys.readouterr().out
        assert there in out
        assert absent not in out


def test_the_installed_command():
    done = subprocess.run([COMMAND, "list"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "multigoal-4" in done.stdout
    done = subprocess.run([COMMAND, "train", "multigoal-9"], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"qdfm: Unknown task .*'multigoal-9'; did you mean 'multigoal-\d'\?\n", done.stderr)
    assert done.stdout == ""


# train


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
    assert lines[0] == "Saved 1 agent(s) in runs/multigoal-4-bc."
    assert json.loads(lines[1])["episodes"] == 3
    rows = [f"{i},{i % 3},{i % 2},{int(i == 5)}" for i in range(6)]
    log = table("my log.csv", "obs,action,reward,terminated", *rows)
    assert main(["train", log, *CLONE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Saved 1 agent(s) in runs/my log-bc."
    assert "mean return per episode: [3.0]" in lines[1]  # 0 + 1 + 0 + 1 + 0 + 1
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

    monkeypatch.setattr("qdfm.cli.train", diverge)
    assert main(["train", "multigoal-4", *CLONE]) == 3
    assert capsys.readouterr().err == "qdfm: loss became non-finite in phase critic.\n"


def test_an_interrupted_run_exits_as_shells_expect(monkeypatch):
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qdfm.cli.train", interrupt)
    assert main(["train", "multigoal-4", *CLONE]) == 130


# evaluate


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


# pareto


SEA = Spec((2,), Discrete(4), objectives=2)


def test_training_in_an_id_and_its_front(capsys):
    assert main(["train", "deep-sea-treasure-v0", *CLONE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Saved 1 agent(s) in runs/deep-sea-treasure-v0-bc."
    assert "follow a preference" in lines[1]
    run = Path("runs/deep-sea-treasure-v0-bc")
    words = ["pareto", str(run / "agent-0.safetensors"), "--preferences", "3", "--episodes", "2", "--sampled"]
    assert main([*words, "--gamma", "0.9", "--reference", "0", "-50"]) == 0
    shown, wrote = capsys.readouterr().out.splitlines()
    measures = json.loads(shown)
    assert wrote == f"Wrote front.png and front.csv to {run}."
    assert (measures["env"], measures["algorithm"]) == ("deep-sea-treasure-v0", "bc")
    assert (measures["preferences"], measures["episodes"], measures["greedy"]) == (3, 2, False)
    table = np.genfromtxt(run / "front.csv", delimiter=",", names=True)
    assert table["preference_1"].tolist() == [0, 0.5, 1]
    kept = table[table["non_dominated"] == 1]
    assert measures["non_dominated"] == len(kept)
    # The area between the reference and a staircase, strip by strip from the largest treasure down.
    order = kept[np.argsort(-kept["return_1"])]
    heights = np.diff(np.r_[-50, order["return_2"]])
    assert measures["hypervolume"] == pytest.approx((order["return_1"] * heights).sum())
    assert min(png_size(run / "front.png")) > 100


def test_the_front_of_an_agent_elsewhere(capsys):
    agent = save_agent(Path("agent.safetensors"), SEA)
    words = ["pareto", str(agent), "--env", "deep-sea-treasure-v0", "--preferences", "4", "--out", "new/front"]
    assert main(words) == 0
    shown, single, said, _ = capsys.readouterr().out.splitlines()
    assert "Each point is a single episode" in single
    assert "worst of the sweep minus 10 % of its range" in said
    table = np.genfromtxt("new/front/front.csv", delimiter=",", names=True)
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


# data


def test_data_inspect(capsys):
    rows = [f"{i},{i % 2},{i},{int(i % 4 == 3)}" for i in range(8)]
    assert main(["data", "inspect", table("log.csv", "obs,action,reward,terminated", *rows)]) == 0
    out = capsys.readouterr().out
    for name, value in (("transitions", 8), ("episodes", 2), ("objectives", 1), ("terminated", 2)):
        assert re.search(rf"^{name}\s+{value}\s*$", out, re.MULTILINE), name
    assert re.search(r"^1 +14 ", out, re.MULTILINE)  # (0 + … + 7) / 2 episodes
    assert "There are only 8 transitions" in out


def test_data_inspect_with_named_columns(capsys):
    log = table("log.csv", "x,move,reward", "0.5,0,1", "1.5,1,2")
    words = ["--columns.observation", "x", "--columns.action", "move", "--num-actions", "4"]
    assert main(["data", "inspect", log, *words]) == 0
    assert re.search(r"tokens × choices\s+1 × 4", capsys.readouterr().out)


def test_data_make_and_load(capsys):
    assert main(["data", "make", "multigoal-2"]) == 0
    # Two goals at distance 4 + 10, 250 walks to each.
    assert capsys.readouterr().out == "Wrote 7000 transitions, mean return [10.0], to multigoal-2.npz.\n"
    made, built_in = qdfm.load_dataset("multigoal-2.npz"), qdfm.load_dataset("multigoal-2")
    assert made.spec == built_in.spec
    np.testing.assert_array_equal(made.observation, built_in.observation)
    np.testing.assert_array_equal(made.action, built_in.action)


def test_data_make_in_an_id(capsys):
    assert main(["data", "make", "CartPole-v1", "--transitions", "50", "--seed", "3"]) == 0
    assert "Wrote 50 transitions, mean return [" in capsys.readouterr().out
    made, same = qdfm.load_dataset("CartPole-v1.npz"), collect_gymnasium("CartPole-v1", 50, seed=3)
    np.testing.assert_array_equal(made.observation, same.observation)
    assert main(["train", "CartPole-v1", *CLONE, "--episodes", "2"]) == 0
    played = json.loads(capsys.readouterr().out.splitlines()[1])
    assert played["return_mean"] == [played["length_mean"]]  # +1 per step
    for option in ("--transitions", "--seed"):
        said = refusal(capsys, "data", "make", "multigoal-2", option, "3")
        assert f"{option} does not concern the built-in multigoal-2; leave it out." in said


# reproduce


@pytest.fixture
def tiny_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"batch_size": 8, "hidden": (16,)}
    greedy = GreedyQ(clone_steps=40, critic_steps=40, **small)
    methods = {"BC": BC(clone_steps=40, **small), "GreedyQ": greedy}
    monkeypatch.setattr(multigoal, "METHODS", methods)
    monkeypatch.setattr(multigoal, "QUICK_METHODS", tuple(methods))
    monkeypatch.setattr(multigoal, "QUICK_SHARE", 0.05)


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-12:] == b"\x00\x00\x00\x00IEND\xaeB`\x82"
    return struct.unpack(">II", content[16:24])


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


# Mistakes


HEAD = "obs,action,reward,terminated"


@pytest.mark.parametrize("command", [["train"], ["data", "inspect"]])
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (("1,0,0,0", "NaN,1,0,1"), "Column 'obs' is NaN or infinite in row 1"),
        (("1,0,0,0", "nan,1,0,1"), "'nan' in row 1; give numbers"),
        (("1,0,0,0", "2,1,NaN,1"), "Column 'reward' is NaN or infinite in row 1"),
        (("1,0,0,0", "2,1,,1"), "Column 'reward' is empty in row 1"),
        (("1,0,0,0", "2,1,0,0", "3,-1,0,1"), "action is -1 in row 2, outside 0..1"),
        (("1,0,0,0", "2,0.5,0,1"), "action is not a whole number in row 1"),
        (("1,0,0,0", "2,0,0,1"), "action has a single choice"),
        (("1,0,0,0", "2,1,0,2"), "Column 'terminated' is neither true nor false in row 1"),
        (("1,0,0,0", "two,1,0,1"), "'two' in row 1; give numbers"),
        ((), "has no rows"),
    ],
)
def test_bad_rows(command, rows, says, capsys):
    assert says in refusal(capsys, *command, table("log.csv", HEAD, *rows))


def test_bad_files(capsys):
    for name in ("log.csv", "log.parquet", "log.npz"):
        Path(name).touch()
        assert name in refusal(capsys, "train", name)
    assert "is empty" in refusal(capsys, "data", "inspect", "log.csv")
    Path("notes.txt").touch()
    assert "of no known kind" in refusal(capsys, "train", "notes.txt")
    assert "There is no file nothing.csv" in refusal(capsys, "train", "nothing.csv")


def test_actions_beyond_the_number_given(capsys):
    log = table("log.csv", HEAD, "1,0,0,0", "2,3,0,1")
    assert "action is 3 in row 1, outside 0..2" in refusal(capsys, "train", log, "--num-actions", "3")


def test_preferences_in_the_data_of_another_length_than_the_reward(capsys):
    head = "obs,action,reward,terminated,preference_0,preference_1"
    log = table("log.csv", head, "1,0,0,0,1,0", "2,1,0,1,0,1")
    assert "preference has shape (2,) per row but (1,) is needed" in refusal(capsys, "data", "inspect", log)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "multigaol-4"], "did you mean 'multigoal-4'?"),
        (["data", "inspect", "multigoal4"], "did you mean 'multigoal-4'?"),
        (["data", "make", "multigoal-v4"], "Unknown task 'multigoal-v4'; did you mean 'multigoal-4'?"),
        (["data", "make", "multigoal_4"], "Unknown task 'multigoal_4'; did you mean 'multigoal-4'?"),
        (["train", "multigoal-4", "--algo", "boltbc"], "Unknown algorithm 'boltbc'; did you mean 'boltzbc'?"),
        (["train", "multigoal-4", "--algo=qfdm"], "Unknown algorithm 'qfdm'; did you mean 'qdfm'?"),
        (["train", "multigoal-4", "--algo", "bc", "--paper"], "bc has no preset of the paper"),
        (["reproduce", "multigaol"], "Unknown experiment 'multigaol'; did you mean 'multigoal'?"),
        (["reproduce", "multigoal", "--only", "QDFN"], "Unknown method 'QDFN'; did you mean 'QDFM'?"),
        (["trian", "multigoal-4"], "Unknown command 'trian'; did you mean 'train'?"),
        (["data", "inspct"], "Unknown command 'data inspct'; did you mean 'data inspect'?"),
        (["data"], "Unknown command 'data'"),
        (["xyzzy"], "choose one of: data, evaluate, list, pareto, reproduce, train."),
    ],
)
def test_unknown_names(words, says, capsys):
    assert says in refusal(capsys, *words)


def test_unknown_columns_name_the_nearest(capsys):
    log = table("log.csv", "state,actions,reward,terminated", "1,0,0,0", "2,1,0,1")
    words = ["data", "inspect", log, "--columns.observation"]
    assert "Unknown observation column 'stat'; did you mean 'state'?" in refusal(capsys, *words, "stat")
    assert "Unknown action column 'action'; did you mean 'actions'?" in refusal(capsys, *words, "state")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rates", "foo"], "Unknown qdfm rates 'foo'; choose one of: diffuse, energy, posterior, softplus."),
        (["--rates", "softplus"], "cross_entropy needs posterior or energy rates"),
        (["--loss", "l1"], "Unknown qdfm loss 'l1'; did you mean 'l2'?"),
        (["--backup", "hard"], "Unknown qdfm backup 'hard'"),
        (["--gamma", "1.5"], "gamma is 1.5"),
        (["--ema", "1"], "ema is 1.0"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--warmup-steps", "-1"], "warmup_steps is -1"),
        (["--seeds", "0"], "--seeds is 0; give at least 1."),
        (["--chunk", "0"], "chunk is 0; give at least 1."),
    ],
)
def test_settings_that_make_no_sense(words, says, capsys):
    assert says in refusal(capsys, "train", "multigoal-4", *TINY, "--out", "x", *words)
    assert not Path("x").exists()


def test_an_experiment_without_seeds(capsys):
    for seeds in ("0", "-1"):
        said = refusal(capsys, "reproduce", "multigoal", "--quick", "--out", "x", "--seeds", seeds)
        assert f"--seeds is {seeds}; give at least 1." in said


@pytest.mark.parametrize(
    "words",
    [
        ["train", "multigoal-4", "--batch-size", "x"],
        ["train", "multigoal-4", "--no-such-option", "1"],
        ["train", "multigoal-4", "--algo", "bc", "--improve-steps", "1"],
        ["train"],
        ["evaluate"],
        ["evaluate", "x", "--preference", "a"],
        ["list", "everything"],
    ],
)
def test_words_that_cannot_be_parsed(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_places_that_cannot_be_written(capsys, run):
    Path("file").touch()
    assert "Cannot create file/run (Not a directory)" in refusal(
        capsys, "train", "multigoal-4", *CLONE, "--out", "file/run"
    )
    assert "Cannot write to file/r (Not a directory)" in refusal(
        capsys, "reproduce", "multigoal", "--quick", "--out", "file/r"
    )
    assert "Cannot write file/x.npz (Not a directory)" in refusal(
        capsys, "data", "make", "multigoal-2", "--out", "file/x.npz"
    )


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


# Checkpoints that cannot be evaluated


def test_damaged_checkpoints(run, capsys):
    content = (run / "agent-0.safetensors").read_bytes()
    flipped = bytearray(content)
    flipped[12] ^= 0xFF
    cut = [content[:length] for length in (0, 7, 100, len(content) // 2, len(content) - 1)]
    for damaged in (*cut, bytes(flipped), b"x" * 99):
        Path("x.safetensors").write_bytes(damaged)
        said = refusal(capsys, "evaluate", "x.safetensors", "--env", "multigoal-4")
        assert "x.safetensors is corrupt or no safetensors file; save the agent again." in said


def test_other_checkpoints(run, capsys):
    arrays = load_file(run / "agent-0.safetensors")
    meta = {"format": "qdfm-agent", "version": "99", "qdfm": "9.9", "header": "{}"}
    for metadata, says in (
        (None, "is not a qdfm agent but another program"),
        ({"format": "pt"}, "is not a qdfm agent but pt."),
        (meta, "was written by qdfm 9.9, which is newer than this; upgrade qdfm."),
        ({**meta, "version": "one"}, "has a damaged header"),
        ({**meta, "version": "1"}, "Unknown algorithm"),
    ):
        save_file(arrays, "x.safetensors", metadata)
        assert says in refusal(capsys, "evaluate", "x.safetensors", "--env", "multigoal-4")
    state = run / "state.safetensors"
    assert "is not a qdfm agent but qdfm-state" in refusal(capsys, "evaluate", state, "--env", "multigoal-4")
    assert "There is no file nothing" in refusal(capsys, "evaluate", "nothing", "--env", "multigoal-4")


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
        ([], "preference over 2 objectives"),
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
