"""The border to Gymnasium and MO-Gymnasium: their ids, observations, action spaces and masks as ours. The other way
goes `gymenv.py`."""

import random
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from qdfm.data.actions import ActionSpace, Bins, Codebook, Discrete, MultiDiscrete
from qdfm.envs.mujoco import MO_HOPPER, make_plain
from qdfm.envs.registry import game_of, known_names
from qdfm.errors import QDFMError, unknown

LIKE_AN_ID = re.compile(r".*-v\d+|.*/.*")

# By its path, because the module needs MuJoCo.
gymnasium.register(MO_HOPPER, "qdfm.envs.mo_hopper:MOHopper", max_episode_steps=500)


class Accumulating(gymnasium.Wrapper):
    """The same task that also shows the discounted return so far and γ^t, as `Dataset.with_accumulated` has them."""

    def __init__(self, env: gymnasium.Env, objectives: int, gamma: float) -> None:
        super().__init__(env)
        self.gamma, self.nothing = gamma, np.zeros(objectives)
        self.observation_space = box((spaces.flatdim(env.observation_space) + objectives + 1,), "float32")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new episode, for which nothing has been paid."""
        self.paid, self.weight = self.nothing, 1.0
        observation, info = self.env.reset(seed=seed, options=options)
        return self._longer(observation), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """The environment's own step, and its reward added."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        paid = np.atleast_1d(np.asarray(reward, np.float64))
        if paid.shape != self.nothing.shape:
            raise QDFMError(
                f"The agent was trained on objectives {len(self.nothing)} but the environment has {len(paid)}; "
                "evaluate it where its data came from."
            )
        self.paid = self.paid + self.weight * paid
        self.weight *= self.gamma
        return self._longer(observation), reward, terminated, truncated, info

    def _longer(self, observation: Any) -> np.ndarray:
        return np.r_[np.ravel(observation), self.paid, self.weight].astype(np.float32)


class Preferring(gymnasium.Wrapper):
    """The same task that also shows, after the observation, a preference over its objectives: one for each episode,
    drawn uniformly from the simplex. The reward stays a vector."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.objectives = objectives_of(env)
        self.observation_space = box((spaces.flatdim(env.observation_space) + self.objectives,), "float64")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new episode under a new preference."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.preference = self.unwrapped.np_random.dirichlet(np.ones(self.objectives))
        return np.r_[np.ravel(observation), self.preference], info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """The environment's own step."""
        observation, *rest = self.env.step(action)
        return np.r_[np.ravel(observation), self.preference], *rest


def objectives_of(env: gymnasium.Env) -> int:
    """How many objectives an environment has, which declares more than one as MO-Gymnasium's do."""
    declares = env.has_wrapper_attr("reward_space")
    return int(np.prod(env.get_wrapper_attr("reward_space").shape)) if declares else 1


def registered(name: str) -> bool:
    """Whether Gymnasium knows an id; MO-Gymnasium, slow to import, is asked only for what looks like one."""
    if name not in gymnasium.registry and LIKE_AN_ID.fullmatch(name):
        _import_mo_gymnasium()
    return name in gymnasium.registry


def unknown_id(kind: str, name: str, known: Iterable[str]) -> QDFMError:
    """The error for a name that is neither known nor registered."""
    if not LIKE_AN_ID.fullmatch(name):
        return unknown(kind, name, known)
    note = "" if _import_mo_gymnasium() else 'MO-Gymnasium cannot be imported: pip install "qdfm[morl]"'
    return unknown(kind, name, [*known, *gymnasium.registry], note)


