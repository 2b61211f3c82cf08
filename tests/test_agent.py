"""Agent: shapes, seeds, masks, preferences, exact probabilities against draws, and its file."""

import dataclasses
import pickle

import jax
import numpy as np
import pytest
from scipy import stats

import qdfm
from qdfm import checkpoint
from qdfm.agent import Agent
from qdfm.algorithms import BC, QDFM, Config
from qdfm.data.actions import Discrete, MultiDiscrete
from qdfm.data.spec import Normalisation, Spec
from qdfm.errors import QDFMError

DRAWS = 20_000
SINGLE = Spec((3,), Discrete(5))
PARTS = Spec((3,), MultiDiscrete((4, 2)))
TWO = Spec((3,), Discrete(5), objectives=2)
OBSERVATION = np.array([0.5, -1.0, 2.0])
BATCH = np.random.default_rng(7).normal(size=(6, 3))


def untrained(config: Config, spec: Spec, seed: int = 0) -> Agent:
    """An agent with random weights, larger than fresh ones, so that its probabilities differ clearly."""
    config = config.resolve(spec)
    algorithm = config.build(spec)
    policy = algorithm.policy(algorithm.init(jax.random.key(seed)))
    rng = np.random.default_rng(seed)
    policy = jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(x.dtype), policy)
    return Agent(config, spec, policy)


@pytest.fixture(scope="module")
def agent() -> Agent:
    return untrained(QDFM(hidden=(16,)), SINGLE)


@pytest.fixture(scope="module")
def parts() -> Agent:
    return untrained(QDFM(hidden=(16,)), PARTS)


@pytest.fixture(scope="module")
def two() -> Agent:
    return untrained(QDFM(hidden=(16,)), TWO)


def fits(counts: np.ndarray, law: np.ndarray) -> bool:
    """Whether counts can be draws from a law, by the χ² test at 10⁻⁴."""
    counts, law = counts.ravel(), np.asarray(law, np.float64).ravel()
    rare = law * counts.sum() < 5
    pooled = np.append(law[~rare], law[rare].sum())
    seen = np.append(counts[~rare], counts[rare].sum())
    keep = pooled > 0
    expected = counts.sum() * pooled[keep] / pooled[keep].sum()
    return bool(seen[~keep].sum() == 0 and stats.chisquare(seen[keep], expected).pvalue > 1e-4)


def drawn(agent: Agent, shape: tuple[int, ...], **options) -> np.ndarray:
    """Counts of many draws at one observation."""
    actions = agent.act(np.tile(OBSERVATION, (DRAWS, 1)), seed=11, **options).reshape(DRAWS, -1)
    counts = np.zeros(shape, int)
    np.add.at(counts, tuple(actions.T), 1)
    return counts


# Acting


def test_one_observation_or_a_batch(agent):
    one, many = agent.act(OBSERVATION), agent.act(BATCH)
    assert one.shape == ()
    assert many.shape == (6,)
    assert np.issubdtype(many.dtype, np.integer)
    assert agent.act(BATCH[:1]).shape == (1,)
    assert agent.action_probabilities(OBSERVATION).shape == (5,)
    p = agent.action_probabilities(BATCH)
    assert p.shape == (6, 5)
    for row, observation in zip(p, BATCH, strict=True):
        np.testing.assert_allclose(row, agent.action_probabilities(observation), atol=1e-6)


def test_decisions_of_two_unequal_parts(parts):
    assert parts.act(OBSERVATION).shape == (2,)
    actions = parts.act(np.tile(OBSERVATION, (500, 1)))
    assert actions.shape == (500, 2)
    assert set(actions[:, 0]) == {0, 1, 2, 3}
    assert set(actions[:, 1]) == {0, 1}
    p = parts.action_probabilities(OBSERVATION)
    assert p.shape == (4, 2)
    assert parts.act(BATCH, greedy=True).shape == (6, 2)
    assert (parts.act(BATCH, greedy=True)[:, 1] < 2).all()


