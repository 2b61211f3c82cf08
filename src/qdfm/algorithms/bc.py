"""BC: behaviour cloning, a softmax per token fitted by maximum likelihood (Pomerleau, 1991). No deviations."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from qdfm.algorithms.base import Algorithm, Config, Metrics, Phase, draw_batch
from qdfm.algorithms.learner import Learner
from qdfm.algorithms.softmax import imitate, init_softmax, log_softmax_of, tokenwise
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec


@dataclass(frozen=True)
class BC(Config):
    """Behaviour cloning."""

    clone_steps: int = 20_000
    """Gradient steps."""

    name = "bc"
    about = "behaviour cloning: a softmax per token"

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        config = self.resolve(spec)
        return tokenwise(
            spec,
            init=partial(init_softmax, config, spec),
            phases=(clone_phase(config, spec, config.clone_steps, lambda s: s, lambda s, new: new),),
            policy=lambda state: state.average,
            log_law=partial(log_softmax_of, spec),
        )


def clone_phase(
    config: Config, spec: Spec, steps: int, get: Callable[[Any], Learner], put: Callable[[Any, Learner], Any]
) -> Phase:
    """Maximum likelihood of the logged actions, for the network that `get` finds in the state."""

    def update(state: Any, dataset: Dataset, cache: None, key: jax.Array) -> tuple[Any, Metrics]:
        batch, preference = draw_batch(config, spec, dataset, key)
        new, loss, norm = imitate(config, spec, get(state), batch, preference)
        return put(state, new), {"loss": loss, "grad_norm": norm}

    return Phase("clone", steps, update)
