"""Policies in files, and the networks that `qdfm.collect.sac` and `qdfm.collect.ppo` train to make them.

The files hold `w0, b0, w1, b1, w2, b2`, two ReLU layers and one without, and no Python objects. For continuous actions
they give mean and log-std of a Gaussian squashed by tanh, which `Actor` plays in NumPy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np

from qdfm.data.arrays import read_arrays, write_arrays
from qdfm.errors import QDFMError

POLICIES = Path(__file__).parent / "policies"
LOG_STD = (-10.0, 2.0)
NAMES = ("w0", "b0", "w1", "b1", "w2", "b2")

Weights = tuple[jax.Array, ...]  # w0, b0, w1, b1, ...; w [inputs, outputs]


def layers(key: jax.Array, sizes: tuple[int, ...]) -> Weights:
    """Weights for layers of these sizes, uniform within 1/√inputs."""
    out: list[jax.Array] = []
    for i, (n, m) in enumerate(pairwise(sizes)):
        for j, shape in enumerate(((n, m), (m,))):
            drawn = jax.random.uniform(jax.random.fold_in(key, 2 * i + j), shape, minval=-1, maxval=1)
            out.append(drawn / math.sqrt(n))
    return tuple(out)


def forward(weights: Weights, x: jax.Array) -> jax.Array:
    """ReLU between the layers, `[..., inputs]` to `[..., outputs]`."""
    for w, b in zip(weights[0:-2:2], weights[1:-2:2]):
        x = jax.nn.relu(x @ w + b)
    return x @ weights[-2] + weights[-1]


@dataclass(frozen=True)
class Actor:
    """A stochastic policy in NumPy: a = tanh(mean + std·noise) × high."""

    weights: tuple[np.ndarray, ...]  # as NAMES, w [inputs, outputs]
    high: np.ndarray  # [A], the largest action

    @classmethod
    def read(cls, path: str | Path, high: np.ndarray) -> "Actor":
        """The policy of a file, for actions up to `high`."""
        arrays = read_arrays(path)
        if set(arrays) != set(NAMES):
            raise QDFMError(f"{path} is no policy: it holds {', '.join(arrays)} instead of {', '.join(NAMES)}.")
        return cls(tuple(arrays[name].astype(np.float32) for name in NAMES), np.asarray(high, np.float32))

    def act(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions `[B, A]` for observations `[B, n]` and standard normal noise `[B, A]`; noise 0 gives the mode."""
        w0, b0, w1, b1, w2, b2 = self.weights
        x = np.maximum(observation.astype(np.float32) @ w0 + b0, 0)
        x = np.maximum(x @ w1 + b1, 0)
        mean, log_std = np.split(x @ w2 + b2, 2, axis=-1)
        action: np.ndarray = np.tanh(mean + np.exp(np.clip(log_std, *LOG_STD)) * noise.astype(np.float32)) * self.high
        return action


def write_actor(path: str | Path, weights: Sequence[np.ndarray]) -> None:
    """Write the file that `Actor.read` reads."""
    write_arrays(path, dict(zip(NAMES, weights, strict=True)))
