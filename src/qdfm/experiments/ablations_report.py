"""The tables, headlines and picture of `ablations`, the paper's figures beside ours."""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.experiments.control import SOURCE, mean_returns, scores
from qdfm.experiments.report import Headline, Table, number, shown
from qdfm.experiments.timing import extrapolated
from qdfm.figures import save_figure
from qdfm.metrics import summarise
from qdfm.tasks import normalised

# By part, task and model: cells by the value of what is varied.
Results = dict[str, dict[str, dict[str, dict[str, dict[str, Any]]]]]
Row = dict[str, dict[str, dict[str, Any]]]  # of one part and task
Costs = dict[str, dict[str, dict[str, Any]]]  # by model, part and value

LETTERS = {"samples": "M", "steps": "N"}
# The paper's seconds of training and milliseconds of one action.
PAPER_TRAIN: dict[str, dict[str, dict[str, float]]] = {
    "samples": {
        "hopper-medium": {"16": 3158.7, "32": 3583.4, "64": 4719.3, "128": 7247.1},
        "walker2d-medium": {"16": 3152.7, "32": 3588.1, "64": 4664.4, "128": 7346.0},
    },
    "steps": {
        "hopper-medium": {"5": 2286.7, "10": 2381.3, "20": 2429.6, "40": 2637.3},
        "walker2d-medium": {"5": 2314.8, "10": 2382.0, "20": 2480.2, "40": 2683.2},
    },
}
PAPER_ACT: dict[str, dict[str, dict[str, float]]] = {
    "samples": {
        "hopper-medium": {"16": 8.86, "32": 8.86, "64": 8.93, "128": 8.86},
        "walker2d-medium": {"16": 8.91, "32": 8.91, "64": 10.02, "128": 10.08},
    },
    "steps": {
        "hopper-medium": {"5": 1.89, "10": 3.60, "20": 6.29, "40": 12.69},
        "walker2d-medium": {"5": 1.92, "10": 3.48, "20": 6.57, "40": 12.59},
    },
}
# The paper's normalised scores by start.
PAPER_STARTS = {
    "hopper-medium": {"behaviour": 35.81, "single": 0.75, "uniform": 1.82},
    "walker2d-medium": {"behaviour": 7.90, "single": 0.94, "uniform": 3.90},
}
COLOURS = {"paper": "C0", "ours": "C1"}  # a model's, also where the other was not run
START_NAMES = {"behaviour": "μ̂", "single": "a single action", "uniform": "uniform"}

NOTES = (
    f"{SOURCE}\n\n"
    "Two models, both with a separate behaviour network μ̂ from which the chain starts, M = 64 and N = 20 unless "
    "varied. Paper: the algorithm as printed (softplus rates, squared error, the literal sum over M endpoints that are "
    "drawn from the model, one scalar critic, β = 20 unscaled), with fewer steps. Ours: posterior rates, "
    "cross-entropy, the collapsed objective, M endpoints drawn from the behaviour, QDFM()'s critics and guidance. "
    "QDFM() itself has neither M nor N for one token: it enumerates its endpoints and acts in one step. M is also the "
    "number of actions in the critic's backup.\n\n"
    "What they cost was timed apart from the runs, one after the other on one machine: train s is the time of the "
    "paper's schedule (and of cloning μ̂ for as many steps) at the measured steps/s, one seed, compiling left out; act "
    "ms is `agent.act` on one observation, NumPy in to NumPy out, median. The paper's device is another. The scores "
    "are of short runs, and of the algorithm as printed on Hopper only.\n\n"
    "α and Euler steps: Walker2d, as the paper has it with 15 steps for the sweep of α and 100 episodes per seed, of "
    "models trained once with N = 20; the paper shows curves without their numbers, so the values of α and of steps "
    "are ours. With more than 20 steps the chain asks for times later than any in training. Rates whose scale exceeds "
    "what a step can carry are clamped to a certain jump. All policies here are sampled.\n\n"
    "Starts: trained once with μ̂ as the start, then played from another. The paper does not say which single action it "
    "means, since a new state has no dataset action; here it is the most frequent one of the data."
)
FINDINGS = (
    "What it shows: M moves ours by no more than its seeds differ, N not surely either, and of the two only N costs it "
    "anything, when it acts (.19 to 1.66 ms). At inference ours bears all α and numbers of steps; with 32 joint "
    "actions it loses a tenth from α = .5 to 10. Started elsewhere than at μ̂ it loses 3 of 31 points on Hopper and 9 "
    "of 34 on Walker2d, where the paper loses nearly all of Hopper's: rates that point at an endpoint forgive a start "
    "that training did not know. The algorithm as printed, with β = 20 and these few steps, does not learn to stand "
    "(about 1 on Hopper), so that its rows tell what M and N cost and no more: 3.5 times the training from M = 16 to "
    "128, 4.1 times from N = 5 to 40."
)


def tabulate(results: Results, costs: Costs) -> list[Table]:
    """All tables."""
    tables = []
    for part, letter in LETTERS.items():
        tables += [_varied(letter, task, row) for task, row in results.get(part, {}).items()]
        if costs:
            tables.append(_costs(part, letter, costs))
    for task, row in results.get("inference", {}).items():
        tables += [_inference(task, row, "α"), _inference(task, row, "steps")]
    if "starts" in results:
        tables.append(_starts(results["starts"]))
    return tables


