"""What teams add: rates and policies of one network for all agents, QMIX, the global state, legal joint actions."""

from dataclasses import replace
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.algorithms.apart import OwnRows
from qdfm.algorithms.flowpolicy import FlowPolicy
from qdfm.algorithms.softmax import init_softmax, log_softmax_of
from qdfm.data.actions import MultiDiscrete
from qdfm.data.spec import Spec
from qdfm.flow import samplers
from qdfm.flow.samplers import joint_states
from qdfm.nets import agent_rows, agent_size
from qdfm.ratenets import FlowNet, LocalNet
from qdfm.valuenets import Critic, QMix

G, K, SEEN, STATE = 3, 4, 2, 5
SPEC = Spec((G, SEEN), MultiDiscrete((K,) * G), agents=G, state_shape=(STATE,))
SOURCES = ("mask", "uniform")


def contexts(rows: int, extra: int = 0, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (rows, G * SEEN + extra))


def local_policy(source: str, steps: int = 4, alpha: float = 1.0) -> tuple[FlowPolicy, LocalNet]:
    policy = FlowPolicy(SPEC, "posterior", source, steps, alpha, local=True)
    net = policy.network((8,), False, jax.random.key(1))
    assert isinstance(net, LocalNet)
    return policy, jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape), net)


def test_an_agents_row_is_its_observation_the_preference_and_its_number():
    spec = Spec((2, 1), MultiDiscrete((3, 3)), objectives=2, agents=2)
    rows = agent_rows(spec, jnp.array([[5.0, 6.0, 0.25, 0.75, 99.0]]))  # what comes after is the global state
    assert rows.tolist() == [[[5, 0.25, 0.75, 1, 0], [6, 0.25, 0.75, 0, 1]]]
    assert rows.shape[-1] == agent_size(spec)


@pytest.mark.parametrize("source", SOURCES)
def test_local_scores_are_one_network_of_what_the_agent_sees(source):
    policy, net = local_policy(source)
    x, current = contexts(5), jax.random.randint(jax.random.key(3), (5, G), 0, K)
    t = jnp.linspace(0.1, 0.9, 5)
    whole = policy.scores(net, x)(current, t)
    assert whole.shape == (5, G, K)
    others = x.at[:, SEEN:].set(7.0), current.at[:, 1:].set(0)
    np.testing.assert_array_equal(policy.scores(net, others[0])(others[1], t)[:, 0], whole[:, 0])
    assert np.abs(np.asarray(policy.scores(net, x)(current.at[:, 0].add(1) % K, t) - whole))[:, 0].max() > 1e-3
    # Agents that see the same and stand at the same action differ by their number alone.
    same = jnp.tile(x[:, :SEEN], (1, G))
    unnumbered = eqx.tree_at(lambda n: n.net.first.weight, net, net.net.first.weight.at[SEEN:].set(0))
    scores = policy.scores(unnumbered, same)(jnp.full((5, G), 2), t)
    np.testing.assert_allclose(scores, np.repeat(scores[:, :1], G, 1), atol=1e-6)


@pytest.mark.parametrize("source", SOURCES)
def test_the_joint_law_of_local_chains_is_the_product_of_each_agents_own(source):
    """The joint law comes from the assembled chain of all K**G states, the product from three chains of one agent."""
    policy, net = local_policy(source)
    x, legal = contexts(2), jnp.ones((2, G, K), bool).at[0, 1, 2].set(False)
    joint = policy.law(net, x, legal)
    assert joint.shape == (2, K, K, K)
    np.testing.assert_allclose(joint.sum((1, 2, 3)), 1, atol=1e-5)
    own = [np.asarray(joint).sum(tuple(a + 1 for a in range(G) if a != g)) for g in range(G)]
    np.testing.assert_allclose(joint, np.einsum("bi,bj,bk->bijk", *own), atol=1e-6)
    alone = FlowPolicy(Spec((1,), MultiDiscrete((K,))), "posterior", source, policy.steps, 1.0)
    for g in range(G):

        class One:  # agent g, the others held anywhere: it cannot tell
            def embed(self, x):
                return net.embed(x)

            def scores(self, embedded, current, t, g=g):
                elsewhere = jnp.zeros((*current.shape[:-1], G), current.dtype).at[..., g].set(current[..., 0])
                return net.scores(embedded, elsewhere, t)[..., g : g + 1, :]

        np.testing.assert_allclose(alone.law(One(), x, legal[:, g : g + 1]), own[g], atol=1e-6)


