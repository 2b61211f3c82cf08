"""Fitted Q evaluation (Le et al., 2019): what a given policy earns, from a log of another one.

Q(s, a) is regressed on r + γ Σ_a' π(a'|s') Q̄(s', a'), without a value beyond a terminated step. The policy never
changes, so its probabilities are found once for all rows. Deviations: minibatches and a target network that follows at
every step instead of a new regression for each iteration, layer norm, a step size that falls to 0, and rewards in
units of the returns.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.algorithms.base import Algorithm, Metrics, halved
from qdfm.algorithms.critic import CriticConfig, expected, init_critic, regress, vector_values
from qdfm.algorithms.learner import Learner, Rate, falling
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import Diverged, QDFMError
from qdfm.train import train_cached

BLOCK = 4096  # rows that are read at a time


@dataclass(frozen=True)
class FQE(CriticConfig):
    """The values of a policy that is given by its probabilities at every row's next state, the phase's cache."""

    evaluate_steps: int = 10_000
    """Gradient steps."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    layer_norm: bool | None = True
    """Layer norm, without which values of actions that a small log does not show run away."""
    critic_learning_rate: float = 5e-4
    """Adam's first step size; it falls linearly to 0."""
    target_rate: float = 0.05
    """Rate at which the target network follows; nothing is maximised here, so it may follow soon."""
    critics: int | None = 1
    """Size of the ensemble."""
    pessimism: str | None = "mean"
    """How an ensemble is read."""

    name = "fqe"
    about = "fitted Q evaluation of another agent"

    def critic_rate(self) -> Rate:
        """Falling, so that the noise of the last minibatches does not stay in the values."""
        return falling(self.critic_learning_rate, self.evaluate_steps)

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec; it has values, but no way to act."""
        config = self.resolve(spec)

        def draw(dataset: Dataset, law: jax.Array, key: jax.Array) -> tuple[Dataset, jax.Array]:
            rows = jax.random.randint(key, (config.batch_size,), 0, len(dataset))
            return dataset[rows], law[rows]

        def step(critic: Learner, drawn: tuple[Dataset, jax.Array]) -> tuple[Learner, Metrics]:
            batch, law = drawn
            even = _even(spec, len(batch))
            values = vector_values(config, spec, critic.average, batch.next_observation, even)
            return regress(config, spec, critic, batch, even, expected(law[:, None], values))

        def act(*_: Any, **__: Any) -> tuple[jax.Array, Any]:
            raise QDFMError("fqe values the policy of another agent and has none itself; act with that agent.")

        return Algorithm(
            init=partial(init_critic, config, spec),
            phases=(halved("evaluate", config.evaluate_steps, draw, step),),
            policy=lambda critic: critic.average,
            act=act,
            noise=0,
            probs=None,
        )


def fitted_values(
    config: FQE, data: Dataset, next_law: np.ndarray, first: np.ndarray, law: np.ndarray, seed: int, progress: bool
) -> np.ndarray:
    """Fit Q for the policy with probabilities `next_law` `[n, K]` at the rows' next states; its values
    `[len(first), objectives]` at the observations of the rows `first`, where its probabilities are `law`."""
    config, spec = config.resolve(data.spec), data.spec
    scale = _scale(data, config.gamma)
    seen = replace(data, reward=(np.asarray(data.reward) / scale).astype(np.float32)).normalised()
    try:
        critic = train_cached(config, jax.device_put(seen), jax.device_put(next_law), seed, progress)
    except Diverged as error:  # which advises on what whoever asks for an estimate does not set
        raise Diverged(
            f"fqe: the values are no longer finite; lower gamma ({config.gamma:g}) or check the rewards."
        ) from error
    values = in_blocks(partial(_readout(config, spec), critic.average), seen.observation[first], law)
    return np.asarray(values, np.float64) * scale


@lru_cache(maxsize=64)
def _readout(config: FQE, spec: Spec) -> Callable[..., jax.Array]:
    """The compiled (critic, observation, law) -> Σ_a π(a|s) Q(s, a) `[B, objectives]`."""

    def read(critic: Any, observation: jax.Array, law: jax.Array) -> jax.Array:
        values = vector_values(config, spec, critic, observation, _even(spec, len(observation)))
        return expected(law[:, None], values)

    return jax.jit(read)


def in_blocks(function: Callable[..., Any], *arrays: np.ndarray | None) -> np.ndarray:
    """What a function that is compiled once per number of rows gives for many rows: blocks of one size, the last one
    filled up."""
    rows = next(len(x) for x in arrays if x is not None)
    size = min(rows, BLOCK)
    blocks = [np.minimum(np.arange(start, start + size), rows - 1) for start in range(0, rows, size)]
    return np.concatenate([np.asarray(function(*(x if x is None else x[b] for x in arrays))) for b in blocks])[:rows]


def _even(spec: Spec, rows: int) -> jax.Array:
    """The preference that the critic is told: always the same, since what the policy prefers shows in its law."""
    return jnp.full((rows, spec.objectives), 1 / spec.objectives)


def _scale(data: Dataset, gamma: float) -> np.ndarray:
    """The mean size of the returns, by objective: what networks learn is of the order of 1 then."""
    columns = np.split(np.asarray(data.reward), data.spec.objectives, 1)
    return np.array([replace(data, reward=column).value_scale(gamma) for column in columns])
