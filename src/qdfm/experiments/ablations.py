"""ablations: M and N with what they cost, the scale of the rates and the Euler steps, where the chain starts.

The paper's ablations of its method, each for `paper`, the algorithm as printed with fewer steps, and for `ours`, the
same method with our choices as far as the ablation leaves them open. With QDFM()'s enumerated endpoints and its one
step neither M nor N exists; so `ours` draws M endpoints from the behaviour, and N is what it is told.

The sweeps of α and of the steps, and the starts, are played by models that were trained once.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import QDFM
from qdfm.experiments.ablations_report import FINDINGS, NOTES, Results, draw, headlines, tabulate
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.control import FULL, QUICK, SOURCE, Coding, Place, Size, play, trained
from qdfm.experiments.control_methods import PAPER_STEPS, schedule
from qdfm.experiments.report import finish
from qdfm.experiments.timing import Timing, act_times, phase_rates

STEPS = 10_000  # gradient steps after the behaviour is cloned, which takes as many again
SEEDS = 2
TASKS = ("hopper-medium", "walker2d-medium")
SAMPLES, EULER = (16, 32, 64, 128), (5, 10, 20, 40)
ALPHAS, INFERENCE_STEPS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0), (5, 10, 15, 20, 40)
SWEPT_STEPS = 15  # of the sweep of α, as the paper has it
SWEPT_TASK, SWEPT_CODINGS, SWEPT_EPISODES = "walker2d-medium", (Coding("codebook", 16), Coding("codebook", 32)), 100
CODING = Coding("codebook", 256)
STARTS = ("behaviour", "single", "uniform")
TIMED = "hopper-medium"  # where M and N are timed, for the paper's schedule
TIMING = Timing(chunk=100, calls=500)


def models(**changes: Any) -> dict[str, QDFM]:
    """The two models, M = 64 and N = 20 unless changed; the schedule in the paper's proportions."""
    common = {**schedule(STEPS), "clone_steps": STEPS, "steps": 20, "samples": 64, "backup_samples": 64} | changes
    ours = QDFM(behaviour="network", act_start="behaviour", endpoints="behaviour", **common)
    return {"paper": QDFM.paper(**common), "ours": ours}


class Trial(NamedTuple):
    """One cell: a model at a place, and how it is judged."""

    config: QDFM
    task: str
    coding: Coding
    judge: Callable[[Agent, Place, int, bool], dict[str, Any]]
    describes: dict[str, Any]
    episodes: int | None = None  # None: as many as usual


def samples_trials(model: str, task: str) -> dict[str, Trial]:
    """M endpoints, and as many actions in the backup; the costly literal model on one data set only."""
    if model == "paper" and task != TIMED:
        return {}
    return {str(m): Trial(models(samples=m, backup_samples=m)[model], task, CODING, sampled, {}) for m in SAMPLES}


def steps_trials(model: str, task: str) -> dict[str, Trial]:
    """N steps, in training and when acting."""
    if model == "paper" and task != TIMED:
        return {}
    return {str(n): Trial(models(steps=n)[model], task, CODING, sampled, {}) for n in EULER}


def inference_trials(model: str, task: str) -> dict[str, Trial]:
    """α and the steps at inference, by one trained model for each K_act; on Walker2d only."""
    describes = {"alphas": ALPHAS, "at": SWEPT_STEPS, "steps": INFERENCE_STEPS}
    return {
        str(coding): Trial(models()[model], task, coding, swept, describes, SWEPT_EPISODES)
        for coding in SWEPT_CODINGS
        if task == SWEPT_TASK
    }


def starts_trials(model: str, task: str) -> dict[str, Trial]:
    """Where the chain starts when it acts, by one trained model."""
    return {"starts": Trial(models()[model], task, CODING, started, {"starts": STARTS})}


TRIALS: dict[str, Callable[[str, str], dict[str, Trial]]] = {
    "samples": samples_trials,
    "steps": steps_trials,
    "inference": inference_trials,
    "starts": starts_trials,
}
PARTS = (*TRIALS, "times")
QUICK_NAMES = {"part": ("samples", "starts"), "model": ("ours",), "task": ("hopper-medium",)}


