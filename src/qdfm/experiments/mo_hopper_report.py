"""The tables and the pictures of `mo-hopper`."""

from pathlib import Path
from typing import Any

import numpy as np

from qdfm.experiments.report import Headline, Table, number, shown
from qdfm.metrics import summarise

# By quality of the data: its own facts under "data", the methods' cells, and the times of an action.
Results = dict[str, dict[str, Any]]

AUTHORS = "MODULI of its authors' size"  # is timed only
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

SOURCE = (
    "Expert and amateur data, where their source ends in _uniform: D4MORL-equivalent trajectories, played anew by "
    "PGMORL's 96 policies in a port of D4MORL's environment, 1,000 and 500 of them where D4MORL has 50,000; otherwise "
    "trajectories of our own actor. Figures of others are of D4MORL's own expert data: the paper's, and for BC(P) and "
    "CQL(P) those reported elsewhere."
)

NOTES = (
    f"{SOURCE}\n\n"
    "501 preferences (ω, 1 − ω), one episode of 500 steps each, without drawing lots: QDFM by the mean of its law, "
    "MODULI by a plan without noise, the others by their most likely bins; hypervolume beyond (0, 0) of the raw "
    "returns, in millions, and in percent of that of the data's own returns, the bound. D4MORL's preferences are "
    "directions of returns and lie between .32 and .68: those asked for beyond are taken for the nearest of the data "
    "(by QDFM, BC and CQL that learn from logged preferences) or reached by sliding (MODULI). QDFM is a CPU's size: "
    "two layers of 512, batches of 256; 40,000 steps of warm-up, 8,000 of the critic and 8,000 of guidance, which is "
    "left out where it promises less than 2 % of the mean value. BC: two layers of 1,024, batches of 1,024, 40,000 "
    "steps. Both see observations disturbed by .02 of their deviation in training, and their step sizes fall. CQL: two "
    "layers of 256, batches of 1,024, 60,000 steps. MODULI plans 8 states by transformers of width 128 and 3 blocks "
    "(its authors: 32, 384 and 4), in batches of 128 (theirs: 64), for 40,000, 40,000 and 5,000 steps of planner, "
    "inverse dynamics and slider (theirs: 200,000, 500,000 and 200,000). "
    "Sparsity: mean squared distance of neighbours on the front "
    "reached, in thousands; points: how many it has. Shown are mean ± sample "
    "standard deviation over seeds and the 95 % bootstrap interval of the mean. Seconds of training are of all seeds "
    "together: QDFM on one core of a CPU, the others on an H200 that several runs shared, so that they do not compare. "
    "Times of an action are medians of calls in turn, from observation to action, NumPy in to NumPy out, all methods "
    "on one machine: of one observation, in the mean over 21 preferences from (0, 1) to (1, 0), most of which MODULI "
    "slides to, and, on a GPU, of 501 at once under (.5, .5), which the data have."
)
FINDINGS = (
    "On expert data every seed of QDFM is above 99.5 % of the bound and above every seed of MODULI, and it acts "
    "more than 20 times as fast. Cloning under preferences, with a network of almost three times as many weights "
    "and batches of four times the rows, is a little better still: guidance can add little to experts. Seeds of "
    "MODULI differ much. On amateur data MODULI is best; QDFM's warm-up alone, not in the table, has 98.0 % of the "
    "bound there, and guidance brings it to 100.1 %, but seeds differ by more than that. CQL's robots fall at once. "
    "The size of QDFM's flow and its warm-up were chosen by seed 0 of the expert data, its guidance was tried once; "
    "milder guidance of two flows of 1,024 by a critic without value_scale had cost 5 % there, on an H200."
)


def measured(cell: dict[str, Any], what: str) -> np.ndarray:
    """A measure of each seed `[seeds]`."""
    return np.array([seed[what] for seed in cell["seeds"]], float)


def tabulate(results: Results) -> list[Table]:
    """A table for each quality."""
    return [_table(quality, row) for quality, row in results.items()]


def _table(quality: str, row: dict[str, Any]) -> Table:
    data, times = row["data"], row["times"]
    title = f"{quality}: {data['episodes']} trajectories of {data['source']}, bound {data['bound'] / UNIT:.3f}"
    columns = (
        "",
        "hypervolume",
        "% of the bound",
        "sparsity",
        "points",
        "training, s",
        "steps",
        "one action, ms",
        "501, ms",
        "one on the CPU, ms",
    )
    table = Table(title, columns)

    def timed(name: str) -> list[str]:
        found = (times["device"][name]["one"], times["device"][name]["batch"], times["cpu"][name]["one"])
        return [number(value, ".2f") for value in found]

    for name, cell in row["methods"].items():
        volume = measured(cell, "hypervolume")
        table.add(
            name,
            shown(volume / UNIT, 2),
            shown(100 * volume / data["bound"], 2),
            f"{summarise(measured(cell, 'sparsity') / 1e3):.1f}",
            f"{summarise(measured(cell, 'points')):.0f}",
            number(cell["train_seconds"]),
            cell["steps"],
            *timed(name),
        )
    if AUTHORS in times["cpu"]:
        table.add(AUTHORS, *("–",) * 6, *timed(AUTHORS))
    for name, (printed, share, source) in PRINTED.get(quality, {}).items():
        if name in row["methods"]:
            table.add(f"{source}: {name}", f"{printed:.2f}", number(share, ".2f"), *("–",) * 7)
    return table


def headlines(results: Results) -> list[Headline]:
    """Percent of the bound, and how much sooner QDFM acts than MODULI."""
    lines = []
    for quality, row in results.items():
        for name, cell in row["methods"].items():
            share = 100 * measured(cell, "hypervolume").mean() / row["data"]["bound"]
            paper = PRINTED.get(quality, {}).get(name, (None, None))[1]
            lines.append(Headline(f"{name}, {quality}: hypervolume, % of the data's bound", float(share), paper))
        for where in ("device", "cpu")[row["times"]["device"] == row["times"]["cpu"] :]:  # on a CPU alone: once
            times = row["times"][where]
            for name in ("MODULI", AUTHORS):
                if {"QDFM", name} <= times.keys():
                    ratio = times[name]["one"] / times["QDFM"]["one"]
                    lines.append(Headline(f"{quality}: time of {name}'s action, in QDFM's, on the {where}", ratio))
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
            front.scatter(*returns.T, s=6, color=f"C{number_}", label=name)
            moved = (returns > 0).all(1)  # others have no preference to tell
            share = returns[moved, 0] / returns[moved].sum(1)
            heeded.scatter(np.linspace(0, 1, len(returns))[moved], share, s=4, color=f"C{number_}")
        heeded.plot([0, 1], [0, 1], color="black", lw=0.6, ls=":")
        front.set(xlabel="return for running", ylabel="return for jumping")
        heeded.set(xlabel="preference for running asked for", ylabel="share of running in the return")
        for axes in (front, heeded):
            axes.grid(alpha=0.3)
        figure.legend(*front.get_legend_handles_labels(), loc="outside right center", fontsize=8)
        figure.suptitle(f"MO-Hopper, {quality} data")
        figure.savefig(folder / f"mo-hopper-{quality}.png", dpi=120)
