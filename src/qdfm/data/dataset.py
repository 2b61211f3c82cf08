"""Dataset: logged transitions as a pytree with a leading transition axis, validated once at the door.

Rewards are always `[n, objectives]`, actions always tokens `[n, D]`, episodes are contiguous blocks in time
order. A batch is a Dataset too, with fewer rows, so that there is one data type from the file to the gradient
step.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.actions import ActionSpace
from qdfm.data.arrays import check_suffix, read_arrays, write_arrays
from qdfm.data.checks import (
    action_space,
    as_array,
    as_flags,
    as_mask,
    as_matrix,
    as_numbers,
    check_filled,
    check_history,
    check_lengths,
    check_rows,
    filled_beyond,
    number_episodes,
    one_per_row,
    warn_of_merged,
    whole_numbers,
)
from qdfm.data.episodes import borders
from qdfm.data.spec import Accumulation, Spec
from qdfm.errors import QDFMError
from qdfm.metrics import non_dominated
from qdfm.seeds import check_seed

FORMAT = "qdfm-dataset"
FORMAT_VERSION = 1
# A std below this share of the largest magnitude belongs to a feature that is constant but for rounding.
CONSTANT = 1e-6


# An action space, or how to find one for raw actions [n, dimensions], such as partial(Bins.fit, count=21).
Discretise = ActionSpace | Callable[[np.ndarray], ActionSpace]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dataset:
    """Transitions. Build with `from_arrays`, `load` or `qdfm.load_dataset`: those validate, this does not."""

    observation: Any  # [n, *observation_shape]
    action: Any  # [n, D] int32 tokens
    reward: Any  # [n, objectives] float32
    next_observation: Any  # [n, *observation_shape]
    terminated: Any  # [n] bool: the task ended, no value beyond
    truncated: Any  # [n] bool: the recording ended, the value goes on
    episode: Any  # [n] int32, non-decreasing
    spec: Spec = field(metadata={"static": True})
    mask: Any = None  # [n, D, K] bool, legal choices at observation
    next_mask: Any = None  # [n, D, K] bool, legal choices at next_observation
    preference: Any = None  # [n, objectives], the preference a row was collected under
    state: Any = None  # [n, *state_shape], a team's global state
    next_state: Any = None

    def __len__(self) -> int:
        return int(self.reward.shape[0])

    def __repr__(self) -> str:
        """One line, since the arrays fill screens; also where compiled code has no values to count."""
        spec, shape = self.spec, tuple(getattr(self.reward, "shape", ()))[:-1]
        facts: dict[str, Any] = {"rows": shape[0] if len(shape) == 1 else shape}
        if isinstance(self.episode, np.ndarray | jax.Array) and not isinstance(self.episode, jax.core.Tracer):
            facts["episodes"] = len(np.unique(self.episode))
        facts |= {"observation": spec.observation_shape, "choices": spec.choices, "objectives": spec.objectives}
        facts |= {"agents": spec.agents} if spec.agents > 1 else {}
        return f"Dataset({', '.join(f'{name}={value}' for name, value in facts.items())})"

    def __getitem__(self, rows: Any) -> "Dataset":
        """The rows of an index array (of any shape) or slice; `None` fields stay `None`."""
        # NumPy arrays cannot be indexed by a traced value, and a compiled function may close over NumPy data.
        traced = isinstance(rows, jax.core.Tracer)
        return jax.tree.map(lambda x: (jnp.asarray(x) if traced else x)[rows], self)

    def split(self, share: float = 0.8, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Two parts of whole episodes, the first with this share of them, drawn at random.

        Actions stay the tokens that they are. What the networks see normalised is normalised in both parts as the first
        alone would be, so that nothing of the second is known in training; only data with accumulated returns keeps the
        normalisation of the whole.
        """
        first, last = borders(self.episode)
        episodes = len(first) if len(self) else 0
        size = round(share * episodes) if 0 < share < 1 else 0
        if not 0 < size < episodes:
            raise QDFMError(
                f"A share of {share} of {episodes} episode(s) leaves one part empty; give one between 0 and 1 that "
                "puts an episode on either side."
            )
        chosen = np.zeros(episodes, bool)
        chosen[np.random.default_rng(check_seed(seed)).permutation(episodes)[:size]] = True
        inside = np.repeat(chosen, last - first + 1)
        one, other = self[np.flatnonzero(inside)], self[np.flatnonzero(~inside)]
        if self.spec.accumulation is None:
            norm = self.spec.normalisation
            seen = bool(norm.observation_mean or norm.state_mean)
            one = one.with_normalisation(observation=seen, reward=bool(norm.reward_scale))
        return one, replace(other, spec=one.spec)

    def sample(self, key: jax.Array, size: int) -> "Dataset":
        """A batch of transitions, drawn uniformly with replacement."""
        return self[jax.random.randint(key, (size,), 0, len(self))]

    def normalised(self) -> "Dataset":
        """The data as the networks see it."""
        s = self.spec
        return replace(
            self,
            observation=s.normalise_observation(self.observation),
            next_observation=s.normalise_observation(self.next_observation),
            reward=s.normalise_reward(self.reward),
            state=s.normalise_state(self.state),
            next_state=s.normalise_state(self.next_state),
        )

    def with_normalisation(self, observation: bool = False, reward: bool = False) -> "Dataset":
        """The same rows with a spec whose normalisation is fitted on them, in a team on the rows of all agents alike;
        what is not asked for stays as it is.

        With `observation`, a team's global state is standardised too. With `reward`, a preference weighs objectives in
        units of their rewards' deviation.
        """
        norm = self.spec.normalisation
        if observation and np.dtype(self.spec.observation_dtype).kind == "f":
            x = np.asarray(self.observation, np.float64).reshape(len(self) * self.spec.agents, -1)
            mean, std = (np.tile(v, self.spec.agents) for v in (x.mean(0), _spread(x)))
            named = np.asarray(self.spec.categories or (0,) * len(mean)) > 0  # categories stay as they are
            mean, std = np.where(named, 0.0, mean), np.where(named, 1.0, std)
            norm = replace(norm, observation_mean=_floats(mean), observation_std=_floats(std))
        if observation and self.state is not None and self.state.dtype.kind == "f":
            x = np.asarray(self.state, np.float64).reshape(len(self), -1)
            norm = replace(norm, state_mean=_floats(x.mean(0)), state_std=_floats(_spread(x)))
        if reward:
            norm = replace(norm, reward_scale=_floats(_spread(np.asarray(self.reward, np.float64))))
        return replace(self, spec=replace(self.spec, normalisation=norm))

    def with_accumulated(self, gamma: float) -> "Dataset":
        """The same rows whose observations also hold the discounted return so far and γ^t, for nonlinear utilities.

        Every episode must begin where the data has its first row. Utilities weigh a shortfall in units of the range
        that the data's non-dominated returns span; so do the critics, whose errors then count alike. A linear
        preference on such data weighs objectives in these units too.
        """
        spec = self.spec
        if len(spec.observation_shape) != 1 or spec.accumulation is not None:
            raise QDFMError("Accumulated returns need flat observations that do not hold them yet.")
        if not 0 <= gamma <= 1:
            raise QDFMError(f"gamma is {gamma}; it must lie between 0 and 1.")
        gamma = float(gamma)
        returns = self.returns(gamma)
        best, lowest = returns.max(0), returns.min(0)
        flat = np.flatnonzero(best - lowest <= CONSTANT * np.abs(returns).max(0))
        if flat.size:
            raise QDFMError(
                f"Objective {flat[0] + 1} has the return {best[flat[0]]:g} in every episode, so it has no range to be "
                "weighed by; leave it out of the reward."
            )
        worst = returns[non_dominated(returns)].min(0)
        worst = np.where(best - worst > CONSTANT * np.abs(best), worst, lowest)  # one return may be best in everything
        step, first = self._steps()
        weight = gamma**step
        paid = np.cumsum(weight[:, None] * np.asarray(self.reward, np.float64), 0)
        after = paid - np.where(first[:, None] > 0, paid[first - 1], 0)  # within the episode, this step included
        before = after - weight[:, None] * np.asarray(self.reward, np.float64)
        here, there = (
            np.concatenate([x, so_far, power[:, None]], 1).astype(np.float32)
            for x, so_far, power in ((self.observation, before, weight), (self.next_observation, after, gamma * weight))
        )
        extra = spec.objectives + 1
        wider = replace(
            spec,
            observation_shape=(here.shape[1],),
            observation_dtype="float32",
            categories=(*spec.categories, *(0,) * extra) if spec.categories else (),
            accumulation=Accumulation(gamma, _floats(best), _floats(worst)),
        )
        data = replace(self, observation=here, next_observation=there, spec=wider)
        norm, own = data.with_normalisation(observation=True).spec.normalisation, spec.normalisation
        size = spec.observation_shape[0]
        norm = replace(  # the observation's own columns are seen as they were
            norm,
            observation_mean=(own.observation_mean or (0.0,) * size) + norm.observation_mean[size:],
            observation_std=(own.observation_std or (1.0,) * size) + norm.observation_std[size:],
            reward_scale=_floats(best - worst),
            state_mean=own.state_mean,
            state_std=own.state_std,
        )
        return replace(data, spec=replace(wider, normalisation=norm))

    def with_history(self, history: int) -> "Dataset":
        """The same rows whose observations hold the last so many, side by side along their last axis, the present one
        last, for tasks that show less than there is to know.

        Before its first row an episode showed what it shows there. Agents of such data are evaluated with as much
        history; elsewhere they are given it.
        """
        if (history := check_history(history)) == 1:
            return self
        spec = self.spec
        if spec.history > 1 or spec.accumulation is not None:
            raise QDFMError("Observations that hold a history or accumulated returns already cannot be given another.")
        seen, (_, begins) = np.asarray(self.observation), self._steps()
        ago = np.arange(history - 1, -1, -1)[:, None]
        here = np.concatenate([*seen[np.maximum(np.arange(len(self)) - ago, begins)]], -1)
        there = np.concatenate([here[..., seen.shape[-1] :], np.asarray(self.next_observation)], -1)

        def widened(values: tuple[Any, ...]) -> tuple[Any, ...]:
            if not values:
                return values
            columns = np.asarray(values).reshape(spec.observation_shape)
            return tuple(np.concatenate([columns] * history, -1).ravel().tolist())

        norm = spec.normalisation
        wider = replace(
            spec,
            observation_shape=here.shape[1:],
            history=history,
            categories=widened(spec.categories),
            normalisation=replace(
                norm,
                observation_mean=widened(norm.observation_mean),
                observation_std=widened(norm.observation_std),
            ),
        )
        return replace(self, observation=here, next_observation=there, spec=wider)

    def constant_objectives(self) -> list[int]:
        """Objectives that tell nothing: the same reward in every row and the same return in every episode."""
        reward, returns = np.asarray(self.reward), self.returns()
        same = (reward.min(0) == reward.max(0)) & (np.ptp(returns, 0) <= CONSTANT * np.abs(returns).max(0))
        return np.flatnonzero(same).tolist()

    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """The step of each row within its episode, and the row at which that begins."""
        first, last = borders(self.episode)
        begins = np.repeat(first, last - first + 1)
        return np.arange(len(begins)) - begins, begins

    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(x.nbytes for x in jax.tree.leaves(self))

    def returns(self, gamma: float = 1.0) -> np.ndarray:
        """Return of each episode, `[episodes, objectives]`, in the units of the raw reward."""
        first, _ = borders(self.episode)
        reward = np.asarray(self.reward, np.float64)
        if gamma != 1:
            reward = reward * (gamma ** self._steps()[0])[:, None]
        returns: np.ndarray = np.add.reduceat(reward, first)
        return returns

    def value_scale(self, gamma: float) -> float:
        """The mean size of the discounted return from a row on, of the objective where it is largest; 1 where all is 0.

        Returns end where an episode does, also where it was cut off.
        """
        ahead, far = np.asarray(self.reward, np.float64), 1
        episode = np.asarray(self.episode)
        while (same := episode[far:] == episode[:-far]).any():  # doubles how far ahead the sum looks
            ahead = ahead + np.r_[gamma**far * same[:, None] * ahead[far:], np.zeros((far, ahead.shape[1]))]
            far *= 2
            if far >= len(episode):
                break
        return float(np.abs(ahead).mean(0).max()) or 1.0

    @classmethod
    def from_arrays(
        cls,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any = None,
        mask: Any = None,
        next_mask: Any = None,
        episode: Any = None,
        num_actions: int | tuple[int, ...] | None = None,
        *,
        preference: Any = None,
        state: Any = None,
        next_state: Any = None,
        agents: int = 1,
        normalise: bool = True,
        actions: "Discretise | None" = None,
        categories: tuple[int, ...] = (),
    ) -> "Dataset":
        """Own data, checked: every array has one row per transition, in time order within an episode.

        `action` is `[n]` for one choice or `[n, D]` for a decision of D parts; `num_actions` (an integer, or
        one per part) is read off the data when left out, also off the mask of one choice. Without `episode`, an episode
        ends where `terminated` or `truncated` is true; what follows a terminated row may be NaN. `normalise`
        standardises floating-point observations for the networks; a column that `categories` gives n values is a
        number in 0..n−1 that they see one-hot (0: a quantity).
        `actions` is the action space, or a function that finds one for the raw actions, as
        `partial(Bins.fit, count=21)` does for continuous ones.
        """
        if not isinstance(agents, int | np.integer) or agents < 1:
            raise QDFMError(f"agents is {agents!r}; give a whole number from 1.")
        obs = as_matrix("observation", observation)
        n = len(obs)
        if n == 0:
            raise QDFMError("The data is empty; give at least one transition.")
        ended = as_flags("terminated", one_per_row("terminated", terminated))
        next_obs = as_matrix("next_observation", filled_beyond("next_observation", next_observation, obs, ended))
        if next_obs.dtype != obs.dtype:
            obs, next_obs = obs.astype(np.float32), next_obs.astype(np.float32)
        rewards = as_matrix("reward", reward).astype(np.float32)
        if rewards.ndim != 2 or rewards.shape[1] == 0:
            raise QDFMError(f"reward has shape {rewards.shape}; give [n] or [n, objectives].")
        cut = np.zeros(n, bool) if truncated is None else as_flags("truncated", one_per_row("truncated", truncated))
        raw = as_array("action", action)
        check_lengths({"observation": obs, "action": raw})
        if actions is None:
            actions = action_space(raw, num_actions, mask)
        elif callable(actions) and not isinstance(actions, type):
            actions = actions(raw)
        if not isinstance(actions, ActionSpace):
            raise QDFMError(
                f"actions is {actions!r}; give an action space, or a function that finds one, such as "
                "partial(qdfm.Bins.fit, count=21)."
            )
        here = None if state is None else as_numbers("state", state)
        there = (
            None
            if next_state is None
            else as_numbers("next_state", filled_beyond("next_state", next_state, here, ended))
        )
        rows: dict[str, np.ndarray | None] = {
            "observation": obs,
            "action": raw,
            "reward": rewards,
            "next_observation": next_obs,
            "terminated": ended,
            "truncated": cut,
            "mask": as_mask("mask", mask, actions),
            "next_mask": as_mask("next_mask", next_mask, actions),
            "preference": None if preference is None else as_matrix("preference", preference),
            "state": here,
            "next_state": there,
            "episode": None if episode is None else one_per_row("episode", episode),
        }
        check_lengths(rows)
        if (after := rows["next_mask"]) is not None:  # logs often allow nothing beyond the end, where nothing is asked
            rows["next_mask"] = after | (ended & ~after.any(-1).all(-1))[:, None, None]
        rows["action"] = actions.encode(raw)
        warn_of_merged(actions, raw)
        rows["episode"], order = number_episodes(rows["episode"], ended | cut)
        spec = Spec(
            observation_shape=obs.shape[1:],
            observation_dtype=str(obs.dtype),
            actions=actions,
            objectives=rewards.shape[1],
            agents=agents,
            state_shape=None if state is None else tuple(np.shape(state)[1:]),
            categories=_categories(categories, agents, obs.shape),
        )
        data = cls(spec=spec, **rows)
        check_rows(data)  # before the rows are put in order, so that errors name the user's rows
        data = data[order]
        return data.with_normalisation(observation=True) if normalise else data

    def save(self, path: str | Path, about: dict[str, Any] | None = None) -> None:
        """Write one `.npz` file that `load` reads back exactly; its header also keeps what `about` tells."""
        check_suffix(path)
        header = {"format": FORMAT, "version": FORMAT_VERSION, "spec": self.spec.to_json(), "about": about or {}}
        fields_ = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "spec"}
        arrays: dict[str, Any] = {k: np.asarray(v) for k, v in fields_.items() if v is not None}
        write_arrays(path, {"header": np.array(json.dumps(header)), **arrays})

    @classmethod
    def load(cls, path: str | Path) -> "Dataset":
        """Read what `save` wrote; no pickle is loaded."""
        arrays = read_arrays(path)
        header = saved_header(arrays)
        if header is None:
            raise QDFMError(f"{path} was not written by Dataset.save; read it with qdfm.load_dataset.")
        if header.get("version", 0) > FORMAT_VERSION:
            raise QDFMError(f"{path} was written by a newer qdfm; upgrade qdfm to read it.")
        try:
            del arrays["header"]
            data = cls(spec=Spec.from_json(header["spec"]), **arrays)
        except (KeyError, TypeError, AttributeError):
            raise QDFMError(f"{path} is damaged: its header or a field is missing; save it again.") from None
        check_lengths({f.name: getattr(data, f.name) for f in fields(data) if f.name != "spec"})
        check_filled(data)
        check_rows(data)
        return data


def fingerprint(dataset: Dataset) -> str:
    """A hash of the arrays, by which data is known again."""
    digest = sha256()
    for f in fields(dataset):
        value = getattr(dataset, f.name)
        if f.name != "spec" and value is not None:
            digest.update(f.name.encode())
            digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()[:16]


def saved_header(arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """The header that `Dataset.save` put among the arrays of a file; None where another program wrote it."""
    try:
        header = json.loads(str(arrays["header"]))
        return header if header["format"] == FORMAT else None
    except (KeyError, TypeError, ValueError):
        return None


def _categories(categories: tuple[int, ...], agents: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """One entry per column of the flat observation; in a team those of one agent serve for all."""
    given = whole_numbers("categories", categories)
    return given * agents if agents > 1 and len(given) * agents == math.prod(shape[1:]) else given


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(v) for v in np.atleast_1d(values))


def _spread(x: np.ndarray) -> np.ndarray:
    """The std of each column, 1 where the column is constant."""
    std = x.std(0)
    return np.where(std > CONSTANT * np.abs(x).max(0), std, 1.0)
