"""What exact imitation takes: disturbed observations (their law, what they spare, refusals) and falling step sizes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.algorithms.base import disturbed
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError

PLAIN = Spec((3,), Discrete(2))


def test_noise_is_normal_and_spares_categories():
    seen, key = jnp.full((40_000, 3), 2.0), jax.random.key(0)
    noise = np.asarray(disturbed(PLAIN, seen, 0.5, key)) - 2
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.01)
    np.testing.assert_allclose(noise.std(0), 0.5, atol=0.01)
    np.testing.assert_allclose(np.mean(np.abs(noise) < 0.5, 0), 0.6827, atol=0.01)
    mixed = np.asarray(disturbed(Spec((3,), Discrete(2), categories=(0, 4, 0)), seen, 0.5, key))
    assert (mixed[:, 1] == 2).all() and (mixed[:, [0, 2]] != 2).mean() > 0.99
    assert disturbed(PLAIN, seen, 0.0, key) is seen


@pytest.mark.parametrize(
    "config", [qdfm.BC(clone_steps=1500), qdfm.QDFM(warmup_steps=1500, critic_steps=0, improve_steps=0)]
)
def test_a_policy_learns_the_mean_over_the_noise(config):
    """Two observations, −1 and 1, each with its own action: at x the chance of the second is that of 1 given x."""

    seen = np.where(np.arange(200) < 100, -1.0, 1.0)[:, None].astype(np.float32)
    data = qdfm.Dataset.from_arrays(seen, seen[:, 0] > 0, np.zeros(200), seen, np.ones(200, bool), num_actions=2)
    config = replace(config, observation_noise=1.0, hidden=(32,), learning_rate=3e-3)
    agent = config.fit(data, progress=False)
    x = np.array([[-1.0], [0.0], [0.5], [1.0]])
    p = agent.action_probabilities(x)[:, 1]
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-2 * x[:, 0])), atol=0.05)  # of two normals of deviation 1


def test_noise_that_observations_cannot_take_is_refused():
    with pytest.raises(QDFMError, match=r"qdfm: observation_noise is -0.1; it must be at least 0\."):
        qdfm.QDFM(observation_noise=-0.1).resolve(PLAIN)
    with pytest.raises(QDFMError, match="bc: observation_noise needs observations of real numbers, not of int32"):
        qdfm.BC(observation_noise=0.1).resolve(Spec((3,), Discrete(2), observation_dtype="int32"))


def test_step_sizes_fall_in_each_phase_that_trains_the_policy():
    flow = qdfm.QDFM(warmup_steps=100, improve_steps=50, learning_rate=0.2, decay=True).flow_rate()
    assert [float(flow(at)) for at in (0, 50, 100, 125, 150)] == pytest.approx([0.2, 0.1, 0.2, 0.1, 0])
    clone = qdfm.BC(clone_steps=100, learning_rate=0.2, decay=True).policy_rate()
    assert [float(clone(at)) for at in (0, 75, 100)] == pytest.approx([0.2, 0.05, 0])
    assert (qdfm.BC().policy_rate(), qdfm.QDFM().flow_rate()) == (1e-3, 1e-3)


@pytest.mark.parametrize(
    "config", [qdfm.BC(clone_steps=300), qdfm.QDFM(warmup_steps=300, critic_steps=0, improve_steps=0)]
)
def test_a_falling_step_size_ends_nearer_to_the_frequencies(config):
    """One state, where the second action was taken three times of ten: small batches disagree on that."""
    seen, action = np.zeros((400, 1), np.float32), np.arange(400) % 10 < 3
    data = qdfm.Dataset.from_arrays(seen, action, np.zeros(400), seen, np.ones(400, bool), num_actions=2)
    off = []
    for decay in (False, True):
        few = replace(config, decay=decay, batch_size=8, hidden=(8,), learning_rate=0.05, ema=0.0)
        agents = qdfm.train(few, data, range(16), progress=False)
        off.append(np.sqrt(np.mean([(a.action_probabilities([0.0])[1] - 0.3) ** 2 for a in agents])))
    assert 2 * off[1] < off[0]
