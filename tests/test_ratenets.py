"""The networks of the energy and pairwise rates and of one step, by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.data.actions import Bins, Discrete, MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.flow.rates import PARAMETERISATIONS, off_diagonal
from qdfm.nets import choice_scores, score_size
from qdfm.ratenets import RATE_NETWORKS, EnergyNet, FlowNet, PairNet, StartNet, time_embedding

SPEC = Spec((2,), MultiDiscrete((3, 3)))


def made(rates: str, source: str = "uniform", norm: bool = False) -> FlowNet | EnergyNet | PairNet:
    """A network for two tokens, its output layer as large as the others."""
    net = FlowPolicy(SPEC, rates, source, 4, 1.0).network((8, 8), norm, jax.random.key(0))
    keys = iter(jax.random.split(jax.random.key(1), 20))
    return jax.tree.map(lambda leaf: leaf + 0.5 * jax.random.normal(next(keys), leaf.shape), net)


def test_every_parameterisation_has_a_network():
    assert RATE_NETWORKS.keys() == PARAMETERISATIONS.keys()


def layer(x: np.ndarray, linear: object) -> np.ndarray:
    return np.maximum(x, 0) @ np.asarray(linear.weight) + np.asarray(linear.bias)


@pytest.mark.parametrize(("source", "t"), [("uniform", 0.5), ("uniform", 0.0), ("mask", 0.5)])
def test_an_energy_is_evaluated_at_each_candidate(source, t):
    """Each candidate on its own, as one input among others, against all of them at once."""
    net = made("energy", source)
    x, current = np.array([0.3, -1.2]), [1, 2]
    gate = 1.0 if source == "mask" else t / (t + (1 - t) / 3)
    time = np.asarray(time_embedding(jnp.float32(t)))
    scores = net.scores(net.embed(jnp.asarray(x)), jnp.asarray(current), jnp.float32(t))
    assert scores.shape == (2, 3)
    for d, k in np.ndindex(2, 3):
        first = x @ np.asarray(net.net.first.weight) + np.asarray(net.net.first.bias)
        first = first + gate * sum(np.asarray(net.net.table)[i, a] for i, a in enumerate(current))
        first = first + time @ np.asarray(net.net.extra) + np.asarray(net.candidates)[d, k]
        energy = layer(layer(first, net.net.trunk.layers[0]), net.net.trunk.head)
        assert scores[d, k] == pytest.approx(-energy[0], abs=1e-5)


def test_boltzmann_rates_of_energies_by_hand():
    """Energies 0, log 2 and log 4 weigh 4 : 2 : 1, and 4 : 2 without the last; at t = 1/2 rates are doubled."""
    scores = -jnp.log(jnp.asarray([[[1.0, 2.0, 4.0]]] * 2))
    legal = jnp.asarray([[[True, True, True]], [[True, True, False]]])
    rates = off_diagonal("energy", scores, jnp.zeros((2, 1), int), jnp.full(2, 0.5), legal)
    np.testing.assert_allclose(rates[:, 0], [[0, 4 / 7, 2 / 7], [0, 2 / 3, 0]], rtol=1e-6)


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_where_one_step_decides_the_context_is_all_that_counts(source):
    """The scores are an MLP's of the context, the same at all states and times."""
    net = FlowPolicy(SPEC, "posterior", source, 1, 1.0).network((8, 8), False, jax.random.key(0))
    assert isinstance(net, StartNet)
    keys = iter(jax.random.split(jax.random.key(1), 20))
    net = jax.tree.map(lambda leaf: leaf + 0.5 * jax.random.normal(next(keys), leaf.shape), net)
    x = np.array([[0.3, -1.2], [1.0, 0.5]])
    first = x @ np.asarray(net.net.first.weight) + np.asarray(net.net.first.bias)
    due = layer(layer(first, net.net.trunk.layers[0]), net.net.trunk.head).reshape(2, 2, 3)
    assert np.abs(due[0] - due[1]).max() > 0.1
    embedded = net.embed(jnp.asarray(x))
    for t in (0.0, 0.4, 1.0):
        for current in np.ndindex(*(3 + (source == "mask"),) * 2):
            states = jnp.tile(jnp.asarray(current), (2, 1))
            np.testing.assert_allclose(net.scores(embedded, states, jnp.full(2, t)), due, atol=1e-5)
    several = net.scores(embedded[:, None], jnp.zeros((2, 5, 2), int), jnp.zeros((2, 5)))  # states beside each other
    np.testing.assert_allclose(several, np.repeat(due[:, None], 5, 1), atol=1e-5)


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("norm", [False, True])
def test_the_row_of_the_current_action_is_what_leaves_it(source, norm):
    net = made("diffuse", source, norm)
    x, states = jnp.asarray([[0.3, -1.2], [1.0, 0.5]]), 3 + (source == "mask")
    t = jnp.asarray([0.2, 0.7])
    whole = net.pairs(net.embed(x), t)
    assert whole.shape == (2, 2, states, 3)
    for current in np.ndindex(states, states):
        row = net.scores(net.embed(x), jnp.tile(jnp.asarray(current), (2, 1)), t)
        due = np.stack([whole[:, d, a] for d, a in enumerate(current)], 1)
        np.testing.assert_allclose(row, due, atol=1e-5)
    assert np.ptp(whole, axis=2).min() > 1e-4  # no two rows are the same


