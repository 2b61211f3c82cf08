"""mujoco: discretised Hopper, Walker2d and HalfCheetah, medium and expert data (the paper's largest table).

Two settings. `codebook` is the paper's: the nearest of 256 joint actions, one token. `tokens` is ours: one token per
dimension. Within a setting all methods have the same data, networks of the same width and equally many gradient steps;
only QDFM without guidance stops before its last phase, because it is the same run without that.
"""

from dataclasses import replace
from typing import Any

from qdfm.algorithms import AWAC, AWBC, BC, BCQ, BRAC, CQL, IQL, QDFM, BoltzBC, BoltzQ, GreedyQ
from qdfm.algorithms.base import Config
from qdfm.envs.mujoco import TASKS
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.control import FULL, QUICK, SOURCE, Coding, Place, behaviour, total_steps, trained
from qdfm.experiments.fitting import Family, fit
from qdfm.experiments.mujoco_tables import FINDINGS, NOTES, Results, headlines, tabulate
from qdfm.experiments.report import provenance, write_report

CODINGS = {"codebook": Coding("codebook", 256), "tokens": Coding("bins", 41)}
STEPS = {"codebook": 60_000, "tokens": 120_000}  # gradient steps of every method
NETWORKS: dict[str, Any] = {"ema": 0.9995}  # the policies are averaged over some thousand steps
# For one token per dimension: what the expert of HalfCheetah takes to be imitated; the critic may stay small.
WIDE: dict[str, Any] = {"hidden": (512, 512), "critic_hidden": (256, 256), "batch_size": 1024, "ema": 0.9995}
# The returns of HalfCheetah are large: critics in units of them learn sooner, and less noise is left in what they say.
SCALED: dict[str, Any] = {"value_scale": True, "pessimism": "mean", "critic_decay": True}
CANDIDATES = 16  # of best-of-n
TOKENS_RIVALS = ("AWAC", "BC", "IQL")  # imitation, and those that do not maximise over actions never seen
SEEDS = 3


def schedule(steps: int, shares: tuple[float, float, float] = (0.15, 0.5, 0.35)) -> dict[str, Any]:
    """So many steps of QDFM in all; by default in the paper's proportions, 150k : 500k : 350k."""
    warmup, critic, improve = (round(share * steps) for share in shares)
    return {"warmup_steps": warmup, "critic_steps": critic, "improve_steps": improve}


def unguided(config: QDFM) -> QDFM:
    """The same run without guidance: the critic does not touch the flow, which is that of the warm-up."""
    return replace(config, improve_steps=0)


def baselines(steps: int, flow: QDFM, **networks: Any) -> dict[str, Config]:
    """The paper's seven, and three beside; those that read a policy off QDFM's critic train it like that `flow`."""
    cloned: dict[str, Any] = {k: v for k, v in networks.items() if k != "critic_hidden"}
    critic: dict[str, Any] = {"critic_steps": flow.critic_steps, "target_rate": flow.target_rate}
    guided: dict[str, Any] = {"clone_steps": steps - flow.critic_steps, **critic, **networks}
    clone = round(0.15 * steps)
    return {
        "AWAC": AWAC(train_steps=steps, **networks),
        "AWBC": AWBC(train_steps=steps, **networks),
        "BCQ": BCQ(train_steps=steps, **networks),
        "CQL": CQL(train_steps=steps, **networks),
        "GreedyQ": GreedyQ(**guided),
        "BRAC": BRAC(clone_steps=clone, train_steps=steps - clone, **networks),
        "BoltzQ": BoltzQ(**guided),
        "BC": BC(clone_steps=steps, **cloned),
        "BoltzBC": BoltzBC(**guided),
        "IQL": IQL(train_steps=steps, **networks),
    }


# The logged actions as endpoints: the last phase goes on learning the behaviour while it is guided, less where values
# spread widely, as they do at an episode's start.
CODEBOOK_QDFM = QDFM(
    **schedule(STEPS["codebook"], (0.3, 0.3, 0.4)), endpoints="data", target_rate=0.02, share_target=0.8,
    state_share=0.5, **NETWORKS,
)  # fmt: skip
# A longer warm-up; in the last phase the weights are at hand, and the flow has not far to go.
TOKENS_QDFM = QDFM(
    **schedule(STEPS["tokens"], (0.45, 0.45, 0.1)), samples=16, target_rate=0.01, support_share=0.1, **SCALED,
    share_target=0.35, **WIDE,
)  # fmt: skip
METHODS: dict[str, dict[str, Config]] = {
    "codebook": {"QDFM": CODEBOOK_QDFM, **baselines(STEPS["codebook"], CODEBOOK_QDFM, **NETWORKS)},
    "tokens": {
        "QDFM": replace(TOKENS_QDFM, averaged=True),
        "QDFM-drawn": TOKENS_QDFM,
        "QDFM-unguided": replace(unguided(TOKENS_QDFM), averaged=True),
        "QDFM-unguided-drawn": unguided(TOKENS_QDFM),
        "QDFM-best-of-16": replace(TOKENS_QDFM, candidates=CANDIDATES),
        **{name: baselines(STEPS["tokens"], TOKENS_QDFM, **WIDE)[name] for name in TOKENS_RIVALS},
    },
}
QUICK_NAMES = {"task": ("hopper-medium",), "method": ("QDFM", "QDFM-unguided", "BC")}


def run(settings: Settings) -> None:
    """Train, play, tabulate, draw."""
    every = dict.fromkeys(name for methods in METHODS.values() for name in methods)
    picked = settings.picked({"setting": METHODS, "task": TASKS, "method": every}, QUICK_NAMES)
    asked = {s: {m: METHODS[s][m] for m in picked["method"] if m in METHODS[s]} for s in picked["setting"]}
    asked = {setting: methods for setting, methods in asked.items() if methods}
    settings.require(asked)
    cells, seeds = Cells(settings), settings.seed_range(SEEDS)
    size = QUICK if settings.quick else FULL
    results: Results = {}
    for setting, methods in asked.items():
        for task in picked["task"]:
            place = Place(task, CODINGS[setting], size)
            made = {}
            family = Family(TOKENS_QDFM.scaled(size.share))
            for name, config in methods.items():
                shared = setting == "tokens" and isinstance(config, QDFM)
                how = family if shared else fit
                made[name] = trained(cells, place, config, seeds, settings.progress, fit=how)
            row = {"behaviour": behaviour(cells, place), "methods": made}
            results.setdefault(setting, {})[task] = row
    report(settings, results, cells, seeds)


def report(settings: Settings, results: Results, cells: Cells, seeds: tuple[int, ...]) -> None:
    """Tables on the terminal; the rest in the folder."""
    tables = tabulate(results)
    for table in tables:
        table.show()
    from qdfm.experiments.mujoco_figures import draw

    draw(settings.out, results)
    steps = {
        setting: {name: total_steps(cell) for name, cell in next(iter(rows.values()))["methods"].items()}
        for setting, rows in results.items()
    }
    made = provenance(settings.command("mujoco", len(seeds)), cells.used, seeds=list(seeds), steps=steps)
    notes = settings.notes(NOTES, FINDINGS, SEEDS)
    write_report(settings.out, "Discretised MuJoCo control", made, results, tables, notes, headlines(results), SOURCE)
