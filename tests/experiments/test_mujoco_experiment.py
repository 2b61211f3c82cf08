"""The MuJoCo comparison: what is picked, the data's whole episodes, intervals and marks by hand, a tiny run."""

import json
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from made_up_cells import row

import qdfm
from qdfm.algorithms import ALGORITHMS, BC, QDFM
from qdfm.algorithms.guidedcritic import GuidedConfig
from qdfm.collect.mujoco import whole_returns
from qdfm.data.actions import Bins, Codebook
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.experiments import EXPERIMENTS, control, mujoco
from qdfm.experiments.cells import Settings
from qdfm.experiments.control import Coding, Size
from qdfm.experiments.control_methods import METHODS, STEPS, unguided
from qdfm.experiments.mujoco import QUICK_NAMES, run
from qdfm.experiments.mujoco_tables import BESIDE, PAPER, headlines, tabulate
from qdfm.experiments.report import near_best, shown
from qdfm.tasks import TASKS
from qdfm.train import train

HOPPER, WALKER = "hopper-medium", "walker2d-medium"

# What is run


def test_names_are_sorted_by_what_they_name(tmp_path):
    kinds = {"task": ("hopper", "walker"), "method": ("QDFM", "BC", "CQL")}
    quick = {"method": ("BC",)}

    def picked(*only: str, in_haste: bool = False) -> dict[str, tuple[str, ...]]:
        return Settings(tmp_path, quick=in_haste, only=only).picked(kinds, quick)

    assert picked() == kinds
    assert picked(in_haste=True) == {"task": ("hopper", "walker"), "method": ("BC",)}
    assert picked("CQL", "walker", "QDFM") == {"task": ("walker",), "method": ("CQL", "QDFM")}
    assert picked("hopper", in_haste=True) == {"task": ("hopper",), "method": ("BC",)}
    with pytest.raises(QDFMError, match="Unknown task or method 'walkr'; did you mean 'walker'"):
        picked("BC", "walkr")


def test_no_findings_add_nothing(tmp_path):
    whole = Settings(tmp_path)
    assert whole.notes("Notes.", "") == "Notes."
    assert whole.notes("Notes.", "Found.") == "Notes.\n\nFound."
    assert Settings(tmp_path, only=("QDFM",)).notes("Notes.", "Found.") == "Notes."


def test_all_methods_of_a_setting_have_equally_many_steps():
    specs = {
        "codebook": Spec((11,), Codebook(((0.0, 1.0), (1.0, 0.0)))),
        "tokens": Spec((11,), Bins(((-1.0, 0.0, 1.0),) * 3)),
    }
    for setting, methods in METHODS.items():
        totals = {name: config.total_steps(specs[setting]) for name, config in methods.items()}
        assert set(totals.values()) == {STEPS[setting]}
        guided = [c.resolve(specs[setting]) for c in methods.values() if isinstance(c, GuidedConfig)]
        for field in (
            "critic_steps",
            "target_rate",
            "beta",
            "beta_scale",
            "backup",
            "gamma",
            "critics",
            "pessimism",
            "layer_norm",
            "share_target",
            "state_share",
            "support_share",
        ):
            assert len({getattr(config, field) for config in guided}) == 1
    assert METHODS["codebook"].keys() == {*PAPER, *BESIDE}
    alone = {name for name, c in ALGORITHMS.items() if not (c.teams_only or c.preferences_only)}
    assert {config.name for config in METHODS["codebook"].values()} == alone
    assert QUICK_NAMES["method"] == tuple(name for name in METHODS["tokens"] if name in QUICK_NAMES["method"])
    assert PAPER.keys() == {"QDFM", "AWAC", "AWBC", "BCQ", "CQL", "GreedyQ", "BRAC", "BoltzQ"}
    assert all(figures.keys() == TASKS.keys() for figures in PAPER.values())