def test_a_seed_reproduces_the_draw_and_no_seed_moves_on(agent):
    many = np.tile(OBSERVATION, (100, 1))
    np.testing.assert_array_equal(agent.act(many, seed=3), agent.act(many, seed=3))
    assert not np.array_equal(agent.act(many, seed=3), agent.act(many, seed=4))
    assert not np.array_equal(agent.act(many), agent.act(many))
    singles = [int(agent.act(OBSERVATION)) for _ in range(60)]
    assert len(set(singles)) > 1


def test_a_generator_per_row_draws_for_its_row_alone(agent):
    many = np.tile(OBSERVATION, (100, 1))
    together = agent.act(many, seed=[np.random.default_rng(i) for i in range(100)])
    reversed_ = agent.act(many, seed=[np.random.default_rng(i) for i in reversed(range(100))])
    np.testing.assert_array_equal(together, reversed_[::-1])
    assert [int(agent.act(OBSERVATION, seed=i)) for i in range(5)] == together[:5].tolist()
    assert len(set(together.tolist())) > 1
    with pytest.raises(QDFMError, match="There are 1 generators for 100 rows"):
        agent.act(many, seed=[np.random.default_rng(0)])
    with pytest.raises(QDFMError, match=r"The seeds are \[1, 2\]; give one whole number, or a NumPy generator per row"):
        agent.act(many[:2], seed=[1, 2])


def test_agents_of_one_seed_move_on_alike(agent):
    many = np.tile(OBSERVATION, (100, 1))
    a, b, c = (Agent(agent.config, agent.spec, agent.policy, seed) for seed in (1, 1, 2))
    first = a.act(many)
    np.testing.assert_array_equal(first, b.act(many))
    b.act(many, seed=9)  # a seeded draw leaves the agent's own generator alone
    np.testing.assert_array_equal(a.act(many), b.act(many))
    assert not np.array_equal(first, c.act(many))


def test_greedy_is_the_most_likely_action(agent):
    observations = np.random.default_rng(0).normal(size=(200, 3))
    best = agent.action_probabilities(observations).argmax(1)
    np.testing.assert_array_equal(agent.act(observations, greedy=True), best)
    assert len(set(best)) > 1


# Probabilities


def test_draws_follow_the_probabilities(agent):
    law = agent.action_probabilities(OBSERVATION)
    assert law.sum() == pytest.approx(1, abs=1e-6)
    assert law.max() - law.min() > 0.05
    assert fits(drawn(agent, (5,)), law)
    assert not fits(drawn(agent, (5,)), np.roll(law, 1))  # the test can tell


def test_draws_of_two_parts_follow_the_joint_probabilities(parts):
    law = parts.action_probabilities(OBSERVATION)
    assert law.sum() == pytest.approx(1, abs=1e-6)
    counts = drawn(parts, (4, 2))
    assert fits(counts, law)
    assert not fits(counts, np.roll(law, 1, axis=0))


def test_draws_of_the_papers_sampler_follow_its_probabilities():
    agent = untrained(QDFM.paper(hidden=(16,)), SINGLE)
    assert agent.compiled.algorithm.noise == 21  # the start and 20 Euler steps
    law = agent.action_probabilities(OBSERVATION)
    assert law.sum() == pytest.approx(1, abs=1e-5)
    counts = drawn(agent, (5,))
    assert fits(counts, law)
    assert not fits(counts, np.roll(law, 1))
    mask = np.array([True, False, True, True, False])
    law = agent.action_probabilities(OBSERVATION, mask=mask)
    assert (law[~mask] == 0).all()
    assert fits(drawn(agent, (5,), mask=mask), law)


