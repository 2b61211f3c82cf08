"""The tables, headlines and picture of `runtime`, the paper's figures beside ours."""

from pathlib import Path
from typing import Any

from qdfm.experiments.report import Headline, Table, number
from qdfm.experiments.timing import extrapolated
from qdfm.figures import save_figure

# The paper, one A100: seconds of 1M steps (HalfCheetah-medium), milliseconds of one action (Hopper-medium).
PAPER_TRAIN = {"GreedyQ": 1380.0, "CQL": 1729.0, "BCQ": 2365.0, "AWAC": 2606.0, "IQL": 3620.0}
PAPER_TRAIN |= dict.fromkeys(("QDFM", "QDFM.paper"), 2209.0)
PAPER_ACT = {"GreedyQ": 0.29, "CQL": 0.30, "BCQ": 0.45, "AWAC": 0.28, "IQL": 0.23}
PAPER_ACT |= dict.fromkeys(("QDFM", "QDFM.paper"), 6.26)
# Milliseconds of one action that the paper quotes beside continuous generative policies.
QUOTED = {
    "the paper's own": 5.87,
    "diffusion policy, the slower": 75.05,
    "diffusion policy, the faster": 55.86,
    "optimal-transport flow": 27.26,
}
# Seconds of training by |A| and M.
PAPER_SCALING = {
    "64": {"32": 1527.0, "64": 1469.0, "128": 1481.0},
    "256": {"32": 1411.0, "64": 1448.0, "128": 1578.0},
    "512": {"32": 1420.0, "64": 1510.0, "128": 1869.0},
}

NOTES = (
    "Hopper-medium of our own data, 256 joint actions, batch 256, two layers of 256. Steps/s: compiled scans in the "
    "steady state, the median. 1M steps: the steps of the paper's schedule divided by the measured steps/s, so "
    "extrapolated; it leaves out compiling and checking. QDFM's schedule (150k + 500k + 350k) was also run with all "
    "that `train` does, compiling included, with one seed and with several. QDFM.paper is "
    "the algorithm as printed, literally, with a cloning "
    "phase of 1M steps besides, which the paper's time may not contain. Several seeds run side by side in one program. "
    "Act ms: `agent.act`, NumPy in to NumPy out, median, the methods called in turn, where the agent finds it soonest "
    "(few evaluations of a small network on the CPU, others on the device that trains), and all on the CPU; networks "
    "as they are initialised, which does not change the time. Scaling: random "
    "data of Hopper's shape, one seed, extrapolated to the paper's schedule. The paper's times are of an A100 and its "
    "own code, training on HalfCheetah-medium, acting on Hopper-medium; the continuous methods' are quoted by it from "
    "elsewhere."
)
FINDINGS = (
    "What it shows, on an H200: QDFM()'s schedule of a million steps takes 97 s with one seed and 165 s with five side "
    "by side, 33 s for each (the paper: 2,209 s for one), and one action .13 ms (6.3 ms). Endpoints of one token are "
    "enumerated and drawn in one step, so that there is neither M nor N to pay for, and eight times as many actions "
    "cost 13 % more. The algorithm as printed takes 963 s (extrapolated, without compiling, cloning included) and "
    "1.06 ms; four times as many endpoints cost it 2.7 times as much at 256 actions, where the paper's own time grew "
    "by 12 %. For as many steps AWAC, BRAC, BCQ, AWBC, IQL and CQL need 181 to 107 s, QDFM 82 s; BoltzBC, GreedyQ, "
    "BoltzQ and BC less (80 to 41 s). Actions of CQL, BCQ, GreedyQ, BoltzQ and BoltzBC are found two to three times "
    "sooner since, by a shorter product of points and weights."
)


def tabulate(results: dict[str, Any]) -> list[Table]:
    """A table for each part that was run."""
    makers = {"steps": _steps, "schedule": _schedule, "act": _act, "scaling": _scaling}
    return [makers[part](rows) for part, rows in results.items() if rows]


def _steps(rows: dict[str, Any]) -> Table:
    counts = list(dict.fromkeys(n for cells in rows.values() for n in cells))
    columns = [f"{what}, seeds: {n}" for n in counts for what in ("steps/s by phase", "1M steps, s (extrapolated)")]
    table = Table("Training", ("method", *columns, "paper: s"))
    for name, cells in rows.items():
        line = []
        for n in counts:
            speeds = (f"{k} {p['steps_per_second']:,.0f}" for k, p in cells[n]["phases"].items()) if n in cells else ()
            line += [", ".join(speeds) or "–", f"{extrapolated(cells[n]):,.0f}" if n in cells else "–"]
        table.add(name, *line, number(PAPER_TRAIN.get(name), ",.0f"))
    return table


