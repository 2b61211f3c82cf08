"""Environments by name: our own here, everything else by its Gymnasium id."""

from collections.abc import Callable
from functools import partial

from qdfm.envs.acrobot import Acrobot
from qdfm.envs.base import JaxEnv
from qdfm.envs.cartpole import CartPole
from qdfm.envs.cartpole2obj import CartPole2Obj
from qdfm.envs.multigoal import GOAL_X, MultiGoal

ENVIRONMENTS: dict[str, Callable[[], JaxEnv]] = {
    **{f"multigoal-{goals}": partial(MultiGoal, goals) for goals in GOAL_X},
    "cartpole": CartPole,
    "cartpole-2obj": CartPole2Obj,
    "acrobot": Acrobot,
}