def test_log_prob_is_the_logarithm_of_the_probability(agent, parts):
    p = agent.action_probabilities(BATCH)
    actions = np.array([0, 1, 2, 3, 4, 0])
    np.testing.assert_allclose(agent.log_prob(BATCH, actions), np.log(p[np.arange(6), actions]), atol=1e-6)
    assert agent.log_prob(OBSERVATION, 2) == pytest.approx(np.log(agent.action_probabilities(OBSERVATION)[2]))
    mask = [True, True, False, True, True]
    assert agent.log_prob(OBSERVATION, 2, mask=mask) == -np.inf
    q = parts.action_probabilities(OBSERVATION)
    assert parts.log_prob(OBSERVATION, [3, 1]) == pytest.approx(np.log(q[3, 1]), abs=1e-6)
    assert parts.log_prob(BATCH, np.tile([1, 0], (6, 1))).shape == (6,)


def test_log_prob_refuses_actions_that_are_none(agent, parts):
    for action in (5, -1, [0, 1]):
        with pytest.raises(QDFMError, match="does not fit 1 row"):
            agent.log_prob(OBSERVATION, action)
    with pytest.raises(QDFMError, match="does not fit"):
        parts.log_prob(OBSERVATION, [0, 2])  # a padded choice
    with pytest.raises(QDFMError, match="not a whole number"):
        agent.log_prob(OBSERVATION, 0.5)


# Masks


def test_one_mask_for_all_rows(agent):
    mask = np.array([True, False, True, False, True])
    free, p = agent.action_probabilities(BATCH), agent.action_probabilities(BATCH, mask=mask)
    assert (p[:, ~mask] == 0).all()
    # One evaluation of posterior rates: the legal choices keep their odds.
    np.testing.assert_allclose(p[:, mask], free[:, mask] / free[:, mask].sum(1, keepdims=True), atol=1e-6)
    assert fits(drawn(agent, (5,), mask=mask), agent.action_probabilities(OBSERVATION, mask=mask))
    for form in (mask.astype(np.int8), mask.tolist(), mask[None], mask[None, None]):
        np.testing.assert_array_equal(agent.action_probabilities(BATCH, mask=form), p)


def test_masks_are_given_at_every_call_since_an_agent_keeps_none():
    rng = np.random.default_rng(0)
    x, legal = rng.normal(size=(64, 3)), np.tile([True, True, False], (64, 1))
    data = qdfm.Dataset.from_arrays(
        x, rng.integers(2, size=64), np.zeros(64), x, np.ones(64), mask=legal, next_mask=legal, num_actions=3
    )
    agent = BC(clone_steps=200, hidden=(8,)).fit(data, progress=False)
    assert agent.action_probabilities(x[0], mask=legal[0])[2] == 0
    assert agent.action_probabilities(x[0])[2] > 0.05  # never seen, and never forbidden here
    for call in (agent.act, agent.action_probabilities):
        assert "every choice counts as legal" in " ".join(call.__doc__.split())


def test_a_mask_per_row(agent):
    mask = np.eye(5, dtype=bool)[[4, 3, 2, 1, 0, 2]]
    for options in ({"greedy": True}, {"seed": 0}, {}):
        np.testing.assert_array_equal(agent.act(BATCH, mask=mask, **options), [4, 3, 2, 1, 0, 2])
    np.testing.assert_allclose(agent.action_probabilities(BATCH, mask=mask), mask, atol=1e-6)


def test_masks_of_two_parts(parts):
    mask = np.array([[False, True, False, True], [True, False, True, True]])  # the padding is never legal
    actions = parts.act(np.tile(OBSERVATION, (200, 1)), mask=mask)
    assert set(actions[:, 0]) == {1, 3}
    assert set(actions[:, 1]) == {0}
    with pytest.raises(QDFMError, match="forbids every choice in row 0"):
        parts.act(OBSERVATION, mask=[[True] * 4, [False, False, True, True]])


def test_masks_that_make_no_sense(agent):
    with pytest.raises(QDFMError, match="forbids every choice in row 0"):
        agent.act(OBSERVATION, mask=np.zeros(5))
    mask = np.ones((6, 5), bool)
    mask[3] = False
    with pytest.raises(QDFMError, match="forbids every choice in row 3; allow at least one"):
        agent.action_probabilities(BATCH, mask=mask)
    with pytest.raises(QDFMError, match=r"shape \(4,\) but needs one flag per choice, \(6, 1, 5\)"):
        agent.act(BATCH, mask=np.ones(4))


