"""The contract of a built-in environment: pure functions of one state, to be vmapped and scanned by the caller."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from qdfm.data.spec import Spec


class Step(NamedTuple):
    """What one step gives back. The caller counts the steps and truncates at the horizon."""

    state: Any
    reward: jax.Array  # [objectives]
    terminated: jax.Array  # bool


@runtime_checkable
class JaxEnv(Protocol):
    """An environment without hidden state, hashable so that rollouts compile once. `state` is any pytree."""

    def __hash__(self) -> int:
        """Frozen dataclasses have one."""
        ...

    @property
    def spec(self) -> Spec:
        """Shapes of observations and actions."""
        ...

    @property
    def horizon(self) -> int:
        """Steps after which an episode is truncated."""
        ...

    def reset(self, key: jax.Array) -> Any:
        """A first state."""
        ...

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Step:
        """The effect of action tokens `[D]`."""
        ...

    def observation(self, state: Any) -> jax.Array:
        """What the agent sees, `[*observation_shape]`."""
        ...

    def mask(self, state: Any) -> jax.Array:
        """Which choices are legal, `[D, K]`."""
        ...


class TeamEnv(JaxEnv, Protocol):
    """An environment of several agents, `spec.agents` of them; token g is the choice of agent g."""

    def global_state(self, state: Any) -> jax.Array:
        """What is known of the whole, which no agent sees, `[*state_shape]`."""
        ...


@runtime_checkable
class Contest(Protocol):
    """An environment whose episodes are won or not."""

    def won(self, state: Any) -> jax.Array:
        """Whether the state is one of victory, bool."""
        ...
