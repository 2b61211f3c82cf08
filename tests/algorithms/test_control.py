"""What quantised control adds: bins by value, cautious guidance, weights by row, the best of n, shared phases."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.algorithms import BoltzBC, learner
from qdfm.algorithms.guidance import effective_share, share_of, tilt
from qdfm.algorithms.guidedcritic import Support, drawn_support, guiding_values
from qdfm.algorithms.qdfm_phases import Phases
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.train import branching, train
from qdfm.valuenets import Critic

TINY = qdfm.QDFM(hidden=(16,), batch_size=32, warmup_steps=60, critic_steps=60, improve_steps=40, samples=4)
BINS = qdfm.Bins(((-1.0, 0.0, 1.0), (0.0, 0.5, 2.0)))


@pytest.fixture(scope="module")
def data() -> qdfm.Dataset:
    rng = np.random.default_rng(0)
    seen, then = rng.standard_normal((2, 300, 2)).astype(np.float32)
    action = rng.choice([-1.0, 0.0, 1.0], (300, 2)) * [1, 0.5] + [0, 0.5]
    return qdfm.Dataset.from_arrays(seen, action, action[:, 0] + seen[:, 0], then, rng.random(300) < 0.1, actions=BINS)


@pytest.fixture(scope="module")
def finish(data):
    return branching(TINY, data, shared=2, seeds=(3, 5), progress=False)


def test_levels_run_from_the_least_to_the_most_and_names_have_none():
    spec = Spec((2,), qdfm.Bins(((-1.0, 0.0, 1.0), (0.0, 2.0))))
    np.testing.assert_allclose(spec.levels, [[-1, 0, 1], [-1, 1, 0]])
    assert Spec((2,), Discrete(3)).levels is None


def test_a_critic_reads_bins_by_value_so_that_finer_bins_change_nothing():
    x, key = jnp.ones((1, 2)), jax.random.key(0)
    coarse, fine = (Spec((2,), qdfm.Bins((tuple(np.linspace(-1, 1, n)),) * 2)) for n in (3, 5))
    values = [
        Critic(spec, (8, 8), 2, True, True, False, key).values(x, jnp.asarray(actions)[None])[..., 0]
        for spec, actions in ((coarse, [[0, 1], [2, 2]]), (fine, [[0, 2], [4, 4]]))
    ]
    np.testing.assert_allclose(*values, rtol=1e-6)
    assert np.ptp(values[0][0, 0, 0]) > 1e-3  # it does see the action


def test_what_is_left_open_depends_on_the_kind_of_actions():
    codebook = qdfm.Codebook(((0.0, 1.0), (1.0, 0.0), (1.0, 1.0)))
    for space, sturdy in ((Discrete(3), False), (codebook, True), (BINS, True)):
        for config in (qdfm.QDFM(), BoltzBC()):
            found = config.resolve(Spec((2,), space))
            expected = ("mean", "share", 2, 4, "mean-std") if sturdy else ("boltzmann", "mean_abs", 0, 2, "min")
            assert (found.backup, found.beta_scale, found.caution, found.critics, found.pessimism) == expected
            asked = replace(config, beta=3.0).resolve(Spec((2,), space))
            assert (asked.beta, asked.beta_scale) == (
                3,
                "mean_abs",
            )  # a strength that is given is not left without effect
            assert found.beta == (None if sturdy else 10)
    with pytest.raises(qdfm.QDFMError, match=r"beta=3 would have no effect; leave beta out"):
        qdfm.QDFM(beta=3.0, beta_scale="share").resolve(Spec((2,), BINS))
    printed = qdfm.QDFM.paper().resolve(Spec((2,), codebook))
    assert (printed.backup, printed.beta_scale, printed.caution, printed.critics) == ("boltzmann", "none", 0, 1)


def test_cautious_values_by_hand():
    # Two critics that differ by 10 on the state, agree on the first action and disagree on the second.
    values = jnp.array([[1.0, 2.0, 0.0], [11.0, 16.0, 9.0]])[:, None, None, :, None]  # [E, B, T, M, objectives]
    net = SimpleNamespace(values=lambda x, actions: values)
    log_mu = jnp.log(jnp.array([[[0.5, 0.25, 0.25]]]))
    config = qdfm.QDFM(caution=2.0).resolve(Spec((1,), Discrete(3)))
    at = (config, Spec((1,), Discrete(3)), net, jnp.zeros((1, 1)), jnp.ones((1, 1)), Support(log_mu))
    # Means under μ: 1 and 11.75; advantages (0, 1, −1) and (−.75, 4.25, −2.75).
    np.testing.assert_allclose(guiding_values(*at)[0, 0], [-0.375 - 0.75, 2.625 - 3.25, -1.875 - 1.75], rtol=1e-6)
    plain = replace(config, caution=0.0, pessimism="mean-std")
    np.testing.assert_allclose(guiding_values(plain, *at[1:])[0, 0], [6 - 5, 9 - 7, 4.5 - 4.5], rtol=1e-6)


@pytest.mark.parametrize(("tokens", "choices"), [(2, 3), (1, 256)])
def test_compiled_cautious_values_of_many_rows(tokens, choices):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4, 2000, tokens, choices, 1)).astype(np.float32)
    mu = rng.dirichlet(np.ones(choices), (2000, tokens)).astype(np.float32)
    spec = Spec((1,), Discrete(3))
    config = qdfm.QDFM(caution=2.0).resolve(spec)

    def cautious(values, log_mu):
        net = SimpleNamespace(values=lambda x, actions: values)
        return guiding_values(config, spec, net, jnp.zeros((2000, 1)), jnp.ones((2000, 1)), Support(log_mu))

    each = values[..., 0].astype(np.float64)
    advantage = each - (mu * each).sum(-1, keepdims=True)
    expected = advantage.mean(0) - 2 * advantage.std(0)
    np.testing.assert_allclose(jax.jit(cautious)(values, np.log(mu)), expected, rtol=1e-3, atol=1e-4)


def test_the_share_of_known_weights_is_the_effective_share():
    rng = np.random.default_rng(1)
    q = jnp.asarray(rng.standard_normal((5, 2, 4)))
    log_mu = jnp.log(jnp.asarray(rng.dirichlet(np.ones(4), (5, 2)))).at[0, 0, 0].set(-jnp.inf)
    log_mu = jax.nn.log_softmax(log_mu, -1)
    np.testing.assert_allclose(share_of(log_mu, tilt(log_mu, q, 1.5)), effective_share(log_mu, q, 1.5), rtol=1e-4)


@pytest.mark.parametrize("preference", [None, (1.0,)])
def test_cached_weights_are_those_of_the_rows(data, preference):
    config = replace(TINY, preference=preference, beta=3.0, beta_scale="none").resolve(data.spec)
    phases, normal = Phases(config, data.spec), data.normalised()
    state = phases.init(jax.random.key(0))
    cached = jax.jit(phases.rows.cache)(state, normal, jax.random.key(1))
    assert cached.actions.shape == (300, 4, 2) and cached.actions.dtype == jnp.int8
    rows = np.array([0, 17, 299])
    values = state.critic.learner.average.values(jnp.asarray(normal.observation)[rows], cached.actions[rows])
    each = np.asarray(values[:, :, 0, :, 0], np.float64)  # [E, rows, M]
    advantage = each - each.mean(-1, keepdims=True)
    w = np.exp(3 * (advantage.mean(0) - 2 * advantage.std(0)))
    np.testing.assert_allclose(cached.known.weights[rows], w / w.sum(-1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize(("choices", "kind"), [(127, "int8"), (128, "int16"), (32_767, "int16"), (32_768, "int32")])
def test_kept_actions_take_little_room_and_hold_every_choice(choices, kind):
    few = np.zeros((2, 2))
    data = qdfm.Dataset.from_arrays(few, few.astype(int), np.zeros(2), few, np.ones(2), num_actions=(choices, 2))
    phases = Phases(TINY.resolve(data.spec), data.spec)
    keys = jax.eval_shape(lambda: jax.random.key(0))
    kept = jax.eval_shape(phases.rows.cache_next, jax.eval_shape(phases.init, keys), data.normalised(), keys)
    assert (kept.dtype, kept.shape) == (kind, (2, 2, 2)) and np.iinfo(kept.dtype).max >= choices - 1


def test_weights_of_logged_actions_are_those_of_the_rows(data):
    config = replace(TINY, endpoints="data", beta=3.0, beta_scale="none").resolve(data.spec)
    phases, normal = Phases(config, data.spec), data.normalised()
    state = phases.init(jax.random.key(0))
    cached = jax.jit(phases.rows.cache)(state, normal, jax.random.key(1))
    assert cached.known.weights.shape == (300, 1)
    rows = np.array([0, 17, 299])
    both = np.concatenate([cached.actions[rows], np.asarray(data.action)[rows, None]], 1)
    values = state.critic.learner.average.values(jnp.asarray(normal.observation)[rows], jnp.asarray(both))
    each = np.asarray(values[:, :, 0, :, 0], np.float64)  # [E, rows, M + 1]
    advantage = each - each[..., :-1].mean(-1, keepdims=True)
    w = np.exp(3 * (advantage.mean(0) - 2 * advantage.std(0)))
    expected = np.minimum(w[:, -1] / w[:, :-1].mean(-1), 20)
    np.testing.assert_allclose(cached.known.weights[rows, 0], expected, rtol=1e-4)


@pytest.mark.parametrize("endpoints", ["enumerated", "data"])
def test_laws_kept_by_row_are_those_of_the_batch(endpoints):
    rng = np.random.default_rng(0)
    seen, then = rng.standard_normal((2, 50, 2))
    mask = rng.random((50, 5)) < 0.7
    action = rng.integers(5, size=50)
    mask[np.arange(50), action] = True
    one = qdfm.Dataset.from_arrays(
        seen, action, rng.random(50), then, np.zeros(50, bool), mask=mask, next_mask=mask, num_actions=5
    )
    config = replace(TINY, endpoints=endpoints, beta=3.0, beta_scale="none").resolve(one.spec)
    phases, normal = Phases(config, one.spec), jax.device_put(one.normalised())
    state, index = phases.init(jax.random.key(0)), jnp.array([3, 49, 0])
    at = (state, normal[index], jnp.ones((3, 1)), jax.random.key(2))
    kept, following = (
        jax.jit(make)(state, normal, jax.random.key(1)) for make in (phases.rows.cache, phases.rows.cache_next)
    )
    assert following.shape == (50, 1, 5) and kept.actions is None
    kept, following = jax.tree.map(lambda x: x[index], (kept, following))
    np.testing.assert_allclose(
        phases.rows.next_support(*at, following).log_mu, phases.rows.next_support(*at, None).log_mu, rtol=1e-5
    )
    if endpoints == "data":
        weight = phases.rows.logged_weight(*at, kept)
        np.testing.assert_allclose(weight, phases.rows.logged_weight(*at, None), rtol=1e-5)
    else:
        for known, found in zip(
            phases.rows.weighted(*at, kept, None), phases.rows.weighted(*at, None, None), strict=True
        ):
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), known, found)


def test_laws_by_row_are_kept_where_they_fit_and_are_asked_for_often_enough():
    rng = np.random.default_rng(0)
    one = qdfm.Dataset.from_arrays(
        np.zeros((50, 2)),
        rng.integers(5, size=50),
        rng.random(50),
        np.zeros((50, 2)),
        np.zeros(50, bool),
        num_actions=5,
    )
    rows = Phases(replace(TINY, batch_size=10).resolve(one.spec), one.spec).rows
    assert rows.keeps_laws(one, 5) and not rows.keeps_laws(one, 4)
    many = replace(one, reward=np.broadcast_to(np.float32(0), (2**30 // 20 + 1, 1)))
    assert not rows.keeps_laws(many, 2**30)


def test_several_objectives_leave_the_weights_to_the_batch():
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((40, 2))
    both = qdfm.Dataset.from_arrays(
        seen, rng.integers(3, size=(40, 2)), rng.random((40, 2)), seen, np.zeros(40, bool), num_actions=(3, 3)
    )
    for preference, known in ((None, False), ((0.5, 0.5), True)):
        phases = Phases(replace(TINY, preference=preference).resolve(both.spec), both.spec)
        cached = phases.rows.cache(phases.init(jax.random.key(0)), jax.device_put(both.normalised()), jax.random.key(1))
        assert (cached.known is not None) == known


@pytest.mark.parametrize("endpoints", ["behaviour", "data"])
def test_a_flow_that_is_not_guided_stays_what_it_was(data, finish, endpoints):
    warm, left_out, given = (
        finish(replace(TINY, endpoints=endpoints, **changes))[0].policy
        for changes in ({"improve_steps": 0}, {"worthwhile": 1e6}, {"worthwhile": 1e-9})
    )
    jax.tree.map(np.testing.assert_array_equal, left_out, warm)
    moved = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(warm), strict=True)]
    assert max(moved) > 1e-3
    for wrong in ({"worthwhile": -1.0}, {"worthwhile": 0.1, "gamma": 1.0}):
        with pytest.raises(qdfm.QDFMError, match="worthwhile"):
            replace(TINY, **wrong).resolve(data.spec)


def test_averaged_actions_are_means_of_the_law(data, finish):
    """Beside the mean of the exact law of a chain of many steps, by the network that guidance has trained."""
    one = finish(TINY)[0]
    mean = qdfm.Agent(replace(one.config, averaged=True), one.spec, one.policy)
    seen = np.asarray(data.observation[:5])
    law = qdfm.Agent(replace(one.config, steps=40), one.spec, one.policy).action_probabilities(seen)  # [5, 3, 3]
    values = np.array(BINS.values)
    exact = np.stack([law.sum(2) @ values[0], law.sum(1) @ values[1]], 1)
    found = mean.act(seen, greedy=True)
    np.testing.assert_allclose(found, exact, atol=0.1)
    np.testing.assert_array_equal(found, mean.act(seen, seed=3))  # nothing is drawn
    with pytest.raises(qdfm.QDFMError, match="has no exact action probabilities"):
        mean.action_probabilities(seen)
    mask = np.tile([True, False, True], (5, 2, 1))  # the mean of the outer two would be the one in the middle
    for acts in (mean.act(seen, mask=mask, greedy=True), mean.act(seen, mask=mask, seed=0)):
        assert np.isin(acts, [v[i] for v in BINS.values for i in (0, 2)]).all()


def test_the_mean_of_independent_tokens_by_hand(data, finish):
    """With one step the tokens are independent, and the mean is that of the exact law itself."""
    one = replace(TINY, steps=1, improve_steps=5).fit(data, progress=False)
    seen = np.asarray(data.observation[:5])
    law, values = one.action_probabilities(seen), np.array(BINS.values)
    exact = np.stack([law.sum(2) @ values[0], law.sum(1) @ values[1]], 1)
    mean = qdfm.Agent(replace(one.config, averaged=True), one.spec, one.policy)
    np.testing.assert_allclose(mean.act(seen), exact, atol=1e-5)


def test_the_mean_of_a_codebook_by_hand(data):
    book = qdfm.Codebook(((-1.0, 0.5), (0.0, 0.0), (0.25, -1.0), (1.0, 1.0)))
    actions = book.decode(np.arange(len(data))[:, None] % 4)
    told = qdfm.Dataset.from_arrays(
        np.asarray(data.observation), actions, np.asarray(data.reward), np.asarray(data.next_observation),
        np.asarray(data.terminated), actions=book,
    )  # fmt: skip
    small = {"hidden": (8,), "warmup_steps": 20, "critic_steps": 5, "improve_steps": 5, "batch_size": 16}
    one = qdfm.QDFM(**small).fit(told, progress=False)
    seen = np.asarray(told.observation[:5])
    mean = qdfm.Agent(replace(one.config, averaged=True), one.spec, one.policy)
    np.testing.assert_allclose(mean.act(seen), one.action_probabilities(seen) @ np.array(book.centres), atol=1e-5)


def test_averages_that_cannot_be_are_refused(data):
    for config, spec, sentence in (
        (replace(TINY, averaged=True, candidates=2), data.spec, "exclude each other"),
        (qdfm.QDFM(averaged=True), Spec((2,), Discrete(3)), "need actions that were continuous"),
        (qdfm.QDFM.paper(averaged=True), Spec((2,), qdfm.Bins(((-1.0, 0.0, 1.0),))), "need posterior or energy rates"),
    ):
        with pytest.raises(qdfm.QDFMError, match=sentence):
            config.resolve(spec)


def test_the_best_of_n_is_the_draw_with_the_largest_cautious_value(data, finish):
    agent = finish(replace(TINY, candidates=6))[0]
    flow, start, critic = agent.policy
    assert start is None
    algorithm = agent.compiled.algorithm
    single = replace(agent.config, candidates=1).build(data.spec)
    assert algorithm.noise == 6 * single.noise and algorithm.probs is None
    noise = jax.random.uniform(jax.random.key(0), (50, algorithm.noise))
    seen = jnp.asarray(data.normalised().observation)[:50]
    chosen, _ = algorithm.act(agent.policy, noise, seen, jnp.ones((50, 1)), None, None)
    slices = noise.reshape(50, 6, -1)
    draws = jnp.stack([single.act((flow, None, None), slices[:, i], seen, None, None, None)[0] for i in range(6)], 1)
    q = guiding_values(agent.config, data.spec, critic, seen, jnp.ones((50, 1)), drawn_support(draws))[:, 0]
    best = np.take_along_axis(np.asarray(draws), np.asarray(q).argmax(1)[:, None, None], 1)[:, 0]
    np.testing.assert_array_equal(chosen, best)
    assert (np.asarray(draws)[:, 0] != best).any()
    greedy = algorithm.act(agent.policy, noise, seen, None, None, None, greedy=True)[0]
    np.testing.assert_array_equal(greedy, single.act((flow, None, None), noise, seen, None, None, None, greedy=True)[0])
    with pytest.raises(qdfm.QDFMError, match="probabilities"):
        agent.action_probabilities(data.observation[0])


def test_a_branch_ends_where_a_run_of_its_own_does(data, finish):
    changed = replace(TINY, share_target=0.9, improve_steps=20)
    for config in (TINY, changed):
        for one, other in zip(finish(config), train(config, data, (3, 5), progress=False), strict=True):
            for mine, its in zip(jax.tree.leaves(one.policy), jax.tree.leaves(other.policy), strict=True):
                np.testing.assert_array_equal(mine, its)


def test_without_a_third_phase_a_branch_is_the_warmed_up_flow(data, finish):
    unguided = finish(replace(TINY, critic_steps=0, improve_steps=0))
    guided = finish(TINY)
    alone = train(replace(TINY, critic_steps=0, improve_steps=0), data, (3, 5), progress=False)
    for a, b, c in zip(unguided, alone, guided, strict=True):
        np.testing.assert_array_equal(jax.tree.leaves(a.policy)[0], jax.tree.leaves(b.policy)[0])
        assert not np.array_equal(jax.tree.leaves(a.policy)[0], jax.tree.leaves(c.policy)[0])


def test_values_in_units_of_the_returns_know_no_other_unit(data):
    """Rewards a thousand times as large give the same policy, since guidance by an effective share is relative too."""
    scaled, larger = replace(TINY, value_scale=True), replace(data, reward=1000 * np.asarray(data.reward))
    assert TINY.adapt(data) is data
    (scale,) = scaled.adapt(data).spec.normalisation.reward_scale
    assert scale == pytest.approx(data.value_scale(TINY.gamma) / 10)
    assert scaled.adapt(larger).spec.normalisation.reward_scale == (pytest.approx(1000 * scale),)
    one, same = (scaled.fit(logged, progress=False) for logged in (data, larger))
    for a, b in zip(jax.tree.leaves(one.policy), jax.tree.leaves(same.policy), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_the_literal_sum_is_over_the_endpoints_of_guidance_only():
    """Phase 1 has one start, time and endpoint for each row, as printed; phase 3 has M."""
    logged = qdfm.Dataset.from_arrays(np.zeros((8, 1)), np.arange(8) % 3, np.zeros(8), np.zeros((8, 1)), np.ones(8))
    config = qdfm.QDFM.paper(hidden=(8,), batch_size=8, samples=5).resolve(logged.spec)
    phases, rows = Phases(config, logged.spec), logged.normalised()
    for drawn, each in ((phases.draw_warmup, 1), (phases.draw_improve, 5)):
        lots = drawn(rows, None, jax.random.key(0)).lots
        assert lots.times.shape == (8, each) and lots.path.shape == (8, each, 1)


def test_the_literal_loss_of_phase_1_is_the_collapsed_one_where_a_chain_has_one_step():
    """All paths are at their start then, so that nothing is left to draw, and M does not matter."""
    logged = qdfm.Dataset.from_arrays(np.zeros((8, 1)), np.arange(8) % 3, np.zeros(8), np.zeros((8, 1)), np.ones(8))
    losses = []
    for objective, samples in (("literal", 5), ("literal", 1), ("collapsed", 5)):
        config = qdfm.QDFM.paper(hidden=(8,), batch_size=8, samples=samples, steps=1, objective=objective)
        phases, rows = Phases(config.resolve(logged.spec), logged.spec), logged.normalised()
        drawn = phases.draw_warmup(rows, None, jax.random.key(0))
        losses.append(float(phases.warmup(phases.init(jax.random.key(1)), drawn)[1]["loss"]))
    assert losses == pytest.approx([losses[-1]] * 3, rel=1e-5)


def test_members_are_trained_each_by_itself(data):
    """One step of three members is one step of each, with the same lots."""
    config = replace(TINY, members=3).resolve(data.spec)
    together, one = Phases(config, data.spec), Phases(replace(config, members=1), data.spec)
    rows, state, key = data.normalised(), together.init(jax.random.key(0)), jax.random.key(1)
    after, metrics = together.warmup(state, together.draw_warmup(rows, None, key))
    losses = []
    for i in range(3):
        net = jax.tree.map(lambda leaf, i=i: leaf[i], state.flow.net.members)
        alone = replace(one.init(jax.random.key(0)), flow=learner.start(net, config.flow_rate()))
        moved, measured = one.warmup(alone, one.draw_warmup(rows, None, key))
        losses.append(float(measured["loss"]))
        member = jax.tree.map(lambda leaf, i=i: leaf[i], after.flow.average.members)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), member, moved.flow.average)
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-4) and len(set(losses)) == 3
    with pytest.raises(qdfm.QDFMError, match="members is 0; it must be at least 1"):
        replace(TINY, members=0).resolve(data.spec)
