"""The sampler experiment: the law in closed form, a test that can fail, and the report of a tiny run."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.errors import QDFMError
from qdfm.experiments import sampler
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.sampler import SOURCES, STARTS, TASKS, Size, chain_law, fit, policy, run, start_law
from qdfm.experiments.sampler_tables import PAPER, distance, family, headlines
from qdfm.flow.samplers import exact_law
from qdfm.metrics import holm

PI = np.array([0.7, 0.25, 0.05])
TINY = Size(episodes=3, reference=3, draws=2_000)


@pytest.mark.parametrize(("alpha", "steps"), [(1.0, 20), (10.0, 20), (5.0, 50)])
@pytest.mark.parametrize("p0", [PI, np.eye(3)[0], np.full(3, 1 / 3)])
def test_the_closed_form_is_the_law_of_euler(x64, alpha, steps, p0):
    def rates(current, t):
        return jnp.asarray(PI) * (1 - jax.nn.one_hot(current, 3))

    exact = exact_law(rates, jnp.asarray(p0), 1, steps, alpha)
    np.testing.assert_allclose(chain_law(PI, p0, alpha, steps), exact, atol=1e-14)


def test_many_steps_are_continuous_time():
    p0 = np.eye(3)[1]
    many, limit = chain_law(PI, p0, 2.0, 1e7), chain_law(PI, p0, 2.0, math.inf)
    np.testing.assert_allclose(many, limit, atol=1e-6)
    np.testing.assert_allclose(limit, PI + math.exp(-2) * (p0 - PI))


def test_policies_and_starts():
    still = jnp.zeros((1, 4))
    np.testing.assert_allclose(policy(TASKS["cartpole"], still), [[0.5, 0.5]])
    leaning = policy(TASKS["cartpole"], jnp.array([[0, 0, 0.05, 0.02]]))
    np.testing.assert_allclose(leaning[0, 1], 1 / (1 + math.exp(-20 * 0.06)), rtol=1e-5)
    swinging = policy(TASKS["acrobot"], jnp.array([[1, 0, 1, 0, 0.1, -0.1]]))
    np.testing.assert_allclose(swinging[0, 2] / swinging[0, 1], math.exp(20 * 0.05), rtol=1e-5)
    pi = jnp.array([[0.2, 0.7, 0.1]])
    laws = [start_law(pi, jax.nn.one_hot(i, len(SOURCES)))[0] for i in range(len(SOURCES))]
    np.testing.assert_allclose(laws, [pi[0], [1, 0, 0], [1 / 3] * 3, [0, 1, 0]], rtol=1e-6)


@pytest.fixture
def small(monkeypatch):
    """One rate, one number of steps: two compilations."""
    for name, value in (("ALPHAS", (2.0,)), ("STEPS", (20,)), ("QUICK", TINY)):
        monkeypatch.setattr(sampler, name, value)


def test_draws_fit_the_chains_law_and_no_other(tmp_path):
    cells, places = Cells(Settings(tmp_path)), {"observation": [], "pi": []}
    for speed in (0.0, 0.02, -0.03):
        seen = [1.0, 0.0, 1.0, 0.0, speed, 0.0]
        places["observation"].append(seen)
        places["pi"].append(np.asarray(policy(TASKS["acrobot"], jnp.array([seen])), float)[0].tolist())
    right, wrong = [], []
    for start in STARTS:
        drawn = sampler.draw(cells, "acrobot", places, start, 2.0, 20, 40_000)
        assert np.sum(drawn["counts"], 1).tolist() == [40_000] * 3
        right += fit(places, drawn, start, 2.0, 20)["p"]
        if start != "π":
            wrong += fit(places, drawn, start, 2.0, 18)["p"] + fit(places, drawn, start, 1.9, 20)["p"]
    assert holm(right, 1e-3) == []
    assert holm(wrong, 1e-3) != []
    again = sampler.draw(cells, "acrobot", places, "uniform", 2.0, 20, 40_000)
    assert again == drawn  # from the cells


def test_distance_in_standard_errors():
    one = {"mean": 10.0, "std": 3.0, "episodes": 9}
    other = {"mean": 4.0, "std": 6.0, "episodes": 36}
    assert distance(one, other) == pytest.approx(6 / math.sqrt(2))
    still = {"mean": 1.0, "std": 0.0, "episodes": 5}
    assert distance(still, still) == 0
    assert distance(still, still | {"mean": 2.0}) == -math.inf


def test_the_report_of_a_tiny_run(tmp_path, small, monkeypatch):
    for module in ("sampler_tables", "sampler_figures"):
        monkeypatch.setattr(f"qdfm.experiments.{module}.ALPHAS", (2.0,))
        monkeypatch.setattr(f"qdfm.experiments.{module}.STEPS", (20,))
    monkeypatch.setattr("qdfm.experiments.sampler_tables.HEADLINES", {"cartpole": [("fixed", 2.0, 20)]})
    run(Settings(tmp_path, quick=True, only=("cartpole",)))
    payload = json.loads((tmp_path / "results.json").read_text())
    assert payload["provenance"]["command"] == "qdfm reproduce sampler --quick --only cartpole"
    assert payload["provenance"]["seeds"] == [0]
    found = payload["results"]["environments"]
    assert family(found) == payload["results"]["family"]
    assert payload["results"]["family"]["cases"] == 3 * 5
    assert payload["results"]["family"]["rejected"] == 0
    assert [h["what"] for h in payload["headlines"]] == [h.what for h in headlines(found)]
    assert payload["headlines"][-1]["paper"] == PAPER["cartpole"]["fixed", 2.0, 20][0]
    assert found["cartpole"]["baselines"]["argmax"] == {"mean": 500.0, "std": 0.0, "episodes": 3, "solved": 1.0}
    pi = np.max(found["cartpole"]["at"]["pi"], 1)
    assert (np.diff(pi) >= 0).all()  # from undecided to decided
    text = (tmp_path / "table.md").read_text()
    assert "CartPole: returns" in text
    assert "| chain from fixed | 2 | 20 | 3 |" in text
    assert "our choice" in text
    assert (tmp_path / "returns.png").stat().st_size > 10_000
    lines = [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text().splitlines()]
    cells = {json.dumps(line["cell"]) for line in lines}
    assert len(lines) == len(cells) == 3 + 1 + 2 * 3  # the reference is π once more


def test_what_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(QDFMError, match="Unknown environment 'cartpool'; did you mean 'cartpole'"):
        run(Settings(tmp_path, only=("cartpool",)))
    with pytest.raises(QDFMError, match=r"^sampler trains nothing, so 5 seeds have no meaning; leave --seeds out\.$"):
        run(Settings(tmp_path, seeds=5))
