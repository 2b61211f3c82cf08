"""SMAX: battles in the manner of StarCraft's, the team tasks of JaxMARL (Rutherford et al., 2024).

A team of units fights as many enemies, or one more, that follow JaxMARL's heuristic. A unit sees what is within its
sight; its choices are four directions, stop, and one attack per enemy.

Where we differ: rewards are JaxMARL's times 10, so that a return lies between 0 and 20 as in SMAC: 10 times the share
of health that the enemies lost, averaged over them, and 10 for a win. An episode terminates when a side is dead and is
truncated after 101 steps, JaxMARL's own limit; JaxMARL calls both done. An illegal choice is taken as stop.
"""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.envs.base import Step
from qdfm.errors import QDFMError, unknown

MAPS = ("3m", "2s3z", "5m_vs_6m")
STOP = 4  # after the four directions; attacks follow
REWARD = 10.0  # of a win, and of all the enemies' health


@dataclass(frozen=True)
class Smax:
    """A battle of JaxMARL's SMAX against its heuristic enemy; one choice per unit, and one reward for the team."""

    map: str

    def __post_init__(self) -> None:
        if self.map not in MAPS:
            raise unknown("SMAX map", self.map, MAPS)

    @property
    def spec(self) -> Spec:
        """One row of the observation and one token per unit."""
        world = _world(self.map)
        units, first = world.num_allies, world.agents[0]
        return Spec(
            observation_shape=(units, *world.observation_space(first).shape),
            actions=MultiDiscrete((world.action_space(first).n,) * units),
            agents=units,
            state_shape=(world.state_size,),
        )

    @property
    def horizon(self) -> int:
        """JaxMARL looks at its clock before it moves it on."""
        return int(_world(self.map).max_steps) + 1

    def reset(self, key: jax.Array) -> Any:
        """Two groups that face each other, each unit at a random place of its group."""
        return _world(self.map).reset(key)[1]

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        """Both sides act for half a second."""
        world = _world(self.map)
        legal = jnp.take_along_axis(self.mask(state), action[:, None], -1)[:, 0]
        chosen = jnp.where(legal, action, STOP)
        _, after, rewards, _, _ = world.step_env(key, state, dict(zip(world.agents, chosen, strict=True)))
        ours, theirs = self._alive(after)
        return Step(after, REWARD * rewards[world.agents[0]][None], ~(ours.any() & theirs.any()))

    def observation(self, state: Any) -> jax.Array:
        """What each unit sees, `[units, features]`; zeros for a dead one."""
        world = _world(self.map)
        seen = world.get_obs(state)
        return jnp.stack([seen[name] for name in world.agents])

    def mask(self, state: Any) -> jax.Array:
        """Attacks on enemies within range, and all moves; stop alone for a dead unit, `[units, choices]`."""
        world = _world(self.map)
        legal = world.get_avail_actions(state)
        return jnp.stack([legal[name] for name in world.agents]) > 0

    def global_state(self, state: Any) -> jax.Array:
        """Health, place, cooldown and kind of every unit on both sides, in JaxMARL's units, `[features]`."""
        return _world(self.map).get_world_state(state).astype(jnp.float32)

    def won(self, state: Any) -> jax.Array:
        """All enemies are dead, and not all of us; both sides can die in one step."""
        ours, theirs = self._alive(state)
        return ours.any() & ~theirs.any()

    def _alive(self, state: Any) -> tuple[jax.Array, jax.Array]:
        """Which of our units live, and which of theirs."""
        units, alive = _world(self.map).num_allies, state.state.unit_alive
        return alive[:units], alive[units:]


@lru_cache  # compiled code is keyed by the world itself
def _world(name: str) -> Any:
    with _quiet():
        try:
            from jaxmarl import make
            from jaxmarl.environments.smax import map_name_to_scenario
        except ModuleNotFoundError as error:
            if error.name != "jaxmarl":
                raise
            raise QDFMError(f'smax-{name} needs JaxMARL; install it with pip install "qdfm[marl]".') from None
        return make("HeuristicEnemySMAX", scenario=map_name_to_scenario(name))


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither JaxMARL's lines about packages that it looked for nor the warnings of those that it needs.

    One of its modules sets the streams to those that Python began with, so these are replaced too.
    """
    before, sink = (sys.__stdout__, sys.__stderr__), io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(sink), redirect_stderr(sink):
        warnings.simplefilter("ignore")
        sys.__stdout__ = sys.__stderr__ = sink  # type: ignore[misc, assignment]
        try:
            yield
        finally:
            sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]
