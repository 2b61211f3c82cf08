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


MO_HOPPER = "mo-hopper-d4morl"  # the environment in envs/mo_hopper.py
MO_TASKS = ("mo-hopper-expert", "mo-hopper-amateur")  # data that is played there


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


def make_plain(name: str, **options: Any) -> "gymnasium.Env":
    """The environment of a registered Gymnasium id, MuJoCo's or not, as it is; without what it needs, a sentence.

    The options are those of `gymnasium.make`.
    """
    import gymnasium

    try:
        with quiet() if "mujoco" in str(gymnasium.spec(name).entry_point) else nullcontext():
            # The checker takes a vector of rewards for a mistake; MO-Gymnasium's own make leaves it out too.
            return gymnasium.make(name, disable_env_checker=True, **options)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        # Gymnasium's own error about a missing package mostly comes from the one that names the module.
        cause = error if isinstance(error, ImportError) else error.__cause__
        module = getattr(cause, "name", None)
        if module == "mujoco":
            raise QDFMError(f'{name} needs MuJoCo; install it with pip install "qdfm[mujoco]".') from None
        needs = f"needs the module {module}, which is not installed" if module else f"cannot be made ({error})"
        raise QDFMError(f"{name} {needs}; install it first.") from None


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