def _schedule(rows: dict[str, Any]) -> Table:
    columns = ("seeds", "steps run", "s (measured)", "s for the whole schedule", "paper: s, one seed")
    table = Table("QDFM(), the paper's schedule as `train` runs it", columns)
    for seeds, cell in rows.items():
        whole = f"{whole_seconds(cell):,.1f}" + " (extrapolated)" * (cell["share"] < 1)
        table.add(seeds, f"{cell['steps']:,}", f"{cell['seconds']:,.1f}", whole, f"{PAPER_TRAIN['QDFM']:,.0f}")
    return table


def whole_seconds(cell: dict[str, Any]) -> float:
    """Seconds of the whole schedule, if a share of it was run; compiling is then counted more than once."""
    return float(cell["seconds"] / cell["share"])


def _act(cell: dict[str, Any]) -> Table:
    columns = ("method", "one, ms", "batch, ms", "one on a CPU, ms", "batch on a CPU, ms", "paper: one, ms")
    table = Table("Acting", columns)
    for name, here in cell["device"].items():
        cpu = cell["cpu"][name]
        ours = (f"{v:.3f}" for v in (here["one"], here["batch"], cpu["one"], cpu["batch"]))
        table.add(name, *ours, number(PAPER_ACT.get(name), ".2f"))
    for name, quoted in QUOTED.items():
        table.add(f"quoted by the paper: {name}", *("–",) * 4, f"{quoted:.2f}")
    return table


def _scaling(rows: dict[str, Any]) -> Table:
    columns = {(name, m): None for name, by_actions in rows.items() for cells in by_actions.values() for m in cells}
    heads = [f"{name}" if m == "–" else f"{name}, M = {m}" for name, m in columns]
    paper = next(iter(PAPER_SCALING.values()))
    table = Table("1M steps, s (extrapolated), by |A| and M", ("|A|", *heads, *(f"paper, M = {m}" for m in paper)))
    for actions in next(iter(rows.values())):
        ours = (f"{extrapolated(rows[name][actions][m]):,.0f}" for name, m in columns)
        table.add(actions, *ours, *(number(PAPER_SCALING.get(actions, {}).get(m), ",.0f") for m in paper))
    return table


def headlines(results: dict[str, Any]) -> list[Headline]:
    """The schedule in full, one action, and every method's training and acting beside the paper's."""
    lines = []
    for seeds, cell in results.get("schedule", {}).items():
        paper = PAPER_TRAIN["QDFM"] if seeds == "1" else None
        how = "" if cell["share"] == 1 else ", extrapolated"
        lines.append(Headline(f"QDFM(), the schedule, seeds: {seeds}{how}, s", whole_seconds(cell), paper))
    for name, cells in results.get("steps", {}).items():
        ours = extrapolated(cells["1"])
        lines.append(Headline(f"{name}: 1M steps, one seed, s (extrapolated)", ours, PAPER_TRAIN.get(name)))
    if "act" in results:
        for name, here in results["act"]["device"].items():
            lines.append(Headline(f"{name}: one action, ms", here["one"], PAPER_ACT.get(name)))
        for name, cpu in results["act"]["cpu"].items():
            lines.append(Headline(f"{name}: one action on a CPU, ms", cpu["one"], PAPER_ACT.get(name)))
    return lines


def draw(folder: Path, results: dict[str, Any]) -> None:
    """runtime.png: training and acting of every method, the paper's figures as diamonds."""
    from matplotlib.figure import Figure

    panels: list[tuple[str, dict[str, float], dict[str, float]]] = []
    if "steps" in results:
        ours = {name: extrapolated(cells["1"]) for name, cells in results["steps"].items()}
        panels.append(("1M steps of training, s (extrapolated)", ours, PAPER_TRAIN))
    if "act" in results:
        panels += [
            (label, {name: times["one"] for name, times in results["act"][where].items()}, PAPER_ACT)
            for where, label in (("device", "one action, ms"), ("cpu", "one action on a CPU, ms"))
        ]
    if not panels:
        return
    names = list(panels[0][1])
    figure = Figure(figsize=(3.4 * len(panels) + 1.2, 0.32 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axis, (label, values, paper) in zip(axes[0], panels, strict=True):
        bars = axis.barh(names, [values[name] for name in names], color="tab:blue", label="ours")
        axis.bar_label(bars, [f"{values[name]:.3g}" for name in names], padding=2, fontsize=8)
        printed = [(paper[name], name) for name in names if name in paper]
        if printed:
            axis.plot(*zip(*printed, strict=True), "d", color="black", mfc="none", label="paper")
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")
        every = [*values.values(), *(value for value, _ in printed)]
        axis.set_xlim(min(every) / 3, max(every) * 3)
        axis.set_xlabel(label)
        axis.grid(axis="x", alpha=0.3)
    axes[0, 0].invert_yaxis()
    axes[0, 0].legend(fontsize=7)
    save_figure(figure, folder / "runtime.png")
