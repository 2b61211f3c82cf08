"""The one training loop: phases, compiled chunks of `lax.scan`, seeds side by side, metrics, checkpoints, resume.

The key of step k of phase p under a seed is fold_in(fold_in(key(seed), p + 1), k), and chunk borders are fixed, so a
run that was killed and resumed draws the same numbers in the same compiled program as one that never stopped.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms.base import Config, Metrics, Phase
from qdfm.data.checks import check_filled
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import Diverged, Interrupted, QDFMError, raise_interrupt
from qdfm.progress import Progress, open_progress
from qdfm.runfolder import Position, RunFolder, description
from qdfm.seeds import check_seeds

HELD_OUT = 8  # batches of held-out episodes that a loss is measured on
EARLY, WORSE = 0.8, 0.02  # where a least loss is told of: in the first part of the steps, and so much below the last
PASSES = 100  # over a log of one's own, beyond which a policy may know it by heart
DRAWN, DRAWN_BYTES = 100, 2**27  # steps whose batches are drawn at once, and bytes of these for each seed, at most


@dataclass(frozen=True)
class Options:
    """How a run is run, as opposed to what it learns."""

    chunk: int = 500
    """Gradient steps per compiled call; metrics and checkpoints fall on its borders."""
    checkpoint_seconds: float = 15.0
    """A checkpoint is written at the first chunk border after this many seconds, and at the end of each phase."""
    tensorboard: bool = False
    """Also write TensorBoard event files (extra: tensorboard)."""
    holdout: float = 0.0
    """Share of the episodes from which nothing is learned; their loss (held_out_loss) is told beside, and rises where
    training goes on for too long."""


def train(
    config: Config,
    dataset: Dataset,
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    options: Options = Options(),
    task: str | None = None,
    notes: Mapping[str, Any] = MappingProxyType({}),
) -> list[Agent]:
    """Train one agent per seed, all in one compiled program; with `out`, keep the run's folder there.

    `resume` goes on with the run in the folder, from its last checkpoint, or begins it where there is none.
    `task` is written down with the run, so that `qdfm evaluate` knows where to play; so are `notes`, for its readers,
    such as where the data comes from.
    """
    if options.chunk < 1:
        raise QDFMError(f"chunk is {options.chunk}; give at least 1.")
    if not 0 <= options.holdout < 1:
        raise QDFMError(f"holdout is {options.holdout}; give a share of the episodes, at least 0 and below 1.")
    if resume and out is None:
        raise QDFMError("resume=True goes on with the run in a folder; give the folder as out.")
    _check_types(config, dataset)
    held = None
    if options.holdout:
        dataset, held = _held_apart(config, dataset, options.holdout)
    config, dataset, seeds, keys = _begun(config, dataset, seeds)
    algorithm = config.build(dataset.spec)
    data = jax.device_put(dataset.normalised())
    aside = None if held is None else jax.device_put(replace(held, spec=dataset.spec).normalised())
    folder = None
    if out is not None:
        described = description(config, dataset, seeds, options.chunk, options.holdout, task, notes)
        folder = RunFolder.open(Path(out), described, resume, options.tensorboard)
    with (
        closing(folder) if folder is not None else nullcontext(),
        open_progress(config.name, algorithm.phases, len(seeds), progress) as bar,
    ):
        follows = dataset.spec.objectives > 1 and config.preference is None and config.preferences == "drawn"
        for objective in dataset.constant_objectives() if follows else ():
            bar.say(f"Objective {objective + 1} never varies in the data, so no policy can follow it; leave it out.")
        passes = max((p.steps for p in algorithm.phases if p.imitates), default=0) * config.batch_size / len(dataset)
        if progress and task is None and held is None and passes > PASSES:
            bar.say(
                f"{passes:,.0f} passes over {len(dataset):,} rows: with --holdout 0.1 (in Python: holdout=0.1) you see "
                "whether so many learn the log by heart."
            )
        loop = _Loop(config, dataset.spec, data, keys, seeds, folder, options, bar, aside)
        try:
            state, at = _initial(config, dataset.spec)(keys), Position()
            if folder is not None and resume:
                state, at = folder.restore(state)
            for index in range(at.phase, len(algorithm.phases)):
                state = loop.phase(index, state, at.step if index == at.phase else 0)
            agents = _agents(config, dataset.spec, state, seeds)
            if folder is not None:
                for agent, seed in zip(agents, seeds, strict=True):
                    agent.save(folder.path / f"agent-{seed}.safetensors")
        except KeyboardInterrupt:
            if folder is not None and loop.last is not None:
                folder.save(*loop.last)
            if folder is None or not folder.state.exists():
                raise
            bar.say(f"Interrupted; saved in {folder.path}. Go on with --resume (in Python: resume=True).")
            raise Interrupted from None
    return agents


def branching(
    config: Config, dataset: Dataset, shared: int, seeds: Sequence[int] = (0,), progress: bool = True
) -> Callable[[Config], list[Agent]]:
    """Train the first `shared` phases of a config once, for studies of what comes after them.

    The result finishes the training of any config that differs from this one only in later phases, and gives what
    `train` would have given.
    """
    _check_types(config, dataset)
    config, dataset, seeds, keys = _begun(config, dataset, seeds)
    data = jax.device_put(dataset.normalised())

    def run(config: Config, state: Any, first: int, last: int | None) -> Any:
        return _phases(config.resolve(dataset.spec), data, seeds, state, slice(first, last), progress)

    trunk = run(config, _initial(config, dataset.spec)(keys), 0, shared)

    def finish(config: Config) -> list[Agent]:
        return _agents(config.resolve(dataset.spec), dataset.spec, run(config, trunk, shared, None), seeds)

    return finish


def train_cached(config: Config, data: Dataset, cache: Any, seed: int, progress: bool) -> Any:
    """The state in which a resolved config of one phase ends on normalised data, where the phase needs a cache that no
    state tells of."""
    key = jax.random.fold_in(seed_keys((seed,))[0], 0)
    first = config.build(data.spec).init(key)  # not by `_initial`, whose program rounds otherwise
    state, given = jax.tree.map(lambda x: x[None], (first, cache))
    return jax.tree.map(lambda x: x[0], _phases(config, data, (seed,), state, slice(1), progress, given))


def _phases(
    config: Config, data: Dataset, seeds: tuple[int, ...], state: Any, part: slice, progress: bool, given: Any = None
) -> Any:
    """The state after a part of the phases of a resolved config, on normalised data and without a folder."""
    phases = config.build(data.spec).phases
    with open_progress(config.name, phases, len(seeds), progress) as bar:
        loop = _Loop(config, data.spec, data, seed_keys(seeds), seeds, None, Options(), bar)
        for index in range(len(phases))[part]:
            state = loop.phase(index, state, 0, given)
    return state


def _begun(
    config: Config, dataset: Dataset, seeds: Sequence[int]
) -> tuple[Config, Dataset, tuple[int, ...], jax.Array]:
    """What training begins with, checked: the config with every choice made, the data as it needs them, the seeds and
    their keys."""
    seeds = check_seeds(seeds)
    dataset = config.adapt(dataset)
    config = config.resolve(dataset.spec)
    _check_memory(dataset)
    return config, dataset, seeds, seed_keys(seeds)


def _check_types(config: Any, dataset: Any) -> None:
    if isinstance(config, type):
        raise QDFMError(f"The algorithm is the class {config.__name__}; give an instance of it, {config.__name__}().")
    if not isinstance(config, Config):
        raise QDFMError(f"The algorithm is a {type(config).__name__}; give a config, such as qdfm.QDFM().")
    if not isinstance(dataset, Dataset):
        raise QDFMError(f"The data is a {type(dataset).__name__}; give a Dataset, as qdfm.load_dataset gives one.")
    check_filled(dataset)


def _held_apart(config: Config, dataset: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """The episodes to learn from, and the others."""
    try:
        first, held = dataset.split(1 - share)
    except QDFMError:
        raise QDFMError(
            f"holdout is {share:g} of {len(np.unique(dataset.episode))} episode(s), which leaves none on one side; "
            "give another share, or 0."
        ) from None
    adapted = config.adapt(first)
    if any(a is not b for a, b in zip(jax.tree.leaves(adapted), jax.tree.leaves(first), strict=False)):
        raise QDFMError(f"{config.name} makes rows of its own, by what all episodes return; leave holdout at 0.")
    return adapted, held


def seed_keys(seeds: Sequence[int]) -> jax.Array:
    """The key of every seed, `[seeds]`, from which all that a run draws follows."""
    return jnp.stack([jax.random.key(seed, impl="threefry2x32") for seed in seeds])


def _agents(config: Config, spec: Spec, state: Any, seeds: Sequence[int]) -> list[Agent]:
    policies = jax.device_get(config.build(spec).policy(state))
    return [Agent(config, spec, jax.tree.map(lambda x, i=i: x[i], policies), seed) for i, seed in enumerate(seeds)]


@lru_cache(maxsize=256)
def _initial(config: Config, spec: Spec) -> Any:
    """The compiled first states of given seeds' keys. It runs once, so that optimising it costs more than it saves."""
    init = config.build(spec).init
    cheap = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.vmap(lambda key: init(jax.random.fold_in(key, 0))), compiler_options=cheap)


