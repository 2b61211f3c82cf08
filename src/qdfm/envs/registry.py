"""Environments by name: our own here, everything else by its Gymnasium id; and where the data of a name is played."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from qdfm.envs.acrobot import Acrobot
from qdfm.envs.base import JaxEnv
from qdfm.envs.cartpole import CartPole
from qdfm.envs.cartpole2obj import CartPole2Obj
from qdfm.envs.fork import Fork
from qdfm.envs.matrix import Matrix
from qdfm.envs.mogym import deep_sea_treasure, resource_gathering
from qdfm.envs.mujoco import MO_HOPPER, MO_TASKS, TASKS, normalised
from qdfm.envs.multigoal import GOAL_X, MultiGoal
from qdfm.envs.smax import MAPS, Smax
from qdfm.envs.smax import TASKS as BATTLES

ENVIRONMENTS: dict[str, Callable[[], JaxEnv]] = {
    **{f"multigoal-{goals}": partial(MultiGoal, goals) for goals in GOAL_X},
    "fork": Fork,
    "deep-sea-treasure": deep_sea_treasure,
    "deep-sea-treasure-concave": partial(deep_sea_treasure, "concave"),
    "resource-gathering": resource_gathering,
    "cartpole": CartPole,
    "cartpole-2obj": CartPole2Obj,
    "acrobot": Acrobot,
    "matrix": Matrix,
    **{f"smax-{name}": partial(Smax, name) for name in MAPS},
}


class Place(NamedTuple):
    """Where data was played, and the scores of returns `[episodes]` there, where they have a scale."""

    env: str
    score: Callable[[np.ndarray], np.ndarray] | None = None


# Of data whose name is not that of an environment.
PLACES: dict[str, Place] = {
    **{name: Place(task.env, partial(normalised, name)) for name, task in TASKS.items()},
    **{name: Place(MO_HOPPER) for name in MO_TASKS},
    **{name: Place(env) for name, env in BATTLES.items()},
}


def played_in(name: str) -> str:
    """The environment of a name: where its data was played, or the name itself."""
    return PLACES[name].env if name in PLACES else name
