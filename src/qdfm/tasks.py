"""Names of built-in data that is played in an environment of another name: where, by whom it was made, and the scale of
its returns. Environments know none of this. A new one of such data is one more entry of PLACES.

The robots' names follow D4RL's, their data does not: ours comes from the policies in collect/policies, in the v5
environments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from qdfm.envs.mujoco import MO_HOPPER
from qdfm.envs.smax import MAPS
from qdfm.errors import unknown

QUALITIES = ("expert", "medium", "medium-replay", "poor")  # of battles
BATTLES = {f"smax-{name}-{quality}": f"smax-{name}" for name in MAPS for quality in QUALITIES}
MO_TASKS = ("mo-hopper-expert", "mo-hopper-amateur")


@dataclass(frozen=True)
class Task:
    """A robot and a behaviour of it; `low` and `high` are the returns that D4RL gives 0 and 100."""

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
    """The robot's task of a name, or a sentence with the nearest one."""
    if name not in TASKS:
        raise unknown("MuJoCo task", name, TASKS)
    return TASKS[name]


def normalised(task: str, returns: Any) -> np.ndarray:
    """Returns on D4RL's scale: 0 a random policy, 100 its expert."""
    known = find_task(task)
    return 100 * (np.asarray(returns, np.float64) - known.low) / (known.high - known.low)


class Place(NamedTuple):
    """Where data was played, and the scores of returns `[episodes]` there, where they have a scale."""

    env: str
    score: Callable[[np.ndarray], np.ndarray] | None = None


PLACES: dict[str, Place] = {
    **{name: Place(task.env, partial(normalised, name)) for name, task in TASKS.items()},
    **{name: Place(MO_HOPPER) for name in MO_TASKS},
    **{name: Place(env) for name, env in BATTLES.items()},
}


def played_in(name: str) -> str:
    """The environment of a name: where its data was played, or the name itself."""
    return PLACES[name].env if name in PLACES else name