@lru_cache(maxsize=256)
def compiled_phase(config: Config, spec: Spec, index: int) -> tuple[Phase, Any, Any, Any]:
    """A phase and its compiled prepare, cache and chunk over a leading axis of seeds."""
    phase = config.build(spec).phases[index]

    def chunk(
        state: Any, data: Dataset, cache: Any, keys: jax.Array, first: jax.Array, length: int
    ) -> tuple[Any, Metrics]:
        def run(state: Any, cache: Any, key: jax.Array) -> tuple[Any, Metrics]:
            return _steps(phase, state, data, cache, jax.vmap(lambda k: jax.random.fold_in(key, k))(steps))

        steps = first + jnp.arange(length)
        return _over_seeds(run)(state, cache, keys)

    prepare = phase.prepare and jax.jit(lambda s, d, k: _over_seeds(lambda s, k: phase.prepare(s, d, k))(s, k))  # type: ignore[misc]
    cache = phase.cache and jax.jit(lambda s, d, k: _over_seeds(lambda s, k: phase.cache(s, d, k))(s, k))  # type: ignore[misc]
    return phase, prepare, cache, jax.jit(chunk, static_argnames="length", compiler_options=_scheduling())


@lru_cache(maxsize=256)
def _held_out(config: Config, spec: Spec, index: int) -> Any:
    """The compiled losses of a phase on other data, over a leading axis of seeds: of steps that are not taken."""
    phase = config.build(spec).phases[index]

    def losses(state: Any, data: Dataset, cache: Any, keys: jax.Array) -> jax.Array:
        def one(state: Any, cache: Any, key: jax.Array) -> jax.Array:
            def loss(key: jax.Array) -> jax.Array:
                return phase.update(state, data, cache, key)[1]["loss"]

            return jnp.mean(jax.lax.map(loss, jax.random.split(key, HELD_OUT)))

        return _over_seeds(one)(state, cache, keys)

    return jax.jit(losses)


