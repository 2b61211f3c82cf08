"""What the tests of all commands use: small settings, agents and tables, and the sentence of a refusal."""

import re
import struct
from pathlib import Path
from typing import Any

import jax
import pytest

from qdfm.agent import Agent
from qdfm.algorithms import BC, Config
from qdfm.cli import main
from qdfm.data.spec import Spec

SMALL = ["--batch-size", "8", "--hidden", "16"]
TINY = [*SMALL, "--warmup-steps", "2", "--critic-steps", "2", "--improve-steps", "2"]
CLONE = ["--algo", "bc", *SMALL, "--clone-steps", "2"]


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


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-12:] == b"\x00\x00\x00\x00IEND\xaeB`\x82"
    return struct.unpack(">II", content[16:24])
