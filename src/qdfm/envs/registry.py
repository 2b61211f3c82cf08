"""Environments by name: our own here, everything else by its Gymnasium id."""

from collections.abc import Callable
from functools import partial

from qdfm.envs.base import JaxEnv
from qdfm.envs.multigoal import GOAL_X, MultiGoal

ENVIRONMENTS: dict[str, Callable[[], JaxEnv]] = {f"multigoal-{goals}": partial(MultiGoal, goals) for goals in GOAL_X}
