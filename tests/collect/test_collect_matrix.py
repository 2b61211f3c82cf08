"""The data of the matrix game against its law, and what `load_dataset` makes of it."""

import numpy as np
import pytest

from qdfm.collect.matrix import collect_matrix
from qdfm.data.sources import load_dataset
from qdfm.envs.matrix import behaviour
from qdfm.errors import QDFMError


def test_rows():
    data = load_dataset("matrix")
    n = 20_000
    assert len(data) == n == len(data.returns())
    assert (data.spec.agents, data.spec.choices, data.spec.objectives) == (2, (3, 3), 2)
    assert data.observation.shape == (n, 2, 2)
    np.testing.assert_array_equal(data.observation[:, 0], data.state)
    np.testing.assert_array_equal(data.observation[:, 1], data.state)
    np.testing.assert_array_equal(data.state.sum(1), 1)
    np.testing.assert_array_equal(data.next_state, data.state)
    assert data.terminated.all()
    equal = data.action[:, 0] == data.action[:, 1]
    np.testing.assert_allclose(data.reward, np.where(equal[:, None], [8, -3.35], [-2, 0]), rtol=1e-6)


def test_actions_follow_the_law(rejected):
    data = collect_matrix(seed=3)
    context = data.state.argmax(1)
    pair = data.action[:, 0] * 3 + data.action[:, 1]
    cases = {f"context {s}": (np.bincount(pair[context == s], minlength=9), behaviour()[s].ravel()) for s in range(2)}
    assert rejected(cases | {"context": (np.bincount(context), np.full(2, 0.5))}) == {}


def test_seed_and_size():
    few, again, other = (load_dataset("matrix", transitions=50, seed=s) for s in (1, 1, 2))
    assert len(few) == 50
    np.testing.assert_array_equal(few.action, again.action)
    assert (few.action != other.action).any()
    with pytest.raises(QDFMError, match="0 transitions cannot be collected; give at least 1"):
        load_dataset("matrix", transitions=0)
    with pytest.raises(QDFMError, match="bins does not concern matrix"):
        load_dataset("matrix", bins=3)