def test_without_guidance_the_run_ends_where_the_warm_up_does():
    """The flow that acts is the same whether or not a critic is trained after the warm-up."""
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays(rng.random((50, 2)), rng.integers(3, size=50), rng.random(50), rng.random((50, 2)),
                               np.arange(50) % 10 == 9)  # fmt: skip
    config = QDFM(warmup_steps=4, critic_steps=3, improve_steps=3, hidden=(8,), batch_size=8)
    (short,), (long,) = (
        train(c, data, progress=False) for c in (unguided(config), replace(config, critic_steps=0, improve_steps=0))
    )  # fmt: skip
    for a, b in zip(jax.tree.leaves(short.policy), jax.tree.leaves(long.policy), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# Numbers by hand


def test_only_whole_episodes_count_as_returns_of_the_data(monkeypatch):
    monkeypatch.setattr(qdfm.collect.mujoco, "time_limit", lambda env: 3)
    # Episodes: 2 steps, terminated; 3 steps, cut off by the limit; 1 step, where the recording stopped.
    reward = [1.0, 2.0, 10.0, 20.0, 30.0, 100.0]
    terminated, truncated = [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]
    seen = np.zeros((6, 1))
    data = Dataset.from_arrays(seen, [0, 1, 0, 1, 0, 1], reward, seen, terminated, truncated)
    np.testing.assert_allclose(whole_returns(HOPPER, data), [3, 60])


def test_the_mark_is_by_the_interval_of_the_best():
    # Of the best, 10 and 20, the resampled means are 10, 15, 20 with weights ¼, ½, ¼: its interval is 10 to 20.
    values = {"best": np.array([10.0, 20.0]), "near": np.array([9.0, 11.5]), "far": np.array([0.0, 19.8])}
    every = tuple(values)
    assert [near_best(values, name, every) for name in values] == [True, True, False]
    assert near_best(values, "far", ("near", "far"))  # whose best is 10.25, from 9
    assert shown(values["best"]) == "15.0 ± 7.1 [10.0, 20.0]"
    assert shown(np.array([3.14])) == "3.1"


def results() -> dict[str, dict[str, dict[str, Any]]]:
    """Two data sets in both settings, two seeds."""
    return {
        "codebook": {
            HOPPER: row(HOPPER, 40, QDFM=[30, 34], BCQ=[40, 20], BC=[50, 50]),
            WALKER: row(WALKER, 60, QDFM=[10, 12], BCQ=[14, 14], BC=[50, 50]),
        },
        "tokens": {HOPPER: row(HOPPER, 40, QDFM=[41, 43], BC=[35, 35])},
    }


def test_tables_of_made_up_cells():
    tables = {table.title: table for table in tabulate(results())}
    table = tables["codebook, sampled: normalised score"]
    assert table.columns == ["", HOPPER, WALKER, "mean"]
    lines = {line[0]: line[1:] for line in table.rows}
    # BC is beside: of the others QDFM is best on Hopper, BCQ within its interval 30 to 34; on Walker2d BCQ is best.
    assert lines["QDFM"] == ["**32.0 ± 2.8 [30.0, 34.0]** •", "11.0 ± 1.4 [10.0, 12.0]", "21.5 ± 2.1 [20.0, 23.0] •"]
    assert lines["BCQ"][0] == "30.0 ± 14.1 [20.0, 40.0] •"
    assert lines["BCQ"][1] == "**14.0 ± 0.0 [14.0, 14.0]** •"
    assert lines["BCQ"][2] == "**22.0 ± 7.1 [17.0, 27.0]** •"
    assert lines["BC"][0] == "50.0 ± 0.0 [50.0, 50.0] •"
    assert lines["paper: QDFM"] == ["37.8", "14.0", "25.9"]  # (37.79 + 14.01) / 2
    assert "paper: BC" not in lines
    assert lines["behaviour, data"] == ["42.0", "62.0", "52.0"]
    assert lines["behaviour, replayed"] == ["40.0", "60.0", "50.0"]
    assert lines["quantisation error"] == ["0.125", "0.125", ""]
    assert tables["codebook, greedy: normalised score"].rows[0][1].startswith("**33.0")
    assert "tokens, greedy: normalised score" in tables
    steps = tables["codebook: gradient steps"]
    assert steps.rows[0] == ["QDFM", "130", "130"]
    assert steps.rows[-1] == ["transitions", "1,000", "1,000"]


def test_headlines_of_made_up_cells():
    lines = {line.what: (line.ours, line.paper) for line in headlines(results())}
    assert lines[f"codebook, {HOPPER}: QDFM, sampled"] == (32, 37.79)
    assert lines[f"tokens, {HOPPER}: QDFM, sampled"] == (42, None)
    assert lines["codebook, mean: BCQ, greedy"] == (pytest.approx(23), pytest.approx((36.18 + 9.30) / 2))
    assert lines["codebook, mean: BC, sampled"] == (50, None)
    assert lines["codebook: QDFM near the best of the paper's methods, of 2 data sets, sampled"] == (1, None)
    assert lines["codebook: QDFM near the best of all, of 2 data sets, sampled"] == (0, None)
    assert not any(what.startswith("tokens, mean") for what in lines)  # of one data set


# The run


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both settings with networks and data of no size."""
    small: dict[str, Any] = {"batch_size": 8, "hidden": (8,)}
    flow = QDFM(warmup_steps=200, critic_steps=100, improve_steps=100, critics=1, **small)
    bc = BC(clone_steps=400, **small)
    methods = {"QDFM": flow, "BC": bc}
    monkeypatch.setattr(mujoco, "METHODS", {"codebook": methods, "tokens": methods})
    monkeypatch.setattr(mujoco, "CODINGS", {"codebook": Coding("codebook", 4), "tokens": Coding("bins", 3)})
    monkeypatch.setattr(mujoco, "QUICK", Size(transitions=300, episodes=2, share=0.01))
    monkeypatch.setattr(control, "FRESH", 100)
    monkeypatch.setattr(control, "REPLAYED", 2)


def test_a_tiny_run_and_its_pieces(tmp_path, tiny):
    settings = Settings(tmp_path, quick=True, seeds=2, progress=False)
    run(settings)
    payload = json.loads((tmp_path / "results.json").read_text())
    assert payload["provenance"]["command"] == "qdfm reproduce mujoco --quick --seeds 2"
    assert payload["provenance"]["steps"] == {key: {"QDFM": 4, "BC": 4} for key in METHODS}
    found = payload["results"]
    cell = found["codebook"][HOPPER]["methods"]["QDFM"]
    assert cell["steps"] == {"warmup": 2, "critic": 1, "improve": 1}
    assert cell["data"] == found["codebook"][HOPPER]["behaviour"]["data"]
    assert cell["data"]["transitions"] == 300
    assert 0 < found["codebook"][HOPPER]["behaviour"]["data"]["quantisation_error"] < 1
    for seed in cell["seeds"]:
        for how in ("sampled", "greedy"):
            returns = np.array(seed[how]["returns"])
            assert returns.shape == (2,)
            assert seed[how]["score"] == pytest.approx(100 * (returns.mean() + 20.272305) / 3254.572305, abs=1e-3)
    assert len(found["tokens"][HOPPER]["behaviour"]["replayed"]["returns"]) == 2
    text = (tmp_path / "table.md").read_text()
    assert "not Minari's" in text
    assert "### tokens, greedy: normalised score" in text
    for setting in ("codebook", "tokens"):
        assert (tmp_path / f"mujoco-{setting}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    lines = (tmp_path / "cells.jsonl").read_text()
    run(replace(settings, resume=True, only=(HOPPER, "QDFM")))  # a piece of it is there already
    assert (tmp_path / "cells.jsonl").read_text() == lines
    assert json.loads((tmp_path / "results.json").read_text())["results"].keys() == {"codebook", "tokens"}
    assert EXPERIMENTS["mujoco"].load() is run
