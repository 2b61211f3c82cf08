"""The sweep of preferences on CartPole: the rule of direction on hand-made numbers, known policies, a tiny run."""

import json
import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.agent import Agent
from qdfm.algorithms import ALGORITHMS, BC, Config
from qdfm.algorithms.base import Algorithm
from qdfm.algorithms.critic import CriticConfig
from qdfm.algorithms.guidedcritic import GuidedConfig
from qdfm.data.spec import Spec
from qdfm.envs.cartpole2obj import CartPole2Obj
from qdfm.experiments import EXPERIMENTS, cartpole2obj
from qdfm.experiments.cartpole2obj import METHODS, QUICK_METHODS, judge, point, random_policy, run
from qdfm.experiments.cartpole2obj_tables import PAPER, WEIGHTS, headlines, sweep_of, sweeps, tabulate
from qdfm.experiments.cells import Settings

# The rule


def test_seeds_differences_are_judged_by_their_own_error():
    values = np.array([[1.0, 3.0, 2.0], [2.0, 5.0, 3.0]])
    up = sweep_of(values, np.zeros_like(values), 1)
    np.testing.assert_allclose(up.differences, [2.5, -1.5])
    # The differences are 2 and 3, then −1 and −2: a deviation of √.5 over two seeds, so an error of .5.
    np.testing.assert_allclose(up.errors, [0.5, 0.5])
    assert up.wrong == 1
    assert up.worst == pytest.approx(-3)
    down = sweep_of(values, np.zeros_like(values), -1)
    np.testing.assert_allclose(down.differences, [-2.5, 1.5])
    assert down.worst == pytest.approx(-5)


@pytest.mark.parametrize(("last", "wrong"), [(-1.9, 0), (-2.0, 0), (-2.1, 1)])
def test_a_step_of_two_standard_errors_is_allowed(last, wrong):
    # Differences last ± 1 of two seeds have the error 1.
    values = np.array([[0.0, last - 1], [0.0, last + 1]])
    assert sweep_of(values, np.zeros_like(values), 1).wrong == wrong
    assert sweep_of(-values, np.zeros_like(values), -1).wrong == wrong


def test_one_seed_is_judged_by_its_episodes():
    values, errors = np.array([[10.0, 4.0, 4.0, 5.0]]), np.array([[3.0, 4.0, 0.0, 0.0]])
    up = sweep_of(values, errors, 1)
    np.testing.assert_allclose(up.errors, [5, 4, 0])
    assert up.wrong == 0  # −6 with an error of 5
    assert up.worst == pytest.approx(-1.2)
    assert sweep_of(values, errors, -1).wrong == 1  # 4 → 5 without any error
    assert sweep_of(values, errors, -1).worst == -math.inf
    flat = sweep_of(np.full((3, 4), 500.0), np.zeros((3, 4)), 1)
    assert (flat.wrong, flat.worst) == (0, 0.0)


def test_the_papers_own_sweep_runs_the_wrong_way():
    rows = [dict(zip(("r1", "r2", "scalarised", "solved"), row, strict=True)) for row in PAPER]
    cell = {"seeds": [{"sampled": [row | {"r1_error": 0.0, "r2_error": 0.0} for row in rows]}]}
    assert [sweep.wrong for sweep in sweeps(cell, "sampled")] == [4, 5]
    for weight, (r1, r2, scalarised, _) in zip(WEIGHTS, PAPER, strict=True):
        assert weight * r1 + (1 - weight) * r2 == pytest.approx(scalarised, abs=0.01)


# Known policies


def test_a_point_by_hand():
    at = point(np.array([[500.0, -10.0], [474.0, -30.0], [475.0, -50.0], [9.0, 0.0]]), 0.25)
    assert at["r1"] == 364.5
    assert at["r2"] == -22.5
    assert at["scalarised"] == 0.25 * 364.5 - 0.75 * 22.5
    assert at["solved"] == 0.5
    # Squares of the distances to −22.5: 156.25, 56.25, 756.25, 506.25; over 3, over 4.
    assert at["r2_error"] == pytest.approx(math.sqrt(1475 / 12))


