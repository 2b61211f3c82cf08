"""mujoco: discretised Hopper, Walker2d and HalfCheetah, medium and expert data (the paper's largest table).

Two settings. `codebook` is the paper's: the nearest of 256 joint actions, one token. `tokens` is ours: one token per
dimension. Within a setting all methods have the same data, networks of the same width and equally many gradient steps.
How QDFM compares with its own flow without guidance is a study of its own, `guidance`.
"""

from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.control import FULL, QUICK, SOURCE, Place, behaviour, total_steps, trained
from qdfm.experiments.control_methods import CODINGS, METHODS
from qdfm.experiments.mujoco_figures import draw
from qdfm.experiments.mujoco_tables import FINDINGS, NOTES, Results, headlines, tabulate
from qdfm.experiments.report import finish
from qdfm.tasks import TASKS

SEEDS = 3
QUICK_NAMES = {"task": ("hopper-medium",), "method": ("QDFM", "BC")}


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
            made = {name: trained(cells, place, config, seeds, settings.progress) for name, config in methods.items()}
            row = {"behaviour": behaviour(cells, place), "methods": made}
            results.setdefault(setting, {})[task] = row
    report(settings, results, cells, seeds)


def report(settings: Settings, results: Results, cells: Cells, seeds: tuple[int, ...]) -> None:
    """Tables on the terminal; the rest in the folder."""
    steps = {
        setting: {name: total_steps(cell) for name, cell in next(iter(rows.values()))["methods"].items()}
        for setting, rows in results.items()
    }
    finish(
        cells, settings.command("mujoco", len(seeds)), "Discretised MuJoCo control", results, tabulate(results),
        settings.notes(NOTES, FINDINGS, SEEDS), headlines(results), SOURCE, seeds=list(seeds), steps=steps,
    )  # fmt: skip
    draw(settings.out, results)
