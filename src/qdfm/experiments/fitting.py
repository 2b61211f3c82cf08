"""Agents for a cell, all seeds trained in one program; what variants of QDFM have in common is trained only once."""

import time
from collections.abc import Callable
from dataclasses import replace

from qdfm.agent import Agent
from qdfm.algorithms import QDFM
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset
from qdfm.train import branching, train

Fit = Callable[[Dataset, Config, tuple[int, ...], bool], tuple[list[Agent], float]]
"""(data, config, seeds, progress) -> (an agent of each seed, the seconds that training took)"""


def fit(data: Dataset, config: Config, seeds: tuple[int, ...], progress: bool) -> tuple[list[Agent], float]:
    """Agents of one config."""
    began = time.perf_counter()
    agents = train(config, data, seeds, progress=progress)
    return agents, time.perf_counter() - began


class Family:
    """Fits QDFM's variants that differ in the last phase or in how they act, all to the same data with the same seeds;
    what comes before is trained once, for the first of them.

    The seconds of every variant count those of the common phases.
    """

    def __init__(self, trunk: Config):
        self.trunk = trunk
        self.finish: Callable[[Config], list[Agent]] | None = None
        self.seconds = 0.0
        self.last: tuple[Config, list[Agent], float] | None = None

    def __call__(
        self, data: Dataset, config: Config, seeds: tuple[int, ...], progress: bool
    ) -> tuple[list[Agent], float]:
        assert isinstance(config, QDFM)
        drawn = replace(config, averaged=False)  # the mean of a law is another way to act, no other training
        if self.last is not None and drawn == self.last[0]:
            _, agents, seconds = self.last
            acting = config.resolve(agents[0].spec)
            return [Agent(acting, a.spec, a.policy, seed) for a, seed in zip(agents, seeds, strict=True)], seconds
        began = time.perf_counter()
        if self.finish is None:
            self.finish = branching(self.trunk, data, 2, seeds, progress)
            self.seconds = time.perf_counter() - began
            began = time.perf_counter()
        agents = self.finish(config)
        self.last = drawn, agents, self.seconds + time.perf_counter() - began
        return agents, self.last[2]