# Observations and preferences


@pytest.mark.parametrize("shape", [(), (2,), (4,), (6, 4), (0, 4), (2, 6, 3)])
def test_observations_of_another_shape(agent, shape):
    with pytest.raises(QDFMError, match=r"trained on \(3,\) per row; give one such row, or a batch of shape \(n, 3\)"):
        agent.act(np.zeros(shape))


def test_a_batch_without_rows(agent):
    with pytest.raises(QDFMError, match="a batch without rows; give at least one"):
        agent.act(BATCH[:0])


def test_an_agent_is_printed_in_one_line(agent, parts, two):
    team = untrained(BC(hidden=(4,)), Spec((2, 3), MultiDiscrete((4, 4)), agents=2))
    for one, says in (
        (agent, "<qdfm.Agent qdfm: observations (3,), 5 actions, 1 objective>"),
        (parts, "<qdfm.Agent qdfm: observations (3,), 2 parts of (4, 2) choices, 1 objective>"),
        (two, "<qdfm.Agent qdfm: observations (3,), 5 actions, 2 objectives>"),
        (team, "<qdfm.Agent bc: observations (2, 3), 2 parts of 4 choices, 1 objective, 2 agents>"),
    ):
        assert repr(one) == says


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_observations_that_are_no_numbers(agent, bad):
    observation = BATCH.copy()
    observation[2, 1] = bad
    for call in (agent.act, agent.action_probabilities):
        with pytest.raises(QDFMError, match="NaN or infinite"):
            call(observation)


@pytest.mark.parametrize(
    ("bad", "says"),
    [("hello", "give numbers"), ({}, "give numbers"), ([[1.0, 2.0], [3.0]], "rows of different lengths")],
)
def test_observations_that_are_no_arrays(agent, bad, says):
    with pytest.raises(QDFMError, match=f"The observation has .*{says}"):
        agent.act(bad)


@pytest.fixture(scope="module")
def seer():
    """An agent of images, whose observations are bytes."""
    image = np.random.default_rng(0).integers(0, 256, (32, 4, 4), dtype=np.uint8)
    data = qdfm.Dataset.from_arrays(image, np.arange(32) % 3, np.zeros(32), image, np.ones(32))
    assert data.spec.observation_dtype == "uint8"
    return qdfm.BC(clone_steps=5, hidden=(8,)).fit(data, progress=False)


def test_bytes_of_any_type_are_the_same_observation(seer):
    image = np.random.default_rng(1).integers(0, 256, (4, 4), dtype=np.uint8)
    p = seer.action_probabilities(image)
    for same in (image.tolist(), image.astype(float), image.astype(np.int64)):
        np.testing.assert_array_equal(seer.action_probabilities(same), p)


@pytest.mark.parametrize("bad", [0.5, -1, 256, np.nan, np.inf])
def test_what_is_no_byte_is_refused_where_bytes_were_learned(seer, bad):
    with pytest.raises(QDFMError, match="no byte, 0 to 255"):
        seer.act(np.full((4, 4), bad))


def test_an_environment_of_numbers_is_refused_where_bytes_were_learned():
    image = np.zeros((8, 4), np.uint8)
    data = qdfm.Dataset.from_arrays(image, np.arange(8) % 2, np.zeros(8), image, np.ones(8))
    agent = qdfm.BC(clone_steps=2, hidden=(4,)).fit(data, progress=False)
    with pytest.raises(QDFMError, match="type uint8 but the environment's are of type float32"):
        qdfm.evaluate(agent, "CartPole-v1", episodes=1)


