"""The ratefields experiment: its task by brute force, the loss over a whole generator, the report of a tiny run."""

import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.errors import QDFMError
from qdfm.experiments import EXPERIMENTS
from qdfm.experiments.cells import Settings
from qdfm.experiments.ratefields import BETA, METHODS, ONE_STEP, Scale, make_task, objective, report, run
from qdfm.experiments.ratefields_report import headlines
from qdfm.flow.samplers import exact_law
from qdfm.metrics import total_variation

TINY = Scale(choices=5, contexts=2, batch=8, hidden=(8, 8), euler=3, steps=4, chunk=2, calls=2)


def test_the_optimum_is_the_tilted_behaviour():
    task = make_task(7, 3)
    for s in range(3):
        theta = 2 * math.pi * s / 3
        mu = [math.exp(math.cos(2 * math.pi * a / 7 - theta)) for a in range(7)]
        q = [math.cos(6 * math.pi * a / 7 + theta) for a in range(7)]
        tilted = [m * math.exp(BETA * v) for m, v in zip(mu, q, strict=True)]
        np.testing.assert_allclose(task.mu[s], np.array(mu) / sum(mu), rtol=1e-12)
        np.testing.assert_allclose(task.q[s], q, atol=1e-12)
        np.testing.assert_allclose(task.optimum[s], np.array(tilted) / sum(tilted), rtol=1e-12)
    full = make_task(256, 16)
    assert total_variation(full.mu, full.optimum).mean() > 0.3  # the tilt is no small one
    assert total_variation(np.roll(full.optimum, 1, 0), full.optimum).mean() > 0.1  # and the contexts differ


def test_the_whole_generator_loss_is_least_at_the_rates_of_a_restart():
    """p1(y)/(1−t) from everywhere, at t = 0 here; the chain of these rates ends at p1 for any number of steps."""
    law = jnp.asarray(make_task(5, 2).optimum[0], jnp.float32)
    policy = FlowPolicy(TINY.spec, "diffuse", "uniform", 1, 1.0)  # with one step every time is 0
    net = policy.network((4,), False, jax.random.key(0))

    @jax.jit
    @jax.grad
    def slope(table: jax.Array) -> jax.Array:
        given = eqx.tree_at(lambda n: (n.weight, n.bias), net, (0 * net.weight, jnp.log(jnp.expm1(table))[None]))
        return jnp.sum(
            objective(METHODS["diffuse"], policy, given, jnp.ones((1, 2)), law[None, None], jax.random.key(1))
        )

    restart = jnp.tile(law, (5, 1))
    np.testing.assert_allclose(slope(restart), 0, atol=1e-6)
    assert np.abs(slope(restart + 0.1)).max() > 0.05
    elsewhere = 1 - jnp.eye(5)[:, None]  # [J, D, K]
    end = exact_law(lambda current, t: elsewhere * law / (1 - t), jnp.full(5, 0.2), tokens=1, steps=4)
    np.testing.assert_allclose(end, law, atol=1e-6)


def test_a_tiny_run_and_its_report(tmp_path):
    chosen = ("posterior", "diffuse")
    report(Settings(tmp_path, seeds=2, progress=False), chosen, TINY)
    assert f"| {ONE_STEP} |" in (tmp_path / "table.md").read_text()
    payload = json.loads((tmp_path / "results.json").read_text())
    trained = payload["results"]["trained"]
    assert tuple(trained) == chosen
    for cell in trained.values():
        assert len(cell["seconds"]) == len(cell["tv"]) == 2
        assert all(0 < tv < 1 for tv in cell["tv"])
    assert trained["posterior"]["parameters"] == (2 + 1 + 5 + 16) * 8 + (8 + 1) * 8 + (8 + 1) * 5
    assert trained["diffuse"]["parameters"] == (2 + 1 + 16) * 8 + (8 + 1) * 8 + (8 + 1) * 25
    paper = {h["what"]: h["paper"] for h in payload["headlines"]}
    assert paper["training time, diffuse / jump-to-endpoint"] == pytest.approx(131.9, abs=0.1)
    assert paper["time of one action, diffuse / jump-to-endpoint"] == pytest.approx(1.0316, abs=1e-4)
    assert (tmp_path / "bars.png").stat().st_size > 5_000
    assert payload["provenance"]["command"] == "qdfm reproduce ratefields --seeds 2"
    lines = (tmp_path / "cells.jsonl").read_text()
    report(Settings(tmp_path, seeds=2, progress=False, resume=True), chosen, TINY)
    assert (tmp_path / "cells.jsonl").read_text() == lines  # nothing was computed again


def test_headlines_without_our_rates_have_no_ratios():
    row = {"method": "energy", "train": 2.0, "act": 1.0, "act_cpu": 3.0, "tv": [0.1, 0.3]}
    assert [(h.what, h.ours) for h in headlines([row])] == [("TV to the optimum, energy", pytest.approx(0.2))]
    ours = {"method": "posterior", "train": 1.0, "act": 4.0, "act_cpu": 2.0, "tv": [0.1]}
    assert [h.ours for h in headlines([row, ours])][:3] == [2.0, 0.25, 1.5]


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(QDFMError, match="Unknown method 'enrgy'; did you mean 'energy'"):
        run(Settings(tmp_path, only=("enrgy",)))
    assert EXPERIMENTS["ratefields"].load() is run
