"""runtime: what training and acting cost, every method in one run on one machine (the paper's runtime tables).

The codebook setting (hopper-medium, 256 joint actions, batch 256, two layers of 256). Gradient steps per second are of
compiled scans after a warm-up call; the paper's schedule is run in full for QDFM(), extrapolated for the others. One
action is `agent.act` on one observation, NumPy in to NumPy out, by networks that need not be trained for it.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from qdfm.algorithms import QDFM
from qdfm.algorithms.base import Config
from qdfm.collect.mujoco import MILLION
from qdfm.data.actions import Codebook
from qdfm.data.dataset import Dataset
from qdfm.experiments.cells import FULL_SEEDS, Cells, Settings
from qdfm.experiments.control import Coding, load
from qdfm.experiments.control_methods import PAPER_STEPS, baselines, schedule
from qdfm.experiments.report import finish
from qdfm.experiments.runtime_report import FINDINGS, NOTES, draw, headlines, tabulate
from qdfm.experiments.timing import Timing, act_times, here_and_on_cpu, phase_rates
from qdfm.train import train

QDFM_1M = QDFM(**schedule(PAPER_STEPS))
METHODS: dict[str, Config] = {"QDFM": QDFM_1M, "QDFM.paper": QDFM.paper(), **baselines(PAPER_STEPS, QDFM_1M)}
WHOLE = "QDFM"  # the method whose schedule is run in full
METHODS_OF = {"schedule": (WHOLE,), "scaling": ("QDFM", "QDFM.paper")}  # parts that not all methods have


@dataclass(frozen=True)
class Scale(Timing):
    """How much is timed, and of what."""

    transitions: int = MILLION
    """Of the data."""
    choices: int = 256
    """Of the codebook."""
    seeds: int = FULL_SEEDS
    """Trained side by side."""
    schedule: tuple[float, float] = (1.0, 1.0)
    """Shares of the schedule that are run, with one seed and with several."""
    actions: tuple[int, ...] = (64, 256, 512)
    """|A| of the scaling."""
    samples: tuple[int, ...] = (32, 64, 128)
    """M of the scaling."""
    rows: int = 100_000
    """Of the random data of the scaling."""


FULL = Scale()
QUICK = Scale(
    transitions=20_000, seeds=2, seconds=0.5, chunk=20, schedule=(0.0003, 0.0003), calls=100, actions=(64, 256),
    samples=(32,), rows=10_000,
)  # fmt: skip
QUICK_NAMES = {"part": ("steps", "schedule", "act", "scaling"), "method": ("QDFM", "CQL", "IQL")}


def run(settings: Settings) -> None:
    """Time, tabulate, draw."""
    settings.require_no_seeds("runtime measures time alone, with one seed and with several")
    report(settings, QUICK if settings.quick else FULL)


def report(settings: Settings, scale: Scale) -> None:
    """The chosen parts at one scale."""
    picked = settings.picked({"part": PARTS, "method": METHODS}, QUICK_NAMES)
    parts = [part for part in picked["part"] if {*picked["method"]} & {*METHODS_OF.get(part, METHODS)}]
    settings.require(parts)
    cells = Cells(settings)
    results = {part: PARTS[part](cells, scale, picked["method"], settings.progress) for part in parts}
    finish(
        cells, settings.command("runtime"), "Runtime", results, tabulate(results), settings.notes(NOTES, FINDINGS),
        headlines(results), settings=asdict(scale),
    )  # fmt: skip
    draw(settings.out, results)


def steps_part(cells: Cells, scale: Scale, names: Iterable[str], progress: bool) -> dict[str, Any]:
    """Gradient steps per second of every phase of every method; of QDFM() for several seeds too."""
    shared = {"part": "steps", "scale": _only(scale, "transitions", "choices", "seconds", "chunk")}
    return {
        name: {
            str(seeds): cells.get(
                shared | {"config": METHODS[name].described(), "seeds": seeds},
                partial(_rates_on_data, METHODS[name], scale, seeds),
            )
            for seeds in ((1, scale.seeds) if name == WHOLE else (1,))
        }
        for name in names
    }


def schedule_part(cells: Cells, scale: Scale, names: Iterable[str], progress: bool) -> dict[str, Any]:
    """Seconds of the schedule, or of a share of it, for one seed and for several."""
    shared = {"part": "schedule", "scale": _only(scale, "transitions", "choices")}

    def compute(config: Config, seeds: int, share: float) -> dict[str, Any]:
        data = _data(scale)
        began = time.perf_counter()
        train(config, data, tuple(range(seeds)), progress=progress)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "steps": config.total_steps(data.spec), "share": share}

    out = {}
    for seeds, share in zip((1, scale.seeds), scale.schedule, strict=True):
        config = METHODS[WHOLE].scaled(share)
        described = shared | {"config": config.described(), "seeds": seeds}
        out[str(seeds)] = cells.get(described, partial(compute, config, seeds, share))
    return out


def act_part(cells: Cells, scale: Scale, names: Iterable[str], progress: bool) -> dict[str, Any]:
    """Milliseconds of one action and of a batch, on the device that trains and on the CPU of the same machine."""
    methods = {name: METHODS[name] for name in names}
    described = {name: config.described() for name, config in methods.items()}
    shared = {"part": "act", "scale": _only(scale, "transitions", "choices", "calls", "batch"), "configs": described}

    def compute() -> dict[str, Any]:
        return here_and_on_cpu(lambda: act_times(methods, _data(scale), scale.calls, scale.batch))

    return cells.get(shared, compute)


def scaling_part(cells: Cells, scale: Scale, names: Iterable[str], progress: bool) -> dict[str, Any]:
    """Steps per second of QDFM by |A| and M, on random data; QDFM() enumerates its endpoints, so it has no M."""
    out: dict[str, Any] = {}
    for name in (n for n in names if n in METHODS_OF["scaling"]):
        config = METHODS[name]
        assert isinstance(config, QDFM)
        for samples in scale.samples if name == "QDFM.paper" else (config.samples,):
            changed = config if name == "QDFM" else replace(config, samples=samples, backup_samples=samples)
            for actions in scale.actions:
                shared = {"part": "scaling", "scale": _only(scale, "seconds", "chunk", "rows"), "actions": actions}
                compute = partial(_rates_on_noise, changed, scale, actions)
                column = "–" if name == "QDFM" else str(samples)
                cell = cells.get(shared | {"config": changed.described()}, compute)
                out.setdefault(name, {}).setdefault(str(actions), {})[column] = cell
    return out


PARTS: dict[str, Callable[[Cells, Scale, Iterable[str], bool], dict[str, Any]]] = {
    "steps": steps_part,
    "schedule": schedule_part,
    "act": act_part,
    "scaling": scaling_part,
}


def _only(scale: Scale, *names: str) -> dict[str, Any]:
    """What a part depends on."""
    return {name: getattr(scale, name) for name in names}


def _data(scale: Scale) -> Dataset:
    return load("hopper-medium", Coding("codebook", scale.choices), scale.transitions)


def _rates_on_data(config: Config, scale: Scale, seeds: int) -> dict[str, Any]:
    return {"phases": phase_rates(config, _data(scale), seeds, scale)}


def _rates_on_noise(config: Config, scale: Scale, actions: int) -> dict[str, Any]:
    return {"phases": phase_rates(config, noise(scale.rows, actions), 1, scale)}


def noise(rows: int, actions: int, size: int = 11) -> Dataset:
    """Transitions of Hopper's shape that mean nothing."""
    rng = np.random.default_rng(0)
    seen, then = rng.standard_normal((2, rows, size), np.float32)
    centres = rng.uniform(-1, 1, (actions, 3)).astype(np.float32)
    book = Codebook(tuple(tuple(float(v) for v in centre) for centre in centres))
    action = centres[rng.integers(actions, size=rows)]
    ended = np.arange(rows) % 1000 == 999
    return Dataset.from_arrays(seen, action, rng.random(rows), then, ended, actions=book)
