"""Categorical columns: checked at the door, kept as they are, seen one-hot by the networks."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.algorithms import BC
from qdfm.data.dataset import Dataset
from qdfm.errors import QDFMError
from qdfm.nets import feature_size, features

ROWS = np.array([[2, 0.5, 1], [0, 1.5, 0], [1, 2.5, 1]], np.float32)


def data(observation: np.ndarray = ROWS, categories: tuple[int, ...] = (3, 0, 2)) -> Dataset:
    return Dataset.from_arrays(
        observation, [0, 1, 0], np.zeros(3), observation, np.ones(3), num_actions=2, categories=categories
    )


def test_the_networks_see_one_hot_columns_and_standardised_quantities():
    made = data()
    np.testing.assert_allclose(made.spec.normalisation.observation_mean, [0, 1.5, 0])
    np.testing.assert_allclose(made.spec.normalisation.observation_std, [1, np.sqrt(2 / 3), 1], rtol=1e-6)
    seen = features(made.spec, jnp.asarray(made.normalised().observation))
    assert feature_size(made.spec) == 6
    q = np.sqrt(3 / 2)
    np.testing.assert_allclose(seen, [[0, 0, 1, -q, 0, 1], [1, 0, 0, 0, 1, 0], [0, 1, 0, q, 0, 1]], rtol=1e-6)


def test_they_are_saved_and_older_files_have_none(tmp_path: Path):
    data().save(tmp_path / "a.npz")
    assert Dataset.load(tmp_path / "a.npz").spec == data().spec
    fields = data().spec.to_json()
    del fields["categories"], fields["accumulation"]
    assert type(data().spec).from_json(fields) == replace(data().spec, categories=())


@pytest.mark.parametrize(
    ("row", "column", "value", "sentence"),
    [
        (1, 0, 3, r"observation is 3 in row 1, column 0, which is none of the categories 0\.\.2"),
        (2, 2, 0.5, r"observation is 0.5 in row 2, column 2"),
        (0, 2, -1, r"observation is -1 in row 0, column 2"),
    ],
)
def test_values_outside_are_refused(row, column, value, sentence):
    bad = ROWS.copy()
    bad[row, column] = value
    with pytest.raises(QDFMError, match=sentence):
        data(bad)


def test_a_wrong_number_of_columns_is_refused():
    with pytest.raises(QDFMError, match="categories has 2 entries but observation has 3 columns"):
        data(categories=(3, 2))


def test_a_negative_number_of_categories_is_refused():
    with pytest.raises(QDFMError, match="give the number of values of each column"):
        data(categories=(3, -1, 2))


def test_bytes_that_are_quantities_stay_between_0_and_1():
    made = data(np.array([[2, 51, 1], [0, 255, 0], [1, 0, 1]], np.uint8))
    seen = features(made.spec, jnp.asarray(made.observation))
    np.testing.assert_allclose(seen, [[0, 0, 1, 0.2, 0, 1], [1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1]], rtol=1e-6)


def test_an_agent_refuses_an_unknown_category():
    agent = BC(clone_steps=2, hidden=(4,)).fit(data(), progress=False)
    assert agent.act(np.array([2, 9.0, 1])) in (0, 1)
    with pytest.raises(QDFMError, match="The observation is 3 in row 0, column 0"):
        agent.act(np.array([3, 0.5, 1]))


def test_in_a_team_the_categories_of_one_agent_serve_for_all():
    rng = np.random.default_rng(0)
    seen = rng.integers(2, size=(6, 2, 3)).astype(float)
    arrays = (seen, rng.integers(2, size=(6, 2)), np.zeros(6), seen, np.ones(6))
    own, whole = (
        Dataset.from_arrays(*arrays, agents=2, num_actions=(2, 2), categories=c) for c in ((2, 0, 3), (2, 0, 3) * 2)
    )
    assert own.spec == whole.spec and own.spec.categories == (2, 0, 3, 2, 0, 3)
    with pytest.raises(QDFMError, match="give every agent the same"):
        Dataset.from_arrays(*arrays, agents=2, num_actions=(2, 2), categories=(2, 0, 3, 3, 0, 2))
