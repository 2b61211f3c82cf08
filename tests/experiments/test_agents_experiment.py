"""The experiment `agents`: growth by hand, and a small run whose rates are counted."""

import json

import pytest

from qdfm.errors import QDFMError
from qdfm.experiments import EXPERIMENTS
from qdfm.experiments.agents import FULL, QUICK, config, growth, rates, run, team_data
from qdfm.experiments.cells import Settings


def test_growth_is_the_exponent():
    teams = {"2": {"step_ms": 3.0}, "4": {"step_ms": 6.0}, "16": {"step_ms": 96.0}}
    assert growth(teams, 0, 1) == pytest.approx(1)
    assert growth(teams, 1, 2) == pytest.approx(2)
    assert growth(teams, 0, -1) == pytest.approx(5 / 3)


def test_teams_differ_in_size_alone():
    for agents in (2, 32):
        spec = team_data(agents, 4).spec
        assert (spec.agents, spec.choices) == (agents, (10,) * agents)
        assert spec.num_joint == 10**agents
        for execution in ("decentralised", "centralised"):
            resolved = config(execution, FULL.steps).resolve(spec)
            assert (resolved.execution, resolved.steps) == (execution, FULL.steps)
    assert FULL.teams[0] == 2 and FULL.teams[-1] == 32


@pytest.mark.parametrize("execution", ["decentralised", "centralised"])
def test_rates_grow_with_the_team_and_joint_actions_as_its_power(execution):
    assert [rates(execution, agents, 2) for agents in (2, 5, 32)] == [20, 50, 320]


def test_a_small_run(tmp_path):
    assert EXPERIMENTS["agents"].load() is run
    run(Settings(tmp_path, quick=True, only=("decentralised",), progress=False))
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    assert list(found) == ["decentralised"]
    assert [row["rates"] for row in found["decentralised"].values()] == [10 * g for g in QUICK.teams]
    assert all(
        row["step_ms"] > 0 and set(row["learning"]) == {"warmup", "improve"} for row in found["decentralised"].values()
    )
    assert (tmp_path / "agents.png").stat().st_size > 5000


def test_seeds_are_refused_before_anything_is_written(tmp_path):
    says = r"^agents measures time alone, so 3 seeds have no meaning; leave --seeds out\.$"
    with pytest.raises(QDFMError, match=says):
        run(Settings(tmp_path / "run", quick=True, seeds=3))
    assert not (tmp_path / "run").exists()
