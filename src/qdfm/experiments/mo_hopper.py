"""mo-hopper: run or jump, on D4MORL's data, against the diffusion planner MODULI (the paper's comparison).

One model for all preferences; 501 of them, (ω, 1 − ω) with ω from 0 to 1, are played one episode each, and the returns
that none of them dominates are measured by their hypervolume beyond (0, 0), beside that of the data's own returns. The
data lie where QDFM_DATA says (D4MORL's layout); without them, data of our own policy take their place.
"""

import os
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import BC, CQL, MODULI, QDFM
from qdfm.algorithms.base import Config
from qdfm.data.dataset import Dataset, fingerprint
from qdfm.data.sources import load_dataset
from qdfm.envs.mujoco import MO_HOPPER, make_plain
from qdfm.evaluate import evaluate
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.control_methods import SCALED
from qdfm.experiments.fitting import Family, fit
from qdfm.experiments.mo_hopper_report import AUTHORS, FINDINGS, NOTES, Results, draw, headlines, provided, tabulate
from qdfm.experiments.report import finish
from qdfm.experiments.timing import Timing, act_times, here_and_on_cpu
from qdfm.metrics import hypervolume, non_dominated, sparsity

QUALITIES = ("expert", "amateur")
LAYOUT = 2  # of what a cell holds; raised whenever that changes, since older cells have no place in the tables then
PREFERENCES, QUICK_PREFERENCES, QUICK_SHARE, QUICK_TRANSITIONS = 501, 11, 0.002, 20_000
SEEDS, BINS, STEPS = 3, 161, 40_000
TIMED_PREFERENCES = 21  # of those, under which an action is timed
TIMED = Timing(calls=210, batch=PREFERENCES)
NETWORKS: dict[str, Any] = {"ema": 0.9995, "preferences": "logged"}
# Of what imitates: the data are near to 93 policies, each on a narrow path.
CLOSE: dict[str, Any] = {"learning_rate": 1e-3, "observation_noise": 0.02, "decay": True, **NETWORKS}
# One step, because the behaviour does one thing in a state and leaves nothing to couple; logged actions as endpoints,
# so that the last phase goes on learning them; guidance only where it promises something, as it cannot for experts.
FLOW = QDFM(
    warmup_steps=STEPS, critic_steps=8_000, improve_steps=8_000, steps=1, averaged=True, layer_norm=False,
    endpoints="data", samples=16, target_rate=0.02, support_share=0.1, worthwhile=0.02, hidden=(512, 512),
    critic_hidden=(256, 256), **SCALED, **CLOSE,
)  # fmt: skip
METHODS: dict[str, Config] = {
    "QDFM": FLOW,
    "QDFM, unguided": replace(FLOW, improve_steps=0),
    "MODULI": MODULI(
        plan_steps=STEPS, inverse_steps=STEPS, learning_rate=5e-4, hidden=(512, 512), width=128, depth=3, batch_size=128
    ),
    "BC(P)": BC(clone_steps=STEPS, hidden=(1024, 1024), batch_size=1024, **CLOSE),
    # Values here are some hundreds, beside which a weight of 1 keeps nothing low.
    "CQL(P)": CQL(train_steps=60_000, target_rate=0.02, penalty=3000.0, **NETWORKS),
}
QUICK_NAMES = {"quality": ("expert",), "method": ("QDFM", "MODULI", "BC(P)")}


def run(settings: Settings) -> None:
    """Train, play, tabulate, draw."""
    picked = settings.picked({"quality": QUALITIES, "method": METHODS}, QUICK_NAMES)
    make_plain(MO_HOPPER).close()  # what is missing to play is said before anything is trained
    cells, seeds = Cells(settings), settings.seed_range(SEEDS)
    results: Results = {}
    for quality in picked["quality"]:
        methods = {name: configured(name, settings.quick) for name in picked["method"]}
        family = Family(configured("QDFM", settings.quick))
        row = {name: trained(cells, quality, config, family, seeds, settings) for name, config in methods.items()}
        data = cells.get(described(quality, settings.quick), partial(facts, quality, settings.quick))
        results[quality] = {"data": data, "methods": row, "times": timed(cells, quality, methods, settings)}
    said = provided(results)
    notes = settings.notes(f"{said}\n\n{NOTES}", FINDINGS, SEEDS) if not settings.quick else said
    finish(
        cells, settings.command("mo-hopper", len(seeds)), "MO-Hopper", results, tabulate(results), notes,
        headlines(results), said, seeds=list(seeds),
    )  # fmt: skip
    draw(settings.out, results)


def configured(name: str, quick: bool) -> Config:
    """A method's config, with fewer steps in a quick run."""
    return METHODS[name].scaled(QUICK_SHARE) if quick else METHODS[name]


