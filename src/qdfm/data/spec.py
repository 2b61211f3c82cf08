"""Spec: what is known of a task before training, and saved with every agent. Hashable, so compiled code can
be keyed by it, and plain JSON on disk.
"""

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from qdfm.data import actions
from qdfm.data.actions import ActionSpace


@dataclass(frozen=True)
class Normalisation:
    """Fitted once on the data, applied everywhere, undone at the border. Empty tuples mean: leave as it is.

    Observations and states become (x − mean) / std; in a team every agent's observation has the same mean and std,
    since networks may share weights over agents. Rewards are divided by one positive scale per objective; they are
    never shifted, because a shift changes which policy is best in episodes of different length.
    """

    observation_mean: tuple[float, ...] = ()
    observation_std: tuple[float, ...] = ()
    reward_scale: tuple[float, ...] = ()
    state_mean: tuple[float, ...] = ()
    state_std: tuple[float, ...] = ()


@dataclass(frozen=True)
class Accumulation:
    """Says that the last columns of an observation are the discounted return so far, one per objective, and γ^t.

    Utilities that are not linear in the return need both: what is best from here depends on what there is already.
    """

    gamma: float
    best: tuple[float, ...]  # the largest return in the data, by objective
    worst: tuple[float, ...]  # the smallest among returns that no other dominates


