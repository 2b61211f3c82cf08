"""The learning curves of a run's folder."""

import json
from pathlib import Path

from qdfm.figures import save_figure


def draw_curves(folder: Path) -> None:
    """Write curves.png into a run's folder: the losses of all seeds by step, a panel for each phase, and beside them
    those on rows that were held out, where there are such. A run without metrics gets none."""
    from matplotlib.figure import Figure

    log = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})
    if not rows:
        return
    figure = Figure((4.4 * len(phases), 3.6), layout="constrained")  # without pyplot, whose backend is the user's
    for axis, phase in zip(figure.subplots(1, len(phases), squeeze=False).flat, phases, strict=True):
        for i, seed in enumerate(seeds):
            own = [row for row in rows if (row["phase"], row["seed"]) == (phase, seed)]
            for name, style in (("loss", "-"), ("held_out_loss", "--")):
                points = [(row["step"], row[name]) for row in own if name in row]
                if points:
                    label = f"{name.replace('_', ' ')}, seed {seed}"
                    axis.plot(*zip(*points), style, color=f"C{i}", lw=1.2, label=label)
        axis.set_title(phase, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    save_figure(figure, folder / "curves.png")