@dataclass(frozen=True)
class Alternating(Config):
    """Holds its push where R1 weighs less than a half, else pushes left and right in turn; by chance when sampled."""

    name = "alternating"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def act(policy, noise, observation, preference, mask, carry, greedy=False):
            push = jnp.where(preference[:, 0] < 0.5, observation[:, 5], observation[:, 4])[:, None]
            return (push if greedy else noise < 0.5).astype(jnp.int32), carry

        return Algorithm(lambda key: jnp.zeros(1), (), lambda state: state, act, 1, None)


def test_judge_plays_every_weight_with_its_own_preference():
    agent = Agent(Alternating(), CartPole2Obj().spec, jnp.zeros(1))
    judged = judge(agent, seed=0, episodes=30)
    for weight, at in zip(WEIGHTS, judged["greedy"], strict=True):
        # Held: no switch. In turn, from a first push to the left: a switch at every step but the first.
        assert at["r2"] == pytest.approx(0 if weight < 0.5 else 1 - at["r1"])
        assert at["scalarised"] == pytest.approx(weight * at["r1"] + (1 - weight) * at["r2"])
        assert at["solved"] == 0
    coins = random_policy((1,), episodes=210)["seeds"][0]["sampled"]
    assert [at["r1"] for at in coins] == [coins[0]["r1"]] * len(WEIGHTS)
    flips = judged["sampled"]
    assert len({at["r1"] for at in flips}) > 1  # not the same 30 episodes again and again
    mean = {k: np.mean([at[k] for at in flips]) for k in ("r1", "r2")}
    for metric in ("r1", "r2"):  # both are coins: 210 episodes each
        error = math.hypot(coins[0][f"{metric}_error"], coins[0][f"{metric}_error"])
        assert abs(mean[metric] - coins[0][metric]) < 4 * error
    # Half the pushes of a coin are switches, but for the first.
    assert coins[0]["r2"] == pytest.approx(-(coins[0]["r1"] - 1) / 2, rel=0.1)


def test_methods_are_compared_under_the_same_settings():
    assert set(QUICK_METHODS) <= set(METHODS)
    assert {config.name for config in METHODS.values()} <= ALGORITHMS.keys()
    guided = [config for config in METHODS.values() if isinstance(config, GuidedConfig)]
    valued = [config for config in METHODS.values() if isinstance(config, CriticConfig)]
    for configs, field in (
        (guided, "beta"), (guided, "beta_scale"), (guided, "critic_steps"), (valued, "gamma"),
        (METHODS.values(), "batch_size"), (METHODS.values(), "hidden"),
    ):  # fmt: skip
        assert len({getattr(config, field) for config in configs}) == 1
    spec = CartPole2Obj().spec
    totals = {n: sum(p.steps for p in config.build(spec).phases) for n, config in METHODS.items() if n != "QDFM"}
    assert set(totals.values()) == {68_000}


# The report


def cell(r1: list[float], r2: list[float], spread: float) -> dict[str, Any]:
    """Two seeds around given sweeps."""
    seeds = []
    for sign in (-1, 1):
        at = [point(np.array([[a + sign * spread, b]]), w) for a, b, w in zip(r1, r2, WEIGHTS, strict=True)]
        seeds.append({"sampled": at, "greedy": at})
    return {"seeds": seeds}


