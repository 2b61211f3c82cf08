"""The fork experiment: averaging walks into the trap, the optimum follows the preference, the trapped are counted."""

import json

import jax
import numpy as np
import pytest

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import BC, QDFM
from qdfm.envs.fork import Fork
from qdfm.experiments import fork
from qdfm.experiments.cells import Settings
from qdfm.experiments.fork import MEAN_MOVE, OPTIMUM, PREFERENCES, fixed_policies, judge, mean_move


def test_the_mean_move_goes_straight_up_into_the_trap():
    data = qdfm.load_dataset("fork")
    law = mean_move(data, Fork().table().observations)
    assert law[4].tolist() == law[9 + 4].tolist() == [1, 0, 0, 0]  # at (4, 0) and (4, 1)
    fixed = fixed_policies(data)
    for w in PREFERENCES:
        assert fixed[MEAN_MOVE]["seeds"][0][w]["trap"] == 1


def test_the_optimum_follows_the_preference():
    best = fixed_policies(qdfm.load_dataset("fork"))[OPTIMUM]["seeds"][0]
    # A goal pays 10 γ⁹ from the start; the other none, at odds of exp(β · 10 γ⁹) once they part.
    assert best["(1, 0)"]["A"] > 1 - 1e-10
    assert best["(0, 1)"]["B"] > 1 - 1e-10
    assert best["(.5, .5)"]["A"] == pytest.approx(0.5, abs=0.03)
    assert all(end["trap"] == 0 for end in best.values())


def test_judging_counts_the_trapped():
    spec = Fork().spec
    config = BC(hidden=(8,))
    algorithm = config.build(spec)
    policy = algorithm.policy(algorithm.init(jax.random.key(0)))
    judged = judge(Agent(config, spec, policy), seed=0, episodes=300)
    for end in judged.values():
        due = end["trap"]
        assert abs(end["trapped"] / 300 - due) < 4 * np.sqrt(due * (1 - due) / 300) + 1e-9
        assert end["A"] + end["B"] + due <= 1 + 1e-9
    assert max(end["trap"] for end in judged.values()) > 0.1  # an untrained network: else this says little


def test_a_tiny_run_leaves_its_files(tmp_path, monkeypatch):
    tiny = QDFM(hidden=(8,), batch_size=16, warmup_steps=40, critic_steps=40, improve_steps=40)
    monkeypatch.setattr(fork, "METHODS", {"QDFM": tiny})
    fork.run(Settings(tmp_path, seeds=1, progress=False))
    payload = json.loads((tmp_path / "results.json").read_text())
    assert list(payload["results"]) == ["QDFM", OPTIMUM, MEAN_MOVE]
    assert payload["provenance"]["steps"] == {"QDFM": 120}
    assert (tmp_path / "fork.png").stat().st_size > 10_000
    shown = {line["what"]: line["ours"] for line in payload["headlines"]}
    assert shown[f"{OPTIMUM} at (1, 0): share to A, of the worst seed"] == pytest.approx(1)
    assert shown[f"{MEAN_MOVE}: largest trap probability of a seed and preference"] == 1
