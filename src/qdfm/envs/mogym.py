"""MO-Gymnasium's deep-sea-treasure and resource-gathering as tables.

Nothing of their rules is told again here: MO-Gymnasium's own environment is put into every state and takes every
action. States are all combinations of the parts of the observation, row-major, so some, like rocks, are never reached.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from qdfm.envs.tabular import Tabular
from qdfm.errors import QDFMError, unknown

MAPS = {"convex": "deep-sea-treasure-v0", "concave": "deep-sea-treasure-concave-v0"}
KILLED = 0.1  # probability of being killed on an enemy's cell


def deep_sea_treasure(map_name: str = "convex") -> Tabular:
    """Treasure and −1 per step on the 11 × 11 map; the observation is (row, column), the horizon MO-Gymnasium's 100."""
    if map_name not in MAPS:
        raise unknown("map", map_name, MAPS)
    return _deep_sea_treasure(map_name)


@lru_cache  # inside, so that a map is one table however it is named
def _deep_sea_treasure(map_name: str) -> Tabular:
    env, horizon = _make(MAPS[map_name])

    def put(cell: np.ndarray) -> None:
        env.current_state = cell

    return _table(env, horizon, env.sea_map.shape, put, {0.0: 1.0})


@lru_cache
def resource_gathering() -> Tabular:
    """Minus one if killed, gold and diamond brought home, on the 5 × 5 map.

    The observation is (row, column, has gold, has diamond), the horizon MO-Gymnasium's 100. At an enemy the second
    outcome is to be killed.
    """
    env, horizon = _make("resource-gathering-v0")

    def put(state: np.ndarray) -> None:
        env.current_pos, env.has_gold, env.has_gem = state[:2], *state[2:]

    # The smallest draw that spares and the largest that kills.
    draws = {KILLED: 1 - KILLED, float(np.nextafter(KILLED, 0)): KILLED}
    return _table(env, horizon, (*env.map.shape, 2, 2), put, draws)


@dataclass
class _Draw:
    """Stands in for a random generator: gives the draw it was told to and remembers that it was asked."""

    value: float
    asked: bool = False

    def random(self) -> float:
        self.asked = True
        return self.value


def _table(
    env: Any, horizon: int, shape: tuple[int, ...], put: Callable[[np.ndarray], None], draws: dict[float, float]
) -> Tabular:
    """Every step from every state. An action that draws at random has one outcome for each of the draws, with the
    probabilities given; one that does not has the first outcome only."""
    start = int(np.ravel_multi_index(env.reset(seed=0)[0], shape))
    states = np.array(list(np.ndindex(shape)), np.int32)
    each = (len(states), int(env.action_space.n), len(draws))
    next_state, probability = np.zeros(each, np.int32), np.zeros(each)
    reward, terminated = np.zeros((*each, env.reward_dim), np.float32), np.zeros(each, bool)
    for s, a in np.ndindex(each[:2]):
        for o, (value, chance) in enumerate(draws.items()):
            env.np_random = draw = _Draw(value)
            put(states[s].copy())
            seen, reward[s, a, o], terminated[s, a, o], _, _ = env.step(a)
            next_state[s, a, o] = np.ravel_multi_index(seen, shape)
            probability[s, a, o] = chance if draw.asked else o == 0
    return Tabular(states.astype(np.float32), start, next_state, probability, reward, terminated, horizon)


def _make(name: str) -> tuple[Any, int]:
    """MO-Gymnasium's bare environment, and the steps after which it is registered to be cut off."""
    # Imported here, because that module knows the registry, which names the tables above.
    from qdfm.envs.gymnasium import make, registered

    if not registered(name):
        raise QDFMError(f'{name} needs MO-Gymnasium; install it with pip install "qdfm[morl]".')
    env = make(name)
    assert env.spec is not None and env.spec.max_episode_steps is not None
    return env.unwrapped, env.spec.max_episode_steps
