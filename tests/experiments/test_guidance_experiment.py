"""The study of guidance: its rules, its tables by hand, a tiny run whose rules share their first phases."""

import json
from dataclasses import replace
from typing import Any

from made_up_cells import behaviour_cell, trained_cell

from qdfm.algorithms import QDFM
from qdfm.data.actions import Bins
from qdfm.data.spec import Spec
from qdfm.experiments import EXPERIMENTS, control, fitting, guidance
from qdfm.experiments.cells import Settings
from qdfm.experiments.control import Coding, Size
from qdfm.experiments.control_methods import METHODS, TOKENS_QDFM
from qdfm.experiments.guidance import ONWARD, RULES, UNGUIDED, run
from qdfm.experiments.guidance_report import draw, gains, harmless, headlines, tabulate
from qdfm.train import branching

HOPPER, WALKER = "hopper-medium", "walker2d-medium"
SPEC = Spec((3,), Bins(((-1.0, 0.0, 1.0),) * 2))


def test_rules_differ_in_the_last_phase_or_in_acting_only():
    later = {
        "share_target", "caution", "beta", "beta_scale", "improve_steps", "candidates", "endpoints", "state_share",
        "averaged",
    }  # fmt: skip
    for name, config in RULES.items():
        trunk = ONWARD if name.startswith("onward") else TOKENS_QDFM
        base = trunk.described()
        assert config.backup == trunk.backup
        assert {field for field, value in config.described().items() if value != base[field]} <= later
    assert RULES["share-.35"] == TOKENS_QDFM
    assert RULES["share-.35-mean"] == METHODS["tokens"]["QDFM"]
    resolved = TOKENS_QDFM.resolve(SPEC)
    assert (resolved.caution, resolved.beta_scale) == (2, "share")
    assert (resolved.share_target, resolved.state_share) == (0.35, 0)  # what its name says


def made_up(seeds: int = 2) -> dict[str, Any]:
    """Two data sets; the rule gains 4 and 6 on the first, loses 3 and 1 on the second."""
    rows = {HOPPER: ([40.0, 50.0], [44.0, 56.0]), WALKER: ([60.0, 60.0], [57.0, 59.0])}
    return {
        task: {
            "behaviour": behaviour_cell(task, 40, 42),
            "rules": {UNGUIDED: trained_cell(task, base[:seeds]), "rule": trained_cell(task, better[:seeds])},
        }
        for task, (base, better) in rows.items()
    }