def test_centralised_rates_couple_agents_where_local_ones_cannot():
    policy = FlowPolicy(SPEC, "posterior", "mask", 6, 1.0)
    net = policy.network((8,), False, jax.random.key(1))
    assert isinstance(net, FlowNet)
    net = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(2), x.shape), net)
    joint = np.asarray(policy.law(net, contexts(1), jnp.ones((1, G, K), bool)))[0]
    own = [joint.sum(tuple(a for a in range(G) if a != g)) for g in range(G)]
    assert np.abs(joint - np.einsum("i,j,k->ijk", *own)).max() > 1e-3


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_a_hundred_thousand_joint_actions_none_illegal_after_any_step(local, source, alpha):
    rows, steps = 1000, 5
    policy = FlowPolicy(SPEC, "posterior", source, steps, alpha, local)
    net = policy.network((8,), False, jax.random.key(1))
    net = jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(2), x.shape), net)
    legal = jax.random.bernoulli(jax.random.key(4), 0.4, (rows, G, K))
    legal = legal.at[..., 0].set(legal[..., 0] | ~legal.any(-1))
    uniforms = jax.random.uniform(jax.random.key(5), (rows, 100, policy.noise))
    draws = jax.jit(lambda: policy.sample(net, contexts(rows), legal, uniforms))()
    assert draws.shape == (rows, 100, G)
    token = np.arange(G)
    row = np.arange(rows)[:, None, None]
    assert np.asarray(legal)[row, token, np.asarray(draws)].all()
    # Between the steps too: each chain stopped after so many of them, a token that still waits aside.
    rates = policy.rate_function(net, contexts(rows), legal)
    u = uniforms.reshape(rows, 100, steps + 1, G)
    current = policy.start(u[..., 0, :], legal[:, None])
    seen = np.concatenate([np.asarray(legal), np.ones((rows, G, 1), bool)], -1)
    for n in range(steps):
        jumps = samplers.jump_law(rates(current, jnp.float32(n / steps)), 1 / steps, alpha)
        assert not np.asarray(jnp.where(legal[:, None], 0, jumps)).any()
        stays = jnp.concatenate([jumps, jnp.maximum(1 - jnp.sum(jumps, -1, keepdims=True), 0)], -1)
        drawn = samplers.inverse_cdf(u[..., n + 1, :, None], stays)[..., 0]
        current = jnp.where(drawn < K, drawn, current)
        assert seen[row, token, np.asarray(current)].all()


def test_qmix_by_hand_and_by_enumeration():
    spec, inputs = SPEC, G * SEEN + STATE
    net = QMix(spec, inputs, (6,), False, jax.random.key(0))
    net = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(1), x.shape), net)
    x = contexts(4, STATE, seed=3)
    every = jnp.asarray(joint_states(G, K))
    q = np.asarray(net(x, jnp.broadcast_to(every, (4, *every.shape))))[..., 0]  # [B, K**G]
    own = np.asarray(net.utilities(x))[..., 0]  # [B, G, K]
    # The best joint action is each agent's best: what the monotonic mixing is for.
    assert (np.asarray(every)[q.argmax(1)] == own.argmax(-1)).all()
    state = np.asarray(x)[:, -STATE:]
    apply = lambda mlp: np.asarray(mlp(jnp.asarray(state)))  # noqa: E731
    w1, w2 = np.abs(apply(net.first)).reshape(4, G, -1) / G, np.abs(apply(net.second))
    for b, (i, action) in product(range(4), enumerate(np.asarray(every)[:7])):
        values = own[b, np.arange(G), action]
        hidden = values @ w1[b] + apply(net.first_bias)[b]
        hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
        total = hidden @ w2[b] / np.sqrt(w2.shape[1]) + apply(net.second_bias)[b, 0]
        assert q[b, i] == pytest.approx(total, rel=1e-4, abs=1e-5)
    slope = jax.grad(lambda v: jnp.sum(net.mix(x, v)))(jnp.asarray(own[:, None, :, :1]))
    assert (np.asarray(slope) >= 0).all()


