"""Preferences that rows were collected under: what is imitated under each, what others are taken for, by counting."""

import numpy as np
import pytest

import qdfm
from qdfm.algorithms import BC, QDFM
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.nets import FREQUENCIES, preference_features, preference_size

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


def test_features_of_logged_preferences_by_hand():
    spec = Spec((1,), Discrete(2), objectives=2, preference_range=((0.2, 0.6), (0.4, 0.8)))
    (seen,) = np.asarray(preference_features(spec, np.array([[0.5, 0.5]], np.float32)))
    assert len(seen) == preference_size(spec) == 2 * (1 + 2 * FREQUENCIES)
    np.testing.assert_allclose(seen[:2], [0.5, -0.5], atol=1e-6)
    angles = np.pi * 0.5 * np.array([1, 2, 4, 8, 16, 32])
    first = np.concatenate([np.sin(angles), np.cos(angles)])
    np.testing.assert_allclose(seen[2:14], first, atol=1e-4)
    np.testing.assert_allclose(seen[14:], np.concatenate([-np.sin(angles), np.cos(angles)]), atol=1e-4)


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