def source(quality: str) -> str:
    """The file of a quality under QDFM_DATA, or the name of our own data."""
    file, folder = f"mo_hopper/{quality}_uniform.npz", os.environ.get("QDFM_DATA")
    return file if folder and (Path(folder).expanduser() / file).exists() else f"mo-hopper-{quality}"


@lru_cache(maxsize=1)
def data_of(quality: str, quick: bool) -> Dataset:
    """The trajectories, one token per dimension of an action."""
    name = source(quality)
    if quick and name.startswith("mo-hopper-"):
        return load_dataset(name, bins=BINS, transitions=QUICK_TRANSITIONS)
    return load_dataset(name, bins=BINS)


def described(quality: str, quick: bool) -> dict[str, Any]:
    """What all cells of a quality depend on."""
    data = Path(source(quality)).stem
    return {"layout": LAYOUT, "quality": quality, "data": data, "bins": BINS, "quick": quick}


def facts(quality: str, quick: bool) -> dict[str, Any]:
    """The data's own returns, and the bound that they set."""
    data = data_of(quality, quick)
    returns, known = data.returns(), np.asarray(data.preference)[:, 0]
    return {
        "source": Path(source(quality)).stem,
        "transitions": len(data),
        "episodes": len(returns),
        "fingerprint": fingerprint(data),
        "bound": hypervolume(returns, np.zeros(2)),
        "preferences": [float(end) for end in (known.min(), known.max())],
        "returns": np.round(returns[non_dominated(returns)]).tolist(),
    }


def trained(
    cells: Cells, quality: str, config: Config, family: Family, seeds: tuple[int, ...], settings: Settings
) -> dict[str, Any]:
    """The cell of a method: all seeds trained in one program, each asked for every preference; of QDFM also which seeds
    guidance has changed at all."""
    count = QUICK_PREFERENCES if settings.quick else PREFERENCES

    def compute() -> dict[str, Any]:
        data, guided = data_of(quality, settings.quick), None
        if isinstance(config, QDFM):
            agents, seconds = family(data, config, seeds, settings.progress)
            unguided, _ = family(data, replace(config, improve_steps=0), seeds, settings.progress)
            guided = [differ(*pair) for pair in zip(agents, unguided, strict=True)]
        else:
            agents, seconds = fit(data, config, seeds, settings.progress)
        rows = [judge(agent, count, seed, settings.progress) for agent, seed in zip(agents, seeds, strict=True)]
        for row in rows[1:]:  # the returns of one seed are enough to draw
            del row["returns"]
        steps = config.total_steps(agents[0].spec)
        return {"seeds": rows, "train_seconds": round(seconds, 1), "steps": steps, "guided": guided}

    key = described(quality, settings.quick) | {"config": config.described(), "seeds": seeds, "preferences": count}
    return cells.get(key, compute)


def differ(one: Agent, other: Agent) -> bool:
    """Whether two agents of one network act by other weights."""
    pairs = zip(jax.tree.leaves(one.policy), jax.tree.leaves(other.policy), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


def judge(agent: Agent, preferences: int, seed: int, progress: bool) -> dict[str, Any]:
    """What one policy reaches under preferences all along the simplex, without drawing actions."""
    returns = evaluate(agent, MO_HOPPER, preferences, seed, True, asked(preferences), progress=progress).returns
    front = returns[non_dominated(returns)]
    return {
        "hypervolume": hypervolume(returns, np.zeros(2)),
        "sparsity": sparsity(front),
        "points": len(front),
        "returns": np.round(returns).tolist(),
    }


def asked(preferences: int) -> np.ndarray:
    """So many preferences, (0, 1) to (1, 0)."""
    omega = np.linspace(0, 1, preferences)
    return np.stack([omega, 1 - omega], 1)


def timed(cells: Cells, quality: str, methods: dict[str, Config], settings: Settings) -> dict[str, Any]:
    """Milliseconds of an action, methods called in turn on the same machine; MODULI's also at its authors' size."""
    if "MODULI" in methods and not settings.quick:
        methods = methods | {AUTHORS: MODULI.paper()}
    key = described(quality, settings.quick) | {
        "times": {name: config.described() for name, config in methods.items()}, "timed": TIMED_PREFERENCES,
    }  # fmt: skip

    def compute() -> dict[str, Any]:
        def measure(batch: int) -> dict[str, Any]:
            return act_times(methods, data_of(quality, settings.quick), TIMED.calls, batch, asked(TIMED_PREFERENCES))

        return here_and_on_cpu(partial(measure, TIMED.batch), partial(measure, 0))  # a CPU plans a batch for too long

    return cells.get(key, compute)
