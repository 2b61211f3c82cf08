"""The cells of an experiment's table: each is computed once, kept on disk, and found again by a run that goes on."""

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from qdfm.algorithms import ALGORITHMS
from qdfm.checkpoint import writing
from qdfm.errors import QDFMError, unknown
from qdfm.experiments.report import made_here

FULL_SEEDS = 5  # of the experiments whose findings speak of every seed


@dataclass(frozen=True)
class Settings:
    """How an experiment is run."""

    out: Path
    quick: bool = False
    seeds: int | None = None
    """Seeds per cell; None: the experiment's own number."""
    only: tuple[str, ...] = ()
    """Names of what to run (methods; elsewhere also sweeps, tasks, ...); none named: all of it."""
    resume: bool = False
    """Keep the cells that are already in the folder."""
    progress: bool = True

    def notes(self, notes: str, findings: str, full: int = FULL_SEEDS) -> str:
        """What stands above the tables: the notes, and what the experiment is known to show if all of it was run.

        `full` is the number of seeds that its findings speak of.
        """
        part = self.quick or self.only or (self.seeds is not None and self.seeds < full)
        return notes if part or not findings else f"{notes}\n\n{findings}"

    def chosen(self, what: str, known: Iterable[str], quick: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """The names of `only`, checked; where there are none, all that are known (or those of a quick run)."""
        return self.picked({what: known}, {} if quick is None else {what: quick})[what]

    def picked(
        self, kinds: Mapping[str, Iterable[str]], quick: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        """The names of `only`, checked, by the kind of thing they name; a kind that none names is taken as a whole.

        `quick` holds what a quick run takes instead of a whole kind.
        """
        known = {kind: tuple(names) for kind, names in kinds.items()}
        every = [name for names in known.values() for name in names]
        for name in self.only:
            if name not in every:
                raise unknown(" or ".join(known), name, every)
        whole = {**known, **(quick if self.quick else {})}
        return {kind: tuple(n for n in self.only if n in names) or whole[kind] for kind, names in known.items()}

    def require(self, work: Collection[Any]) -> None:
        """Refuse names that are known but select no work together, before anything is computed or written."""
        if not work:
            raise QDFMError(f"{self.selection} selects nothing that this experiment tries; name others, or fewer.")

    def require_no_seeds(self, why: str) -> None:
        """Refuse several seeds where an experiment has no use for them, before anything is computed or written."""
        if self.seeds not in (None, 1):
            raise QDFMError(f"{why}, so {self.seeds} seeds have no meaning; leave --seeds out.")

    @property
    def selection(self) -> str:
        """The options that select what is run."""
        return " ".join(["--quick"] * self.quick + ["--only", shlex.join(self.only)] * bool(self.only))

    def seed_range(self, full: int) -> tuple[int, ...]:
        """The seeds: as many as asked for, else `full`, or one in a quick run."""
        return tuple(range(self.seeds or (1 if self.quick else full)))

    def command(self, name: str, seeds: int | None = None) -> str:
        """The command that runs the experiment like this."""
        options = (self.selection, "" if seeds is None else f"--seeds {seeds}")
        return " ".join(filter(None, ("qdfm reproduce", name, *options)))


class Cells:
    """Results in `cells.jsonl`, one line per finished cell with all that it depends on; `used` are those that this run
    asked for.

    A folder that holds any is gone on with, never begun anew. A cell stays known when its method gets a new setting:
    the default of a new setting is what was done before there was one.
    """

    def __init__(self, settings: Settings):
        self.folder = settings.out
        self.file = settings.out / "cells.jsonl"
        self.known: dict[str, Any] = {}
        self.used: list[dict[str, Any]] = []
        with writing(settings.out, "write to"):
            settings.out.mkdir(parents=True, exist_ok=True)
            self.file.touch()
            text = self.file.read_text()
            for line in text.splitlines():
                with suppress(json.JSONDecodeError):  # the run was killed while it wrote this line
                    row = json.loads(line)
                    self.known[_key(_completed(row["cell"]))] = row["result"]
            if self.known and not settings.resume:
                raise QDFMError(
                    f"{settings.out} already holds finished cells; go on with --resume (in Python: resume=True), or "
                    "choose another folder with --out."
                )
            if text and not text.endswith("\n"):  # so that the next line does not join the one that was cut off
                with open(self.file, "a") as file:
                    file.write("\n")

    def get(self, describes: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of a cell, computed if it is not known; `describes` holds all that it depends on."""
        key = _key(describes)
        if key not in self.known:
            result = json.loads(json.dumps(compute() | {"made": made_here()}))
            with writing(self.file), open(self.file, "a") as file:
                file.write(json.dumps({"cell": describes, "result": result}) + "\n")
            self.known[key] = result
        self.used.append(self.known[key])
        return self.known[key]


def _key(describes: dict[str, Any]) -> str:
    return sha256(json.dumps(describes, sort_keys=True).encode()).hexdigest()


def _completed(describes: Any) -> Any:
    """A description whose configs have the settings too that their methods have got since."""
    if isinstance(describes, list):
        return [_completed(part) for part in describes]
    if not isinstance(describes, dict):
        return describes
    method = ALGORITHMS.get(describes.get("algorithm", ""))
    return {name: _completed(part) for name, part in ((method().described() if method else {}) | describes).items()}
