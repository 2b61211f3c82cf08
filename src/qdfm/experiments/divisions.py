"""divisions: how finely continuous actions are divided (the paper's ablation of K_act, and its comparison at 16).

QDFM with codebooks of 8 to 256 joint actions on all data sets, and with 3 to 41 bins per dimension on the medium ones,
each beside what its quantiser leaves of the behaviour; then every method at K_act = 16, in raw returns.
"""

from dataclasses import replace

from qdfm.algorithms import QDFM
from qdfm.algorithms.base import Config
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.control import FULL, MEDIUM, QUICK, SOURCE, Coding, Place, behaviour, total_steps, trained
from qdfm.experiments.control_methods import METHODS, NETWORKS, STEPS, schedule
from qdfm.experiments.divisions_report import FINDINGS, NOTES, Results, draw, headlines, tabulate
from qdfm.experiments.report import finish
from qdfm.tasks import TASKS

CODEBOOKS, BINS = (8, 16, 32, 64, 256), (3, 5, 9, 21, 41)
CODINGS = {str(c): c for c in (*(Coding("codebook", k) for k in CODEBOOKS), *(Coding("bins", k) for k in BINS))}
COMPARED = "codebook-16"  # where all methods are tried
SEEDS = 3
SIZE = replace(FULL, share=0.5, episodes=10)  # half the gradient steps of `mujoco`, and half the episodes
# A smaller network than in `mujoco`: the size of the flow is not the question here.
BINNED = QDFM(
    **schedule(STEPS["codebook"], (0.45, 0.45, 0.1)), samples=16, batch_size=1024, target_rate=0.02, **NETWORKS
)  # fmt: skip
QUICK_NAMES = {
    "coding": ("codebook-16", "codebook-64", "bins-9"),
    "task": ("hopper-medium",),
    "method": ("QDFM", "BC"),
}


def tried(coding: str, task: str) -> dict[str, Config]:
    """The methods with a coding on a data set: QDFM, and all of them where methods are compared."""
    if CODINGS[coding].kind == "bins":
        return {"QDFM": BINNED} if task in MEDIUM else {}
    return METHODS["codebook"] if coding == COMPARED else {"QDFM": METHODS["codebook"]["QDFM"]}


def run(settings: Settings) -> None:
    """Train, play, tabulate, draw."""
    picked = settings.picked({"coding": CODINGS, "task": TASKS, "method": METHODS["codebook"]}, QUICK_NAMES)
    asked = {
        (task, coding): {name: config for name, config in tried(coding, task).items() if name in picked["method"]}
        for task in picked["task"]
        for coding in picked["coding"]
    }
    asked = {at: methods for at, methods in asked.items() if methods}
    settings.require(asked)
    cells, seeds = Cells(settings), settings.seed_range(SEEDS)
    size = QUICK if settings.quick else SIZE
    results: Results = {}
    for (task, coding), methods in asked.items():
        place = Place(task, CODINGS[coding], size)
        made = {name: trained(cells, place, config, seeds, settings.progress) for name, config in methods.items()}
        results.setdefault(coding, {})[task] = {"behaviour": behaviour(cells, place), "methods": made}
    steps = {
        coding: {name: total_steps(cell) for name, cell in next(iter(rows.values()))["methods"].items()}
        for coding, rows in results.items()
    }
    finish(
        cells, settings.command("divisions", len(seeds)), "Divisions of actions", results, tabulate(results, COMPARED),
        settings.notes(NOTES, FINDINGS, SEEDS), headlines(results, COMPARED), SOURCE, seeds=list(seeds), steps=steps,
    )  # fmt: skip
    draw(settings.out, results)
