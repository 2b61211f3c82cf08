"""Teams whose agents learn apart: the rows of all agents are those of one, who has the team's reward.

Each row holds what an agent saw, its number and what it did; the others are part of its world. An algorithm of one
agent then serves a team, and every agent acts by its own law.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Algorithm, Phase, legal_choices
from qdfm.algorithms.softmax import tokenwise
from qdfm.data.actions import Discrete
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.nets import feature_size, features


def own_spec(spec: Spec) -> Spec:
    """What one agent of the team sees and does, as the networks see it."""
    return Spec(
        (feature_size(spec) // spec.agents + spec.agents,),
        Discrete(spec.num_choices),
        objectives=spec.objectives,
        preference_range=spec.preference_range,
    )


def own_observation(spec: Spec, observation: jax.Array) -> jax.Array:
    """Observations of the team as those of its agents `[n, G, size]`: each one's own, and its number one-hot."""
    own = features(spec, observation).reshape(len(observation), spec.agents, -1)
    number = jnp.broadcast_to(jnp.eye(spec.agents, dtype=own.dtype), (len(own), spec.agents, spec.agents))
    return jnp.concatenate([own, number], -1)


class OwnRows:
    """The team's transitions as those of its agents: row i·G + g is agent g's part of row i, made when it is asked for.

    It has what an algorithm of one token asks of a dataset.
    """

    def __init__(self, data: Dataset):
        self.data, self.spec = data, own_spec(data.spec)

    def __len__(self) -> int:
        return len(self.data) * self.data.spec.agents

    def __getitem__(self, rows: jax.Array) -> Dataset:
        """The rows of an index array."""
        team = self.data.spec
        batch, own = self.data[rows // team.agents], rows % team.agents

        def part(x: jax.Array) -> jax.Array:
            return jnp.take_along_axis(x, own.reshape(-1, *(1,) * (x.ndim - 1)), 1)

        def seen(observation: jax.Array) -> jax.Array:
            return part(own_observation(team, observation))[:, 0]

        return Dataset(
            observation=seen(batch.observation),
            action=part(batch.action),
            reward=batch.reward,
            next_observation=seen(batch.next_observation),
            terminated=batch.terminated,
            truncated=batch.truncated,
            episode=batch.episode,
            spec=self.spec,
            mask=part(legal_choices(team, batch.mask, len(batch))),
            next_mask=part(legal_choices(team, batch.next_mask, len(batch))),
            preference=batch.preference,
        )

    def sample(self, key: jax.Array, size: int) -> Dataset:
        """A batch of rows, drawn uniformly with replacement."""
        return self[jax.random.randint(key, (size,), 0, len(self))]


def apart(spec: Spec, alone: Callable[[Spec], Algorithm]) -> Algorithm:
    """The team's algorithm, made of the one that `alone` builds for a single agent."""
    inner = alone(own_spec(spec))
    assert inner.probs is not None  # the law of one agent, which it acts by
    law = inner.probs

    def team(phase: Phase) -> Phase:
        update, prepare, cache = phase.update, phase.prepare, phase.cache
        own: Any = OwnRows
        return phase._replace(
            update=lambda state, data, kept, key: update(state, own(data), kept, key),
            prepare=prepare and (lambda state, data, key: prepare(state, own(data), key)),
            cache=cache and (lambda state, data, key: cache(state, own(data), key)),
        )

    def log_law(policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
        rows = len(observation)
        legal = legal_choices(spec, mask, rows)
        own = law(
            policy,
            own_observation(spec, observation).reshape(rows * spec.agents, -1),
            jnp.repeat(preference, spec.agents, 0),
            legal.reshape(rows * spec.agents, 1, -1),
        )
        return jnp.where(legal, jnp.log(own.reshape(legal.shape)), -jnp.inf)

    return tokenwise(spec, inner.init, tuple(team(phase) for phase in inner.phases), inner.policy, log_law)