@pytest.mark.parametrize(
    ("mask", "says"), [([[1, 0], [1]], "different lengths"), (np.full(5, np.nan), "neither true nor false")]
)
def test_masks_that_are_none(agent, mask, says):
    with pytest.raises(QDFMError, match=f"The mask has .*{says}"):
        agent.act(OBSERVATION, mask=mask)


@pytest.mark.parametrize("seed", [-1, 1.5, 2**32, "a"])
def test_seeds_that_are_none(agent, seed):
    with pytest.raises(QDFMError, match="give a whole number from 0"):
        agent.act(OBSERVATION, seed=seed)
    with pytest.raises(QDFMError, match="give a whole number from 0"):
        qdfm.evaluate(agent, "multigoal-4", episodes=1, seed=seed)


def test_several_preferences_need_as_many_rows(two):
    for rows, given in ((5, 3), (1, 3)):
        with pytest.raises(QDFMError, match=f"There are {given} preferences for {rows} rows"):
            two.act(np.tile(OBSERVATION, (rows, 1)), preference=[[0.5, 0.5]] * given)
    many = np.tile(OBSERVATION, (5, 1))
    one = (two.act(many, preference=given, seed=0) for given in ([0.5, 0.5], [[0.5, 0.5]], [[0.5, 0.5]] * 5))
    np.testing.assert_array_equal(*(first := [next(one), next(one)]))
    np.testing.assert_array_equal(first[0], next(one))


def test_a_preference_decides(two):
    left, right = (two.action_probabilities(OBSERVATION, preference=w) for w in ([1, 0], [0, 1]))
    assert np.abs(left - right).max() > 0.01
    rows = two.action_probabilities(np.tile(OBSERVATION, (2, 1)), preference=[[1, 0], [0, 1]])
    np.testing.assert_allclose(rows, [left, right], atol=1e-6)


def test_eval_is_the_greedy_action_under_a_preference(two):
    for w in (np.array([1.0, 0.0]), np.array([0.3, 0.7])):
        assert two.eval(OBSERVATION, w) == two.action_probabilities(OBSERVATION, preference=w).argmax()


@pytest.mark.parametrize(
    ("preference", "says"),
    [
        (None, "preference over 2 objectives"),
        ([1.0], "has 1 entries but the reward has 2 objectives"),
        (1.0, "has 1 entries"),
        ([0.2, 0.3, 0.5], "has 3 entries"),
        ([-0.5, 1.5], "negative entry"),
        ([0.5, 0.6], "does not sum to 1"),
        ([np.nan, 1.0], "NaN or infinite"),
        (["a", "b"], "no list of numbers"),
    ],
)
def test_preferences_that_are_none(two, preference, says):
    for call in (two.act, two.action_probabilities):
        with pytest.raises(QDFMError, match=says):
            call(OBSERVATION, preference=preference)


def test_one_objective_needs_no_preference_and_takes_the_only_one(agent):
    p = agent.action_probabilities(OBSERVATION)
    np.testing.assert_array_equal(agent.action_probabilities(OBSERVATION, preference=[1.0]), p)
    with pytest.raises(QDFMError, match="does not sum to 1"):
        agent.act(OBSERVATION, preference=[0.5])


def test_raw_observations_are_normalised_before_the_network_sees_them():
    rng = np.random.default_rng(0)
    n = 128
    raw = rng.normal(size=(n, 3)) * [4.0, 0.5, 32.0] + [100.0, -2.0, 0.0]
    action = (raw[:, 0] > 100).astype(int) + (raw[:, 2] > 0)
    # Population moments, as (x − mean) / std over the observations of the data.
    mean, std = raw.mean(0), raw.std(0)
    z = (raw - mean) / std
    rest = (action, np.zeros(n), np.ones(n))
    config = BC(hidden=(16,), batch_size=32, clone_steps=50, learning_rate=1e-2, ema=0.9)
    a = config.fit(qdfm.Dataset.from_arrays(raw, rest[0], rest[1], raw, rest[2]), progress=False)
    b = config.fit(qdfm.Dataset.from_arrays(z, rest[0], rest[1], z, rest[2], normalise=False), progress=False)
    assert a.spec.normalisation != Normalisation()
    assert b.spec.normalisation == Normalisation()
    p = a.action_probabilities(raw)
    np.testing.assert_allclose(p, b.action_probabilities(z), atol=2e-3)
    np.testing.assert_array_equal(a.act(raw, seed=1), b.act(z, seed=1))
    assert p.max() - p.min() > 0.3


