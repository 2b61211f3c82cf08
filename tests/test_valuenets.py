"""The networks of values, by hand: fixed random features of points, and the values of points that they give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.data.actions import Codebook
from qdfm.data.spec import Spec
from qdfm.valuenets import Critic, PointMLP, random_features


def shaken(net):
    """The same network with other weights: fresh biases are zero."""
    leaves, structure = jax.tree.flatten(net)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    moved = [leaf + 0.5 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys)]
    return jax.tree.unflatten(structure, moved)


def test_random_features_are_the_same_for_ever():
    """Agents are saved without them: the draws of RandomState(0), four normal and two uniform, stand here."""
    first = np.array([1.764052345967664, 0.9787379841057392])
    second = np.array([0.4001572083672233, 2.240893199201458])
    offsets = -0.30538080264438117, 0.5835764522666245
    points = np.array([[1.0, 0.0], [0.0, 1.0], [-0.5, 2.0], [-1.0, -1.0]])
    found = random_features(points, 2)
    assert found.shape == (4, 2)
    for point, features in zip(points, found):
        for feature, direction, offset in zip(features, (first, second), offsets):
            along = (point[0] * direction[0] + point[1] * direction[1]) / np.hypot(*direction)
            assert feature == pytest.approx(max(along + offset, 0.0), abs=1e-12)
    # Two of them as numbers: 1.76405 / 2.01738 − .30538, and 2.24089 / 2.27634 + .58358.
    assert found[0, 0] == pytest.approx(0.5690, abs=1e-4)
    assert found[1, 1] == pytest.approx(1.5680, abs=1e-4)
    assert not found[3].any()


def dense(x: np.ndarray, linear: object) -> np.ndarray:
    return x @ np.asarray(linear.weight, np.float64) + np.asarray(linear.bias, np.float64)


def rectified(x: np.ndarray, norm: bool) -> np.ndarray:
    if norm:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return np.maximum(x, 0)


@pytest.mark.parametrize("points", [4, 6])
@pytest.mark.parametrize("norm", [False, True])
def test_values_of_points_by_hand(norm, points):
    """V(s) + ⟨f(s), g(a)⟩ / √width for each objective, one action at a time; with fewer points than values of rows,
    and with more."""
    width, objectives = 4, 2
    net = shaken(PointMLP(3, (5, width), objectives, norm, jax.random.key(0)))
    rng = np.random.default_rng(0)
    x, features = rng.normal(size=(2, 3)), rng.random((points, width))
    found = net(jnp.asarray(x, jnp.float32), jnp.asarray(features, jnp.float32))
    assert found.shape == (2, points, objectives)
    hidden = rectified(dense(rectified(dense(x, net.state.first), norm), net.state.trunk.layers[0]), norm)
    out = dense(hidden, net.state.trunk.head)  # [2, objectives · (width + 1)]: V of an objective, then its f
    for b, k, r in np.ndindex(2, points, objectives):
        value, *f = out[b, r * (width + 1) : (r + 1) * (width + 1)]
        g = dense(features[k], net.action)
        assert found[b, k, r] == pytest.approx(value + sum(np.multiply(f, g)) / 2, rel=1e-4, abs=1e-5)


def test_values_of_one_point_are_those_among_all():
    """Of one action for each row, which is asked for alone, and of several."""
    rng = np.random.default_rng(1)
    points = tuple(tuple(float(v) for v in point) for point in rng.normal(size=(7, 2)))
    spec = Spec((3,), Codebook(points), objectives=2)
    critic = shaken(Critic(spec, (5, 4), 3, True, False, False, jax.random.key(0)))
    assert isinstance(critic.members, PointMLP)
    x = jnp.asarray(rng.normal(size=(5, 3 + 2)), jnp.float32)
    every = np.asarray(critic.values(x))
    assert every.shape == (3, 5, 1, 7, 2)
    assert np.ptp(every, axis=3).min() > 1e-3  # the actions differ
    for asked in (rng.integers(7, size=(5, 1, 1)), rng.integers(7, size=(5, 3, 1))):
        due = np.stack([every[:, b, :, asked[b, :, 0]] for b in range(5)], 0)  # [B, M, E, 1, objectives]
        np.testing.assert_allclose(critic.values(x, jnp.asarray(asked)), due.transpose(2, 0, 3, 1, 4), atol=1e-5)
