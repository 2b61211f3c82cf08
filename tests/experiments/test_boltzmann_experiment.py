"""The boltzmann experiment: its closed forms against enumeration, its judgement of known laws, a tiny report."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from qdfm.errors import QDFMError
from qdfm.experiments import boltzmann
from qdfm.experiments.boltzmann import DRIFT_SAMPLES, FULL, SWEEPS, Setting, Size, drift_sweep, judge
from qdfm.experiments.cells import Settings
from qdfm.experiments.tabular import (
    ACTIONS,
    STATES,
    World,
    data_of,
    divergence,
    exponent,
    self_normalised,
    table,
    variation,
)


@pytest.mark.parametrize("k", [0.0, 1.0, 3.5])
def test_the_exponent_of_a_law_that_has_one(k):
    world = table(1)
    law = world.mu * np.exp(k * 0.7 * world.q)
    law /= law.sum(1, keepdims=True)
    assert exponent(law, world, 0.7) == pytest.approx(k, abs=1e-9)


def test_the_exponent_is_a_least_squares_fit_weighted_by_the_law():
    world, other = table(2), table(3)
    law = other.mu  # no power at all: compare with a general solver, one intercept per state
    columns = np.concatenate([(0.7 * world.q).reshape(-1, 1), np.repeat(np.eye(STATES), ACTIONS, 0)], 1)
    root = np.sqrt(law.reshape(-1, 1))
    solved = np.linalg.lstsq(root * columns, root[:, 0] * np.log(law / world.mu).ravel(), rcond=None)[0]
    assert exponent(law, world, 0.7) == pytest.approx(solved[0])


@pytest.mark.parametrize(("samples", "strength"), [(1, 2.0), (2, 2.0), (5, 2.0), (5, 20.0)])
def test_the_self_normalised_law_against_every_set_of_draws(samples, strength):
    rng = np.random.default_rng(0)
    mu, values = rng.dirichlet(np.ones(3), size=2), strength * rng.normal(size=(2, 3))
    expected = np.zeros((2, 3))
    for s in range(2):
        for draws in product(range(3), repeat=samples):
            w = np.exp(values[s, list(draws)])
            np.add.at(expected[s], list(draws), np.prod(mu[s, list(draws)]) * w / w.sum())
    np.testing.assert_allclose(self_normalised(mu, values, samples), expected, atol=1e-9)


def test_the_self_normalised_law_tends_to_the_optimum():
    world = table()
    law = self_normalised(world.mu, 2 * world.q, 100_000)
    np.testing.assert_allclose(law.sum(1), 1, atol=1e-9)
    assert variation(law, world.optimum(2.0)) < 1e-4


def test_distances_of_laws_counted_by_hand():
    p, q = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[0.25, 0.75], [0.5, 0.5]])
    assert variation(p, q) == pytest.approx((0.25 + 0.5) / 2)
    assert divergence(p, q) == pytest.approx((0.5 * np.log(2) + 0.5 * np.log(2 / 3) + np.log(2)) / 2)


def test_the_data_has_the_frequencies_of_the_table():
    mu = table(4).mu
    data = data_of(mu)
    state, action = np.asarray(data.observation).argmax(1), np.asarray(data.action)[:, 0]
    counts = np.zeros((STATES, ACTIONS))
    np.add.at(counts, (state, action), 1)
    assert (counts.sum(1) == 3000).all()
    np.testing.assert_allclose(counts / 3000, mu, atol=1 / 3000)


def judged(kind: str, laws: list[np.ndarray], world: World) -> list[dict[str, float]]:
    config = drift_sweep(FULL._replace(renewals=len(laws) - 1))[kind].config
    return judge(Setting(config, parts=len(laws) - 1), world, np.stack(laws))


def test_laws_that_are_powers_are_judged_as_such():
    world = table(5)
    laws = [world.optimum(0.5 * k) for k in range(4)]
    rows = judged("model", laws, world)
    for k, row in enumerate(rows):
        assert row["renewals"] == k
        assert row["tv_power"] == pytest.approx(0, abs=1e-12)
        assert row["tv"] == pytest.approx(variation(laws[k], laws[1]))
        assert row["exponent"] == pytest.approx(k, abs=1e-9)
        assert row["kl"] == pytest.approx(divergence(laws[k], world.mu))
        assert row["optimum_kl"] == pytest.approx(divergence(laws[1], world.mu))


def test_what_is_expected_follows_the_proposal():
    world = table(5)
    once = self_normalised(world.mu, 0.5 * world.q, DRIFT_SAMPLES)
    twice = self_normalised(once, 0.5 * world.q, DRIFT_SAMPLES)
    laws = [world.mu, once, twice]
    assert [row["tv_expected"] for row in judged("model", laws, world)] == pytest.approx([0, 0, 0], abs=1e-12)
    control = judged("behaviour", [world.mu, once, once], world)
    assert [row["tv_expected"] for row in control] == pytest.approx([0, 0, 0], abs=1e-12)


def test_an_unknown_sweep_is_refused(tmp_path):
    with pytest.raises(QDFMError, match=r"Unknown sweep 'bta'; did you mean 'beta'"):
        boltzmann.run(Settings(tmp_path, only=("bta",)))


def test_a_tiny_run_leaves_a_report_and_resumes(tmp_path: Path):
    size = Size(betas=(1.0, 2.0), share=0.05)
    boltzmann.report(Settings(tmp_path, seeds=2), ("beta",), size)
    cells = json.loads((tmp_path / "results.json").read_text())["results"]["beta"]
    assert cells.keys() == {"1", "2"}
    # Even so few steps move the policy from the behaviour towards the optimum.
    first, last = (cells["2"]["seeds"][0][part]["tv"] for part in (0, -1))
    assert last < first
    text = (tmp_path / "table.md").read_text()
    assert "200 warm-up and 100 improvement steps" in text
    lines = (tmp_path / "cells.jsonl").read_text()
    boltzmann.report(Settings(tmp_path, seeds=2, resume=True), ("beta",), size)
    assert (tmp_path / "cells.jsonl").read_text() == lines


def test_the_report_of_policies_that_are_powers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def powers(config, worlds, seeds, beta, parts):
        return np.stack([np.stack([w.optimum(k * beta) for k in range(parts + 1)]) for w in worlds])

    monkeypatch.setattr(boltzmann, "trained_laws", powers)
    boltzmann.run(Settings(tmp_path))
    kept = json.loads((tmp_path / "results.json").read_text())
    assert set(kept["results"]) == set(SWEEPS)
    found = {h["what"]: h["ours"] for h in kept["headlines"]}
    assert found["TV to the optimum, base setting"] == pytest.approx(0, abs=1e-12)
    assert found["k̂ after 6 renewals, model endpoints"] == pytest.approx(6)
    assert found["k̂ after 6 renewals, behaviour endpoints"] == pytest.approx(6)
    worlds = [table(seed) for seed in range(5)]
    bias = np.mean([variation(self_normalised(w.mu, 2 * w.q, 64), w.optimum(2.0)) for w in worlds])
    assert found["the same, predicted bias"] == pytest.approx(bias)
    text = (tmp_path / "table.md").read_text()
    assert text.count("###") == 5
    assert "| model | 6 |" in text
    assert (tmp_path / "boltzmann.png").stat().st_size > 10_000