# Files


def test_saved_and_loaded(agent, two, parts, tmp_path):
    for name, one, options in (("a", agent, {}), ("b", two, {"preference": [0.4, 0.6]}), ("c", parts, {})):
        file = tmp_path / f"{name}.safetensors"
        one.save(file)
        loaded = qdfm.load(file)
        assert loaded.config == one.config
        assert loaded.spec == one.spec
        same = one.action_probabilities(BATCH, **options)
        np.testing.assert_array_equal(loaded.action_probabilities(BATCH, **options), same)
        np.testing.assert_array_equal(loaded.act(BATCH, seed=5, **options), one.act(BATCH, seed=5, **options))
        header = checkpoint.read_header(file, "agent")
        assert header["algorithm"] == "qdfm"
        assert header["config"]["hidden"] == [16]
        assert header["config"].keys() == {f.name for f in dataclasses.fields(QDFM)}
        assert header["spec"]["observation_shape"] == [3]
        assert header["spec"]["objectives"] == one.spec.objectives


def test_an_agent_can_be_sent_to_another_process(agent, parts):
    for one in (agent, parts):
        one.act(BATCH)  # its draws have moved on
        other = pickle.loads(pickle.dumps(one))
        assert (other.config, other.spec) == (one.config, one.spec)
        np.testing.assert_array_equal(other.action_probabilities(BATCH), one.action_probabilities(BATCH))
        many = np.tile(OBSERVATION, (100, 1))
        np.testing.assert_array_equal(other.act(many), one.act(many))


def test_normalisation_is_saved(tmp_path):
    norm = Normalisation((1.0, 2.0, 3.0), (0.5, 1.0, 2.0), (10.0,))
    agent = untrained(BC(hidden=(16,)), dataclasses.replace(SINGLE, normalisation=norm))
    agent.save(tmp_path / "x")
    loaded = qdfm.load(tmp_path / "x")
    assert loaded.spec.normalisation == norm
    plain = Agent(agent.config, SINGLE, agent.policy)
    same = plain.action_probabilities((BATCH - [1, 2, 3]) / [0.5, 1, 2])
    np.testing.assert_allclose(loaded.action_probabilities(BATCH), same, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"algorithm": "qdfn"}, "Unknown algorithm 'qdfn'; did you mean 'qdfm'"),
        ({"config": {"gamme": 1}}, "does not fit this qdfm"),
        ({"spec": {}}, "does not fit this qdfm"),
        ({"config": None}, "does not fit this qdfm"),
    ],
)
def test_a_header_that_is_not_understood(agent, tmp_path, change, says):
    header = {"algorithm": "qdfm", "config": dataclasses.asdict(agent.config), "spec": agent.spec.to_json()}
    checkpoint.write_tree(tmp_path / "x", "agent", agent.policy, {**header, **change})
    with pytest.raises(QDFMError, match=says):
        qdfm.load(tmp_path / "x")


def test_weights_of_another_size(agent, tmp_path):
    config = {**dataclasses.asdict(agent.config), "hidden": [17]}
    header = {"algorithm": "qdfm", "config": config, "spec": agent.spec.to_json()}
    checkpoint.write_tree(tmp_path / "x", "agent", agent.policy, header)
    with pytest.raises(QDFMError, match="does not hold the arrays"):
        qdfm.load(tmp_path / "x")


def test_a_policy_of_other_networks(agent):
    assert agent.config.steps == 1
    with pytest.raises(QDFMError, match="other networks than its settings ask for"):
        qdfm.Agent(dataclasses.replace(agent.config, steps=5), agent.spec, agent.policy)


