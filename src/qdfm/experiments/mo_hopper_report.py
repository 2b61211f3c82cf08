"""The tables and the pictures of `mo-hopper`."""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.experiments.report import Headline, Table, number, shown
from qdfm.figures import save_figure
from qdfm.metrics import hypervolume, summarise

# By quality of the data: its own facts under "data", the methods' cells, and the times of an action.
Results = dict[str, dict[str, Any]]

AUTHORS = "MODULI of its authors' size"  # is timed only
UNDER = ("all preferences", "preferences of the data", "preferences beyond")
UNIT = 1e6  # of hypervolumes in tables
# Printed figures on D4MORL's expert data: hypervolume in units, percent of the data's bound, and by whom.
PRINTED: dict[str, dict[str, tuple[float, float | None, str]]] = {
    "expert": {
        "QDFM": (20.85, 98.88, "paper"),
        "MODULI": (20.25, 96.02, "paper"),
        "BC(P)": (12.3, None, "elsewhere"),
        "CQL(P)": (3.3, None, "elsewhere"),
    }
}

# Where the data come from, by the name of their file and how many transitions it has.
DATA = {
    ("expert_uniform", 499_906): "D4MORL-equivalent expert data: trajectories played anew by PGMORL's 96 policies in a "
    "port of D4MORL's environment, 1,000 where D4MORL has 50,000",
    ("amateur_uniform", 197_151): "D4MORL-equivalent amateur data: 500 trajectories of the same policies, disturbed as "
    "in D4MORL",
}
PRINTED_BY = "Figures of others are of D4MORL's own expert data: the paper's, and those reported elsewhere."

# Of the full run: what the settings are, and what the tables show.
NOTES = (
    "501 preferences (ω, 1 − ω), one episode of 500 steps each, without drawing lots: QDFM by the mean of its law, "
    "MODULI by a plan without noise, the others by their most likely bins. Hypervolume: beyond (0, 0), of the raw "
    "returns, in millions, and in percent of the bound, that of the data's own returns; then of the first seed alone, "
    "under the preferences that the data have. Sparsity: mean squared distance of neighbours on the front reached, in "
    "thousands; points: how many it has. Shown are mean ± sample standard deviation over seeds and the 95 % bootstrap "
    "interval of the mean.\n\n"
    "The data's preferences are directions of returns. QDFM, BC and CQL take a preference beyond them for the nearest "
    "in the data, and so may play the ends of their front again and again, of which the best episodes count; MODULI "
    "slides to it, as published for data with gaps.\n\n"
    "QDFM samples in one step, because these behaviours do one thing in a state and leave nothing to couple: its law "
    "is a softmax per dimension of observation and preference, tilted by its critic, and the mean of that is played."
    "\n\n"
    "Sizes. QDFM: two layers of 512, batches of 256, 40,000 steps of warm-up, 8,000 of the critic and 8,000 of "
    "guidance, which is left out where it promises less than 2 % of the mean value (guided: in how many seeds it was "
    "not; the unguided flow is the warm-up alone, though its steps and seconds count the critic's too). BC: two "
    "layers of 1,024, batches of 1,024, 40,000 steps. Both see observations disturbed by .02 of their deviation in "
    "training, and their step sizes fall. CQL: two layers of 256, batches of 256, 60,000 steps; its penalty weighs "
    "3,000, the best of 1, 10, 30, 100, 300, 1,000 and 3,000 for seed 0 of the expert data after 6,000 or 20,000 "
    "steps: beside values of some hundreds a weight of 1 keeps nothing low, and robots fall at once. These three read "
    "a preference on a fine grid of 501 points, MODULI as two numbers, as its authors do. MODULI plans 8 states by "
    "transformers of width 128 and 3 blocks (its authors: 32, 384 and 4), in batches of 128 (64), for 40,000, 40,000 "
    "and 5,000 steps of planner, inverse dynamics and slider (200,000, 500,000 and 200,000), at a step size of 5e-4 "
    "(2e-4); docs/deviations.md has the rest. The size of QDFM's flow and its warm-up were chosen by seed 0 of the "
    "expert data.\n\n"
    "Seconds of training are of all seeds together, on the devices named above, so that they compare only where there "
    "is one. Times of an action are medians of calls in bursts of ten, NumPy in to NumPy out, all methods in turn on "
    "one machine, by networks that need no training for it: in the mean over 21 preferences from (0, 1) to (1, 0), "
    "then of those that the data have and of those beyond, to which MODULI slides."
)
FINDINGS = (
    "On expert data every seed of QDFM is above 99.5 % of the bound and above every seed of MODULI. Guidance was "
    "given in every seed and changes little: experts leave it nothing to add, and the unguided flow and cloning, by a "
    "network of almost three times as many weights and batches of four times the rows, are as good or a little "
    "better. On amateur data guidance brings the flow from 98.0 to 100.1 %, though seeds differ by as much, and "
    "MODULI, whose slider goes beyond the data's preferences, is best; of all preferences only those of the data are "
    "followed by any method. CQL stays near nine tenths of the bound on both. An action takes MODULI tens of times "
    "as long as QDFM in the mean over preferences, least where it need not slide, and hundreds of times as long at its "
    "authors' size; the ratios of this run are in RESULTS.md."
)


def provided(results: Results) -> str:
    """What the data are, of each quality in the results."""
    said = []
    for row in results.values():
        source, transitions = row["data"]["source"], row["data"]["transitions"]
        found = "Trajectories of our own actor" if source.startswith("mo-hopper-") else "Trajectories under QDFM_DATA"
        said.append(DATA.get((source, transitions), f"{found} ({source}, {transitions:,} transitions)"))
    return " ".join(f"{sentence}." for sentence in said) + f" {PRINTED_BY}"


