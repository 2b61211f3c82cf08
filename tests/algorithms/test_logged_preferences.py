"""Preferences that rows were collected under: what is imitated under each, what others are taken for, by counting."""

import numpy as np
import pytest

import qdfm
from qdfm.algorithms import BC, QDFM
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import PREFERENCE_GRID, preference_features, preference_size

# One state; who preferred the first objective chose 0 nine times of ten, who preferred the second chose 1 as often.
RATHER_FIRST, RATHER_SECOND = (0.6, 0.4), (0.3, 0.7)
TINY = {"hidden": (16,), "batch_size": 256, "learning_rate": 0.01, "ema": 0.98}


def logged(preference: bool = True) -> qdfm.Dataset:
    first = np.arange(400) < 200
    action = np.where(np.arange(400) % 10 == 0, first, ~first).astype(int)
    seen = np.zeros((400, 1), np.float32)
    wanted = np.where(first[:, None], RATHER_FIRST, RATHER_SECOND)
    paid = np.eye(2)[action]
    return qdfm.Dataset.from_arrays(
        seen, action, paid, seen, np.ones(400, bool), preference=wanted if preference else None, num_actions=2
    )


@pytest.fixture(scope="module")
def cloned() -> qdfm.Agent:
    return BC(preferences="logged", clone_steps=400, **TINY).fit(logged(), progress=False)


def test_what_was_done_under_a_preference_is_imitated_under_it(cloned):
    p = [cloned.action_probabilities([0.0], preference=omega) for omega in (RATHER_FIRST, RATHER_SECOND)]
    np.testing.assert_allclose(p, [[0.9, 0.1], [0.1, 0.9]], atol=0.03)


def test_other_preferences_are_taken_for_the_nearest(cloned, tmp_path):
    np.testing.assert_allclose(
        cloned.followed([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), [[0.6, 0.4], [0.3, 0.7], [0.5, 0.5]]
    )
    p = cloned.action_probabilities([0.0], preference=RATHER_FIRST)
    np.testing.assert_array_equal(cloned.action_probabilities([0.0], preference=(1.0, 0.0)), p)
    cloned.save(tmp_path / "agent.safetensors")
    again = qdfm.load(tmp_path / "agent.safetensors")
    np.testing.assert_array_equal(again.action_probabilities([0.0], preference=(1.0, 0.0)), p)


def test_the_nearest_of_three_objectives_beside_a_search():
    rng = np.random.default_rng(0)
    drawn = rng.dirichlet((2, 2, 2), 50)
    low, high = drawn.min(0), drawn.max(0)
    spec = Spec((1,), Discrete(2), objectives=3, preference_range=tuple(zip(low.tolist(), high.tolist(), strict=True)))
    grid = np.array([(i, j, 400 - i - j) for i in range(401) for j in range(401 - i)]) / 400
    inside = grid[((grid >= low) & (grid <= high)).all(1)]
    asked = np.concatenate([np.eye(3), rng.dirichlet((1, 1, 1), 20)])
    found = spec.nearest_preference(asked)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
    assert (found >= low - 1e-6).all() and (found <= high + 1e-6).all()
    best = np.sqrt(((asked[:, None] - inside) ** 2).sum(-1).min(1))
    assert (np.linalg.norm(asked - found, axis=1) <= best + 1e-6).all()  # no point of the grid is nearer


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"preference": (0.5, 0.5)}, "give one of the two"),
        ({"corners": 0.5}, "corners are of drawn preferences"),
        ({"preferences": "drawn", "corners": 0.5, "preference": (0.5, 0.5)}, "corners are of drawn preferences"),
    ],
)
def test_ways_to_prefer_that_exclude_each_other(changes, sentence):
    with pytest.raises(QDFMError, match=sentence):
        BC(**{"preferences": "logged", "clone_steps": 1, **changes}).fit(logged(), progress=False)


def test_data_adapted_to_logged_preferences_is_not_for_drawn_ones():
    adapted = BC(preferences="logged").adapt(logged())
    with pytest.raises(QDFMError, match="adapted to logged preferences"):
        BC(clone_steps=1).fit(adapted, progress=False)


def test_features_of_logged_preferences_by_hand():
    """Their place in the range, and on the grid the shares of the two points beside it."""
    spec = Spec((1,), Discrete(2), objectives=2, preference_range=((0.2, 0.6), (0.4, 0.8)))
    asked = np.array([[0.5, 0.5], [0.6, 0.4], [0.2003, 0.7997]], np.float32)
    seen = np.asarray(preference_features(spec, asked))
    assert seen.shape == (3, preference_size(spec)) == (3, 2 + PREFERENCE_GRID)
    np.testing.assert_allclose(seen[:2, :2], [[0.5, -0.5], [1, -1]], atol=1e-6)
    grid = np.zeros((3, PREFERENCE_GRID))
    grid[0, 375] = grid[1, 500] = 1  # .75 and all of the range, in 500 parts
    grid[2, :2] = 0.625, 0.375  # .0003 of .4
    np.testing.assert_allclose(seen[:, 2:], grid, atol=1e-3)


def test_guidance_follows_the_logged_preference():
    """μ·exp(β⟨ω, Q⟩)/C of each preference, where an action is worth what it pays at once."""
    guided = QDFM(
        preferences="logged",
        beta=2.0,
        beta_scale="none",
        critic_learning_rate=0.01,
        warmup_steps=400,
        critic_steps=300,
        improve_steps=400,
        **TINY,
    ).fit(logged(), progress=False)
    for omega, mu in ((RATHER_FIRST, (0.9, 0.1)), (RATHER_SECOND, (0.1, 0.9))):
        tilted = np.array(mu) * np.exp(2 * np.array(omega))
        p = guided.action_probabilities([0.0], preference=omega)
        np.testing.assert_allclose(p, tilted / tilted.sum(), atol=0.03)


def test_data_without_preferences_is_refused():
    with pytest.raises(
        QDFMError, match="bc learns from the preference that each row was collected under, but this data"
    ):
        BC(preferences="logged").fit(logged(preference=False), progress=False)
    with pytest.raises(QDFMError, match="preferences"):
        BC(preferences="looged").fit(logged(), progress=False)
