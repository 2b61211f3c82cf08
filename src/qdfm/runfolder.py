"""A run on disk: what it was run with, its metrics and its last checkpoint; it is gone on with, never overwritten."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import jax

from qdfm import checkpoint
from qdfm._version import __version__
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset, fingerprint
from qdfm.errors import QDFMError

SCHEMA = 1
NOTES = ("task", "source", "columns", "version")  # of a description, which change nothing


@dataclass(frozen=True)
class Position:
    """Where a run stands: so many steps of a phase are done."""

    phase: int = 0
    step: int = 0
    metrics_bytes: int = 0


class RunFolder:
    """One run on disk: config.json, metrics.jsonl, state.safetensors, agent-SEED.safetensors."""

    def __init__(self, path: Path, writer: Callable[[str], Any] | None):
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.state = path / "state.safetensors"
        self.writer = writer
        self.board: Any = None  # made with the first metrics, so that a run which has none leaves nothing behind

    @classmethod
    def open(cls, path: Path, described: dict[str, Any], resume: bool, tensorboard: bool) -> "RunFolder":
        """A new folder, or the folder of the same run, by its `description`, to go on with.

        A run that was killed before its first checkpoint is begun anew on resuming, with any settings.
        """
        before = cls.check(path, resume, tensorboard)
        writer = _tensorboard() if tensorboard else None
        if before is not None:
            _check_same(path, before, described)
            return cls(path, writer)
        with checkpoint.writing(path, "create"):
            path.mkdir(parents=True, exist_ok=True)
        checkpoint.write_file(path / "config.json", json.dumps(described, indent=1).encode())
        return cls(path, writer)

    @staticmethod
    def check(path: Path, resume: bool, tensorboard: bool) -> dict[str, Any] | None:
        """Refuse what no run can be kept in or gone on with, whatever it is; what is said of the run to go on with, if
        there is one. Nothing is written."""
        if tensorboard:
            _tensorboard()
        file = path / "config.json"
        if file.exists():
            if not resume:
                raise QDFMError(
                    f"{path} already holds a run; go on with --resume (in Python: resume=True), or choose another "
                    "folder with --out."
                )
            try:
                before = json.loads(file.read_text())
            except ValueError:
                before = None
            if not isinstance(before, dict) or not isinstance(before.get("schema"), int):
                raise QDFMError(f"{file} is damaged; choose another folder with --out.")
            if before["schema"] > SCHEMA:
                raise QDFMError(f"{path} was written by a newer qdfm; upgrade qdfm to resume it.")
            if _holds_any(path):
                return before
        elif resume and path.is_dir() and any(path.iterdir()):
            raise QDFMError(f"{path} holds no run to resume; choose another folder with --out.")
        elif any((path / name).exists() for name in ("state.safetensors", "metrics.jsonl")):
            raise QDFMError(f"{path} holds parts of another run; choose another folder with --out.")
        with checkpoint.writing(path, "create"):
            near = next(place for place in (path, *path.absolute().parents) if place.exists())
            with TemporaryFile(dir=near):
                pass
        return None

    def log(self, rows: list[dict[str, Any]]) -> int:
        """Append metrics and return the size of the file."""
        with checkpoint.writing(self.metrics), open(self.metrics, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            size = file.tell()
        if self.writer is not None:
            self.board = self.board or self.writer(str(self.path))
            for row in rows:
                for name, value in row.items():
                    if name not in ("phase", "step", "seed"):
                        self.board.add_scalar(f"{row['phase']}/{name}/seed{row['seed']}", value, row["step"])
        return size

    def save(self, state: Any, at: Position) -> None:
        """Write the checkpoint, after the metrics that it counts."""
        if self.metrics.exists():
            with checkpoint.writing(self.metrics), open(self.metrics, "rb") as file:
                os.fsync(file.fileno())
        checkpoint.write_tree(self.state, "state", state, asdict(at))

    def restore(self, state: Any) -> tuple[Any, Position]:
        """The checkpoint where there is one, and drop metrics written after it."""
        at = Position()
        if self.state.exists():
            at = Position(**checkpoint.read_header(self.state, "state"))
            state = jax.device_put(checkpoint.read_tree(self.state, "state", state))
        if self.metrics.exists():
            with checkpoint.writing(self.metrics):
                os.truncate(self.metrics, min(at.metrics_bytes, self.metrics.stat().st_size))
        return state, at

    def close(self) -> None:
        """The end of a run, good or bad. One that ended before its first checkpoint is forgotten, so that the same
        command, or one with other settings, may begin it anew."""
        if self.board is not None:
            self.board.close()
        if not _holds_any(self.path):
            with suppress(OSError):
                self.metrics.unlink(missing_ok=True)
                for events in self.path.glob("events.out.tfevents.*"):
                    events.unlink()
                (self.path / "config.json").unlink()


def description(
    config: Config, dataset: Dataset, seeds: tuple[int, ...], chunk: int, holdout: float, task: str | None,
    notes: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """What config.json says of a run; `notes` are for its readers."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "task": task,
        **notes,
        "algorithm": config.name,
        "seeds": list(seeds),
        "chunk": chunk,
        "holdout": holdout,
        "config": json.loads(json.dumps(asdict(config))),
        "spec": json.loads(json.dumps(dataset.spec.to_json())),
        "data": fingerprint(dataset),
    }


def trained_task(folder: Path) -> str | None:
    """The task that a run's folder was trained on, where it says so."""
    try:
        task = json.loads((folder / "config.json").read_text()).get("task")
    except (OSError, ValueError, AttributeError):
        return None
    return task if isinstance(task, str) else None


def _holds_any(path: Path) -> bool:
    """Whether a run's folder holds anything to lose: a checkpoint or an agent."""
    return any(path.glob("*.safetensors"))


def _check_same(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    before = {"holdout": 0.0, **before}  # which folders lacked once
    old, new = (_flat({k: v for k, v in tree.items() if k not in NOTES}) for tree in (before, now))
    # A setting may be why the data is another, and the data why its spec is.
    for name in sorted(old.keys() | new.keys(), key=lambda name: (name.startswith("spec."), name == "data", name)):
        if old.get(name) != new.get(name):
            raise QDFMError(
                f"{path} was run with {name}={old.get(name)} but is resumed with {name}={new.get(name)}; "
                "use the same settings or choose another folder with --out."
            )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in tree.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return out


def _tensorboard() -> Callable[[str], Any]:
    """What writes TensorBoard's files into a folder."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise QDFMError('TensorBoard files need an extra; install it with pip install "qdfm[tensorboard]".') from None
    return SummaryWriter
