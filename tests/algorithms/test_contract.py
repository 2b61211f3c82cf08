"""The contract that every registered algorithm passes: fit, act, save, load, mask, determinism, vmap = loop.

QDFM passes it once more for teams, as agents that learn apart. Tests of one algorithm stay on one worker, where what is
compiled and fitted is used again.
"""

import dataclasses
from functools import cache

import jax
import numpy as np
import pytest
from scipy import stats

import qdfm
from qdfm.algorithms import ALGORITHMS, QDFM
from qdfm.algorithms.base import draw_preference
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.train import train

TINY = {"batch_size": 32, "hidden": (16, 16)}
TINIER = {"moduli": {"width": 8, "heads": 2, "depth": 1, "horizon": 3, "steps": 3}}
TEAM_KINDS = ("team", "stateless")
APART = "qdfm-apart"
CONFIGS: dict[str, qdfm.algorithms.Config] = {
    **{name: algorithm(**TINY, **TINIER.get(name, {})) for name, algorithm in ALGORITHMS.items()},
    APART: QDFM(mixing="apart", **TINY),
}


def random_data(kind: str) -> qdfm.Dataset:
    """Random transitions of three kinds of action: one choice, one with masks, two parts of unequal size with masks.

    The two kinds of teams have the last for two agents, with and without a global state.
    """
    rng = np.random.default_rng(0)
    n, k = 200, 5
    obs = rng.normal(size=(n, 2, 3) if kind in TEAM_KINDS else (n, 3))
    mask = next_mask = state = None
    if kind == "masked":
        mask = rng.random((n, k)) < 0.5
        action = rng.integers(k, size=n)
        mask[np.arange(n), action] = True
        next_mask = np.roll(mask, -1, 0)
    elif kind != "single":
        action = np.stack([rng.integers(3, size=n), rng.integers(2, size=n)], 1)
        mask = (rng.random((n, 2, 3)) < 0.5) & np.array([[True] * 3, [True, True, False]])
        mask[np.arange(n)[:, None], np.arange(2), action] = True
        next_mask = np.roll(mask, -1, 0)
        next_mask[np.arange(n) % 20 == 19] = False  # nothing is legal where an episode has ended
    else:
        action = rng.integers(k, size=n)
    reward = rng.normal(size=n)
    if kind == "team":
        state = rng.normal(size=(n, 4))
    return qdfm.Dataset.from_arrays(
        obs, action, reward, np.roll(obs, -1, 0), np.arange(n) % 20 == 19, mask=mask, next_mask=next_mask,
        num_actions=k if kind in ("single", "masked") else (3, 2), agents=2 if kind in TEAM_KINDS else 1,
        state=state, next_state=None if state is None else np.roll(state, -1, 0), preference=np.ones((n, 1)),
    )  # fmt: skip


def for_teams(name: str) -> bool:
    return CONFIGS[name].teams_only or name == APART


def kinds(name: str) -> tuple[str, ...]:
    """The kinds of data that an algorithm is for; the first is the plainest."""
    return TEAM_KINDS if for_teams(name) else ("single", "masked", "parts")


def tiny(name: str, steps: int = 100) -> qdfm.algorithms.Config:
    config = CONFIGS[name]
    counts = {f.name: steps for f in dataclasses.fields(config) if f.name.endswith("_steps")}
    return dataclasses.replace(config, **counts)


@cache
def fitted(name: str, kind: str, seed: int) -> qdfm.Agent:
    return tiny(name).fit(random_data(kind), seed=seed, progress=False)