def _varied(letter: str, task: str, row: Row) -> Table:
    values = list(next(iter(row.values())))
    table = Table(f"{letter} on {task}: normalised score", ("", *(f"{letter} = {v}" for v in values)))
    for model, cells in row.items():
        table.add(model, *(shown(scores(cells[v], "sampled")) for v in values))
    return table


def _costs(part: str, letter: str, costs: Costs) -> Table:
    values = list(next(iter(costs.values()))[part])
    table = Table(f"What {letter} costs", ("", *(f"{letter} = {v}" for v in values)))
    for model, cells in costs.items():
        table.add(f"{model}: train s (extrapolated)", *(f"{extrapolated(cells[part][v]):,.0f}" for v in values))
        table.add(f"{model}: act ms", *(f"{cells[part][v]['act_ms']:.3f}" for v in values))
    for what, figures in (("train s", PAPER_TRAIN), ("act ms", PAPER_ACT)):
        for task, printed in figures[part].items():
            table.add(f"the paper, {task}: {what}", *(number(printed.get(v), ",.6g") for v in values))
    return table


def pairs(cell: dict[str, Any], what: str) -> dict[str, str]:
    """The swept values and the names under which a cell has them: of α at the common number of steps, or of steps."""
    both = [name.split() for name in cell["seeds"][0]]
    common = max({n for _, n in both}, key=lambda n: sum(n == other for _, other in both))
    if what == "α":
        return {alpha: f"{alpha} {n}" for alpha, n in both if n == common}
    found = {n: f"{alpha} {n}" for alpha, n in both if alpha == "1"}
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _inference(task: str, row: Row, what: str) -> Table:
    first = next(iter(next(iter(row.values())).values()))
    names = pairs(first, what)
    table = Table(f"{what} at inference on {task}: raw return", ("", *(f"{what} = {v}" for v in names)))
    for model, cells in row.items():
        for coding, cell in cells.items():
            table.add(f"{model}, {coding}", *(f"{mean_returns(cell, name):.0f}" for name in names.values()))
    return table


def _starts(rows: dict[str, Row]) -> Table:
    table = Table("Where the chain starts: normalised score", ("", *START_NAMES.values()))
    for task, row in rows.items():
        for model, cells in row.items():
            (cell,) = cells.values()
            table.add(f"{task}: {model}", *(shown(scores(cell, start)) for start in START_NAMES))
        table.add(f"{task}: as printed in the paper", *(f"{PAPER_STARTS[task][start]:.2f}" for start in START_NAMES))
    return table


def headlines(results: Results, costs: Costs) -> list[Headline]:
    """What the largest M and N cost as a ratio to the smallest, and scores by start."""
    lines = []
    for part, letter in LETTERS.items():
        for model, parts in costs.items():
            first, *_, last = parts[part]
            for what, of, paper in (
                ("training time", extrapolated, PAPER_TRAIN),
                ("time of one action", lambda cell: cell["act_ms"], PAPER_ACT),
            ):
                printed = paper[part]["hopper-medium"]
                ratio = printed[last] / printed[first] if {first, last} <= printed.keys() else None
                ours = float(of(parts[part][last]) / of(parts[part][first]))
                lines.append(Headline(f"{model}: {what}, {letter} = {last} / {first}", ours, ratio))
    for task, row in results.get("starts", {}).items():
        for model, cells in row.items():
            (cell,) = cells.values()
            for start, name in START_NAMES.items():
                ours = float(scores(cell, start).mean())
                lines.append(Headline(f"{task}, {model}: start from {name}", ours, PAPER_STARTS[task][start]))
    return lines


def draw(folder: Path, results: Results) -> None:
    """A picture of each part that was run: ablations-samples.png, -steps.png, -inference.png, -starts.png."""
    from matplotlib.figure import Figure

    for part, rows in results.items():
        kinds = ("α", "steps") if part == "inference" else (part,)
        figure = Figure(figsize=(3.6 * len(rows) * len(kinds) + 1.6, 3.0), layout="constrained")
        axes = figure.subplots(1, len(rows) * len(kinds), squeeze=False)
        panels = [(task, row, kind) for task, row in rows.items() for kind in kinds]
        for axis, (task, row, kind) in zip(axes[0], panels, strict=True):
            for model, cells in row.items():
                _curves(axis, task, model, cells, part, kind)
            axis.set_title(task, fontsize=9)
            axis.set_xlabel(LETTERS.get(part, "start" if part == "starts" else f"{kind} at inference"))
            axis.set_ylabel("normalised score")
            axis.grid(alpha=0.3)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
        save_figure(figure, folder / f"ablations-{part}.png")


def _curves(axis: Any, task: str, model: str, cells: dict[str, dict[str, Any]], part: str, kind: str) -> None:
    if part in LETTERS:
        _line(axis, model, {value: scores(cell, "sampled") for value, cell in cells.items()})
        return
    for label, cell in cells.items():
        names = pairs(cell, kind) if part == "inference" else {v: k for k, v in START_NAMES.items()}
        found = {value: normalised(task, _seed_returns(cell, name)) for value, name in names.items()}
        _line(axis, f"{model}, {label}" if part == "inference" else model, found)


def _seed_returns(cell: dict[str, Any], name: str) -> np.ndarray:
    return np.array([np.mean(seed[name]["returns"]) for seed in cell["seeds"]])


def _line(axis: Any, label: str, values: dict[str, np.ndarray]) -> None:
    points = [summarise(v) for v in values.values()]
    axis.errorbar(
        list(values), [p.mean for p in points], [p.std for p in points], marker="o", ms=4, capsize=3, label=label,
        color=COLOURS.get(label),
    )  # fmt: skip