def test_values_of_a_team_read_the_state_only_where_they_are_told_to():
    x = contexts(3, STATE)
    actions = jnp.zeros((3, 2, G), jnp.int32)
    for mixed in (False, True):
        critic = Critic(SPEC, (8,), 2, True, False, False, jax.random.key(0), mixed=mixed, state=STATE)
        values = critic.values(x, actions)
        assert values.shape == (2, 3, 1, 2, 1)
        assert np.abs(np.asarray(critic.values(x.at[:, -1].add(1.0), actions) - values)).max() > 1e-4
        blind = Critic(SPEC, (8,), 2, True, False, False, jax.random.key(0), mixed=mixed)
        assert blind.values(x[:, :-STATE], actions).shape == values.shape  # which has no place for it


def test_greedy_local_agents_do_not_heed_what_others_see():
    policy, net = local_policy("mask")
    x, legal = contexts(200), jnp.ones((200, G, K), bool)
    others = x.at[:, SEEN:].set(contexts(200, seed=9)[:, SEEN:])
    mine, same = (policy.greedy(net, seen, legal) for seen in (x, others))
    np.testing.assert_array_equal(mine[:, 0], same[:, 0])
    assert (mine[:, 1:] != same[:, 1:]).any()
    np.testing.assert_array_equal(mine, jnp.argmax(policy.first_law(net, x, legal), -1))


def test_a_softmax_policy_of_a_team_is_local():
    policy = init_softmax(qdfm.BC(hidden=(8,)), SPEC, jax.random.key(0))
    seen = jax.random.normal(jax.random.key(1), (2, G, SEEN))
    mask = jnp.ones((2, G, K), bool).at[:, 0, 1].set(False)
    log_p = log_softmax_of(SPEC, policy.net, seen, jnp.ones((2, 1)), mask)
    changed = log_softmax_of(SPEC, policy.net, seen.at[:, 1].add(1.0), jnp.ones((2, 1)), mask)
    assert np.isneginf(log_p[:, 0, 1]).all()
    assert jnp.array_equal(log_p[:, (0, 2)], changed[:, (0, 2)]) and not jnp.array_equal(log_p[:, 1], changed[:, 1])


