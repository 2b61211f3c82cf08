"""The MuJoCo tasks: Gymnasium's environments, the policies that the data comes from, and D4RL's scale of returns.

The names follow D4RL's, the data does not: ours comes from the policies in collect/policies, in the v5 environments.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qdfm.errors import QDFMError, unknown

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class Task:
    """An environment and a behaviour in it; `low` and `high` are the returns that D4RL gives 0 and 100."""

    name: str
    env: str
    policy: str
    low: float
    high: float

    @property
    def minari(self) -> str:
        """The id of its data as a Minari set."""
        robot, quality = self.name.split("-")
        return f"qdfm/{robot}/{quality}-v0"


TASKS: dict[str, Task] = {
    f"{robot}-{quality}": Task(f"{robot}-{quality}", env, f"{robot}_{quality}", low, high)
    for robot, env, low, high in (
        ("hopper", "Hopper-v5", -20.272305, 3234.3),
        ("walker2d", "Walker2d-v5", 1.629008, 4592.3),
        ("halfcheetah", "HalfCheetah-v5", -280.178953, 12135.0),
    )
    for quality in ("medium", "expert")
}


def find_task(name: str) -> Task:
    """The task of a name, or a sentence with the nearest one."""
    if name not in TASKS:
        raise unknown("MuJoCo task", name, TASKS)
    return TASKS[name]


def normalised(task: str, returns: Any) -> np.ndarray:
    """Returns on D4RL's scale: 0 a random policy, 100 its expert."""
    known = find_task(task)
    return 100 * (np.asarray(returns, np.float64) - known.low) / (known.high - known.low)


def make_mujoco(env: str) -> "gymnasium.Env":
    """The environment of a Gymnasium id, MuJoCo's or not; without MuJoCo, the command that installs it."""
    import gymnasium

    needed = "mujoco" in str(gymnasium.spec(env).entry_point)
    try:
        with quiet() if needed else nullcontext():
            return gymnasium.make(env, disable_env_checker=True)
    except (ImportError, gymnasium.error.DependencyNotInstalled):
        raise QDFMError(f'{env} needs MuJoCo; install it with pip install "qdfm[mujoco]".') from None


@contextmanager
def quiet() -> Iterator[None]:
    """MuJoCo's warnings about Gymnasium's model files, which no user can mend, neither shown nor written to a file."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