def known(agent: qdfm.Agent, obs: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """What tells one agent from another: exact probabilities, or of a planner, which has none, what one seed draws."""
    if agent.config.preferences_only:
        return agent.act(obs, mask=mask, seed=0)
    return agent.action_probabilities(obs, mask=mask)


NAMES = list(CONFIGS)
CASES = [(name, kind) for name in NAMES for kind in kinds(name)]
EXACT_NAMES = [name for name in NAMES if not CONFIGS[name].preferences_only]
EXACT_CASES = [(name, kind) for name, kind in CASES if name in EXACT_NAMES]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_fit_act_save_load(name, kind, tmp_path):
    data = random_data(kind)
    agent, other = fitted(name, kind, 1), fitted(name, kind, 2)
    again = tiny(name).fit(data, seed=1, progress=False)
    obs = np.asarray(data.observation[:50])
    mask = None if data.mask is None else np.asarray(data.mask[:50])
    exact = not CONFIGS[name].preferences_only
    p = known(agent, obs, mask)
    if exact:
        shape = (5,) if kind in ("single", "masked") else (3, 2)
        assert p.shape == (50, *shape)
        np.testing.assert_allclose(p.reshape(50, -1).sum(1), 1, atol=1e-5)
    else:
        with pytest.raises(qdfm.QDFMError, match="no exact action probabilities"):
            agent.action_probabilities(obs, mask=mask)
    np.testing.assert_array_equal(p, known(again, obs, mask))
    assert not np.array_equal(p, known(other, obs, mask))
    actions = agent.act(obs, mask=mask, seed=3)
    np.testing.assert_array_equal(actions, again.act(obs, mask=mask, seed=3))
    tokens = actions.reshape(50, -1)
    assert (tokens >= 0).all()
    assert (tokens < np.asarray(data.spec.choices)).all()
    if mask is not None:
        legal = mask[:, 0] if kind == "masked" else mask[:, 0, :, None] & mask[:, 1, None, :2]
        assert not exact or (p[~legal] == 0).all()
        assert np.take_along_axis(mask, tokens[..., None], 2).all()
    agent.save(tmp_path / "agent.safetensors")
    loaded = qdfm.load(tmp_path / "agent.safetensors")
    assert loaded.config == agent.config
    assert loaded.spec == agent.spec
    np.testing.assert_array_equal(p, known(loaded, obs, mask))


@pytest.mark.parametrize(("name", "kind"), EXACT_CASES)
def test_draws_follow_the_probabilities(name, kind):
    data, agent = random_data(kind), fitted(name, kind, 1)
    obs = np.asarray(data.observation[0])
    mask = None if data.mask is None else np.asarray(data.mask[0])
    p = agent.action_probabilities(obs, mask=mask).reshape(-1).astype(np.float64)
    n = 20_000
    actions = agent.act(np.repeat(obs[None], n, 0), mask=mask, seed=0).reshape(n, -1)
    index = np.ravel_multi_index(tuple(actions.T), data.spec.choices)
    counts = np.bincount(index, minlength=p.size)
    assert counts[p == 0].sum() == 0
    likely = p * n >= 5
    if likely.sum() < 2:
        assert counts[likely].sum() >= n - 5 * (p[~likely].sum() * n + 1)
        return
    observed = np.append(counts[likely], counts[~likely].sum())
    expected = np.append(p[likely], p[~likely].sum()) * n
    keep = expected > 0
    expected = expected[keep] * observed[keep].sum() / expected[keep].sum()
    assert stats.chisquare(observed[keep], expected).pvalue > 1e-4


@pytest.mark.parametrize("name", EXACT_NAMES)
def test_greedy_takes_the_most_likely_action(name):
    data, agent = random_data(kinds(name)[0]), fitted(name, kinds(name)[0], 1)
    obs = np.asarray(data.observation[:50])
    best = agent.action_probabilities(obs).reshape(50, -1).argmax(1)
    greedy = agent.act(obs, greedy=True).reshape(50, -1)
    np.testing.assert_array_equal(np.ravel_multi_index(tuple(greedy.T), data.spec.choices), best)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_side_by_side_are_the_seeds_alone(name):
    kind = kinds(name)[0]
    together = train(tiny(name), random_data(kind), seeds=(1, 2), progress=False)
    for seed, agent in zip((1, 2), together, strict=True):
        alone = fitted(name, kind, seed)
        for a, b in zip(jax.tree.leaves(agent.policy), jax.tree.leaves(alone.policy), strict=True):
            # In a team the best joint action of a row may change by rounding where two are nearly as good.
            np.testing.assert_allclose(a, b, atol=5e-5 if for_teams(name) else 1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": "softplus", "loss": "l2", "steps": 4, "endpoints": "behaviour", "samples": 4},
        {"rates": "softplus", "loss": "kl", "steps": 4, "time_weight": "squared", "source": "mask", "backup": "soft"},
        {"loss": "kl", "steps": 3, "endpoints": "model", "samples": 4, "renew_every": 5, "beta_scale": "share"},
        {"loss": "l2", "steps": 3, "diagonal": False, "backup": "mean", "critics": 4, "pessimism": "mean-std"},
        {"objective": "literal", "samples": 4, "steps": 3, "time_weight": "squared", "beta_scale": "none"},
        {"objective": "literal", "samples": 4, "steps": 3, "endpoints": "behaviour", "backup_samples": 3},
        {"source": "mask", "steps": 2, "time_weight": "inverse", "critic": "scalarised", "layer_norm": True},
        {"behaviour": "network", "warmup_endpoint": "behaviour", "act_start": "behaviour", "improve_start": "data"},
        {"members": 2, "decay": True, "steps": 3},
    ],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_every_switch_of_qdfm_trains_on_one_token(changes):
    data = random_data("masked")
    agent = dataclasses.replace(tiny("qdfm", steps=20), **changes).fit(data, progress=False)
    mask = np.asarray(data.mask[:20])
    p = agent.action_probabilities(np.asarray(data.observation[:20]), mask=mask)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert (p[~mask[:, 0]] == 0).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": "softplus", "loss": "kl", "steps": 4, "source": "uniform"},
        {"endpoints": "model", "samples": 4, "renew_every": 5, "source": "uniform", "steps": 4},
        {"endpoints": "data", "samples": 4},
        {"members": 2, "decay": True, "endpoints": "model", "samples": 4},
        {"rates": "energy"},
        {"rates": "diffuse", "loss": "kl"},
        {"objective": "literal", "samples": 4, "backup": "boltzmann", "critics": 2, "pessimism": "min"},
    ],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_every_switch_of_qdfm_trains_on_two_tokens(changes):
    data = random_data("parts")
    agent = dataclasses.replace(tiny("qdfm", steps=20), **changes).fit(data, progress=False)
    p = agent.action_probabilities(np.asarray(data.observation[:20]))
    assert p.shape == (20, 3, 2)
    np.testing.assert_allclose(p.sum((1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize("name", EXACT_NAMES)
def test_two_objectives_and_a_preference(name):
    """Two arms, each good for one objective: the preference says which, to all but behaviour cloning.

    In a team each of two agents has such arms and earns half.
    """
    n = 64
    obs, arm = np.zeros((n, 2)), np.arange(n) % 2
    data = qdfm.Dataset.from_arrays(obs, arm, np.eye(2)[arm], obs, np.ones(n), num_actions=2)
    if for_teams(name):
        obs, arms = np.zeros((n, 2, 1)), np.stack([arm, np.arange(n) // 2 % 2], 1)
        reward = np.eye(2)[arms].mean(1)
        data = qdfm.Dataset.from_arrays(obs, arms, reward, obs, np.ones(n), num_actions=(2, 2), agents=2)
    config = dataclasses.replace(tiny(name, steps=300), learning_rate=3e-3)
    if hasattr(config, "critic_learning_rate"):
        config = dataclasses.replace(config, critic_learning_rate=3e-3)
    if name == "omiga":  # by default its penalty is large for such small rewards; all it learns follows the target
        config = dataclasses.replace(config, alpha=0.1, target_rate=0.05)
    agent = config.fit(data, progress=False)
    first, second = (agent.action_probabilities(obs[0], preference=w) for w in ([1, 0], [0, 1]))
    if data.spec.agents > 1:
        first, second = first.diagonal(), second.diagonal()
    if name == "bc":
        np.testing.assert_allclose(first, second, atol=0.1)
    else:
        assert first[0] > 0.55
        assert second[-1] > 0.55
    with pytest.raises(qdfm.QDFMError, match="2 objectives"):
        agent.act(obs)


def test_a_fixed_preference(tmp_path):
    """Two arms, each good for one objective: an agent trained for one preference needs to be told none."""
    n = 64
    obs, arm = np.zeros((n, 2)), np.arange(n) % 2
    data = qdfm.Dataset.from_arrays(obs, arm, np.eye(2)[arm], obs, np.ones(n), num_actions=2)
    for preference, best in (((0.8, 0.2), 0), ((0.2, 0.8), 1)):
        config = dataclasses.replace(tiny("cql", steps=500), preference=preference, critic_learning_rate=3e-3)
        agent = config.fit(data, progress=False)
        agent.save(tmp_path / "agent.safetensors")
        for held in (agent, qdfm.load(tmp_path / "agent.safetensors")):
            assert held.act(obs[0], greedy=True) == best
            assert held.act(obs[0], preference=preference, greedy=True) == best
            with pytest.raises(qdfm.QDFMError, match="only; leave preference out"):
                held.act(obs[0], preference=[0.5, 0.5])
    with pytest.raises(qdfm.QDFMError, match="does not sum to 1"):
        dataclasses.replace(tiny("cql"), preference=(1.0, 1.0)).fit(data, progress=False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rates": "sofplus"}, "did you mean 'softplus'"),
        ({"rates": "softplus"}, "cross_entropy needs posterior or energy"),
        ({"rates": "diffuse"}, "cross_entropy needs posterior or energy"),
        ({"act_start": "behaviour"}, "need behaviour="),
        ({"steps": 0}, "at least 1"),
        ({"alpha": 0.0}, "alpha"),
        ({"gamma": 1.5}, "gamma"),
        ({"beta": -1.0}, "beta"),
        ({"batch_size": 0}, "batch_size"),
        ({"ema": 1.0}, "ema"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"share_target": 0.0}, "share_target"),
        ({"caution": np.nan}, "caution is nan; give a finite number"),
        ({"learning_rate": np.inf}, "learning_rate is inf; give a finite number"),
        ({"preference": (np.nan, 1.0)}, "preference is nan; give a finite number"),
        ({"alpha": None}, "alpha is None; give a finite number"),
        ({"warmup_steps": 2.5}, "warmup_steps is 2.5; give a whole number"),
        ({"hidden": (8.5,)}, "hidden is 8.5; give a whole number"),
        ({"batch_size": True}, "batch_size is True; give a whole number"),
        ({"averaged": 1}, "averaged is 1; give True or False"),
        ({"rates": 3}, "rates is 3; give a word"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes, says):
    with pytest.raises(qdfm.QDFMError, match=says):
        QDFM(**changes).fit(random_data("single"), progress=False)


def test_settings_of_other_types_with_the_same_meaning():
    """They give the same config, and so the same compiled code and the same run."""
    plain = QDFM(hidden=(64,), batch_size=1000, preference=(0.5, 0.5), steps=3)
    for hidden in (64, [64], np.array([64]), (64.0,)):
        same = QDFM(hidden=hidden, batch_size=1e3, preference=np.array([0.5, 0.5]), steps=np.int64(3))
        assert same == plain and hash(same) == hash(plain) and repr(same) == repr(plain)


@pytest.mark.parametrize("name", ["qdfm", "bc", "greedyq"])
def test_more_joint_actions_than_can_be_enumerated(name):
    """A flow, a policy and a value method; 4**7 joint actions are trained on and drawn from, not listed."""
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(50, 2)), rng.integers(4, size=(50, 7))
    data = qdfm.Dataset.from_arrays(obs, action, np.zeros(50), obs, np.ones(50), num_actions=(4,) * 7)
    agent = tiny(name, steps=3).fit(data, progress=False)
    assert agent.act(obs).shape == (50, 7)
    assert agent.act(obs, greedy=True).shape == (50, 7)
    with pytest.raises(qdfm.QDFMError, match="draw samples"):
        agent.action_probabilities(obs)


def test_preferences_are_uniform_but_for_their_corners():
    spec, key = Spec((1,), Discrete(2), objectives=3), jax.random.key(0)
    rows = dataclasses.replace(random_data("single"), reward=np.zeros((40_000, 3)))
    plain, cornered = (draw_preference(qdfm.BC(corners=share), spec, key, rows) for share in (0.0, 0.3))
    np.testing.assert_allclose(plain.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(np.mean(plain**2, 0), 1 / 6, atol=0.005)  # Dirichlet(1) of three: 2 / (3 · 4)
    alone = np.asarray(cornered).max(1) == 1
    assert abs(alone.mean() - 0.3) < 0.01 and not (np.asarray(plain).max(1) == 1).any()
    np.testing.assert_allclose(np.asarray(cornered)[alone].mean(0), 1 / 3, atol=0.01)
    uniform = np.asarray(draw_preference(qdfm.BC(), spec, jax.random.split(key, 3)[0], rows))  # what corners replace
    np.testing.assert_array_equal(np.asarray(cornered)[~alone], uniform[~alone])
    with pytest.raises(qdfm.QDFMError, match=r"corners is 1\.5; it must lie between 0 and 1"):
        qdfm.BC(corners=1.5).resolve(spec)
