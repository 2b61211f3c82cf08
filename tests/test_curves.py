"""The picture of a run's losses."""

import json
from typing import Any

from matplotlib.figure import Figure

from qdfm.curves import draw_curves


def test_curves_have_a_panel_for_each_phase_and_a_line_for_each_seed(tmp_path, monkeypatch):
    axes: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: axes.extend(self.axes))
    draw_curves(tmp_path)  # nothing to draw
    assert not list(tmp_path.iterdir())
    rows = [
        {"phase": phase, "step": step, "seed": seed, "loss": step + seed} | ({"held_out_loss": 9} if held else {})
        for phase, held in (("warmup", True), ("critic", False)) for step in (1, 2) for seed in (0, 1)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw_curves(tmp_path)
    assert [axis.get_title() for axis in axes] == ["warmup", "critic"]
    shown = [{line.get_label(): line.get_xydata().tolist() for line in axis.lines} for axis in axes]
    losses = {f"loss, seed {seed}": [[1, 1 + seed], [2, 2 + seed]] for seed in (0, 1)}
    assert shown[0] == losses | {f"held out loss, seed {seed}": [[1, 9], [2, 9]] for seed in (0, 1)}
    assert shown[1] == losses
