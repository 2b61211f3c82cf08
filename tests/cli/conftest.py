"""Fixtures of the command line's tests: a folder of their own, and a finished run."""

from pathlib import Path

import pytest
from command_line import again

from qdfm.cli import main


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QDFM_DATA", raising=False)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of two seeds, two chunks per phase."""
    out = tmp_path_factory.mktemp("runs") / "multigoal-4-qdfm"
    assert main(again(out)) == 0
    return out
