"""BC: behaviour cloning, a softmax per token fitted by maximum likelihood (Pomerleau, 1991). No deviations."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import jax

from qdfm.algorithms.base import Algorithm, Config, Metrics, Phase, check_noise, disturbed, draw_batch, halved
from qdfm.algorithms.learner import Learner, Rate, falling
from qdfm.algorithms.softmax import imitate, init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec


@dataclass(frozen=True)
class BC(Config):
    """Behaviour cloning."""

    clone_steps: int = 20_000
    """Gradient steps."""
    decay: bool = False
    """Whether the step size falls linearly to 0, for a closer fit."""
    observation_noise: float = 0.0
    """Standard deviations by which (normalised) observations are disturbed in training, for behaviours that keep to
    narrow paths."""

    name = "bc"
    about = "behaviour cloning: a softmax per token"

    def resolve(self, spec: Spec) -> Self:
        """Check the values."""
        check_noise(self, spec, self.observation_noise)
        return super().resolve(spec)

    def policy_rate(self) -> Rate:
        """Constant, or falling."""
        return falling(self.learning_rate, self.clone_steps) if self.decay else self.learning_rate

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        clone = clone_phase(config, spec, config.clone_steps, lambda s: s, lambda s, new: new, config.observation_noise)
        return tokenwise(
            spec,
            init=partial(init_softmax, config, spec),
            phases=(clone,),
            policy=lambda state: state.average,
            log_law=partial(log_softmax_of, spec),
        )


def clone_phase(
    config: Config, spec: Spec, steps: int,
    get: Callable[[Any], Learner] = lambda state: state.behaviour,
    put: Callable[[Any, Learner], Any] = lambda state, new: replace(state, behaviour=new),
    noise: float = 0.0,
) -> Phase:  # fmt: skip
    """Maximum likelihood of the logged actions, for the network that `get` finds in the state and `put` puts there."""

    def draw(dataset: Dataset, cache: None, key: jax.Array) -> tuple[Dataset, jax.Array]:
        batch, preference = draw_batch(config, spec, dataset, key)  # by the parts 0 and 1 of the key
        seen = disturbed(spec, batch.observation, noise, jax.random.fold_in(key, 2))
        return replace(batch, observation=seen), preference

    def step(state: Any, drawn: tuple[Dataset, jax.Array]) -> tuple[Any, Metrics]:
        batch, preference = drawn
        new, loss = imitate(config, spec, get(state), batch, preference)
        return put(state, new), {"loss": loss}

    return halved("clone", steps, draw, step, imitates=True)