def test_tables_and_headlines_of_hand_made_sweeps():
    rising, falling = [10.0, 30, 400, 480, 490, 495, 500], [0.0, -3, -40, -50, -60, -90, -180]
    coin = cell([22.0] * 7, [-11.0] * 7, 0)
    results = {"QDFM": cell(rising, falling, 5), "CQL": cell(rising[::-1], falling, 0)}
    results |= {"random": coin, "data": coin, "best habit": coin}
    verdicts, sampled, _, sweep, _, references = tabulate(results)
    rows = {(row[0], row[1]): row[2:] for row in verdicts.rows}
    assert rows["QDFM", "sampled"][:6] == ["yes", "+inf", "yes", "+inf", "10.0 → 500.0", "0.0 → -180.0"]
    assert rows["QDFM", "sampled"][6] == "1.00 ± 0.00"
    assert rows["CQL", "greedy"][:4] == ["no: 6 of 6 wrong", "-inf", "yes", "+inf"]
    assert ("random", "sampled") not in rows
    assert sampled.rows[0][:4] == ["QDFM", "0.0 ± 0.0", "0.3 ± 0.7", "70.0 ± 1.8"]  # .25 · 400 − .75 · 40
    assert sampled.rows[-1] == ["paper", "-318.2", "-242.6", "-127.7", "54.7", "230.1", "338.5", "396.2"]
    assert sweep.rows[2][:3] == ["0.25", "400.00 ± 7.07", "-40.00 ± 0.00"]
    assert references.rows[1][:4] == ["0.1", "22.00 ± 0.00", "-11.00 ± 0.00", "0.00 ± 0.00"]
    assert sweep.rows[2][-4:] == ["423.93", "-311.60", "-127.72", "0.54"]
    lines = {line.what: (line.ours, line.paper) for line in headlines(results)}
    assert lines["QDFM, ω = 0: R1"] == (10, 430.78)
    assert lines["QDFM, ω = 1: R2"] == (-180, -281.32)
    assert lines["QDFM, ω = 1: solved"] == (1, 0.41)
    ours, paper = next(v for k, v in lines.items() if k.startswith("QDFM: R1 at ω = 1 minus"))
    assert ours == 490
    assert paper == pytest.approx(-34.59)
    assert lines["QDFM: steps of the sweep in the wrong direction, of 12"] == (0, None)
    assert headlines({"CQL": results["CQL"]}) == []


def test_a_tiny_run(tmp_path, monkeypatch):
    small: dict[str, Any] = {"batch_size": 8, "hidden": (8,)}
    monkeypatch.setattr(cartpole2obj, "METHODS", {"BC": BC(clone_steps=40, **small)})
    monkeypatch.setattr(cartpole2obj, "QUICK_METHODS", ("BC",))
    monkeypatch.setattr(cartpole2obj, "QUICK_SHARE", 0.25)
    monkeypatch.setattr(cartpole2obj, "EPISODES", 3)
    EXPERIMENTS["cartpole-2obj"].load()(Settings(tmp_path, quick=True, seeds=2, progress=False))
    payload = json.loads((tmp_path / "results.json").read_text())
    assert payload["provenance"]["command"] == "qdfm reproduce cartpole-2obj --quick --seeds 2"
    assert payload["provenance"]["steps"] == {"BC": 10}
    results = payload["results"]
    assert results.keys() == {"BC", "random", "data", "best habit"}
    assert [len(results[name]["seeds"]) for name in results] == [2, 2, 1, 1]
    text = (tmp_path / "table.md").read_text()
    for title in ("Does the sweep go the right way?", "ω·R1 + (1−ω)·R2, greedy", "BC", "Nothing trained"):
        assert f"### {title}\n" in text
    data, best = (results[name]["seeds"][0]["sampled"] for name in ("data", "best habit"))
    shown = " | ".join(f"{data[0][metric]:.2f}" for metric in ("r1", "r2", "solved"))
    assert f"| {shown} |" in text
    # Only the stubborn habit never switches; of those that always stay up the patient one switches least.
    assert best[0]["r2"] == 0
    assert best[0]["r1"] < 11
    assert [at["r1"] for at in best[2:]] == [500] * 5
    assert [at["r2"] for at in best[2:]] == pytest.approx([-37] * 5, abs=1)
    assert (tmp_path / "cartpole-2obj.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert EXPERIMENTS["cartpole-2obj"].load() is run
