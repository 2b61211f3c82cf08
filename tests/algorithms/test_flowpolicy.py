"""A flow network as a policy: its exact law, its draws, its greedy action."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.data.actions import Discrete, MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.ratenets import RateNet

ONE, TWO, UNEQUAL = Discrete(5), MultiDiscrete((3, 3)), MultiDiscrete((2, 4))
DRAWS = 20_000
STATES = 2


def policy(actions: Any, rates: str, source: str, steps: int, alpha: float = 1.0) -> FlowPolicy:
    return FlowPolicy(Spec((3,), actions), rates, source, steps, alpha)


def network(p: FlowPolicy, seed: int = 0) -> RateNet:
    """A network whose laws are far from uniform."""
    net = p.network((16, 16), False, jax.random.key(seed))
    keys = iter(jax.random.split(jax.random.key(seed + 1), 100))
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape), net)


def inputs(p: FlowPolicy, masked: bool = False) -> tuple[jax.Array, jax.Array]:
    """Two contexts and their legal choices; with `masked`, some choices are illegal at the second."""
    legal = np.broadcast_to(p.spec.legal, (STATES, *p.spec.legal.shape)).copy()
    if masked:
        legal[1, :, 1] = False
    x = jax.random.normal(jax.random.key(7), (STATES, 3))
    return x, jnp.asarray(legal)


POLICIES = {
    "direct": (policy(ONE, "posterior", "uniform", 1), False),
    "direct, illegal choices": (policy(ONE, "posterior", "uniform", 1), True),
    "direct from the mask": (policy(ONE, "posterior", "mask", 1), True),
    "posterior, 5 steps": (policy(ONE, "posterior", "uniform", 5), True),
    "posterior, 5 steps, α = 5": (policy(ONE, "posterior", "uniform", 5, 5.0), False),
    "softplus, 20 steps": (policy(ONE, "softplus", "uniform", 20), True),
    "energy, direct": (policy(ONE, "energy", "uniform", 1), True),
    "energy, unequal tokens": (policy(UNEQUAL, "energy", "uniform", 2), False),
    "diffuse, 5 steps": (policy(ONE, "diffuse", "uniform", 5), True),
    "diffuse, mask, unequal tokens": (policy(UNEQUAL, "diffuse", "mask", 2), False),
    "mask, two tokens": (policy(TWO, "posterior", "mask", 2), False),
    "mask, unequal tokens": (policy(UNEQUAL, "posterior", "mask", 5), False),
    "uniform, unequal tokens": (policy(UNEQUAL, "softplus", "uniform", 5, 2.0), False),
}


def joint_legal(legal: np.ndarray) -> np.ndarray:
    """Legality of the joint actions `[B, K, ..., K]` from that of the tokens `[B, D, K]`."""
    out = legal[:, 0]
    for d in range(1, legal.shape[1]):
        out = out[..., None] & legal[:, d].reshape(len(legal), *(1,) * d, -1)
    return out


def counts(p: FlowPolicy, net: RateNet, x: jax.Array, legal: jax.Array, seed: int) -> np.ndarray:
    """How often each joint action `[B, K, ..., K]` is drawn."""
    u = jax.random.uniform(jax.random.key(seed), (STATES, DRAWS, p.noise))
    drawn = np.asarray(jax.jit(p.sample)(net, x, legal, u))
    assert drawn.shape == (STATES, DRAWS, p.spec.tokens)
    out = np.zeros((STATES, *(p.spec.num_choices,) * p.spec.tokens))
    for b in range(STATES):
        np.add.at(out[b], tuple(drawn[b].T), 1)
    return out


def test_draws_follow_the_exact_law(rejected):
    cases = {}
    for seed, (name, (p, masked)) in enumerate(POLICIES.items()):
        net, (x, legal) = network(p), inputs(p, masked)
        law = np.asarray(jax.jit(p.law)(net, x, legal))
        drawn = counts(p, net, x, legal, seed)
        allowed = joint_legal(np.asarray(legal))
        assert law.shape == (STATES, *(p.spec.num_choices,) * p.spec.tokens)
        assert law.min() >= 0
        np.testing.assert_allclose(law.reshape(STATES, -1).sum(-1), 1, atol=1e-5)
        assert np.all(law[~allowed] == 0)
        assert np.all(drawn[~allowed] == 0)
        assert law[allowed].max() > 1.4 / allowed[0].sum()  # a law worth testing: not uniform
        cases |= {f"{name}, state {b}": (drawn[b], law[b]) for b in range(STATES)}
    assert np.abs(law[0] - law[1]).sum() > 0.05
    assert not rejected(cases)


def test_which_policies_are_direct():
    direct = [name for name, (p, _) in POLICIES.items() if p.direct]
    assert direct == ["direct", "direct, illegal choices", "direct from the mask", "energy, direct"]
    assert POLICIES["direct"][0].noise == 1
    assert POLICIES["mask, unequal tokens"][0].noise == 12


@pytest.mark.parametrize("name", ["direct", "direct, illegal choices", "energy, direct"])
def test_a_direct_law_is_that_of_the_chain_from_any_start(name):
    p, masked = POLICIES[name]
    net, (x, legal) = network(p), inputs(p, masked)
    law = np.asarray(p.law(net, x, legal))
    first = np.exp(p.first_law(net, x, legal))[:, 0]
    np.testing.assert_allclose(law, first, atol=1e-7)
    for start in range(5):
        p0 = jnp.tile(jnp.eye(5)[start], (STATES, 1))
        np.testing.assert_allclose(p.law(net, x, legal, p0), law, atol=1e-6)  # by pushing p0 through the step
    np.testing.assert_allclose(p.law(net, x, legal, p.start_law(legal)), law, atol=1e-6)


def test_first_law_of_several_tokens_is_what_one_step_draws():
    p = policy(UNEQUAL, "posterior", "mask", 1)
    net, (x, legal) = network(p), inputs(p)
    each = np.exp(p.first_law(net, x, legal))
    product = each[:, 0, :, None] * each[:, 1, None, :]
    np.testing.assert_allclose(p.law(net, x, legal), product, atol=1e-6)


def test_the_start_matters_where_the_chain_is_not_direct():
    p, masked = POLICIES["softplus, 20 steps"]
    net, (x, legal) = network(p), inputs(p, masked)
    laws = [np.asarray(p.law(net, x, legal, jnp.tile(jnp.eye(5)[a], (STATES, 1)))) for a in (0, 2)]
    assert np.abs(laws[0] - laws[1]).max() > 1e-3
    mixed = p.law(net, x, legal, jnp.tile(jnp.asarray([0.25, 0, 0.75, 0, 0]), (STATES, 1)))
    np.testing.assert_allclose(mixed, 0.25 * laws[0] + 0.75 * laws[1], atol=1e-6)  # linear in p0


def test_draws_from_given_starts_follow_the_law_from_there(rejected):
    p, masked = POLICIES["softplus, 20 steps"]
    net, (x, legal) = network(p), inputs(p, masked)
    u = jax.random.uniform(jax.random.key(50), (STATES, DRAWS, p.noise))
    drawn = np.asarray(p.sample(net, x, legal, u, jnp.full((STATES, DRAWS, 1), 2)))[..., 0]
    law = p.law(net, x, legal, jnp.tile(jnp.eye(5)[2], (STATES, 1)))
    seen = [np.bincount(row, minlength=5) for row in drawn]
    assert not rejected({str(b): (seen[b], np.asarray(law[b])) for b in range(STATES)})


def test_a_direct_policy_draws_from_given_starts(rejected):
    p, masked = POLICIES["direct"]
    net, (x, legal) = network(p), inputs(p, masked)
    u = jax.random.uniform(jax.random.key(51), (STATES, DRAWS, p.noise))
    drawn = np.asarray(p.sample(net, x, legal, u, jnp.full((STATES, DRAWS, 1), 2)))[..., 0]
    law = np.asarray(p.law(net, x, legal))
    assert not rejected({str(b): (np.bincount(drawn[b], minlength=5), law[b]) for b in range(STATES)})


@pytest.mark.parametrize("name", ["direct", "posterior, 5 steps", "softplus, 20 steps"])
def test_greedy_is_the_most_likely_of_one_token(name):
    p, masked = POLICIES[name]
    net, (x, legal) = network(p, 3), inputs(p, masked)
    law = np.asarray(p.law(net, x, legal))
    greedy = p.greedy(net, x, legal)
    assert greedy.shape == (STATES, 1)
    assert np.array_equal(greedy[:, 0], law.argmax(-1))


@pytest.mark.parametrize("rates", ["posterior", "energy"])
def test_greedy_unmasks_the_surest_token_first(rates):
    p = policy(UNEQUAL, rates, "mask", 2)
    net, (x, legal) = network(p, 5), inputs(p)
    greedy = np.asarray(p.greedy(net, x, legal))
    for b in range(STATES):
        current = np.array([4, 4])
        for n in range(2):
            scores = p.scores(net, x[b : b + 1])(jnp.asarray(current)[None], jnp.full(1, n / 2))[0]
            e = np.where(p.spec.legal, np.exp(scores), 0)
            law = e / e.sum(-1, keepdims=True)
            surest = max((d for d in range(2) if current[d] == 4), key=lambda d: law[d].max())
            current[surest] = law[surest].argmax()
        assert np.array_equal(greedy[b], current)


def test_choices_below_the_cut_are_not_drawn():
    uniform = {"uniform, two tokens": (policy(TWO, "posterior", "uniform", 3), False)}
    for p, masked in ({name: POLICIES[name] for name in ("direct", "mask, two tokens")} | uniform).values():
        net, (x, legal) = network(p), inputs(p, masked)
        first = np.exp(p.first_law(net, x, legal))
        share = np.median(first / first.max(-1, keepdims=True))
        one = FlowPolicy(p.spec, p.rates, p.source, 1, 1.0)  # one step: the first law is the whole law
        u = jax.random.uniform(jax.random.key(9), (STATES, 2000, one.noise))
        drawn = np.asarray(one.sample(net, x, legal, u, cut=float(share)))
        kept = first >= share * first.max(-1, keepdims=True)
        assert 0 < kept.sum() < kept.size
        for b, d in np.ndindex(STATES, p.spec.tokens):
            assert set(drawn[b, :, d]) == set(np.flatnonzero(kept[b, d]))


def test_starts_come_from_the_source():
    p = policy(UNEQUAL, "posterior", "uniform", 5)
    _, legal = inputs(p)
    law = np.asarray(p.start_law(legal)).reshape(STATES, 4, 4)
    due = np.zeros((4, 4))
    due[:2] = 1 / 8
    np.testing.assert_allclose(law, np.stack([due, due]), atol=1e-7)
    start = np.asarray(p.start(jax.random.uniform(jax.random.key(0), (STATES, 2)), legal))
    assert np.all(start < [2, 4])
    masked = policy(UNEQUAL, "posterior", "mask", 5)
    assert np.all(np.asarray(masked.start(jnp.zeros((STATES, 2)), legal)) == 4)
    assert np.array_equal(np.flatnonzero(masked.start_law(legal)[0]), [24])  # both tokens masked


def test_a_large_joint_has_no_exact_law():
    p = policy(MultiDiscrete((10,) * 4), "posterior", "mask", 4)
    net, (x, legal) = network(p), inputs(p)
    with pytest.raises(QDFMError, match="draw samples"):
        p.law(net, x, legal)


@pytest.mark.parametrize("name", ["posterior, 5 steps", "energy, unequal tokens", "direct, illegal choices"])
def test_networks_that_are_asked_together_give_their_mean_scores(name):
    one, masked = POLICIES[name]
    together = replace(one, members=3)
    net = network(together)
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], net.members) for i in range(3)]
    x, legal = inputs(together, masked)
    current = jax.random.randint(jax.random.key(3), (STATES, 4, one.spec.tokens), 0, min(one.spec.choices))
    t = jnp.linspace(0.1, 0.8, STATES * 4).reshape(STATES, 4)
    each = [one.scores(member, x)(current, t) for member in members]
    np.testing.assert_allclose(together.scores(net, x)(current, t), np.mean(each, 0), atol=1e-5)
    assert np.abs(each[0] - each[1]).max() > 0.1
    if one.spec.tokens == 1 and one.direct:  # the normalised geometric mean of the members' laws
        product = np.prod([one.law(member, x, legal) for member in members], 0) ** (1 / 3)
        np.testing.assert_allclose(together.law(net, x, legal), product / product.sum(-1, keepdims=True), atol=1e-5)
