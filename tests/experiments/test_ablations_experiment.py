"""The ablations: the models, starts whose law is known, tables by hand, a tiny run."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up_cells import episodes

from qdfm.agent import Agent
from qdfm.algorithms import QDFM
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.experiments import EXPERIMENTS, ablations, control
from qdfm.experiments.ablations import STARTS, STEPS, TASKS, TRIALS, from_start, models, run
from qdfm.experiments.ablations_report import PAPER_ACT, PAPER_STARTS, PAPER_TRAIN, draw, headlines, pairs, tabulate
from qdfm.experiments.cells import Settings
from qdfm.experiments.control import Coding, Size
from qdfm.experiments.timing import Timing

HOPPER, WALKER = "hopper-medium", "walker2d-medium"


def test_an_ablation_changes_one_thing():
    spec = Spec((3,), Discrete(256))
    for name, base in models().items():
        assert base.total_steps(spec) == 2 * STEPS
        assert (base.samples, base.steps) == (64, 20)
        for part, fields in (("samples", {"samples", "backup_samples"}), ("steps", {"steps"})):
            for label, trial in TRIALS[part](name, HOPPER).items():
                before, after = base.described(), trial.config.described()
                assert {field for field in before if before[field] != after[field]} <= fields
                assert {str(after[field]) for field in fields} == {label}
        assert TRIALS["inference"](name, HOPPER) == {}
        assert TRIALS["inference"](name, WALKER).keys() == {"codebook-16", "codebook-32"}
        assert {trial.episodes for trial in TRIALS["inference"](name, WALKER).values()} == {100}
        assert {trial.config for trial in TRIALS["starts"](name, HOPPER).values()} == {base}
    assert {config.endpoints for config in models().values()} == {"model", "behaviour"}  # none enumerates
    for figures in (PAPER_TRAIN, PAPER_ACT):
        assert {task for part in figures.values() for task in part} == set(TASKS) == PAPER_STARTS.keys()


def test_a_chain_that_never_jumps_shows_where_it_starts():
    spec = Spec((2,), Discrete(4))
    config = QDFM(behaviour="network", act_start="behaviour", rates="softplus", loss="l2", steps=3, hidden=(8,))
    config = config.resolve(spec)
    algorithm = config.build(spec)
    flow, behaviour, _ = algorithm.policy(algorithm.init(jax.random.key(0)))
    # The output's bias is the only leaf of 4 numbers, and softplus of −1e9 is no rate at all.
    still = jax.tree.map(lambda x: jnp.full_like(x, -1e9) if x.shape == (4,) else jnp.zeros_like(x), flow)
    agent = Agent(config, spec, (still, behaviour, None))
    policies = {start: from_start(agent, start, 2) for start in STARTS}
    law = {start: Agent(config, spec, policy).action_probabilities(np.ones(2)) for start, policy in policies.items()}
    np.testing.assert_allclose(law["single"], [0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(law["uniform"], [0.25] * 4, atol=1e-6)
    expected = jax.nn.softmax(behaviour(jnp.ones(2)))
    np.testing.assert_allclose(law["behaviour"], expected, atol=1e-6)
    assert np.ptp(law["behaviour"]) > 0.01


def timed_cell(seconds: float, act: float) -> dict[str, Any]:
    """What a value of M costs: 10 steps in so many seconds, over two phases."""
    phases = {"critic": {"steps": 6, "steps_per_second": 10 / seconds}, "improve": {"steps": 4}}
    phases["improve"]["steps_per_second"] = 10 / seconds
    return {"phases": phases, "act_ms": act}


def played_cell(scores: list[float]) -> dict[str, Any]:
    """A cell of the sweeps of M and N."""
    return {"seeds": [{"sampled": episodes(HOPPER, s)} for s in scores]}


def swept_cell(task: str, **scores: float) -> dict[str, Any]:
    """A cell of one seed with scores by name."""
    return {"seeds": [{name.replace("_", " "): episodes(task, s) for name, s in scores.items()}]}


def made_up() -> dict[str, Any]:
    """Every part with a model or two."""
    named = {"0.5 15": 1.0, "1 15": 2.0, "3 15": 3.0, "1 40": 4.0, "1 5": 5.0}
    played = {"seeds": [{name: episodes(WALKER, s) for name, s in named.items()}]}
    samples = {"16": played_cell([30, 40]), "128": played_cell([50, 50])}
    return {
        "samples": {HOPPER: {"ours": samples}},
        "inference": {WALKER: {"paper": {"codebook-16": played}}},
        "starts": {HOPPER: {"ours": {"starts": swept_cell(HOPPER, behaviour=30, single=2, uniform=10)}}},
    }


def test_tables_headlines_and_pictures_of_made_up_cells(tmp_path):
    found = made_up()
    cell = found["inference"][WALKER]["paper"]["codebook-16"]
    assert pairs(cell, "α") == {"0.5": "0.5 15", "1": "1 15", "3": "3 15"}
    assert list(pairs(cell, "steps")) == ["5", "15", "40"]
    cost = {"16": timed_cell(100, 2.0), "128": timed_cell(250, 2.5)}
    costs = {"ours": {"samples": cost, "steps": {"5": timed_cell(1, 1.0), "40": timed_cell(3, 2.0)}}}
    tables = {table.title: table for table in tabulate(found, costs)}
    varied = tables[f"M on {HOPPER}: normalised score"]
    assert varied.columns == ["", "M = 16", "M = 128"]
    assert varied.rows == [["ours", "35.0 ± 7.1 [30.0, 40.0]", "50.0 ± 0.0 [50.0, 50.0]"]]
    assert tables["What M costs"].rows == [
        ["ours: train s (extrapolated)", "100", "250"],
        ["ours: act ms", "2.000", "2.500"],
        [f"the paper, {HOPPER}: train s", "3,158.7", "7,247.1"],
        [f"the paper, {WALKER}: train s", "3,152.7", "7,346"],
        [f"the paper, {HOPPER}: act ms", "8.86", "8.86"],
        [f"the paper, {WALKER}: act ms", "8.91", "10.08"],
    ]
    alpha = tables[f"α at inference on {WALKER}: raw return"]
    assert alpha.columns == ["", "α = 0.5", "α = 1", "α = 3"]
    assert alpha.rows == [["paper, codebook-16", "48", "93", "139"]]  # 1.63 and 1, 2, 3 of 100 up to 4592.3
    assert tables[f"steps at inference on {WALKER}: raw return"].rows[0][1:] == ["231", "93", "185"]
    starts = tables["Where the chain starts: normalised score"]
    assert starts.rows == [
        [f"{HOPPER}: ours", "30.0", "2.0", "10.0"],
        [f"{HOPPER}: as printed in the paper", "35.81", "0.75", "1.82"],
    ]
    lines = {line.what: (line.ours, line.paper) for line in headlines(found, costs)}
    assert lines["ours: training time, M = 128 / 16"] == (pytest.approx(2.5), pytest.approx(2.294, abs=1e-3))
    assert lines["ours: time of one action, M = 128 / 16"] == (1.25, 1.0)
    assert lines["ours: training time, N = 40 / 5"] == (pytest.approx(3), pytest.approx(1.153, abs=1e-3))
    assert lines[f"{HOPPER}, ours: start from a single action"] == (2.0, 0.75)
    draw(tmp_path, found)
    for part in found:
        assert (tmp_path / f"ablations-{part}.png").stat().st_size > 5_000


def test_a_tiny_run(tmp_path, monkeypatch):
    tiny: dict[str, Any] = {"batch_size": 8, "hidden": (8,), "clone_steps": 2, "warmup_steps": 1, "critic_steps": 1}
    tiny |= {"improve_steps": 1, "steps": 2, "samples": 2, "backup_samples": 2}

    def small(**changes: Any) -> dict[str, QDFM]:
        return {"ours": QDFM(behaviour="network", act_start="behaviour", endpoints="behaviour", **(tiny | changes))}

    monkeypatch.setattr(ablations, "models", small)
    for name, value in (
        ("CODING", Coding("codebook", 4)), ("SAMPLES", (2, 3)), ("EULER", (2, 3)), ("ALPHAS", (1.0, 5.0)),
        ("INFERENCE_STEPS", (2, 3)), ("SWEPT_STEPS", 2), ("SWEPT_CODINGS", (Coding("codebook", 4),)),
        ("SWEPT_TASK", HOPPER), ("SWEPT_EPISODES", 2), ("STEPS", 2),
        ("PAPER_STEPS", 4), ("TIMING", Timing(seconds=0.0, chunk=1, calls=10, batch=2)),
        ("FULL", Size(transitions=200, episodes=1)),
    ):  # fmt: skip
        monkeypatch.setattr(ablations, name, value)
    monkeypatch.setattr(control, "FRESH", 50)
    monkeypatch.setattr(control, "REPLAYED", 2)
    run(Settings(tmp_path, seeds=1, only=(HOPPER,), progress=False))
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    assert list(found) == ["samples", "steps", "inference", "starts", "times"]
    cells = {part: found[part][HOPPER]["ours"] for part in found if part != "times"}
    assert list(cells["samples"]) == list(cells["steps"]) == ["2", "3"]
    assert cells["samples"]["2"] == cells["steps"]["2"]  # the same cell, trained once
    assert cells["inference"]["codebook-4"]["seeds"][0].keys() == {"1 2", "5 2", "1 3"}
    assert len(cells["inference"]["codebook-4"]["seeds"][0]["5 2"]["returns"]) == 2
    assert cells["starts"]["starts"]["seeds"][0].keys() == {"behaviour", "single", "uniform"}
    timed = found["times"]["ours"]["samples"]["3"]
    assert timed["act_ms"] > 0 and {k: p["steps"] for k, p in timed["phases"].items()}["improve"] == 2
    assert EXPERIMENTS["ablations"].load() is run
