"""ratefields: the jump-to-endpoint rates against an energy and a full pairwise generator (the paper's runtime table).

A contextual bandit whose behaviour μ and values Q are formulas, so that the optimum μ·exp(βQ)/C is known. One flow per
method is trained straight towards it by the weighted loss with all endpoints enumerated. No critic and no estimate of
μ stand between: the methods differ in their rates and in the loss that goes with them, and in nothing else.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import QDFM, learner
from qdfm.algorithms.base import Metrics, Phase
from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.algorithms.learner import Learner
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.ratefields_report import NOTES, draw, headlines, tabulate
from qdfm.experiments.report import finish
from qdfm.experiments.timing import here_and_on_cpu, in_turn
from qdfm.flow import losses
from qdfm.flow.path import draw_times
from qdfm.metrics import total_variation
from qdfm.progress import open_progress
from qdfm.ratenets import PairNet, RateNet

BETA, LEARNING_RATE, EMA = 2.0, 1e-3, 0.995
OURS, ONE_STEP = "posterior", "posterior, one step"


@dataclass(frozen=True)
class Method:
    """A rate field and the loss it is trained by; `whole` regresses every row of a pairwise generator."""

    rates: str
    loss: str
    whole: bool = False


METHODS = {
    "softplus": Method("softplus", "l2"),
    "posterior": Method("posterior", "cross_entropy"),
    "energy": Method("energy", "cross_entropy"),
    "diffuse": Method("diffuse", "l2", whole=True),
    "diffuse-row": Method("diffuse", "l2"),
}


@dataclass(frozen=True)
class Scale:
    """The sizes of the comparison, the same for every method."""

    choices: int = 256
    contexts: int = 16
    batch: int = 256
    hidden: tuple[int, ...] = (256, 256)
    euler: int = 20
    """N, steps of the sampler."""
    steps: int = 10_000
    """Gradient steps."""
    chunk: int = 500
    """Gradient steps per compiled call."""
    calls: int = 300
    """Timed actions of each method."""

    @property
    def spec(self) -> Spec:
        """Contexts are seen one-hot."""
        return Spec((self.contexts,), Discrete(self.choices))


FULL = Scale()
QUICK = Scale(choices=64, contexts=4, batch=32, hidden=(128, 128), euler=10, steps=1_200, chunk=200, calls=100)


def run(settings: Settings) -> None:
    """Train, time, tabulate, draw."""
    report(settings, settings.chosen("method", METHODS), QUICK if settings.quick else FULL)


def report(settings: Settings, chosen: tuple[str, ...], scale: Scale) -> None:
    """The comparison at one scale."""
    seeds = settings.seed_range(3)
    cells, described = Cells(settings), dataclasses.asdict(scale)
    common = {"scale": described, "beta": BETA, "learning_rate": LEARNING_RATE, "ema": EMA}
    trained: dict[str, Any] = {}
    for name in chosen:
        key = {**common, "method": dataclasses.asdict(METHODS[name]), "seeds": seeds}
        trained[name] = cells.get(key, partial(fit, name, scale, seeds, settings.progress))
    fields = sorted({METHODS[name].rates for name in chosen})  # those of diffuse-row act as diffuse does
    acting = cells.get({**common, "act": fields}, lambda: act_times(fields, scale))
    rows = [_row(name, trained[name], acting, METHODS[name].rates) for name in chosen]
    if OURS in trained:
        rows.append(_row(ONE_STEP, trained[OURS], acting, ONE_STEP) | {"tv": trained[OURS]["tv_one"]})
    title = f"{scale.choices} actions, batch {scale.batch}, {scale.steps:,} steps of training, N = {scale.euler}"
    finish(
        cells, settings.command("ratefields", len(seeds)), "Rate fields", {"trained": trained, "acting": acting},
        [tabulate(title, rows)], NOTES, headlines(rows), seeds=list(seeds), settings=described,
    )  # fmt: skip
    draw(settings.out / "bars.png", rows)


def _row(name: str, cell: dict[str, Any], acting: dict[str, Any], acts_as: str) -> dict[str, Any]:
    times = {
        "train": float(np.median(cell["seconds"])),
        "act": acting["device"][acts_as],
        "act_cpu": acting["cpu"][acts_as],
    }
    kept = {what: cell[what] for what in ("tv", "parameters", "compile_seconds", "steps_per_second")}
    return {"method": name} | times | kept


# The task


class Task(NamedTuple):
    """μ, Q and the optimum μ·exp(βQ)/C, each `[contexts, K]`."""

    mu: np.ndarray
    q: np.ndarray
    optimum: np.ndarray


def make_task(choices: int, contexts: int) -> Task:
    """Contexts θ and actions φ on a circle: μ prefers actions near the context, Q has three peaks that turn with it."""
    theta = 2 * np.pi * np.arange(contexts)[:, None] / contexts
    phi = 2 * np.pi * np.arange(choices) / choices
    mu = np.exp(np.cos(phi - theta))
    q = np.cos(3 * phi + theta)
    tilted = mu * np.exp(BETA * q)
    return Task(mu / mu.sum(1, keepdims=True), q, tilted / tilted.sum(1, keepdims=True))


# Training


def objective(
    method: Method, policy: FlowPolicy, net: RateNet, x: jax.Array, endpoint: jax.Array, key: jax.Array
) -> jax.Array:
    """The loss `[B]` towards the law of endpoints `[B, 1, K]`."""
    matching = losses.Matching(method.rates, method.loss)
    rows, legal = len(x), jnp.ones_like(endpoint, bool)
    times, start, path = jax.random.split(key, 3)
    t = draw_times(jax.random.uniform(times, (rows,)), policy.steps)
    if method.whole:  # the averaged target of every row at once; the network is evaluated once per context
        assert isinstance(net, PairNet)
        pairs = jnp.moveaxis(net.pairs(net.embed(x), t), 2, 1)  # [B, K, 1, K]
        every = jnp.arange(policy.states)[None, :, None]
        return jnp.mean(matching.point(endpoint[:, None], pairs, every, t[:, None], legal[:, None]), 1)
    a0 = policy.start(jax.random.uniform(start, (rows, 1)), legal)
    uniforms = jax.random.uniform(path, (rows,))
    return losses.collapsed(matching, policy.scores(net, x), a0, endpoint, t, uniforms, legal)


def fit(name: str, scale: Scale, seeds: tuple[int, ...], progress: bool) -> dict[str, Any]:
    """One method: times and the distance to the optimum, for each seed."""
    method, optimum = METHODS[name], make_task(scale.choices, scale.contexts).optimum
    policy = FlowPolicy(scale.spec, method.rates, "uniform", scale.euler, 1.0)
    target, eye = jnp.asarray(optimum, jnp.float32)[:, None], jnp.eye(scale.contexts)

    def init(key: jax.Array) -> Learner:
        return learner.start(policy.network(scale.hidden, False, key), LEARNING_RATE)

    def update(state: Learner, dataset: Any, cache: Any, key: jax.Array) -> tuple[Learner, Metrics]:
        pick, draws = jax.random.split(key)
        context = jax.random.randint(pick, (scale.batch,), 0, scale.contexts)

        def loss(net: RateNet) -> jax.Array:
            return jnp.mean(objective(method, policy, net, eye[context], target[context], draws))

        value, gradient = jax.value_and_grad(loss)(state.net)
        state = learner.descend(state, gradient, LEARNING_RATE, EMA)
        return state, {"loss": value}

    def chunk(state: Learner, key: jax.Array, first: jax.Array) -> tuple[Learner, Metrics]:
        def step(state: Learner, k: jax.Array) -> tuple[Learner, Metrics]:
            return update(state, None, None, jax.random.fold_in(key, k))

        state, metrics = jax.lax.scan(step, state, first + jnp.arange(scale.chunk))
        return state, jax.tree.map(jnp.mean, metrics)

    started = jax.jit(init)
    state, key = started(_key(0)), _key(0)
    began = time.perf_counter()
    compiled = jax.jit(chunk).lower(state, key, jnp.int32(0)).compile()
    compile_seconds = time.perf_counter() - began
    jax.block_until_ready(compiled(state, key, jnp.int32(0)))  # what a device does once, at the first call

    out: dict[str, Any] = {"compile_seconds": compile_seconds, "seconds": [], "tv": [], "tv_one": []}
    phases = [Phase(f"seed {seed}", scale.steps, update) for seed in seeds]
    with open_progress(name, phases, 1, progress) as bar:
        for i, seed in enumerate(seeds):
            key = _key(seed)
            state = jax.block_until_ready(started(jax.random.fold_in(key, 2**31 - 1)))
            bar.begin(i, 0)
            seconds = 0.0
            for first in range(0, scale.steps, scale.chunk):
                began = time.perf_counter()
                state, metrics = jax.block_until_ready(compiled(state, key, jnp.int32(first)))
                took = time.perf_counter() - began
                seconds += took
                shown = {metric: float(value) for metric, value in metrics.items()}
                bar.advance(i, first + scale.chunk, scale.chunk / took, shown)
            out["seconds"].append(seconds)
            out["tv"].append(float(total_variation(_law(policy, state.average), optimum).mean()))
            if policy.posterior:
                once = dataclasses.replace(policy, steps=1)
                out["tv_one"].append(float(total_variation(_law(once, state.average), optimum).mean()))
    out["steps_per_second"] = scale.steps / float(np.median(out["seconds"]))
    out["parameters"] = sum(x.size for x in jax.tree.leaves(eqx.filter(state.net, eqx.is_array)))
    return out


def _key(seed: int) -> jax.Array:
    return jax.random.key(seed, impl="threefry2x32")


def _law(policy: FlowPolicy, net: RateNet) -> np.ndarray:
    """The exact law at every context, one at a time: an energy is evaluated K² times per step of the sampler."""
    law, eye = jax.jit(policy.law), jnp.eye(policy.spec.observation_shape[0])
    legal = jnp.asarray(policy.spec.legal)[None]
    return np.concatenate([np.asarray(law(net, x[None], legal), np.float64) for x in eye])


# Acting


def act_times(fields: list[str], scale: Scale) -> dict[str, dict[str, float]]:
    """Milliseconds of one action by each rate field, on the device that trains and on the host's CPU."""
    return here_and_on_cpu(lambda: _act_times(fields, scale))


def _act_times(fields: list[str], scale: Scale) -> dict[str, float]:
    loss = {method.rates: method.loss for method in METHODS.values()}
    configs = {name: QDFM(rates=name, loss=loss[name], steps=scale.euler, hidden=scale.hidden) for name in fields}
    if OURS in fields:
        configs[ONE_STEP] = dataclasses.replace(configs[OURS], steps=1)
    observation = np.eye(scale.contexts, dtype=np.float32)[0]
    calls: dict[str, Callable[[], Any]] = {}
    for name, config in configs.items():
        config = config.resolve(scale.spec)
        algorithm = config.build(scale.spec)
        agent = Agent(config, scale.spec, algorithm.policy(algorithm.init(jax.random.key(0))))
        calls[name] = partial(agent.act, observation)
    return in_turn(calls, scale.calls)