def run(settings: Settings) -> None:
    """Train, play, tabulate, draw."""
    picked = settings.picked({"part": PARTS, "model": tuple(models()), "task": TASKS}, QUICK_NAMES)
    asked = {
        (part, task, model): trials
        for part, task, model in product(picked["part"], picked["task"], picked["model"])
        if part in TRIALS and (trials := TRIALS[part](model, task))
    }
    timed = picked["model"] if "times" in picked["part"] else ()
    settings.require((*asked, *timed))
    cells, seeds = Cells(settings), settings.seed_range(SEEDS)
    size = QUICK if settings.quick else FULL
    results: Results = {}
    for (part, task, model), trials in asked.items():
        row = results.setdefault(part, {}).setdefault(task, {}).setdefault(model, {})
        for label, trial in trials.items():
            episodes = size.episodes if settings.quick or trial.episodes is None else trial.episodes
            place = Place(task, trial.coding, replace(size, episodes=episodes))
            row[label] = trained(cells, place, trial.config, seeds, settings.progress, trial.judge, **trial.describes)
    costs = {model: times(cells, model, size) for model in timed}
    found = results | ({"times": costs} if costs else {})
    finish(
        cells, settings.command("ablations", len(seeds)), "Ablations on MuJoCo", found, tabulate(results, costs),
        settings.notes(NOTES, FINDINGS, SEEDS), headlines(results, costs), SOURCE, seeds=list(seeds),
    )  # fmt: skip
    draw(settings.out, results)


def times(cells: Cells, model: str, size: Size) -> dict[str, dict[str, Any]]:
    """What M and N cost, timed one after the other: steps per second of every phase, milliseconds of one action."""
    data = Place(TIMED, CODING, size).data()
    out: dict[str, dict[str, Any]] = {"samples": {}, "steps": {}}
    for part, label, changes in (
        *(("samples", str(m), {"samples": m, "backup_samples": m}) for m in SAMPLES),
        *(("steps", str(n), {"steps": n}) for n in EULER),
    ):
        config = models(**changes)[model].scaled(PAPER_STEPS / STEPS)

        def compute(config: QDFM = config) -> dict[str, Any]:
            acted = act_times({"one": config}, data, TIMING.calls, TIMING.batch)["one"]
            return {"phases": phase_rates(config, data, 1, TIMING), "act_ms": acted["one"]}

        key = {"times": asdict(TIMING), "task": TIMED, "coding": asdict(CODING), "config": config.described()}
        out[part][label] = cells.get(key | {"transitions": size.transitions}, compute)
    return out


# How the models are judged


def sampled(agent: Agent, place: Place, seed: int, progress: bool) -> dict[str, Any]:
    """The sampled policy."""
    return {"sampled": play(agent, place.task, place.size.episodes, seed, False, progress)}


def swept(agent: Agent, place: Place, seed: int, progress: bool) -> dict[str, Any]:
    """The trained policy with other scales of its rates, and with other numbers of steps."""
    assert isinstance(agent.config, QDFM)
    pairs = [*((alpha, SWEPT_STEPS) for alpha in ALPHAS), *((1.0, n) for n in INFERENCE_STEPS if n != SWEPT_STEPS)]
    out = {}
    for alpha, steps in pairs:
        other = Agent(replace(agent.config, alpha=alpha, steps=steps), agent.spec, agent.policy, seed)
        out[f"{alpha:g} {steps}"] = play(other, place.task, place.size.episodes, seed, False, progress)
    return out


def started(agent: Agent, place: Place, seed: int, progress: bool) -> dict[str, Any]:
    """The trained policy from each start."""
    common = int(np.bincount(np.asarray(place.data().action)[:, 0]).argmax())
    others = {start: Agent(agent.config, agent.spec, from_start(agent, start, common), seed) for start in STARTS}
    return {start: play(a, place.task, place.size.episodes, seed, False, progress) for start, a in others.items()}


def from_start(agent: Agent, start: str, action: int) -> Any:
    """The policy whose chain starts from μ̂, from one action, or anywhere: only the start's network is another."""
    flow, behaviour, critic = agent.policy
    if start == "behaviour":
        return agent.policy
    head = behaviour.trunk.head
    bias = jnp.zeros_like(head.bias) if start == "uniform" else jnp.where(jnp.arange(len(head.bias)) == action, 0, -1e9)
    law = eqx.tree_at(lambda net: (net.trunk.head.weight, net.trunk.head.bias), behaviour, (0 * head.weight, bias))
    return flow, law, critic