@dataclass(frozen=True)
class Spec:
    """Shapes of a task. In a team `observation_shape` is `[agents, ...]` and the tokens are the agents."""

    observation_shape: tuple[int, ...]
    actions: ActionSpace
    observation_dtype: str = "float32"
    objectives: int = 1
    agents: int = 1
    state_shape: tuple[int, ...] | None = None
    normalisation: Normalisation = field(default_factory=Normalisation)
    categories: tuple[int, ...] = ()  # per column of the flat observation: n for a number in 0..n−1, 0 for a quantity
    accumulation: Accumulation | None = None
    history: int = 1  # observations that stand side by side along the last axis of one, the present one last
    preference_range: tuple[tuple[float, float], ...] = ()  # by objective, of logged preferences that are followed

    @property
    def choices(self) -> tuple[int, ...]:
        """K_d for each token d."""
        return self.actions.choices

    @property
    def tokens(self) -> int:
        """D, the number of tokens of an action."""
        return len(self.choices)

    @property
    def num_choices(self) -> int:
        """K, the largest number of choices of a token; smaller tokens are padded with illegal choices."""
        return max(self.choices)

    @property
    def num_joint(self) -> int:
        """The number of joint actions, padding included: K ** D (a Python integer, however large)."""
        return self.num_choices**self.tokens

    @property
    def state_size(self) -> int:
        """How many numbers the global state has; 0 where there is none."""
        return 0 if self.state_shape is None else math.prod(self.state_shape)

    @cached_property
    def legal(self) -> np.ndarray:
        """The choices that exist at all, `[D, K]`."""
        return np.arange(self.num_choices) < np.asarray(self.choices)[:, None]

    @property
    def continuous(self) -> bool:
        """Whether actions are quantities that were made tokens of."""
        return isinstance(self.actions, actions.Bins | actions.Codebook)

    @cached_property
    def levels(self) -> np.ndarray | None:
        """Where the tokens are quantities, what their choices stand for, `[D, K]`: −1 the least, 1 the most."""
        if not isinstance(self.actions, actions.Bins):
            return None
        table = np.zeros(self.legal.shape, np.float32)
        for row, values in zip(table, self.actions.values, strict=True):
            low, high = values[0], values[-1]
            row[: len(values)] = (2 * np.asarray(values) - high - low) / max(high - low, 1e-12)
        return table

    @cached_property
    def points(self) -> np.ndarray | None:
        """Where one token chooses among quantities, these actions `[K, dimensions]`, standardised."""
        if self.tokens > 1 or not self.continuous:
            return None
        table = self.actions.decode(np.arange(self.num_choices)[:, None])
        return (table - table.mean(0)) / np.maximum(table.std(0), 1e-6)

    def normalise_observation(self, x: Any) -> Any:
        """Raw observations `[..., *shape]` as the networks see them; works on NumPy and JAX arrays."""
        norm = self.normalisation
        if not norm.observation_mean:
            return x
        mean = np.asarray(norm.observation_mean, np.float32).reshape(self.observation_shape)
        return (x - mean) / np.asarray(norm.observation_std, np.float32).reshape(self.observation_shape)

    def normalise_state(self, x: Any) -> Any:
        """Raw global states `[..., *state_shape]` of a team as the critics see them; None where there are none."""
        norm, shape = self.normalisation, self.state_shape
        if x is None or shape is None or not norm.state_mean:
            return x
        mean = np.asarray(norm.state_mean, np.float32).reshape(shape)
        return (x - mean) / np.asarray(norm.state_std, np.float32).reshape(shape)

    def normalise_reward(self, reward: Any) -> Any:
        """Raw rewards `[..., objectives]` as the critics see them."""
        scale = self.normalisation.reward_scale
        return reward / np.asarray(scale, np.float32) if scale else reward

    def nearest_preference(self, preference: np.ndarray) -> np.ndarray:
        """Preferences `[..., objectives]` moved into the range of those that were logged, where these are followed.

        The nearest one that sums to 1 is clip(ω + τ). Its sum is piecewise linear in τ and never falls, so that τ lies
        between the last bend with a sum below 1 and the next.
        """
        if not self.preference_range:
            return preference
        low, high = np.asarray(self.preference_range, np.float64).T
        wanted = np.asarray(preference, np.float64)
        bends = np.sort(np.concatenate([low - wanted, high - wanted], -1), -1)
        sums = np.clip(wanted[..., None, :] + bends[..., None], low, high).sum(-1)
        after = np.clip((sums < 1).sum(-1, keepdims=True), 1, bends.shape[-1] - 1)
        (start, end), (less, more) = (
            (np.take_along_axis(v, after - 1, -1), np.take_along_axis(v, after, -1)) for v in (bends, sums)
        )
        shift = start + (end - start) * np.clip((1 - less) / np.maximum(more - less, 1e-12), 0, 1)
        return np.clip(wanted + shift, low, high).astype(np.float32)

    def normalise_preference(self, preference: Any) -> Any:
        """Preferences of which those that were logged lie between −1 and 1."""
        low, high = np.asarray(self.preference_range, np.float32).T
        return (2 * preference - high - low) / np.maximum(high - low, 1e-6)

    def so_far(self, observation: Any) -> tuple[Any, Any]:
        """The return so far `[..., objectives]` in the critics' units and γ^t `[..., 1]`, read off network inputs."""
        columns = self.objectives + 1
        shift, scale = (np.asarray(v, np.float32)[-columns:] for v in self._standard())
        raw = observation[..., -columns:] * scale + shift
        return self.normalise_reward(raw[..., :-1]), raw[..., -1:]

    def _standard(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        norm, size = self.normalisation, int(np.prod(self.observation_shape))
        return norm.observation_mean or (0.0,) * size, norm.observation_std or (1.0,) * size

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary from which `from_json` rebuilds the spec."""
        return {**asdict(self), "actions": actions.to_json(self.actions)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Spec":
        """The spec that `to_json` wrote down."""
        norm = Normalisation(**{k: tuple(v) for k, v in fields["normalisation"].items()})
        state, so_far = fields["state_shape"], fields.get("accumulation")
        return cls(
            **{
                **fields,
                "observation_shape": tuple(fields["observation_shape"]),
                "actions": actions.from_json(fields["actions"]),
                "state_shape": None if state is None else tuple(state),
                "normalisation": norm,
                "categories": tuple(fields.get("categories", ())),
                "preference_range": tuple(tuple(v) for v in fields.get("preference_range", ())),
                "accumulation": so_far and Accumulation(so_far["gamma"], tuple(so_far["best"]), tuple(so_far["worst"])),
            }
        )