def test_a_pairwise_generator_by_hand():
    """With no weights but a bias, rates are softplus(bias) of the row of the state, but for the diagonal."""
    net = FlowPolicy(Spec((2,), Discrete(3)), "diffuse", "uniform", 4, 1.0).network((4,), False, jax.random.key(0))
    wanted = np.arange(1.0, 10.0).reshape(1, 3, 3)
    parts = (0 * net.weight, jnp.log(jnp.expm1(jnp.asarray(wanted, jnp.float32))))
    net = eqx.tree_at(lambda n: (n.weight, n.bias), net, parts)
    current, t = jnp.asarray([[0], [1], [2]]), jnp.full(3, 0.9)
    scores = net.scores(net.embed(jnp.ones((3, 2))), current, t)
    legal = jnp.asarray([[[True, True, True]], [[True, True, False]], [[True, True, True]]])
    rates = off_diagonal("diffuse", scores, current, t, legal)
    np.testing.assert_allclose(rates[:, 0], [[0, 2, 3], [4, 0, 0], [7, 8, 0]], rtol=1e-5)


def test_a_fresh_pairwise_generator_leaves_at_about_rate_one():
    policy = FlowPolicy(Spec((2,), Discrete(50)), "diffuse", "uniform", 4, 1.0)
    rates = policy.rate_function(
        policy.network((32, 32), False, jax.random.key(0)), jnp.ones((1, 2)), jnp.ones((1, 1, 50), bool)
    )
    np.testing.assert_allclose(jnp.sum(rates(jnp.arange(50)[None, :, None], jnp.float32(0.3)), -1), 1, atol=0.1)


def test_scores_of_quantities_by_hand():
    """What a network says of each choice, less a parabola about the level .5, as narrow as it says."""
    spec = Spec((2,), Bins(((0.0, 1.0, 2.0), (-4.0, 0.0, 4.0))))
    assert score_size(spec) == 5
    out = np.array([[1.0, 2.0, 3.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.5, 40.0]])
    found = np.asarray(choice_scores(spec, jnp.asarray(out.reshape(1, -1))))[0]
    apart = (np.array([-1, 0, 1]) - 0.5) ** 2
    narrow = np.log(3) - np.log1p(np.exp(np.log(3) - 1))
    np.testing.assert_allclose(found[0], [1, 2, 3] - np.exp(2 * narrow) / 2 * apart, rtol=1e-5)
    np.testing.assert_allclose(found[1], -9 / 2 * apart, rtol=1e-4)  # no narrower than K allows


@pytest.mark.parametrize(("steps", "rates"), [(1, "posterior"), (4, "posterior"), (4, "softplus")])
def test_scores_of_a_flow_over_quantities(steps, rates):
    """The parabola is there where a softmax follows, and moves with the output that says where."""
    spec = Spec((2,), Bins(((0.0, 1.0, 2.0), (-4.0, 0.0, 4.0))))
    net = FlowPolicy(spec, rates, "mask", steps, 1.0).network((8, 8), False, jax.random.key(0))
    size = 5 if rates == "posterior" else 3
    assert net.net.trunk.head.bias.shape == (2 * size,)
    head = net.net.trunk.head
    wanted = np.zeros((2, size))
    wanted[:, :3] = [[1, 0, 0], [0, 0, 2]]
    if rates == "posterior":
        wanted[0, 3] = 1
    net = eqx.tree_at(
        lambda n: (n.net.trunk.head.weight, n.net.trunk.head.bias), net,
        (0 * head.weight, jnp.asarray(wanted.reshape(-1), jnp.float32)),
    )  # fmt: skip
    found = np.asarray(net.scores(net.embed(jnp.ones((1, 2))), jnp.zeros((1, 2), int), jnp.zeros(1)))[0]
    due = wanted[:, :3]
    if rates == "posterior":
        width = np.exp(2 * (np.log(3) - np.log1p(np.exp(np.log(3) - 1)))) / 2
        due = due - width * np.array([[4, 1, 0], [1, 0, 1]])
    np.testing.assert_allclose(found, due, rtol=1e-5, atol=1e-6)
