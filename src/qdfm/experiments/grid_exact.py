"""What a policy does in a grid world, found without sampling, and the behaviour that its data shows."""

from dataclasses import dataclass

import numpy as np

from qdfm.data.dataset import Dataset
from qdfm.envs.exact import carry
from qdfm.envs.grid import MOVES, Grid


@dataclass(frozen=True)
class Ending:
    """How a policy's episodes end within the horizon. `shares` and `timeout` sum to one."""

    shares: np.ndarray  # [outcomes]
    timeout: float
    expected_return: np.ndarray  # [objectives], undiscounted
    visits: np.ndarray  # [height, width]: expected visits per episode, first and last cell included


def propagate(env: Grid, probabilities: np.ndarray) -> Ending:
    """Carry the distribution over cells through the horizon under action probabilities `[cells, 4]`."""
    carried = carry(env.table(), probabilities)
    plan = env.plan.ravel()
    final = plan >= 0
    return Ending(
        # An episode stops in the first final cell it reaches, so the visits there are probabilities.
        shares=np.bincount(plan[final], carried.visits[final], len(env.payoffs)),
        timeout=carried.running,
        expected_return=carried.expected_return,
        visits=carried.visits.reshape(env.height, env.width),
    )


def behaviour(env: Grid, dataset: Dataset) -> np.ndarray:
    """Empirical μ(a|s) `[cells, 4]` by counting; zero rows at cells never seen."""
    x, y = np.split(np.asarray(dataset.observation), [env.width], -1)  # one-hot each
    counts = np.zeros((env.width * env.height, len(MOVES)))
    np.add.at(counts, (y.argmax(-1) * env.width + x.argmax(-1), np.asarray(dataset.action)[:, 0]), 1)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)
