"""The command line as a whole: help, the installed command, unknown names, words that cannot be parsed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import refusal

import qdfm
from qdfm.algorithms import ALGORITHMS
from qdfm.cli import main
from qdfm.data.builtin import GENERATORS
from qdfm.envs.registry import ENVIRONMENTS, GAMES

COMMAND = Path(sys.executable).with_name("qdfm")


def test_list_names_everything(capsys):
    from qdfm.experiments import EXPERIMENTS

    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (*GENERATORS, *ALGORITHMS, *ENVIRONMENTS, *EXPERIMENTS):
        assert re.search(rf"^\s*{re.escape(name)}\s", out, re.MULTILINE), name
    for name, game in GAMES.items():
        row = " ".join(out[out.index(f"{name}-MAP") :].split())  # its lines as one
        assert all(word in row for word in ("github.com/oxwhirl/smac", *game.maps))


def test_version_and_usage(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == qdfm.__version__
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert main([]) == 2
    assert capsys.readouterr().out == usage
    for command in ("list", "train", "evaluate", "pareto", "reproduce", "data inspect", "data make"):
        assert f"qdfm {command}" in usage
    for command in ("train", "data make"):
        assert re.search(rf"qdfm {command} .* MuJoCo task", usage)


def test_the_data_commands_are_shown(capsys):
    for words, code in ((["data"], 2), (["data", "--help"], 0), (["data", "-h"], 0)):
        assert main(words) == code
        shown = capsys.readouterr().out
        assert all(name in shown for name in ("usage: qdfm data COMMAND", "qdfm data inspect", "qdfm data make"))
        assert "qdfm train" not in shown


@pytest.mark.parametrize("module", ["qdfm", "qdfm.cli"])
def test_the_command_line_as_a_module(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, qdfm.__version__)


@pytest.mark.parametrize("command", ["train", "evaluate", "pareto", "reproduce", "data inspect", "data make", "list"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: qdfm {command}" in shown
    assert ("hopper-medium" in shown) == (command in ("evaluate", "pareto", "data make"))


def test_the_installed_command():
    done = subprocess.run([COMMAND, "list"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "multigoal-4" in done.stdout
    done = subprocess.run([COMMAND, "train", "multigoal-9"], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"qdfm: Unknown task .*'multigoal-9'; did you mean 'multigoal-\d'\?\n", done.stderr)
    assert done.stdout == ""


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
        (["xyzzy"], "choose one of: data, evaluate, list, pareto, reproduce, train."),
    ],
)
def test_unknown_names(words, says, capsys):
    assert says in refusal(capsys, *words)


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
