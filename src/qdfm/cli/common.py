"""What several commands share: the call of tyro, and the options of those that read data or play."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from tyro.conf import Positional, arg

from qdfm.data.actions import ActionSpace
from qdfm.data.builtin import GENERATORS
from qdfm.data.checks import check_history
from qdfm.data.columns import Columns
from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset
from qdfm.errors import QDFMError
from qdfm.runfolder import trained_task

FLAT = arg(name="")  # options of a nested dataclass without its name before them


def parse(name: str, command: Callable[..., None], words: Sequence[str]) -> None:
    """Call the command with the words as its options; its docstring is the help."""
    tyro.cli(command, args=words, prog=f"qdfm {name}", description=command.__doc__)


def described(task: str, data: Dataset) -> tuple[str, dict[str, float]]:
    """How much data there is of a task, what its episodes return, and what else is known of built-in data; the last
    also as numbers."""
    returns = whole_returns(task, data)
    mean = [round(float(r), 4) for r in returns.mean(0)] if len(returns) else "unknown, since no episode is whole"
    text = f"{len(data)} transitions, mean return {mean}"
    generator = GENERATORS.get(task)
    if generator is None or generator.facts is None:
        return text, {}
    more, known = generator.facts(data)
    return f"{text}, {more}", known


def whole_returns(task: str, data: Dataset) -> np.ndarray:
    """Returns `[episodes, objectives]`; of a robot's task without those of episodes that only the recording cut off."""
    from qdfm.collect import mujoco
    from qdfm.tasks import TASKS

    return mujoco.whole_returns(task, data)[:, None] if task in TASKS else data.returns()


@dataclasses.dataclass(frozen=True)
class PlayArguments:
    """Which agent plays where."""

    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")]
    """An agent-SEED.safetensors file."""
    env: str | None = None
    """A built-in environment, a MuJoCo task such as hopper-medium, a map of SMAC such as smac-3m, or a Gymnasium id
    (default: the task that the file's run was trained on)."""
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


@dataclasses.dataclass(frozen=True)
class DataArguments:
    """How a source is read."""

    columns: Columns = dataclasses.field(default_factory=Columns)
    """Names of the columns of a .parquet or .csv file."""
    num_actions: tuple[int, ...] | None = None
    """Number of actions where the data does not show all of them, one number per part."""
    bins: int | None = None
    """Continuous actions of a file, a Minari set, or a MuJoCo or MO-Hopper task: so many values per dimension (default
    of these tasks: 41)."""
    codebook: int | None = None
    """Continuous actions: the nearest of so many whole actions, instead of bins."""
    transitions: int | None = None
    """Only so many transitions of a Minari set, a MuJoCo, MO-Hopper or SMAX task, matrix, or a Gymnasium id."""
    history: int = 1
    """Observations that an agent sees at once, the present one and those before it."""

    def load(self, source: str, normalise: bool = True, actions: ActionSpace | None = None) -> Dataset:
        """The data, with actions of before where they are given."""
        sizes, history = self.num_actions, check_history(self.history)  # before minutes of collecting
        data = load_dataset(
            source,
            columns=None if self.columns == Columns() else self.columns,
            num_actions=sizes[0] if sizes is not None and len(sizes) == 1 else sizes,
            normalise=normalise,
            bins=self.bins,
            codebook=self.codebook,
            actions=actions,
            transitions=self.transitions,
        )
        return data.with_history(history)


def file_name(task: str) -> str:
    """A task's name as that of a file."""
    return task.replace("/", "-")  # of ids such as ALE/Pong-v5
