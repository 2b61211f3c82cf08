"""Continuous actions as tokens: bins and codebooks by hand, and agents that take and return the original actions."""

import json
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import qdfm
from qdfm.data.actions import Bins, Codebook, from_json, quantisation_error, to_json
from qdfm.errors import DataWarning, QDFMError

RNG = np.random.default_rng(0)
ROWS = np.stack([RNG.uniform(-2, 1, 400), RNG.normal(size=400)], 1)


def test_uniform_bins_by_hand():
    bins = Bins.fit(np.array([[0.0, 5.0], [1.0, 7.0], [0.2, 6.0]]), 3)
    assert bins.values == ((0.0, 0.5, 1.0), (5.0, 6.0, 7.0))
    tokens = bins.encode(np.array([[0.24, 5.6], [0.26, 9.0], [-3.0, 6.4]]))
    np.testing.assert_array_equal(tokens, [[0, 1], [1, 2], [0, 1]])
    np.testing.assert_allclose(bins.decode(tokens), [[0, 6], [0.5, 7], [0, 6]])
    assert (bins.choices, bins.dimensions) == ((3, 3), 2)


@pytest.mark.parametrize("spread", ["uniform", "quantile"])
def test_a_dimension_that_never_changes_has_one_bin(spread):
    rows = np.array([[0.0, 0.7, -0.7], [1.0, 0.7, -0.7]])
    bins = Bins.fit(rows, 2, spread)
    assert bins.choices == (2, 1, 1)
    tokens = bins.encode(np.array([[0.0, 0.7, -0.7], [1.0, 9.0, 9.0]]))
    np.testing.assert_array_equal(tokens, [[0, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(bins.decode(tokens), rows)


def test_quantile_bins_have_equal_shares_and_fewer_values_where_the_data_has():
    column = np.r_[np.full(590, -1.0), np.linspace(0, 1, 410)]
    bins = Bins.fit(np.stack([column, np.linspace(0, 99, 1000)], 1), 11, spread="quantile")
    np.testing.assert_allclose(bins.values[1], np.linspace(0, 99, 11), atol=0.1)  # its own values, .0991 apart
    assert bins.values[0][0] == -1.0
    assert len(bins.values[0]) == 6  # −1 is six of the eleven quantiles
    assert (np.diff(bins.values[0]) > 0).all()


@pytest.mark.parametrize(
    "fit", [lambda: Bins.fit(ROWS, 9), lambda: Bins.fit(ROWS, 9, "quantile"), lambda: Codebook.fit(ROWS, 16)]
)
def test_decoding_gives_the_nearest_that_can_be_expressed(fit):
    space = fit()
    tokens = space.encode(ROWS)
    assert tokens.shape == (400, len(space.choices))
    assert (tokens >= 0).all()
    assert (tokens < np.asarray(space.choices)).all()
    back = space.decode(tokens)
    np.testing.assert_array_equal(space.encode(back), tokens)
    if isinstance(space, Codebook):
        distance = ((ROWS[:, None] - np.asarray(space.centres)[None]) ** 2).sum(-1)
        np.testing.assert_array_equal(tokens[:, 0], distance.argmin(1))
    else:
        for d, values in enumerate(space.values):
            nearest = np.abs(ROWS[:, d, None] - np.asarray(values)).min(1)
            np.testing.assert_allclose(np.abs(back[:, d] - ROWS[:, d]), nearest, atol=1e-6)
    assert from_json(json.loads(json.dumps(to_json(space)))) == space
    assert hash(space) == hash(fit())


def test_a_codebook_finds_clusters():
    middles = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = np.concatenate([m + 0.1 * RNG.normal(size=(50, 2)) for m in middles])
    space = Codebook.fit(points, 3)
    found = np.array(sorted(space.centres))
    np.testing.assert_allclose(found, sorted(points.reshape(3, 50, 2).mean(1).tolist()), atol=1e-5)
    few = Codebook.fit(np.array([[1.0], [1.0], [3.0]]), 8)  # two different actions need no more than two centres
    assert few.centres == ((1.0,), (3.0,))


def test_the_quantisation_error_of_uniform_noise():
    # Uniform over a range, K values from end to end: inner cells of width w err by w/√12, the two outer half cells too.
    x = np.linspace(0, 1, 100_001)[:, None]
    k = 11
    due = (1 / (k - 1)) / np.sqrt(12) / x.std()
    assert quantisation_error(Bins.fit(x, k), x) == pytest.approx(due, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Bins.fit(ROWS, 1), "give at least 2"),
        (lambda: Codebook.fit(ROWS, 0), "0 actions of a codebook say nothing; give at least 2"),
        (lambda: Codebook.fit(ROWS, -3), "give at least 2"),
        (lambda: Bins.fit(ROWS, 2.5), r"^2\.5 bins per dimension cannot be had; give a whole number from 2\.$"),
        (lambda: Codebook.fit(ROWS, "9"), "^'9' actions of a codebook cannot be had; give a whole number from 2"),
        (lambda: Bins.fit(ROWS, 5, "quantiles"), "did you mean 'quantile'"),
        (lambda: Bins.fit(ROWS[:, 0], 5), r"shape \(400,\); give numbers \[n, dimensions\]"),
        (lambda: Bins.fit(np.where(ROWS > 0.9, np.nan, ROWS), 5), "action is NaN or infinite in row"),
        (lambda: Bins.fit(ROWS, 5).encode(ROWS[:, :1]), "action has 1 dimensions but 2 are needed"),
        (lambda: Codebook.fit(ROWS, 5).encode(np.ones((2, 3))), "action has 3 dimensions but 2 are needed"),
    ],
)
def test_what_is_no_action_is_refused(make, sentence):
    with pytest.raises(QDFMError, match=sentence):
        make()


@pytest.fixture(scope="module")
def swings() -> dict[str, np.ndarray]:
    env, rows = gymnasium.make("Pendulum-v1"), []
    now, _ = env.reset(seed=0)
    for _ in range(200):
        push = RNG.uniform(-2, 2, 1).astype(np.float32)
        then, gain, ended, cut, _ = env.step(push)
        rows.append((now, push, gain, then, ended, cut))
        now = then
    names = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
    return dict(zip(names, (np.array(column) for column in zip(*rows)), strict=True))


@pytest.mark.parametrize("kind", ["bins", "codebook"])
def test_an_agent_takes_and_returns_the_original_actions(swings, kind, tmp_path: Path):
    push = swings["action"]
    actions = Bins.fit(push, 5) if kind == "bins" else Codebook.fit(push, 5)
    data = qdfm.Dataset.from_arrays(**swings, actions=actions)
    agent = qdfm.BC(clone_steps=3, hidden=(8,)).fit(data, progress=False)
    agent.save(tmp_path / "agent.safetensors")
    agent = qdfm.load(tmp_path / "agent.safetensors")
    assert agent.spec.actions == actions
    one = agent.act(swings["observation"][0], seed=0)
    assert one.shape == (1,)
    assert one.dtype == np.float32
    p = agent.action_probabilities(swings["observation"][0])
    at = int(actions.encode(one[None])[0, 0])
    assert agent.log_prob(swings["observation"][0], one) == pytest.approx(np.log(p[at]), abs=1e-6)
    played = qdfm.evaluate(agent, "Pendulum-v1", episodes=2)
    assert (played.lengths == 200).all()
    assert (played.returns < 0).all()
    plain = qdfm.Dataset.from_arrays(**{**swings, "action": at + 0 * push.astype(int)}, num_actions=5)
    other = qdfm.BC(clone_steps=1, hidden=(4,)).fit(plain, progress=False)
    with pytest.raises(QDFMError, match="neither Discrete nor MultiDiscrete"):
        qdfm.evaluate(other, "Pendulum-v1", episodes=1)


def test_continuous_actions_without_a_way_to_discretise_are_refused(swings):
    with pytest.raises(QDFMError, match=r"actions=qdfm.Bins.fit\(action, 21\)"):
        qdfm.Dataset.from_arrays(**swings)


@pytest.mark.parametrize(
    ("raw", "space", "told"),
    [
        (
            [0, 1, 2, 3, 4, 5],
            Bins(((0.0, 1.25, 2.5, 3.75, 5.0),)),
            "6 different ones, of which bins left 5;",
        ),  # 2 and 3
        ([0, 1, 100], Bins(((0.0, 50.0, 100.0),)), "3 different ones, of which bins left 2;"),  # 0 and 1
        ([3, 4, 9], Codebook(((3.5,), (9.0,))), "3 different ones, of which codebook left 2;"),
        ([0, 1, 2, 3, 4, 5], Bins((tuple(range(6)),)), None),
        ([0, 0.5, 2], Bins(((0.0, 2.0),)), None),  # no choices
        (list(range(100)), Bins(((0.0, 99.0),)), None),  # more than most have
    ],
)
def test_choices_that_become_one_are_told(raw, space, told):
    action = np.tile(np.array(raw, float)[:, None], (3, 1))
    row = np.arange(len(action))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        qdfm.Dataset.from_arrays(row, action, row, row, np.ones(len(row)), actions=space)
    assert [w.category for w in given] == [DataWarning] * (told is not None)
    if told:
        assert told in str(given[0].message)
        assert str(given[0].message).endswith("and number them from 0.")


def test_parts_that_become_one_are_told():
    """Two parts of three choices each; two bins leave 0 and 2 of the first, of which 1 becomes one."""
    pairs = np.array([[a, b] for a in range(3) for b in range(3)])
    with pytest.warns(DataWarning, match="9 different ones, of which bins left 6;"):
        qdfm.Dataset.from_arrays(
            pairs, pairs, pairs[:, 0], pairs, np.ones(9), actions=Bins(((0.0, 2.0), (0.0, 1.0, 2.0)))
        )
