"""The cells of an experiment's table: each is computed once, kept on disk, and found again by a run that goes on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from qdfm.errors import QDFMError
from qdfm.experiments.report import made_here


@dataclass(frozen=True)
class Settings:
    """How an experiment is run."""

    out: Path
    quick: bool = False
    seeds: int | None = None
    """Seeds per cell; None: the experiment's own number."""
    only: tuple[str, ...] = ()
    """Methods to run; none named: all of them."""
    resume: bool = False
    """Keep the cells that are already in the folder."""
    progress: bool = True


class Cells:
    """Results by key in `cells.jsonl`, one line per finished cell."""

    def __init__(self, settings: Settings):
        self.file = settings.out / "cells.jsonl"
        try:
            settings.out.mkdir(parents=True, exist_ok=True)
            if self.file.exists() and not settings.resume:
                self.file.replace(self.file.with_name("cells.old.jsonl"))  # nothing is lost by a second run
            self.file.touch()
        except OSError as error:
            raise QDFMError(f"Cannot write to {settings.out} ({error.strerror}); choose a writable folder.") from None
        self.known: dict[str, Any] = {}
        text = self.file.read_text()
        if text and not text.endswith("\n"):  # so that the next line does not join the one that was cut off
            self.file.write_text(text + "\n")
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # the run was killed while it wrote this line
                continue
            self.known[row["key"]] = row["result"]

    def get(self, describes: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of a cell, computed if it is not known; `describes` holds all that it depends on."""
        key = sha256(json.dumps(describes, sort_keys=True).encode()).hexdigest()[:16]
        if key not in self.known:
            result = json.loads(json.dumps(compute() | {"made": made_here()}))
            with open(self.file, "a") as file:
                file.write(json.dumps({"key": key, "cell": describes, "result": result}) + "\n")
            self.known[key] = result
        return self.known[key]