def measured(cell: dict[str, Any], what: str) -> np.ndarray:
    """A measure of each seed `[seeds]`."""
    return np.array([seed[what] for seed in cell["seeds"]], float)


def tabulate(results: Results) -> list[Table]:
    """A table for each quality."""
    return [_table(quality, row) for quality, row in results.items()]


def inside(data: dict[str, Any], count: int) -> np.ndarray:
    """Which of so many preferences, evenly spread, the data have `[count]`."""
    low, high = data["preferences"]
    omega = np.linspace(0, 1, count)
    return (omega >= low) & (omega <= high)


def acted(data: dict[str, Any], times: dict[str, Any]) -> tuple[float | None, ...]:
    """Milliseconds of an action: in the mean over preferences, of those that the data have, of the others."""
    each = np.array(times["each"])
    known = inside(data, len(each))
    return times["one"], *(float(each[which].mean()) if which.any() else None for which in (known, ~known))


def places(times: dict[str, Any]) -> tuple[str, ...]:
    """Where actions were timed: on a CPU alone, once."""
    return ("device", "cpu")[times["device"] == times["cpu"] :]


def _table(quality: str, row: dict[str, Any]) -> Table:
    data, times = row["data"], row["times"]
    title = f"{quality}: {data['episodes']} trajectories of {data['source']}, bound {data['bound'] / UNIT:.3f}"
    measures = ("hypervolume", "% of the bound", "%, the data's preferences", "sparsity", "points", "guided")
    on = {where: "" if where == "device" else " on the CPU" for where in places(times)}
    clocks = [f"{what}{on[where]}, ms" for where in on for what in ("one action", "in the data", "beyond")]
    table = Table(title, ("", *measures, "training, s", "steps", *clocks))

    def timed(name: str) -> list[str]:
        return [number(ms, ".2f") for where in on for ms in acted(data, times[where][name])]

    for name, cell in row["methods"].items():
        volume, returns = measured(cell, "hypervolume"), np.array(cell["seeds"][0]["returns"])
        known = hypervolume(returns[inside(data, len(returns))], np.zeros(2))
        guided = cell["guided"]
        table.add(
            name,
            shown(volume / UNIT, 2),
            shown(100 * volume / data["bound"], 2),
            f"{100 * known / data['bound']:.2f}",
            f"{summarise(measured(cell, 'sparsity') / 1e3):.1f}",
            f"{summarise(measured(cell, 'points')):.0f}",
            "–" if guided is None else f"{sum(guided)} of {len(guided)}",
            number(cell["train_seconds"]),
            cell["steps"],
            *timed(name),
        )
    if AUTHORS in times["cpu"]:
        table.add(AUTHORS, *("–",) * (len(measures) + 2), *timed(AUTHORS))
    for name, (printed, share, source) in PRINTED.get(quality, {}).items():
        if name in row["methods"]:
            rest = ("–",) * (len(measures) + len(clocks))
            table.add(f"{source}: {name}", f"{printed:.2f}", number(share, ".2f"), *rest)
    return table


def headlines(results: Results) -> list[Headline]:
    """Hypervolumes, plain and in percent of the bound, and how much sooner QDFM acts than MODULI."""
    lines = []
    for quality, row in results.items():
        data = row["data"]
        for name, cell in row["methods"].items():
            volume = float(measured(cell, "hypervolume").mean())
            printed, share, by = PRINTED.get(quality, {}).get(name, (None, None, "paper"))
            printed = printed if by == "paper" else None
            lines.append(Headline(f"{name}, {quality}: hypervolume, millions", volume / UNIT, printed))
            percent = 100 * volume / data["bound"]
            lines.append(Headline(f"{name}, {quality}: hypervolume, % of the data's bound", percent, share))
        for where in places(row["times"]):
            times = row["times"][where]
            for name in (n for n in ("MODULI", AUTHORS) if {"QDFM", n} <= times.keys()):
                theirs, ours = acted(data, times[name]), acted(data, times["QDFM"])
                for under, slow, quick in zip(UNDER, theirs, ours, strict=True):
                    if slow is not None and quick is not None:
                        what = f"{quality}: action time on the {where}, {name} / QDFM, {under}"
                        lines.append(Headline(what, slow / quick))
    return lines


def draw(folder: Path, results: Results) -> None:
    """mo-hopper-{quality}.png: what the first seed reached, and the preference of its returns by the one asked for."""
    from matplotlib.figure import Figure

    for quality, row in results.items():
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        front, heeded = figure.subplots(1, 2)
        known = np.array(row["data"]["returns"])
        known = known[np.argsort(known[:, 0])]
        front.plot(*known.T, color="black", lw=1, drawstyle="steps-pre", label="front of the data")
        for number_, (name, cell) in enumerate(row["methods"].items()):
            returns = np.array(cell["seeds"][0]["returns"])
            moved = np.all(returns > 0, 1)  # others have no preference to tell
            label = name if moved.all() else f"{name} ({np.sum(~moved)} of {len(returns)} fell: left only)"
            front.scatter(*returns.T, s=6, color=f"C{number_}", label=label)
            share = returns[moved, 0] / returns[moved].sum(1)
            heeded.scatter(np.linspace(0, 1, len(returns))[moved], share, s=4, color=f"C{number_}")
        heeded.plot([0, 1], [0, 1], color="black", lw=0.6, ls=":")
        front.set(xlabel="return for running", ylabel="return for jumping")
        heeded.set(xlabel="preference for running asked for", ylabel="share of running in the return")
        for axes in (front, heeded):
            axes.grid(alpha=0.3)
        figure.legend(*front.get_legend_handles_labels(), loc="outside right center", fontsize=8)
        figure.suptitle(f"MO-Hopper, {quality} data")
        save_figure(figure, folder / f"mo-hopper-{quality}.png")
