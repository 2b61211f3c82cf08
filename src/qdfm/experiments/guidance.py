"""guidance: how strongly may a learned critic pull a policy away from its data, without a setting for every task?

Six MuJoCo sets, one token per dimension. The warm-up flow and the critic are trained once per set, seed and kind of
backup; each rule then turns the critic's values into weights of the flow's own draws, the flow learns these in a short
third phase, and the result is played beside the unguided flow. A rule is good if it never falls below that flow.
"""

from dataclasses import replace

from qdfm.algorithms import QDFM
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.control import FULL, QUICK, SOURCE, Place, behaviour, trained
from qdfm.experiments.control_methods import CANDIDATES, CODINGS, TOKENS_QDFM, unguided
from qdfm.experiments.fitting import Family
from qdfm.experiments.guidance_report import FINDINGS, MEAN, NOTES, Results, draw, headlines, tabulate
from qdfm.experiments.report import finish
from qdfm.tasks import TASKS

SEEDS = 3
UNGUIDED = "unguided"
# Values of the policy that the tilt makes of eight draws, instead of the behaviour's own; read with more care for it.
ONWARD = replace(TOKENS_QDFM, backup="boltzmann", backup_samples=8, pessimism="mean-std")
TRAINED: dict[str, QDFM] = {
    UNGUIDED: unguided(TOKENS_QDFM),
    "share-.35": TOKENS_QDFM,
    "share-.35-state-.5": replace(TOKENS_QDFM, state_share=0.5),
    "share-.15-state-.25": replace(TOKENS_QDFM, share_target=0.15, state_share=0.25),
    "logged-share-.35": replace(TOKENS_QDFM, endpoints="data"),
    "logged-share-.35-state-.5": replace(TOKENS_QDFM, endpoints="data", state_share=0.5),
    "onward-share-.35": ONWARD,
    "onward-share-.35-state-.5": replace(ONWARD, state_share=0.5),
    "values-100-per-size": replace(TOKENS_QDFM, caution=0.0, beta=100.0, beta_scale="mean_abs"),
}
RULES: dict[str, QDFM] = {
    **{name + end: replace(rule, averaged=bool(end)) for name, rule in TRAINED.items() for end in ("", MEAN)},
    "best-of-16": replace(TOKENS_QDFM, candidates=CANDIDATES),
    "unguided-best-of-16": replace(TOKENS_QDFM, improve_steps=0, candidates=CANDIDATES),
}
QUICK_NAMES = {"task": ("hopper-medium",), "rule": (UNGUIDED, "share-.35", "share-.35-state-.5")}


def run(settings: Settings) -> None:
    """Train, play, tabulate, draw."""
    picked = settings.picked({"task": TASKS, "rule": RULES}, QUICK_NAMES)
    cells, seeds = Cells(settings), settings.seed_range(SEEDS)
    size = QUICK if settings.quick else FULL
    results: Results = {}
    for task in picked["task"]:
        place = Place(task, CODINGS["tokens"], size)
        families = {trunk.backup: Family(trunk.scaled(size.share)) for trunk in (TOKENS_QDFM, ONWARD)}
        rules = {
            name: trained(cells, place, RULES[name], seeds, settings.progress, fit=families[RULES[name].backup])
            for name in picked["rule"]
        }
        results[task] = {"behaviour": behaviour(cells, place), "rules": rules}
    finish(
        cells, settings.command("guidance", len(seeds)), "Guidance strength", results, tabulate(results, UNGUIDED),
        settings.notes(NOTES, FINDINGS, SEEDS), headlines(results, UNGUIDED), SOURCE, seeds=list(seeds),
    )  # fmt: skip
    draw(settings.out, results, UNGUIDED)
