"""What several commands share: the call of tyro, and the options of those that play."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from qdfm.errors import QDFMError
from qdfm.train import trained_task

FLAT = arg(name="")  # options of a nested dataclass without its name before them


def parse(name: str, command: Callable[..., None], words: Sequence[str]) -> None:
    """Call the command with the words as its options; its docstring is the help."""
    tyro.cli(command, args=words, prog=f"qdfm {name}", description=command.__doc__)


@dataclasses.dataclass(frozen=True)
class PlayArguments:
    """Which agent plays where."""

    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")]
    """An agent-SEED.safetensors file."""
    env: str | None = None
    """A built-in environment or a Gymnasium id (default: the task that the file's run was trained on)."""
    seed: int = 0
    """Seed of the episodes."""
    gamma: float = 1.0
    """The discount of the returns; 1: none."""

    def where(self) -> str:
        """The environment to play in."""
        task = self.env or trained_task(self.checkpoint.parent)
        if task is None:
            raise QDFMError(f"The folder of {self.checkpoint} does not say where to play; give --env NAME.")
        return task


def sizes(num_actions: tuple[int, ...] | None) -> int | tuple[int, ...] | None:
    """The numbers of actions as `load_dataset` takes them."""
    return num_actions[0] if num_actions is not None and len(num_actions) == 1 else num_actions


def file_name(task: str) -> str:
    """A task's name as that of a file."""
    return task.replace("/", "-")  # of ids such as ALE/Pong-v5