def test_small_decisions_are_found_on_the_cpu_whatever_trains(agent, monkeypatch):
    """As if there were an accelerator: one row is answered by the CPU's copy of the weights, here another policy, and a
    batch by the weights where training left them."""
    one, many = agent.act(OBSERVATION, greedy=True), agent.act(BATCH, greedy=True)
    fresh, other = Agent(agent.config, agent.spec, agent.policy), untrained(agent.config, agent.spec, seed=5)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("qdfm.agent.HOST_WORK", 2 * sum(leaf.size for leaf in jax.tree.leaves(agent.policy)))
    assert fresh.act(OBSERVATION, greedy=True) == one
    for placed, leaf in zip(fresh._on_host, fresh._leaves, strict=True):
        assert placed.devices() == {jax.devices("cpu")[0]} and (placed == leaf).all()
    fresh._on_host = other._leaves
    assert [int(fresh.act(x, greedy=True)) for x in BATCH] == other.act(BATCH, greedy=True).tolist() != many.tolist()
    assert (fresh.act(BATCH, greedy=True) == many).all()


@pytest.mark.parametrize(
    ("config", "spec", "evaluations"),
    [
        (QDFM(), PARTS, (2, 2)),
        (QDFM(steps=7, candidates=3), PARTS, (21, 2)),
        (QDFM(rates="energy"), PARTS, (2 * 8, 2 * 8)),  # one for each of two tokens' four choices
        (QDFM(), SINGLE, (1, 1)),
        (QDFM(steps=7), SINGLE, (7, 7 * 5)),  # the most likely action of a chain is that of its exact law
        (BC(), PARTS, (1, 1)),
    ],
)
def test_the_work_of_a_decision_counts_evaluations(config, spec, evaluations):
    assert config.build(spec).evaluations == evaluations


def test_a_preference_that_is_asked_for_again_is_checked_once_and_a_changed_one_anew(two, monkeypatch):
    checked = []
    monkeypatch.setattr("qdfm.agent.check_preference", lambda w, n: checked.append(1) or np.asarray(w, np.float32))
    wanted = np.array([0.25, 0.75])
    fresh = Agent(two.config, two.spec, two.policy)
    laws = [fresh.action_probabilities(OBSERVATION, preference=wanted) for _ in range(3)]
    assert len(checked) == 1 and (laws[0] == laws[2]).all()
    wanted[:] = [0.75, 0.25]  # the same array with other numbers
    changed = fresh.action_probabilities(OBSERVATION, preference=wanted)
    assert len(checked) == 2
    np.testing.assert_array_equal(changed, two.action_probabilities(OBSERVATION, preference=[0.75, 0.25]))
    assert not np.allclose(changed, laws[0])


def test_an_agent_from_when_beta_stood_beside_the_share_is_read(tmp_path):
    """It had no effect then, and is left open now."""
    rng = np.random.default_rng(0)
    parts = qdfm.Dataset.from_arrays(
        rng.normal(size=(20, 2)), rng.integers(3, size=(20, 2)), np.zeros(20), rng.normal(size=(20, 2)), np.ones(20)
    )
    few = {"warmup_steps": 2, "critic_steps": 2, "improve_steps": 2}
    agent = qdfm.QDFM(hidden=(8,), batch_size=4, **few).fit(parts, progress=False)
    agent.save(tmp_path / "new.safetensors")
    settings = agent.config.described() | {"beta": 10.0}
    header = {"algorithm": settings.pop("algorithm"), "config": settings, "spec": agent.spec.to_json()}
    checkpoint.write_tree(tmp_path / "old.safetensors", "agent", agent.policy, header)
    old, new = (qdfm.load(tmp_path / f"{name}.safetensors") for name in ("old", "new"))
    assert old.config == new.config and old.config.beta is None
    np.testing.assert_array_equal(old.act(parts.observation, seed=1), new.act(parts.observation, seed=1))
