"""What `ratefields` leaves behind: its table and headlines beside the paper's figures, and a picture.

A row is a dictionary with the method's name, seconds of training, milliseconds of one action (on the device in use, and
on the host's CPU), total variation per seed, number of parameters, seconds of compiling and steps per second.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qdfm.experiments.report import Headline, Table
from qdfm.figures import save_figure
from qdfm.metrics import summarise

OURS, THEIRS = "posterior", "softplus"  # the jump-to-endpoint rates of either


class Paper(NamedTuple):
    """Seconds of training and milliseconds of one action."""

    train: float
    act: float


PAPER = {"softplus": Paper(52.41, 7.27), "energy": Paper(52.93, 14.87), "diffuse": Paper(6913.83, 7.50)}

NOTES = """\
All methods: the same task (μ and Q by formula, β = 2), batch, hidden layers, schedule of times, Adam, averaged weights
and number of steps. softplus is the paper's jump-to-endpoint field, posterior ours; ratios are to posterior. train s:
one seed, compiled chunks in the steady state, median over seeds; compile s apart. act ms: `agent.act` on one
observation, NumPy in to NumPy out, median, the methods called in turn, on the device that trained and on the CPU of the
same machine; on a GPU one action is bound by launches and transfers, whatever the rates. TV: mean over the contexts of
the total variation between the exact law of the sampler and the known optimum, mean ± sample standard deviation over
seeds. Times are of the device named above; the paper's are of another device, another task and an unknown number of
steps, so only ratios can be set beside each other.

energy: the paper does not print its network. Here the candidate is an input of the network, which is evaluated for each
candidate, and the Boltzmann law is normalised over them, in training as in acting. Energies of all actions from one
pass would be posterior by another name. diffuse: the K×K generator is the network's output, and the loss is taken over
all of it: from every action but the endpoint, the target is to jump there at rate 1/(1−t). A row does not learn which
endpoints are likely given that the chain is there, so the fitted rates are p1(y)/(1−t) from everywhere: another
generator with the same path, which goes on jumping where jump-to-endpoint rates would stay. diffuse-row is not in the
paper: the same network, trained on the row of the current action alone, for which only that row of the output layer is
read (faster, on a CPU, than computing all rows and taking one). Both act by reading one row."""

PANELS = (
    ("train", "training, s"),
    ("act", "one action, ms"),
    ("act_cpu", "one action on a CPU, ms"),
    ("tv", "total variation to the optimum"),
)
COLOURS = {"softplus": "tab:cyan", "posterior": "tab:blue", "energy": "tab:orange", "diffuse": "tab:red"}


def tabulate(title: str, rows: list[dict[str, Any]]) -> Table:
    """A row per method, with ratios to ours where it is among them."""
    columns = (
        "method", "parameters", "compile s", "train s", "train ×", "steps/s", "act ms", "act ×", "CPU act ms",
        "CPU act ×", "TV to the optimum", "paper: train s", "paper: act ms",
    )  # fmt: skip
    table = Table(title, columns)
    ours = next((row for row in rows if row["method"] == OURS), None)
    for row in rows:
        ratios = {what: f"{row[what] / ours[what]:.2f}" if ours else "–" for what in ("train", "act", "act_cpu")}
        paper, tv = PAPER.get(row["method"]), summarise(row["tv"])
        table.add(
            row["method"], f"{row['parameters']:,}", f"{row['compile_seconds']:.1f}", f"{row['train']:.2f}",
            ratios["train"], f"{row['steps_per_second']:,.0f}", f"{row['act']:.3f}", ratios["act"],
            f"{row['act_cpu']:.3f}", ratios["act_cpu"], f"{tv.mean:.4f}" + f" ± {tv.std:.4f}" * (tv.n > 1),
            f"{paper.train:.2f}" if paper else "–", f"{paper.act:.2f}" if paper else "–",
        )  # fmt: skip
    return table


def headlines(rows: list[dict[str, Any]]) -> list[Headline]:
    """Ratios to our jump-to-endpoint rates beside the paper's to its own, and the distances to the optimum."""
    by_name = {row["method"]: row for row in rows}
    out: list[Headline] = []
    kinds = (("train", "training time"), ("act", "time of one action"), ("act_cpu", "time of one action on a CPU"))
    for what, label in kinds:
        for name in ("energy", "diffuse"):
            if {name, OURS} <= by_name.keys():
                field = what.removesuffix("_cpu")
                paper = getattr(PAPER[name], field) / getattr(PAPER[THEIRS], field)
                ours = by_name[name][what] / by_name[OURS][what]
                out.append(Headline(f"{label}, {name} / jump-to-endpoint", ours, paper))
    out += [Headline(f"TV to the optimum, {name}", float(np.mean(row["tv"]))) for name, row in by_name.items()]
    return out


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """All axes are logarithmic: the methods are orders of magnitude apart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(PANELS), 0.35 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    names = [row["method"] for row in rows]
    colours = [COLOURS[name.split(",")[0].split("-")[0]] for name in names]
    for axis, (what, label) in zip(axes, PANELS, strict=True):
        values = [float(np.mean(row[what])) for row in rows]
        bars = axis.barh(names, values, color=colours)
        axis.bar_label(bars, [f"{v:.3g}" for v in values], padding=2, fontsize=8)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")
        axis.set_xlim(min(values) / 3, max(values) * 5)
        axis.set_xlabel(label)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    save_figure(figure, path)