def make(name: str, trained: ActionSpace | None = None, **options: Any) -> gymnasium.Env:
    """A Gymnasium or MO-Gymnasium environment by its id, or a map of a game such as smac-3m; its observation one array,
    actions as in `action_tokens`.

    The options are those of `gymnasium.make`.
    """
    if (found := game_of(name)) is not None:
        game, map_name = found
        return adapted(game.make(map_name, **options), trained)
    if not registered(name):
        raise unknown_id("environment", name, known_names())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered")  # of a Box's bounds; no user can mend that
        return adapted(make_plain(name, **options), trained)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of NumPy and Python, seeded for a while, because some environments (minecart-v0,
    four-room-v0) draw from those whatever seed their reset is given."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002
    seed_globals(seed)
    try:
        yield
    finally:
        np.random.set_state(before[0])  # noqa: NPY002
        random.setstate(before[1])


def seed_globals(seed: int) -> None:
    """Seed the global generators of NumPy and Python."""
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def adapted(env: gymnasium.Env, trained: ActionSpace | None = None) -> gymnasium.Env:
    """The environment with observations as one array, which all but Box spaces need to be flattened to."""
    action_space_of(env, trained)
    space = env.observation_space
    if isinstance(space, spaces.Box) and space.shape:
        return env
    flat = FlattenObservation(env)
    if not isinstance(flat.observation_space, spaces.Box):
        raise QDFMError(f"The observation space {space} has no fixed size; wrap the environment so that it has one.")
    return flat


def action_masks(actions: ActionSpace, infos: Sequence[dict[str, Any]]) -> np.ndarray | None:
    """The masks `[B, D, K]` that an environment reports as info["action_mask"], where it does."""
    masks = [np.asarray(info["action_mask"]) for info in infos if "action_mask" in info]
    if not masks:
        return None
    shape = (len(actions.choices), max(actions.choices))
    if len(masks) < len(infos) or any(m.size != shape[0] * shape[1] for m in masks):
        shapes = sorted({m.shape for m in masks})
        raise QDFMError(
            f'info["action_mask"] is missing in some steps or has shape {shapes} where {shape} is needed; '
            "report one flag per choice at every step."
        )
    return np.stack(masks).reshape(len(infos), *shape).astype(bool)


def kept_of(info: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an info: copies of its mask, which the environment may write into again, and of its "won"."""
    return {name: np.array(info[name]) for name in ("action_mask", "won") if name in info}


def action_space_of(env: gymnasium.Env, trained: ActionSpace | None = None) -> ActionSpace:
    """The tokens of a Gymnasium environment's actions."""
    return action_tokens(env.action_space, trained)


def action_tokens(space: spaces.Space, trained: ActionSpace | None = None) -> ActionSpace:
    """Our action space for Gymnasium's: finite choices numbered from 0, or the continuous actions that an agent was
    trained on."""
    if isinstance(space, spaces.Box) and isinstance(trained, Bins | Codebook):
        if space.shape != (trained.dimensions,):
            raise QDFMError(
                f"The agent was trained on actions of {trained.dimensions} dimensions but the environment has "
                f"{space.shape}; evaluate it where its data came from."
            )
        return trained
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        remedy = (
            "take data with continuous actions, which bins or codebook discretise: a MuJoCo task such as "
            "hopper-medium, a Minari set or a file"
            if trained is None
            else "evaluate the agent where its data came from"
        )
        raise QDFMError(f"The action space {space} is neither Discrete nor MultiDiscrete; {remedy}.")
    if np.any(space.start):
        raise QDFMError(f"The action space {space} does not count from 0; wrap the environment so it does.")
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if space.nvec.ndim != 1:
        raise QDFMError(f"The action space {space} has {space.nvec.ndim} axes; flatten it to one.")
    return MultiDiscrete(tuple(int(n) for n in space.nvec))


def _import_mo_gymnasium() -> bool:
    """Its import registers its ids; False where it cannot be imported."""
    try:
        import mo_gymnasium  # noqa: F401
    except ImportError:
        return False
    return True


def box(shape: tuple[int, ...], dtype: str) -> spaces.Box:
    """All finite values: the environments declare no tighter bounds, and infinite ones draw warnings."""
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, shape, np.dtype(dtype).type)