def test_tables_headlines_and_picture_of_made_up_cells(tmp_path):
    found = made_up()
    sampled, greedy = tabulate(found, UNGUIDED)
    assert sampled.columns == ["", HOPPER, WALKER, "mean", "no loss beyond 1 s.e."]
    assert sampled.rows == [
        [UNGUIDED, "45.0 ± 7.1", "60.0 ± 0.0", "52.5", ""],
        ["rule", "50.0 ± 8.5 (+5.0 ± 1.0)", "58.0 ± 1.4 (**-2.0 ± 1.0**)", "54.0", "1 of 2"],
        ["behaviour, data", "42.0", "42.0", "42.0", ""],
        ["behaviour, replayed", "40.0", "40.0", "40.0", ""],
    ]
    assert greedy.rows == sampled.rows
    lines = {line.what: line.ours for line in headlines(found, UNGUIDED)}
    assert lines["rule, sampled: mean score"] == 54
    assert lines["rule, greedy: no loss beyond 1 s.e. of unguided, of 2 data sets"] == 1
    draw(tmp_path, found, UNGUIDED)
    assert (tmp_path / "guidance.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_one_seed_gives_no_verdict():
    found = made_up(1)
    assert harmless(found, "rule", UNGUIDED, "sampled") is None
    assert tabulate(found, UNGUIDED)[0].rows[1][1:] == ["44.0 (+4.0 ± –)", "57.0 (-3.0 ± –)", "50.5", "–"]
    assert not any("no loss" in line.what for line in headlines(found, UNGUIDED))


def test_means_are_compared_with_the_unguided_mean():
    found = made_up()
    for row in found.values():
        base = row["rules"][UNGUIDED]
        row["rules"] |= {"unguided-mean": row["rules"]["rule"], "rule-mean": base}
    assert gains(found, "rule-mean", UNGUIDED, "sampled") == [(-5.0, 1.0), (2.0, 1.0)]
    assert gains(found, "unguided-mean", UNGUIDED, "sampled") == []  # with itself


def test_without_the_unguided_mean_means_are_compared_with_nothing(tmp_path):
    found = made_up()
    for row in found.values():
        row["rules"]["rule-mean"] = row["rules"]["rule"]
    assert gains(found, "rule-mean", UNGUIDED, "sampled") == []
    for table in tabulate(found, UNGUIDED):
        rows = {line[0]: line[1:] for line in table.rows}
        assert rows["rule-mean"] == ["50.0 ± 8.5", "58.0 ± 1.4", "54.0", ""]
        assert rows["rule"][-1] == "1 of 2"
    lines = {line.what for line in headlines(found, UNGUIDED)}
    assert "rule-mean, sampled: mean score" in lines
    assert not any(what.startswith("rule-mean") and "no loss" in what for what in lines)
    draw(tmp_path, found, UNGUIDED)
    for row in found.values():  # and only with the unguided mean, where that alone was run
        row["rules"]["unguided-mean"] = row["rules"].pop(UNGUIDED)
    assert gains(found, "rule-mean", UNGUIDED, "greedy") == [(5.0, 1.0), (-2.0, 1.0)]
    assert gains(found, "rule", UNGUIDED, "greedy") == []
    assert [line[-1] for line in tabulate(found, UNGUIDED)[0].rows[:3]] == ["", "1 of 2", ""]


def test_a_tiny_run(tmp_path, monkeypatch):
    flow = QDFM(warmup_steps=2, critic_steps=2, improve_steps=2, batch_size=8, hidden=(8,), samples=2)
    rules = {
        UNGUIDED: replace(flow, improve_steps=0), "rule": flow, "rule-mean": replace(flow, averaged=True),
        "best": replace(flow, candidates=2),
    }  # fmt: skip
    begun, finished = [], []

    def branch(*args: Any) -> Any:
        begun.append(args)
        finish = branching(*args)
        return lambda config: finished.append(config) or finish(config)

    played = []

    def play(agent: Any, task: str, episodes: int, seed: int, greedy: bool, progress: bool) -> Any:
        played.append((agent, greedy))
        return shown(agent, task, episodes, seed, greedy, progress)

    shown = control.play
    monkeypatch.setattr(control, "play", play)
    monkeypatch.setattr(fitting, "branching", branch)
    for name, value in (("RULES", rules), ("TOKENS_QDFM", flow), ("CODINGS", {"tokens": Coding("bins", 3)})):
        monkeypatch.setattr(guidance, name, value)
    monkeypatch.setattr(guidance, "FULL", Size(transitions=200, episodes=1))
    monkeypatch.setattr(control, "FRESH", 50)
    monkeypatch.setattr(control, "REPLAYED", 1)
    settings = Settings(tmp_path, seeds=1, only=(HOPPER,), progress=False)
    run(settings)
    assert len(begun) == 1  # the first phases, once for all rules
    assert finished == [rules[UNGUIDED], rules["rule"], rules["best"]]  # a mean is another way to act only
    found = json.loads((tmp_path / "results.json").read_text())["results"][HOPPER]["rules"]
    assert {name: cell["steps"] for name, cell in found.items()} == {
        UNGUIDED: {"warmup": 2, "critic": 2},
        "rule": {"warmup": 2, "critic": 2, "improve": 2},
        "rule-mean": {"warmup": 2, "critic": 2, "improve": 2},
        "best": {"warmup": 2, "critic": 2, "improve": 2},
    }
    assert found["best"]["seeds"][0]["greedy"] == found["rule"]["seeds"][0]["greedy"]
    means = [(agent, greedy) for agent, greedy in played if agent.config.averaged]
    assert len(means) == 1 and len(played) == 2 * len(rules) - 1  # a mean is played once for both ways
    both = [shown(means[0][0], HOPPER, 1, 0, greedy, False) for greedy in (False, True)]
    assert both == [found["rule-mean"]["seeds"][0][how] for how in ("sampled", "greedy")]
    run(replace(settings, resume=True))
    assert len(begun) == 1
    assert EXPERIMENTS["guidance"].load() is run
