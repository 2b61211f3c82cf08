"""The contract of an algorithm: a few pure functions over pytrees, built by a frozen config dataclass.

Because everything is pure, `qdfm.train` can scan thousands of updates in one compiled call, vmap whole runs over
seeds, and stop and resume anywhere. Randomness of acting comes in as uniforms, `noise` of them per decision, so that a
host generator can drive a single decision and a JAX key a whole rollout through the same function. No key is used
twice: `fold_in(key, i)` is `split(key, n)[i]`, so a key is either split or folded, never both with the same numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.algorithms.learner import Rate
from qdfm.algorithms.settings import settled
from qdfm.data.checks import check_preference
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError, unknown

if TYPE_CHECKING:
    from qdfm.agent import Agent

Metrics = dict[str, jax.Array]
LEAST = (  # by the ending of a field's name
    ("_steps", 0, "at least 0"),
    ("_size", 1, "at least 1"),
    ("hidden", 1, "at least 1"),
    ("_rate", 1e-12, "more than 0"),
)


class Phase(NamedTuple):
    """A stretch of training. All functions are pure; none sees how many seeds run beside it."""

    name: str
    steps: int
    # (state, dataset, cache, key) -> (state, metrics); metrics holds scalars, "loss" among them
    update: Callable[[Any, Dataset, Any, jax.Array], tuple[Any, Metrics]]
    # (state, dataset, key) -> state, once before the phase: frozen copies, fitted scales
    prepare: Callable[[Any, Dataset, jax.Array], Any] | None = None
    # (state, dataset, key) -> per-row arrays that depend on frozen parts of the state only, so that they need not
    # be saved: they are made again when a run resumes
    cache: Callable[[Any, Dataset, jax.Array], Any] | None = None
    # the halves of update, where there are two: (dataset, cache, key) -> what a step draws, whatever the state, so
    # that training draws for many steps at once; and (state, drawn) -> (state, metrics)
    draw: Callable[[Dataset, Any, jax.Array], Any] | None = None
    step: Callable[[Any, Any], tuple[Any, Metrics]] | None = None
    imitates: bool = False  # whether its loss says how well the logged actions are told, also of other episodes


def halved(
    name: str,
    steps: int,
    draw: Callable[[Dataset, Any, jax.Array], Any],
    step: Callable[[Any, Any], tuple[Any, Metrics]],
    prepare: Callable[[Any, Dataset, jax.Array], Any] | None = None,
    cache: Callable[[Any, Dataset, jax.Array], Any] | None = None,
    imitates: bool = False,
) -> Phase:
    """The phase whose update is `step` on what `draw` gives."""

    def update(state: Any, dataset: Dataset, cache: Any, key: jax.Array) -> tuple[Any, Metrics]:
        return step(state, draw(dataset, cache, key))

    return Phase(name, steps, update, prepare, cache, draw, step, imitates)


class Algorithm(NamedTuple):
    """What a config builds. The structure of the state never changes during training."""

    init: Callable[[jax.Array], Any]  # key -> state
    phases: tuple[Phase, ...]
    policy: Callable[[Any], Any]  # state -> the part that acting needs, which is what an agent saves
    # (policy, noise [B, draws], observation, preference, mask [B, D, K], carry, greedy) -> (tokens [B, D], carry)
    act: Callable[..., tuple[jax.Array, Any]]
    noise: int  # uniforms that one decision takes
    # (policy, observation, preference, mask) -> probabilities [B, K] or [B, K, ..., K]; None where there are none
    probs: Callable[..., jax.Array] | None
    # as act, but (actions [B, dimensions], carry): of a method that finds continuous actions themselves, not tokens;
    # with a mask, act is asked, since what lies between legal actions need not be legal
    actions: Callable[..., tuple[jax.Array, Any]] | None = None
    evaluations: tuple[int, int] = (1, 1)  # of the networks, for each agent: by a drawn decision, by a greedy one


@dataclass(frozen=True)
class Config:
    """What every algorithm has. Field names ending in `_steps` count gradient steps."""

    batch_size: int = 256
    """Transitions per gradient step."""
    learning_rate: float = 1e-3
    """Adam's step size for policies, whose acting weights are averaged; critics have critic_learning_rate."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of every network."""
    ema: float = 0.995
    """Decay of a policy's averaged weights, which act; 0 acts with the raw weights."""
    preference: tuple[float, ...] | None = None
    """The one preference over objectives to train for (None: many, as `preferences` says)."""
    preferences: str = "drawn"
    """Which preferences training follows: drawn, uniformly from the simplex; or logged, those that the rows were
    collected under, and then an agent answers any other as the nearest of these."""
    corners: float = 0.0
    """Share of the drawn preferences that are one objective alone: ends of a front, which uniform ones never are."""

    name: ClassVar[str]
    about: ClassVar[str]
    teams_only: ClassVar[bool] = False
    preferences_only: ClassVar[bool] = False

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Names that are no fields are refused with the nearest one, before the dataclass does so without."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings.keys() - set(known):
            raise unknown(f"setting of {cls.__name__}", name, known)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Every value is of its field's type, and hashable: a config is the key under which compiled code is kept."""
        kinds = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = settled(self.name, field.name, kinds[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)

    def build(self, spec: Spec) -> Algorithm:
        """The algorithm for one spec."""
        raise TypeError(f"{type(self).__name__} does not say how to build itself")

    def resolve(self, spec: Spec) -> Self:
        """The same config with every choice that was left open filled in for this spec; checks the values."""
        if self.teams_only and spec.agents == 1:
            raise QDFMError(
                f"{self.name} is for teams but this data has one agent; choose another algorithm, or give agents= "
                "with the data of a team."
            )
        for ending, least, wanted in LEAST:
            for field in [f.name for f in dataclasses.fields(self) if f.name.endswith(ending)]:
                value = getattr(self, field)
                if value is None:
                    continue
                if value == ():
                    raise QDFMError(f"{self.name}: {field} is empty; give at least one.")
                if min(value if isinstance(value, tuple) else (value,)) < least:
                    raise QDFMError(f"{self.name}: {field} is {value}; it must be {wanted}.")
        if not 0 <= self.ema < 1:
            raise QDFMError(f"{self.name}: ema is {self.ema}; it must be at least 0 and below 1.")
        check_choice(self, "preferences", ("drawn", "logged"))
        if self.preferences == "logged" and not spec.preference_range:
            raise QDFMError(
                f'{self.name}: preferences="logged" needs config.adapt(data), of data with a preference for every row.'
            )
        if self.preferences == "drawn" and spec.preference_range:
            raise QDFMError(
                f'{self.name}: this data was adapted to logged preferences; give preferences="logged", or fresh data.'
            )
        if self.corners > 0 and (self.preferences == "logged" or self.preference is not None):
            raise QDFMError(f"{self.name}: corners are of drawn preferences; leave corners at 0.")
        if self.preferences == "logged" and self.preference is not None:
            raise QDFMError(f'{self.name}: preference is one, preferences="logged" are many; give one of the two.')
        if not 0 <= self.corners <= 1:
            raise QDFMError(f"{self.name}: corners is {self.corners}; it must lie between 0 and 1.")
        if self.preference is not None and check_preference(self.preference, spec.objectives).ndim != 1:
            raise QDFMError(f"{self.name}: preference has several rows; give one preference, or none for all.")
        return self

    def policy_rate(self) -> Rate:
        """The step size of a policy."""
        return self.learning_rate

    def adapt(self, dataset: Dataset) -> Dataset:
        """The data as this method needs it, which is what it is trained on."""
        if (self.preferences_only or self.preferences == "logged") and dataset.preference is None:
            raise QDFMError(
                f"{self.name} learns from the preference that each row was collected under, but this data has none; "
                "give preference= with the data, or choose another algorithm."
            )
        if self.preferences == "drawn" or dataset.spec.preference_range:
            return dataset
        bounds = zip(dataset.preference.min(0).tolist(), dataset.preference.max(0).tolist(), strict=True)
        return dataclasses.replace(dataset, spec=dataclasses.replace(dataset.spec, preference_range=tuple(bounds)))

    def scaled(self, factor: float) -> Self:
        """The same config with every number of steps multiplied, at least one step where there was one."""
        names = [f.name for f in dataclasses.fields(self) if f.name.endswith("_steps")]
        counts: dict[str, Any] = {k: getattr(self, k) and max(1, round(getattr(self, k) * factor)) for k in names}
        return dataclasses.replace(self, **counts)

    def total_steps(self, spec: Spec) -> int:
        """Gradient steps of all phases together."""
        return sum(phase.steps for phase in self.build(spec).phases)

    def described(self) -> dict[str, Any]:
        """All settings as plain values, the algorithm's name among them."""
        return {"algorithm": self.name, **dataclasses.asdict(self)}

    def fit(
        self, dataset: Dataset, seed: int = 0, out: str | Path | None = None, progress: bool = True,
        resume: bool = False, holdout: float = 0.0,
    ) -> Agent:  # fmt: skip
        """Train on a dataset and return the agent; with `out`, the run's folder is kept there, and `resume` goes on
        with the run in it. `holdout` is the share of episodes to learn nothing from, whose loss is told beside."""
        from qdfm.train import Options, train

        options = Options(holdout=holdout)
        return train(self, dataset, (seed,), out, resume, progress, options)[0]


def check_choice(config: Config, field: str, known: tuple[str, ...]) -> None:
    """Refuse a config whose field is none of the known words."""
    if getattr(config, field) not in known:
        raise unknown(f"{config.name} {field}", str(getattr(config, field)), known)


def disturbed(spec: Spec, observation: jax.Array, scale: float, key: jax.Array) -> jax.Array:
    """Observations `[B, ...]` as the networks see them, with normal noise of so many standard deviations.

    A policy that imitates a narrow behaviour meets states just off its path as soon as it errs; learned like this, it
    answers them as it does those on the path. Numbers of categories stay as they are.
    """
    if scale == 0:
        return observation
    noise = scale * jax.random.normal(key, observation.shape)
    if spec.categories:
        noise = jnp.where(jnp.asarray(spec.categories).reshape(spec.observation_shape) > 0, 0, noise)
    return observation + noise


def check_noise(config: Config, spec: Spec, scale: float) -> None:
    """Refuse noise that observations cannot take."""
    if scale < 0:
        raise QDFMError(f"{config.name}: observation_noise is {scale}; it must be at least 0.")
    if scale > 0 and np.dtype(spec.observation_dtype).kind != "f":
        raise QDFMError(
            f"{config.name}: observation_noise needs observations of real numbers, not of {spec.observation_dtype}; "
            "leave it at 0."
        )


def legal_choices(spec: Spec, mask: jax.Array | None, rows: int) -> jax.Array:
    """Legal choices `[rows, D, K]`: the mask where there is one, and never a padded choice."""
    legal = jnp.asarray(spec.legal)[None]
    return jnp.broadcast_to(legal if mask is None else legal & mask, (rows, *spec.legal.shape))


def draw_batch(config: Config, spec: Spec, dataset: Dataset, key: jax.Array) -> tuple[Dataset, jax.Array]:
    """What a gradient step begins with: a batch of transitions and a preference for each."""
    rows, omega = jax.random.split(key)
    batch = dataset.sample(rows, config.batch_size)
    return batch, draw_preference(config, spec, omega, batch)


def sampled(
    config: Config, spec: Spec, name: str, steps: int,
    step: Callable[[Any, Dataset, jax.Array], tuple[Any, Metrics]],
) -> Phase:  # fmt: skip
    """The phase of most algorithms: `step(state, batch, preference)` on a batch, with a preference for each row."""

    def draw(dataset: Dataset, cache: None, key: jax.Array) -> tuple[Dataset, jax.Array]:
        return draw_batch(config, spec, dataset, key)

    return halved(name, steps, draw, lambda state, drawn: step(state, *drawn))


def draw_preference(config: Config, spec: Spec, key: jax.Array, batch: Dataset) -> jax.Array:
    """ω `[B, objectives]`: the config's own, those logged, or ω ~ Dirichlet(1), uniform on the simplex, and corners."""
    rows = len(batch)
    if config.preferences == "logged":
        return batch.preference
    if config.preference is not None:
        return jnp.broadcast_to(jnp.asarray(config.preference, jnp.float32), (rows, spec.objectives))
    if spec.objectives == 1:
        return jnp.ones((rows, 1))
    if config.corners > 0:
        key, one, which = jax.random.split(key, 3)
    e = jax.random.exponential(key, (rows, spec.objectives))
    omega = e / jnp.sum(e, -1, keepdims=True)
    if config.corners == 0:
        return omega
    alone = jax.random.randint(which, (rows,), 0, spec.objectives)
    cornered = jax.random.uniform(one, (rows, 1)) < config.corners
    return jnp.where(cornered, jax.nn.one_hot(alone, spec.objectives), omega)