def team_data(copies: int = 100, seed: int = 0) -> qdfm.Dataset:
    """Two agents, one step: paid where both do what a hidden bit says, which they see through some noise and the
    global state tells. Action 2 is illegal for the second agent; else all actions are equally frequent, exactly."""
    rng = np.random.default_rng(seed)
    hidden, *action = np.tile(np.indices((2, 3, 2)).reshape(3, -1), copies)
    rows, action = len(hidden), np.stack(action, 1)
    observation = np.stack([hidden, hidden], 1)[..., None] + 0.01 * rng.standard_normal((rows, 2, 1))
    mask = np.ones((rows, 2, 3), bool)
    mask[:, 1, 2] = False
    state = np.eye(2)[hidden]
    reward = (action == hidden[:, None]).all(1).astype(float)
    return qdfm.Dataset.from_arrays(
        observation.astype(np.float32), action, reward, observation.astype(np.float32), np.ones(rows, bool),
        mask=mask, next_mask=mask, num_actions=(3, 3), state=state, next_state=state, agents=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data() -> qdfm.Dataset:
    return team_data()


BETA = 2.0
GUIDED = {
    "hidden": (32, 32), "batch_size": 256, "warmup_steps": 500, "critic_steps": 500, "improve_steps": 1_000,
    "critics": 1, "pessimism": "mean", "critic_learning_rate": 5e-3, "target_rate": 0.05,
    "layer_norm": False, "learning_rate": 3e-3,
    "beta": BETA, "beta_scale": "none", "caution": 0.0, "support_share": 0.0, "samples": 64,
}  # fmt: skip


def kl_optimum(beta: float) -> np.ndarray:
    """μ exp(βr)/C `[2, 3, 3]` by the hidden bit, for the uniform behaviour over what is legal."""
    law = np.zeros((2, 3, 3))
    for bit, i, j in product(range(2), range(3), range(2)):
        law[bit, i, j] = np.exp(beta * (i == bit and j == bit))
    return law / law.sum((1, 2), keepdims=True)


@pytest.mark.parametrize("mixing", ["none", "qmix"])
def test_guidance_by_the_teams_value_finds_the_coordinated_action(data, mixing):
    agent = qdfm.QDFM(**GUIDED, execution="centralised", steps=20, mixing=mixing).fit(data, progress=False)
    seen = np.array([[[0.0], [0.0]], [[1.0], [1.0]]], np.float32)
    mask = np.ones((2, 2, 3), bool)
    mask[:, 1, 2] = False
    law = np.asarray(agent.action_probabilities(seen, mask=mask))
    assert law[:, :, 2].max() == 0
    np.testing.assert_allclose(law, kl_optimum(BETA), atol=0.06)


def test_decentralised_agents_reach_the_marginals_of_the_optimum(data):
    config = qdfm.QDFM(**GUIDED)
    resolved = config.resolve(data.spec)
    assert (resolved.execution, resolved.endpoints) == ("decentralised", "data")
    agent = config.fit(data, progress=False)
    seen = np.array([[[0.0], [0.0]], [[1.0], [1.0]]], np.float32)
    mask = np.ones((2, 2, 3), bool)
    mask[:, 1, 2] = False
    law = np.asarray(agent.action_probabilities(seen, mask=mask))
    best = kl_optimum(BETA)
    np.testing.assert_allclose(law, np.einsum("bi,bj->bij", best.sum(2), best.sum(1)), atol=0.06)


def test_cloning_apart_gives_marginals_and_together_the_joint_law():
    """Two agents that mostly agree: 3/8 each for (0, 0) and (1, 1), 1/8 each for the rest."""
    pairs = np.repeat([[0, 0], [1, 1], [0, 1], [1, 0]], [300, 300, 100, 100], axis=0)
    seen, ends = np.zeros((len(pairs), 2, 1), np.float32), np.ones(len(pairs), bool)
    data = qdfm.Dataset.from_arrays(seen, pairs, np.zeros(len(pairs)), seen, ends, num_actions=(2, 2), agents=2)
    small = {"hidden": (32,), "learning_rate": 3e-3}
    apart = qdfm.BC(clone_steps=500, **small).fit(data, progress=False).action_probabilities(seen[0])
    np.testing.assert_allclose(apart, np.full((2, 2), 0.25), atol=0.02)
    flow = qdfm.QDFM(warmup_steps=1_500, critic_steps=0, improve_steps=0, execution="centralised", steps=20, **small)
    joint = flow.fit(data, progress=False).action_probabilities(seen[0])
    np.testing.assert_allclose(joint, [[0.375, 0.125], [0.125, 0.375]], atol=0.03)


def uneven_data(masked: bool) -> qdfm.Dataset:
    """Transitions whose every array is another: two agents with three and two choices, some rows that go on."""
    rng, n = np.random.default_rng(0), 12
    seen, then = rng.normal(size=(2, n, 2, 2)).astype(np.float32)
    action = np.stack([rng.integers(3, size=n), rng.integers(2, size=n)], 1)
    mask, next_mask = rng.random((2, n, 2, 3)) < 0.5
    mask[np.arange(n)[:, None], np.arange(2), action] = True
    next_mask[..., 0] = True
    ends = np.arange(n) % 4 == 3
    terminated, truncated = ends & (np.arange(n) < 8), ends & (np.arange(n) >= 8)
    data = qdfm.Dataset.from_arrays(
        seen, action, rng.normal(size=(n, 2)), then, terminated, truncated, num_actions=(3, 2), agents=2,
        preference=rng.dirichlet((1, 1), n),
    )  # fmt: skip
    # As they are, with flags of a third choice that the second agent does not have.
    return replace(data, mask=mask, next_mask=next_mask) if masked else data


@pytest.mark.parametrize("masked", [True, False])
def test_agents_apart_see_their_own_rows(masked):
    data = uneven_data(masked)
    rows = OwnRows(data)
    assert len(rows) == 24
    spec = rows.spec
    assert (spec.observation_shape, spec.choices, spec.categories) == ((3,), (3,), (0, 0, 2))
    assert (spec.agents, spec.objectives, spec.state_shape) == (1, 2, None)
    asked = np.random.default_rng(1).permutation(24)
    batch = rows[jnp.asarray(asked)]
    assert batch.spec == spec and batch.state is None and batch.next_state is None
    exists = [[True, True, True], [True, True, False]]
    for place, index in enumerate(asked):
        i, g = divmod(int(index), 2)
        due = {
            "observation": [*data.observation[i, g], g],
            "action": [data.action[i, g]],
            "reward": data.reward[i],
            "next_observation": [*data.next_observation[i, g], g],
            "terminated": i in (3, 7),
            "truncated": i == 11,
            "episode": i // 4,
            "mask": [[exists[g][k] and (not masked or bool(data.mask[i, g, k])) for k in range(3)]],
            "next_mask": [[exists[g][k] and (not masked or bool(data.next_mask[i, g, k])) for k in range(3)]],
            "preference": data.preference[i],
        }
        for field, value in due.items():
            np.testing.assert_array_equal(getattr(batch, field)[place], value, err_msg=f"{field} of row {index}")
    drawn = rows.sample(jax.random.key(0), 500)  # all rows of all agents, and no other
    known = {tuple(row) for row in np.asarray(batch.observation).tolist()}
    assert {tuple(row) for row in np.asarray(drawn.observation).tolist()} == known


def test_agents_apart_tilt_by_what_their_own_action_is_worth(data):
    """The others are part of the world: the first agent's fitting action pays 1/2 on average, the second's 1/3."""
    config = qdfm.QDFM(**GUIDED, mixing="apart")
    resolved = config.resolve(data.spec)
    assert (resolved.execution, resolved.endpoints, resolved.steps) == ("decentralised", "enumerated", 1)
    agent = config.fit(data, progress=False)
    seen = np.array([[[0.0], [0.0]], [[1.0], [1.0]]], np.float32)
    mask = np.ones((2, 2, 3), bool)
    mask[:, 1, 2] = False
    law = np.asarray(agent.action_probabilities(seen, mask=mask))
    first = np.exp(BETA * np.eye(3)[:2] / 2)
    second = np.exp(BETA * np.eye(3)[:2] / 3) * [1, 1, 0]
    exact = [v / v.sum(1, keepdims=True) for v in (first, second)]
    np.testing.assert_allclose(law, np.einsum("bi,bj->bij", *exact), atol=0.04)
    assert (agent.act(seen, mask=mask, greedy=True) == [[0, 0], [1, 1]]).all()


def test_refusals():
    single = Spec((3,), MultiDiscrete((2, 2)))
    for config, words in (
        (qdfm.QDFM(execution="decentralised"), "several agents"),
        (qdfm.QDFM(mixing="qmix"), "several agents"),
        (qdfm.QDFM(mixing="apart"), "several agents"),
    ):
        with pytest.raises(qdfm.QDFMError, match=words):
            config.resolve(single)
    with pytest.raises(qdfm.QDFMError, match="learn apart act by their laws"):
        qdfm.QDFM(mixing="apart", candidates=2).resolve(SPEC)
    with pytest.raises(qdfm.QDFMError, match='learn apart need execution="decentralised"'):
        qdfm.QDFM(mixing="apart", execution="centralised").resolve(SPEC)
    with pytest.raises(qdfm.QDFMError, match="together needs one token, enumerated endpoints"):
        qdfm.QDFM(together=True).resolve(SPEC)
    with pytest.raises(qdfm.QDFMError, match="leave backup and backup_samples out"):
        qdfm.QDFM(together=True, mixing="apart", backup="max").resolve(SPEC)
    with pytest.raises(qdfm.QDFMError, match="for decisions of one token"):
        qdfm.QDFM(conservatism=1.0).resolve(SPEC)
    for config in (qdfm.QDFM(rates="energy"), qdfm.QDFM(candidates=4)):
        with pytest.raises(qdfm.QDFMError, match='execution="centralised"'):
            config.resolve(SPEC)
    assert qdfm.QDFM(guidance="energy").resolve(SPEC).endpoints == "behaviour"
    with pytest.raises(qdfm.QDFMError, match="execution"):
        qdfm.QDFM(execution="alone").resolve(SPEC)
    several = qdfm.QDFM(candidates=4, execution="centralised").resolve(SPEC)
    assert several.state_size(SPEC) == 0  # no state is seen when agents act
    assert qdfm.QDFM().resolve(SPEC).state_size(SPEC) == STATE