@lru_cache(maxsize=1)
def _scheduling() -> dict[str, str] | None:
    """On a GPU, kernels of a step that do not wait for each other run side by side, where this JAX knows how to."""
    options = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
    if jax.default_backend() != "gpu":
        return None
    try:
        jax.jit(lambda: jnp.int32(0), compiler_options=options)()
    except Exception:  # each version says in its own way that it does not
        return None
    return options


def _steps(phase: Phase, state: Any, data: Dataset, cache: Any, keys: jax.Array) -> tuple[Any, Metrics]:
    """A step for each key `[length]`. What steps draw, whatever the state, is drawn for a block of them at once: many
    small operations of the inner loop become few large ones."""
    if phase.draw is None or phase.step is None:
        return jax.lax.scan(lambda state, key: phase.update(state, data, cache, key), state, keys)
    draw, step = partial(phase.draw, data, cache), phase.step

    drawn = jax.eval_shape(draw, keys[0])
    names = sorted(jax.eval_shape(step, state, drawn)[1])

    def packed(state: Any, drawn: Any) -> tuple[Any, jax.Array]:  # one array is collected faster than many
        state, metrics = step(state, drawn)
        return state, jnp.stack([metrics[name] for name in names])

    def block(state: Any, keys: jax.Array) -> tuple[Any, Metrics]:
        state, metrics = jax.lax.scan(packed, state, jax.vmap(draw)(keys))
        return state, {name: metrics[:, i] for i, name in enumerate(names)}

    one = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn))
    together = max(1, min(DRAWN, DRAWN_BYTES // one))
    whole = len(keys) // together * together
    parts = []
    if whole:
        state, metrics = jax.lax.scan(block, state, keys[:whole].reshape(-1, together))
        parts.append(jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), metrics))
    if whole < len(keys):
        state, metrics = block(state, keys[whole:])
        parts.append(metrics)
    return state, jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def _over_seeds(function: Any) -> Any:
    """vmap over the leading axis of all arguments; a single seed is run without it, which compiles to less."""

    def mapped(*args: Any) -> Any:
        if jax.tree.leaves(args)[0].shape[0] > 1:
            return jax.vmap(function)(*args)
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], args)))

    return mapped


