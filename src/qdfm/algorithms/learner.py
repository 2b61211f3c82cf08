"""One network in training: its weights, their running average, and Adam's state.

The average serves as the acting weights of a policy and as the target network of a critic.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

Rate = float | Callable[[Any], Any]  # a step size, or one for every count of steps


def falling(rate: float, *steps: int) -> Rate:
    """A step size that falls linearly to 0 within so many steps, and once more within each further number of them."""
    return optax.join_schedules([optax.linear_schedule(rate, 0, max(1, n)) for n in steps], [*accumulate(steps[:-1])])


class Learner(eqx.Module):
    """A network, its average and its optimiser state."""

    net: Any
    average: Any
    optimiser: optax.OptState


def start(net: Any, learning_rate: Rate) -> Learner:
    """A fresh learner. The average starts at the network and owns its memory."""
    return Learner(net, jax.tree.map(jnp.copy, net), optax.adam(learning_rate).init(net))


def descend(learner: Learner, gradient: Any, learning_rate: Rate, decay: float) -> Learner:
    """One Adam step, the average following with `decay`."""
    change, optimiser = optax.adam(learning_rate).update(gradient, learner.optimiser)
    net = optax.apply_updates(learner.net, change)
    average = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, learner.average, net)
    return Learner(net, average, optimiser)
