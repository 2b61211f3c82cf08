"""Inspect: the numbers of a report against a loop, every warning, and the picture in the terminal."""

import io
import json
import re
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from qdfm.data import inspect as module
from qdfm.data.actions import Bins, Codebook
from qdfm.data.dataset import Dataset
from qdfm.data.inspect import action_warnings, inspect, render
from qdfm.errors import QDFMError


def healthy(n: int = 1200, **changes: Any) -> Dataset:
    rng = np.random.default_rng(0)
    good = {
        "observation": rng.normal(size=(n, 3)),
        "action": rng.integers(0, 4, n),
        "reward": rng.normal(size=(n, 2)),
        "next_observation": rng.normal(size=(n, 3)),
        "terminated": np.arange(n) % 12 == 11,
    }
    return Dataset.from_arrays(**(good | changes))


def shown(data: Dataset, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(render(inspect(data)))
    return captured.get()


def warned(data: Dataset, *parts: str) -> None:
    """Exactly one warning, which has all the parts."""
    (warning,) = inspect(data).warnings
    for part in parts:
        assert part in warning


def test_numbers_against_a_loop() -> None:
    episode = np.repeat(np.arange(4), [1, 5, 2, 4])
    n = len(episode)
    last = np.r_[np.diff(episode) > 0, True]
    rng = np.random.default_rng(1)
    action = np.stack([rng.integers(0, 3, n), rng.integers(0, 2, n)], 1)
    mask = np.ones((n, 2, 3), bool)
    data = healthy(
        n,
        action=action,
        terminated=last & (episode != 2),
        truncated=last & (episode == 2),
        episode=episode,
        mask=mask,
        next_mask=mask,
        num_actions=(3, 2),
    )
    report = inspect(data)
    assert (report.transitions, report.episodes, report.objectives) == (12, 4, 2)
    assert (report.terminated, report.truncated, report.masked) == (3, 1, True)
    assert (report.observation_shape, report.observation_dtype, report.choices) == ((3,), "float32", (3, 2))
    length = report.episode_length
    assert (length.min, length.mean, length.max) == (1, 3, 5)
    for d, k in enumerate((3, 2)):
        assert report.action_counts[d] == tuple(sum(a == c for a in action[:, d]) for c in range(k))
    for m in range(2):
        totals = sorted(sum(data.reward[i, m] for i in range(n) if episode[i] == e) for e in range(4))
        got = report.returns[m]
        np.testing.assert_allclose((got.min, got.max, got.mean), (totals[0], totals[3], sum(totals) / 4), rtol=1e-5)
        variance = sum((x - sum(totals) / 4) ** 2 for x in totals) / 3
        np.testing.assert_allclose(got.std, variance**0.5, rtol=1e-5)
        np.testing.assert_allclose(got.median, (totals[1] + totals[2]) / 2, rtol=1e-5)
        np.testing.assert_allclose(got.lower_quartile, totals[0] + 0.75 * (totals[1] - totals[0]), rtol=1e-5)
        np.testing.assert_allclose(got.upper_quartile, totals[2] + 0.25 * (totals[3] - totals[2]), rtol=1e-5)


def test_a_report_is_plain() -> None:
    report = inspect(healthy())
    json.dumps(asdict(report))
    assert hash(report) == hash(inspect(healthy()))


def test_one_episode_has_no_spread() -> None:
    assert inspect(healthy(terminated=np.arange(1200) == 1199)).returns[0].std == 0


def test_healthy_data_has_no_warnings() -> None:
    assert inspect(healthy()).warnings == ()
    assert "Nothing looks wrong." in shown(healthy())


def test_few_transitions() -> None:
    warned(healthy(600), "only 600 transitions")


def test_actions_never_taken() -> None:
    warned(healthy(num_actions=6), "never taken: 4, 5;")
    many = inspect(healthy(num_actions=40)).warnings[0]
    assert "13 and 26 more" in many
    action = np.random.default_rng(0).integers(0, 3, (1200, 2))
    warned(healthy(action=action, num_actions=(3, 4)), "of token 1", "never taken: 3;")


def test_ids_as_choices() -> None:
    items = 100_000 + np.random.default_rng(0).integers(0, 15, 1200)
    data = healthy(action=items)
    warned(data, "Only 15 of 100,015 choices are ever taken", "if these are ids, number them from 0.")
    assert action_warnings(data) == list(inspect(data).warnings)
    assert inspect(healthy(action=np.unique(items, return_inverse=True)[1])).warnings == ()
    warned(healthy(action=np.random.default_rng(0).integers(0, 50, 1200), num_actions=200), "never taken: 50, 51, ")


def test_one_choice_as_several_parts() -> None:
    choice = np.random.default_rng(0).integers(0, 4, 1200)
    data = healthy(action=np.eye(4, dtype=int)[choice])
    assert data.spec.choices == (2, 2, 2, 2)
    warned(data, "Of the 4 parts of an action one is 1", "one-hot", "action.argmax(1)")
    assert len(action_warnings(data)) == 1
    never = action_warnings(healthy(action=np.eye(5, dtype=int)[choice]))  # whose last part is always 0
    assert "Of the 5 parts" in never[0]
    halves = healthy(action=np.eye(4)[choice], actions=partial(Bins.fit, count=2))
    assert inspect(halves).warnings == ()
    both = np.eye(4, dtype=int)[choice]
    both[3, :2] = 1
    assert inspect(healthy(action=both)).warnings == ()
    seen = np.random.default_rng(0).normal(size=(1200, 4, 3))
    team = {"observation": seen, "next_observation": seen, "agents": 4}
    assert inspect(healthy(action=np.eye(4, dtype=int)[choice], **team)).warnings == ()
    assert action_warnings(healthy()) == []


def test_one_action_dominates() -> None:
    warned(healthy(action=(np.arange(1200) == 5).astype(int)), "Choice 0", "99.9%")


def test_constant_features() -> None:
    observation = np.random.default_rng(0).normal(size=(1200, 3))
    observation[:, 1] = 0.1
    warned(healthy(observation=observation), "Constant observation features: 1;")
    pixels = np.zeros((1200, 2, 2), np.uint8)
    assert inspect(healthy(observation=pixels, next_observation=pixels)).warnings == ()


def test_a_team_and_its_state() -> None:
    rng = np.random.default_rng(0)
    seen = np.concatenate([rng.normal(size=(1200, 2, 1)), np.broadcast_to(np.eye(2), (1200, 2, 2))], 2)
    state = rng.normal(size=(1200, 5))
    changes = {"observation": seen, "next_observation": seen, "action": rng.integers(0, 4, (1200, 2)), "agents": 2}
    data = healthy(**changes, state=state, next_state=state)
    report, text = inspect(data), shown(data)
    assert (report.agents, report.state_shape, report.observation_shape) == (2, (5,), (2, 3))
    assert report.warnings == ()  # the columns that tell the agents apart are constant for each, not for all
    assert [line.split() for line in text.splitlines() if line.startswith(("agents", "global"))] == [
        ["agents", "2"],
        ["global", "state", "(5,)"],
    ]
    assert "agents" not in shown(healthy())
    assert "global state" not in shown(healthy())
    seen = seen * [1, 1, 0]
    warned(healthy(**changes | {"observation": seen}), "Constant observation features: 2;")


def test_features_by_the_names_of_their_columns() -> None:
    data = healthy(observation=np.random.default_rng(0).normal(size=(1200, 3)) * [1, 0, 1])
    named = inspect(data, {"observation": ["age", "ward", "pulse"], "action": ["dose"]}).warnings
    assert named == ("Constant observation features: ward; leave them out.",)
    for columns in ({"observation": ["lists"]}, {}, None):
        assert inspect(data, columns).warnings == ("Constant observation features: 1; leave them out.",)


def test_features_that_tell_the_reward() -> None:
    """r = 1 / sqrt(1 + s²) for a reward with noise of deviation s: .995 for .1 and .93 for .4."""
    rng = np.random.default_rng(0)
    reward, noise, seen = rng.normal(size=(1200, 2)), rng.normal(size=1200), rng.normal(size=(1200, 4))
    seen[:, 1], seen[:, 2] = 7 - 3 * (reward[:, 1] + 0.1 * noise), reward[:, 0] + 0.4 * noise
    data = healthy(observation=seen, next_observation=seen, reward=reward)
    warned(data, "Observation features that tell the reward of their row: 1; leave them out if they are not known")
    assert ": late;" in inspect(data, {"observation": ["a", "late", "b", "c"]}).warnings[0]
    assert not any("tell the reward" in w for w in inspect(data[:20]).warnings)  # too few to say
    both = rng.normal(size=(1200, 2))
    both[:, 0] = 1
    seen[:, 1], seen[:, 2] = both[:, 1], 5
    told = inspect(healthy(observation=seen, next_observation=seen, reward=both)).warnings  # neither divides by 0
    assert [w.split(";")[0] for w in told] == [
        "Constant observation features: 2",
        "Observation features that tell the reward of their row: 1",
        "Constant reward in objectives: 1",
    ]


def test_nothing_to_inspect() -> None:
    with pytest.raises(QDFMError, match="The data is empty; give at least one transition"):
        inspect(healthy()[:0])


def bars(text: str) -> list[tuple[str, str]]:
    """Name and share of each bar."""
    return re.findall(r"^(\S.*?) +(\d+\.\d%) ", text, re.MULTILINE)


def test_quantities_are_shown_by_value() -> None:
    force = np.repeat([-1.0, 0.2, 1.0], [300, 840, 60])[:, None]
    data = healthy(action=force, actions=Bins(((-1.0, 0.2, 1.0),)))
    assert bars(shown(data)) == [("-1", "25.0%"), ("0.2", "70.0%"), ("1", "5.0%")]
    assert inspect(data).actions == (((-1.0,), (0.2,), (1.0,)),)
    many = np.tile(np.arange(40) / 4, 30)[:, None]  # two neighbours make a row of 5 %
    text = shown(healthy(action=many, actions=Bins((tuple(np.arange(40) / 4),))))
    assert bars(text) == [(f"{k / 2:.3g} to {k / 2 + 0.25:.3g}", "5.0%") for k in range(20)]
    assert "more" not in text
    book = Codebook(((0.5, -1.0), (0.25, 3.0)))
    text = shown(healthy(action=np.tile([[0.5, -1.0], [0.25, 3.0], [0.25, 3.0]], (400, 1)), actions=book))
    assert bars(text) == [("0.5, -1", "33.3%"), ("0.25, 3", "66.7%")]


def test_constant_reward() -> None:
    reward = np.random.default_rng(0).normal(size=(1200, 2))
    reward[:, 1] = -1
    warned(healthy(reward=reward), "Constant reward in objectives: 2;")


def test_large_rewards() -> None:
    data = healthy(reward=1e5 * np.random.default_rng(0).normal(size=1200))
    warned(data, "Rewards reach", "with_normalisation(reward=True)")
    assert inspect(data.with_normalisation(reward=True)).warnings == ()


def test_open_episodes() -> None:
    ended = (np.arange(1200) % 12 == 11) & (np.arange(1200) > 30)
    warned(healthy(terminated=ended, episode=np.arange(1200) // 12), "neither terminate nor truncate: 2;")


def test_episodes_that_go_on() -> None:
    ended = np.isin(np.arange(1200) % 12, (5, 11)) & ~np.isin(np.arange(1200), np.arange(24, 1200, 12) + 5)
    warned(healthy(terminated=ended, episode=np.arange(1200) // 12), "go on after", ": 5, 17;")


def test_duplicate_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(1200) % 400
    data = healthy()
    copies = replace(data[rows], episode=data.episode, terminated=data.terminated)
    warned(copies, "67% of the rows")
    monkeypatch.setattr(module, "DUPLICATES_LIMIT", 10)
    assert inspect(copies).warnings == ()


def test_the_picture() -> None:
    text = shown(healthy(action=np.random.default_rng(0).integers(0, 30, (1200, 10))))
    assert "transitions" in text
    assert "1,200" in text
    assert "10 × 30" in text
    assert "and 10 more" in text  # choices
    assert "and 2 more tokens" in text
    assert "█" in text
    assert text.count("Actions, token") == 8


def test_the_picture_fits_a_terminal() -> None:
    text = shown(healthy(reward=-1.234567e5 * np.random.default_rng(0).normal(size=(1200, 2))))
    assert "…" not in text
    assert "e+0" in text