@jax.jit
def _finite(state: Any) -> jax.Array:
    """Whether all numbers of a seed's state are finite `[seeds]`: the metrics of a step are older than its weights."""
    leaves = jax.tree.leaves(state)
    sound = jnp.ones(len(leaves[0]), bool)
    for x in leaves:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            sound &= jnp.all(jnp.isfinite(x.reshape(len(x), -1)), 1)
    return sound


class _Loop:
    """The moving parts of one call of `train`."""

    def __init__(
        self, config: Config, spec: Spec, data: Dataset, keys: jax.Array, seeds: tuple[int, ...],
        folder: RunFolder | None, options: Options, bar: Progress, aside: Dataset | None = None,
    ):  # fmt: skip
        self.config, self.spec, self.data, self.keys, self.seeds = config, spec, data, keys, seeds
        self.folder, self.options, self.bar, self.aside = folder, options, bar, aside
        self.saved_at = time.monotonic()
        self.last: tuple[Any, Position] | None = None  # the last good state that is not on disk yet

    def phase(self, index: int, state: Any, done: int, given: Any = None) -> Any:
        """Run one phase from step `done` to its end; `given` is the cache of one that makes none, by seed."""
        phase, prepare, cache, chunk = compiled_phase(self.config, self.spec, index)
        keys = jax.vmap(lambda k: jax.random.fold_in(k, index + 1))(self.keys)
        # Steps are numbered from 0; these keys lie above any of them.
        prepare_keys, cache_keys, aside_keys = (
            jax.vmap(lambda k, i=i: jax.random.fold_in(k, 2**31 - i))(keys) for i in (1, 2, 3)
        )
        if done == 0 and prepare is not None:
            state = prepare(state, self.data, prepare_keys)
        if done >= phase.steps:
            return state
        self.bar.begin(index, done, cache is not None)
        cached = given if cache is None else cache(state, self.data, cache_keys)
        aside = None if cache is None or self.aside is None else cache(state, self.aside, cache_keys)
        told = [] if self.aside is None else self._told(phase.name)
        while done < phase.steps:
            raise_interrupt()
            length = min(self.options.chunk, phase.steps - done)
            began = time.perf_counter()
            state_new, metrics = chunk(state, self.data, cached, keys, jnp.int32(done), length=length)
            history = {name: np.asarray(values) for name, values in metrics.items()}  # [seeds, length]
            self._check_finite(phase, done, length, history, np.asarray(_finite(state_new)))
            rate = length / (time.perf_counter() - began)
            state, done = state_new, done + length
            means = {name: values.mean(1) for name, values in history.items()}
            if self.aside is not None:
                held = _held_out(self.config, self.spec, index)(state, self.aside, aside, aside_keys)
                means["held_out_loss"] = np.asarray(held)
                told.append((done, float(means["held_out_loss"].mean())))
            self.bar.advance(index, done, rate, {name: float(v.mean()) for name, v in means.items()})
            self._record(phase.name, index, done, rate, means, state, done == phase.steps)
        raise_interrupt()
        if phase.imitates and told:
            self._judge(phase, told)
        return state

    def _told(self, name: str) -> list[tuple[int, float]]:
        """Steps of a phase that is gone on with, and the held-out loss by then, as the run's metrics tell it."""
        losses: dict[int, list[float]] = {}
        if self.folder is not None and self.folder.metrics.exists():
            for line in self.folder.metrics.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # a file that something else cut off
                    row = json.loads(line)
                    if row["phase"] == name:
                        losses.setdefault(row["step"], []).append(row["held_out_loss"])
        return [(step, float(np.array(values, np.float32).mean())) for step, values in losses.items()]

    def _judge(self, phase: Phase, told: list[tuple[int, float]]) -> None:
        """Say so where other episodes were imitated better some while ago."""
        (step, least), (last, now) = min(told, key=lambda row: row[1]), told[-1]
        if step <= EARLY * last and now - least > WORSE * abs(least):
            self.bar.say(
                f"In phase {phase.name} the loss on held-out episodes was least after {step:,} of {phase.steps:,} "
                f"steps ({least:.3g}, in the end {now:.3g}): fewer steps (--{phase.name}-steps {step}) or a smaller "
                "network may imitate better."
            )

    def _record(
        self, name: str, index: int, done: int, rate: float, means: dict[str, np.ndarray], state: Any, ends: bool
    ) -> None:
        if self.folder is None:
            return
        rows = [
            {"phase": name, "step": done, "seed": seed, "steps_per_second": round(rate, 1)}
            | {metric: float(values[i]) for metric, values in means.items()}
            for i, seed in enumerate(self.seeds)
        ]
        size = self.folder.log(rows)
        self.last = (state, Position(index, done, size))
        if ends or time.monotonic() - self.saved_at >= self.options.checkpoint_seconds:
            self.folder.save(*self.last)
            self.last, self.saved_at = None, time.monotonic()

    def _check_finite(
        self, phase: Phase, done: int, length: int, history: dict[str, np.ndarray], sound: np.ndarray
    ) -> None:
        """Stop at metrics `[seeds, length]` that are not finite, or at states that the last step left so `[seeds]`."""
        bad = {name: ~np.isfinite(values) for name, values in history.items()}
        bad["weights"] = ~sound[:, None] & (np.arange(length) == length - 1)
        if not any(b.any() for b in bad.values()):
            return
        step, name = min((int(np.argmax(b.any(0))), name) for name, b in bad.items() if b.any())
        seed = self.seeds[int(np.argmax(bad[name][:, step]))]
        unit = np.asarray(self.spec.normalisation.reward_scale or 1.0)
        largest = float(np.abs(np.asarray(self.data.reward) * unit).max())
        if self.folder is not None and self.last is not None:
            self.folder.save(*self.last)
        saved = self.folder is not None and self.folder.state.exists()
        kept = f" The last good checkpoint is kept in {self.folder.path}." if self.folder and saved else ""
        rates = [getattr(self.config, field, None) for field in ("learning_rate", "critic_learning_rate")]
        shown = " and ".join(f"{rate:g}" for rate in rates if rate is not None)
        raise Diverged(
            f"{name} became non-finite in phase {phase.name}, step {done + step}, seed {seed}; likely causes are a "
            f"learning rate that is too large ({shown}) or values that are "
            f"(largest reward {largest:g}): lower the one or normalise the other.{kept}"
        )


def _check_memory(dataset: Dataset) -> None:
    """A dataset that cannot fit on the device is refused before it is placed there."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = dataset.nbytes()
    if needed > 0.9 * free:
        raise QDFMError(
            f"The data takes {needed / 2**30:.1f} GiB but {free / 2**30:.1f} GiB are free on {jax.devices()[0]}; "
            "use fewer rows or a smaller observation."
        )
