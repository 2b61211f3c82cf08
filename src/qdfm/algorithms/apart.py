"""Teams whose agents learn apart: the rows of all agents are those of one, who has the team's reward.

Each row holds what an agent saw, its number and what it did; the others are part of its world. An algorithm of one
agent then serves a team, and every agent acts by its own law.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdfm.algorithms.base import Algorithm, Phase, legal_choices
from qdfm.algorithms.softmax import tokenwise
from qdfm.data.actions import Discrete
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec


def own_spec(spec: Spec) -> Spec:
    """What one agent of the team sees, its number at the end, and does, as the networks see it."""
    size = math.prod(spec.observation_shape[1:])
    return Spec(
        (size + 1,),
        Discrete(spec.num_choices),
        observation_dtype=spec.observation_dtype,
        objectives=spec.objectives,
        categories=(*(spec.categories[:size] or (0,) * size), spec.agents),
        preference_range=spec.preference_range,
    )


def own_observation(seen: jax.Array, agent: jax.Array) -> jax.Array:
    """What agents `[n]` see `[n, ...]`, flat, and the number of each."""
    return jnp.concatenate([seen.reshape(len(seen), -1), agent[:, None].astype(seen.dtype)], -1)


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
        data, team = self.data, self.data.spec
        row, agent = rows // team.agents, rows % team.agents

        def own(x: Any) -> jax.Array:
            return jnp.asarray(x)[row, agent]

        def whole(x: Any) -> Any:
            return None if x is None else jnp.asarray(x)[row]

        def legal(mask: Any) -> jax.Array:
            exists = jnp.asarray(team.legal)[agent]
            return (exists if mask is None else exists & own(mask))[:, None]

        return Dataset(
            observation=own_observation(own(data.observation), agent),
            action=own(data.action)[:, None],
            reward=whole(data.reward),
            next_observation=own_observation(own(data.next_observation), agent),
            terminated=whole(data.terminated),
            truncated=whole(data.truncated),
            episode=whole(data.episode),
            spec=self.spec,
            mask=legal(data.mask),
            next_mask=legal(data.next_mask),
            preference=whole(data.preference),
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
        update, prepare, cache, draw = phase.update, phase.prepare, phase.cache, phase.draw
        own: Any = OwnRows
        return phase._replace(
            update=lambda state, data, kept, key: update(state, own(data), kept, key),
            prepare=prepare and (lambda state, data, key: prepare(state, own(data), key)),
            cache=cache and (lambda state, data, key: cache(state, own(data), key)),
            draw=draw and (lambda data, kept, key: draw(own(data), kept, key)),
        )

    def log_law(policy: Any, observation: jax.Array, preference: jax.Array, mask: jax.Array | None) -> jax.Array:
        rows = len(observation)
        legal = legal_choices(spec, mask, rows)
        own = law(
            policy,
            own_observation(observation.reshape(rows * spec.agents, -1), jnp.tile(jnp.arange(spec.agents), rows)),
            jnp.repeat(preference, spec.agents, 0),
            legal.reshape(rows * spec.agents, 1, -1),
        )
        return jnp.where(legal, jnp.log(own.reshape(legal.shape)), -jnp.inf)

    return tokenwise(spec, inner.init, tuple(team(phase) for phase in inner.phases), inner.policy, log_law)
