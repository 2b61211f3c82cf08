"""The critic: its backups against NumPy, and its fixed points against value iteration on a small MDP."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.algorithms import QDFM, guidedcritic
from qdfm.algorithms import critic as critics
from qdfm.algorithms.critic import expected, greedy_law, init_critic, preferred_values, scalarise, vector_values
from qdfm.algorithms.guidance import effective_share
from qdfm.algorithms.guidedcritic import (
    CriticState,
    GuidedConfig,
    Support,
    drawn_support,
    first_beta,
    fit_beta,
    promise,
    support_of,
    update_critic,
)
from qdfm.data.dataset import Dataset

STATES, ACTIONS, GAMMA, BETA = 6, 3, 0.8, 1.5


def backup(kind: str, q: jax.Array, omega: jax.Array, log_mu: jax.Array, beta: jax.Array) -> jax.Array:
    return guidedcritic.backup(kind, q, scalarise(q, omega), log_mu, beta)


def read(config: QDFM, values: jax.Array, omega: jax.Array) -> jax.Array:
    return critics.read(config, values, scalarise(values, omega))


def value(kind: str, q: np.ndarray, omega: np.ndarray, mu: np.ndarray, beta: float) -> np.ndarray:
    """The backup of one state, q `[M, objectives]`, from the definitions."""
    scalar = q @ omega
    if kind == "mean":
        return mu @ q
    if kind == "max":
        return q[np.argmax(np.where(mu > 0, scalar, -np.inf))]
    w = mu * np.exp(beta * (scalar - scalar.max()))
    tilted = w / w.sum()
    if kind == "boltzmann":
        return tilted @ q
    soft = np.log(mu @ np.exp(beta * scalar)) / beta
    return tilted @ q - (tilted @ scalar - soft)  # ⟨ω, V⟩ is the soft value


@pytest.mark.parametrize("kind", ["boltzmann", "soft", "mean", "max"])
@pytest.mark.parametrize("objectives", [1, 3])
def test_backup_is_its_formula(x64, kind, objectives):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(8, 5, objectives))
    mu = rng.dirichlet(np.ones(5), 8)
    omega = rng.dirichlet(np.ones(objectives), 8)
    args = jnp.asarray(q)[:, None], jnp.asarray(omega), jnp.log(jnp.asarray(mu))[:, None], jnp.asarray(BETA)
    got = np.asarray(backup(kind, *args))
    np.testing.assert_allclose(got, [value(kind, *row, BETA) for row in zip(q, omega, mu)], rtol=1e-12)
    if kind == "soft":
        scalar = np.log(np.sum(mu * np.exp(BETA * np.einsum("bmr,br->bm", q, omega)), -1)) / BETA
        np.testing.assert_allclose(np.einsum("br,br->b", got, omega), scalar, rtol=1e-12)


@pytest.mark.parametrize("kind", ["boltzmann", "soft", "mean", "max"])
def test_the_backup_of_values_that_add_up_is_that_of_all_joint_actions(x64, kind):
    rng = np.random.default_rng(4)
    q, mu, omega = rng.normal(size=(5, 2, 3, 2)), rng.dirichlet(np.ones(3), (5, 2)), rng.dirichlet(np.ones(2), 5)
    got = backup(kind, jnp.asarray(q), jnp.asarray(omega), jnp.log(jnp.asarray(mu)), jnp.asarray(BETA))
    joint_q = (q[:, 0, :, None] + q[:, 1, None, :]).reshape(5, 9, 2)
    joint_mu = (mu[:, 0, :, None] * mu[:, 1, None, :]).reshape(5, 9)
    np.testing.assert_allclose(got, [value(kind, *row, BETA) for row in zip(joint_q, omega, joint_mu)], rtol=1e-12)


def test_decomposed_values_are_the_mean_of_the_tokens_and_their_maximum_is_joint():
    rng = np.random.default_rng(5)
    obs, action = rng.normal(size=(7, 2)).astype(np.float32), rng.integers(0, 2, (7, 2))
    data = Dataset.from_arrays(obs, action, np.zeros(7), obs, np.ones(7), num_actions=(3, 2), normalise=False)
    config = replace(SMALL, critics=3).resolve(data.spec)
    net = init_critic(config, data.spec, jax.random.key(0)).net
    raw = np.asarray(jax.vmap(lambda m: m(obs))(net.members)).reshape(3, 7, 2, 3).mean(0)  # U_d, ensemble mean
    one = jnp.ones((7, 1))
    every = np.stack(np.meshgrid(np.arange(3), np.arange(2), indexing="ij"), -1).reshape(-1, 2)
    q = preferred_values(config, data.spec, net, obs, one, jnp.tile(jnp.asarray(every), (7, 1, 1)))[:, 0]
    np.testing.assert_allclose(q, (raw[:, 0, every[:, 0]] + raw[:, 1, every[:, 1]]) / 2, rtol=1e-5, atol=1e-6)
    values = vector_values(config, data.spec, net, obs, one)
    law = greedy_law(values[..., 0], jnp.broadcast_to(jnp.asarray(data.spec.legal), (7, 2, 3)))
    np.testing.assert_allclose(expected(law, values)[:, 0], q.max(1), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(law).argmax(-1), every[np.asarray(q).argmax(1)])


def test_backups_keep_their_order(x64):
    """mean ≤ soft ≤ boltzmann ≤ max: Jensen's inequality, twice."""
    rng = np.random.default_rng(1)
    q, mu = rng.normal(size=(50, 6, 1)), rng.dirichlet(np.ones(6), 50)
    args = jnp.asarray(q)[:, None], jnp.ones((50, 1)), jnp.log(jnp.asarray(mu))[:, None], jnp.asarray(2.0)
    mean, soft, boltzmann = (np.asarray(backup(k, *args))[:, 0] for k in ("mean", "soft", "boltzmann"))
    assert np.all(mean < soft)
    assert np.all(soft < boltzmann)
    assert np.all(boltzmann < q.max((1, 2)))


@pytest.mark.parametrize("kind", ["boltzmann", "soft", "mean"])
def test_one_hot_preference_backs_up_each_objective_on_its_own(x64, kind):
    rng = np.random.default_rng(2)
    q, log_mu = jnp.asarray(rng.normal(size=(4, 1, 5, 3))), jnp.log(jnp.asarray(rng.dirichlet(np.ones(5), (4, 1))))
    for r in range(3):
        omega = jnp.tile(jnp.eye(3)[r], (4, 1))
        alone = backup(kind, q[..., r : r + 1], jnp.ones((4, 1)), log_mu, jnp.asarray(BETA))[:, 0]
        np.testing.assert_allclose(backup(kind, q, omega, log_mu, jnp.asarray(BETA))[:, r], alone, rtol=1e-13)


@pytest.mark.parametrize("kind", ["boltzmann", "soft", "max"])
def test_backups_are_safe_at_large_values_and_skip_dropped_candidates(kind):
    q = jnp.asarray([[[[1e4], [1e4 - 1], [2e4]]]], jnp.float32)
    log_mu = jnp.log(jnp.asarray([[[0.5, 0.5, 0.0]]]))
    got = float(backup(kind, q, jnp.ones((1, 1)), log_mu, jnp.float32(1.0))[0, 0])
    e = np.exp(-1)
    due = {"boltzmann": 1e4 - e / (1 + e), "soft": 1e4 + np.log((1 + e) / 2), "max": 1e4}[kind]
    assert got == pytest.approx(due, abs=0.01)


def test_reading_an_ensemble():
    values = jnp.asarray([[[[[1.0, 5.0]]]], [[[[2.0, 0.0]]]]])  # [E, 1, 1, 1, objectives]
    first, second = jnp.asarray([[1.0, 0.0]]), jnp.asarray([[0.0, 1.0]])
    mean, lower, worst = (QDFM(pessimism=p) for p in ("mean", "mean-std", "min"))
    assert np.array_equal(read(mean, values, first), [[[[1.5, 2.5]]]])
    assert np.array_equal(read(lower, values, first), [[[[1.0, 0.0]]]])
    assert np.array_equal(read(worst, values, first), [[[[1.0, 5.0]]]])  # all of the worst member
    assert np.array_equal(read(worst, values, second), [[[[2.0, 0.0]]]])


# A deterministic MDP in which every (s, a) is in the data once


def mdp(objectives: int) -> tuple[Dataset, np.ndarray]:
    """The data, and the behaviour's law at each state."""
    rng = np.random.default_rng(3)
    s, a = (x.ravel() for x in np.meshgrid(np.arange(STATES), np.arange(ACTIONS), indexing="ij"))
    after = rng.integers(0, STATES, len(s))
    terminated = np.zeros(len(s), bool)
    terminated[[1, 8, 15]] = True
    truncated = np.zeros(len(s), bool)
    truncated[[4, 10, 12]] = True
    reward = rng.normal(0.5, 1, (len(s), objectives))
    eye = np.eye(STATES, dtype=np.float32)
    data = Dataset.from_arrays(
        eye[s], a, reward, eye[after], terminated, truncated, num_actions=ACTIONS, normalise=False
    )
    return data, rng.dirichlet(np.full(ACTIONS, 2.0), STATES)


def value_iteration(
    kind: str, data: Dataset, mu: np.ndarray, omega: np.ndarray, end: np.ndarray, beta: float = BETA
) -> np.ndarray:
    """Q `[rows, objectives]` at the fixed point, where `end` says which rows have no value beyond them."""
    s, after = np.argmax(data.observation, -1), np.argmax(data.next_observation, -1)
    reward = np.asarray(data.reward, np.float64)
    q = np.zeros((STATES, ACTIONS, reward.shape[1]))
    for _ in range(500):
        v = np.stack([value(kind, q[i], omega, mu[i], beta) for i in range(STATES)])
        new = reward + GAMMA * np.where(end, 0, 1)[:, None] * v[after]
        q[s, data.action[:, 0]] = new
    return new


def fit(config: GuidedConfig, data: Dataset, mu: np.ndarray, omega: np.ndarray, steps: int = 3000) -> np.ndarray:
    """Q `[rows, objectives]` of the critic after full-batch steps; rows and preferences come together."""
    config = config.resolve(data.spec)
    after = np.argmax(data.next_observation, -1)
    support = Support(jnp.log(jnp.asarray(mu[after], jnp.float32))[:, None])
    omega = jnp.asarray(omega, jnp.float32)
    batch = jax.tree.map(jnp.asarray, data)

    @jax.jit
    def run():
        state = CriticState(init_critic(config, data.spec, jax.random.key(0)), first_beta(config))
        step = lambda s, _: update_critic(config, data.spec, s, batch, omega, support)  # noqa: E731
        state, metrics = jax.lax.scan(step, state, None, steps)
        q = vector_values(config, data.spec, state.learner.net, batch.observation, omega, batch.action[:, None])
        return q[:, 0, 0], metrics

    q, metrics = run()
    assert np.isfinite(metrics["loss"]).all()
    return np.asarray(q)


SMALL = QDFM(
    hidden=(64,), gamma=GAMMA, beta=BETA, beta_scale="none", target_rate=0.05, critics=1,
    pessimism="mean", support_share=0.0,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["boltzmann", "soft", "mean"])
def test_critic_converges_to_value_iteration(kind):
    data, mu = mdp(1)
    one = np.ones((len(data), 1))
    exact = value_iteration(kind, data, mu, np.ones(1), data.terminated)
    size = np.abs(exact).max()
    got = fit(replace(SMALL, backup=kind), data, mu, one)
    assert np.abs(got - exact).max() < 0.02 * size
    # What the test would not forgive: value beyond a terminated step, or none beyond a truncated one.
    for end in (np.zeros_like(data.terminated), data.terminated | data.truncated):
        assert np.abs(value_iteration(kind, data, mu, np.ones(1), end) - exact).max() > 0.1 * size


def test_members_with_targets_of_their_own_back_up_their_own_values():
    """One step from different members on one transition: the gradient of each is towards its own target."""
    data, mu = mdp(1)
    batch = jax.tree.map(jnp.asarray, data)
    one = jnp.ones((len(data), 1))
    log_mu = jnp.log(jnp.asarray(mu, jnp.float32))[np.argmax(data.next_observation, -1), None]
    config = replace(SMALL, critics=3, backup="mean", pessimism="mean-std").resolve(data.spec)
    learner = init_critic(config, data.spec, jax.random.key(0))
    q = np.asarray(learner.net.values(batch.observation, batch.action[:, None])[:, :, 0, 0, 0], np.float64)  # [E, B]
    after = np.asarray(learner.average.values(batch.next_observation)[:, :, 0, :, 0], np.float64)  # [E, B, K]
    goes_on = 1 - np.asarray(data.terminated, float)
    own = (np.exp(np.asarray(log_mu, np.float64))[:, 0] * after).sum(-1)  # [E, B]
    read = (np.exp(np.asarray(log_mu, np.float64))[:, 0] * (after.mean(0) - after.std(0))).sum(-1)
    for targets, value in (("own", own), ("shared", read)):
        state = CriticState(learner, first_beta(config))
        metrics = update_critic(replace(config, targets=targets), data.spec, state, batch, one, Support(log_mu))[1]
        target = np.asarray(data.reward, np.float64)[:, 0] + GAMMA * goes_on * value
        assert float(metrics["loss"]) == pytest.approx(((q - target) ** 2).mean(1).sum(), rel=1e-4)


def test_twin_critics_converge_to_the_same_values():
    data, mu = mdp(1)
    exact = value_iteration("boltzmann", data, mu, np.ones(1), data.terminated)
    got = fit(replace(SMALL, critics=2, pessimism="min"), data, mu, np.ones((len(data), 1)))
    assert np.abs(got - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("critic", ["vector", "scalarised"])
def test_one_hot_preferences_give_each_objective_its_own_values(critic):
    data, mu = mdp(2)
    rows = len(data)
    doubled = data[np.tile(np.arange(rows), 2)]
    omega = np.repeat(np.eye(2), rows, 0)
    got = fit(replace(SMALL, critic=critic, hidden=(128,)), doubled, mu, omega, 4000)
    for r in range(2):
        alone = replace(data, reward=data.reward[:, r : r + 1])
        exact = value_iteration("boltzmann", alone, mu, np.ones(1), data.terminated)[:, 0]
        assert np.abs(got[r * rows : (r + 1) * rows, r] - exact).max() < 0.02 * np.abs(exact).max()
        if critic == "vector":  # the other objective is that of the policy which this preference follows
            both = value_iteration("boltzmann", data, mu, np.eye(2)[r], data.terminated)
            assert np.abs(got[r * rows : (r + 1) * rows] - both).max() < 0.02 * np.abs(both).max()
            assert np.abs(both[:, 1 - r] - exact).max() > 0.1


# Support and β


def test_enumerated_support_is_the_renormalised_law(x64):
    mu = np.array([[[0.6, 0.395, 0.005]], [[0.2, 0.3, 0.5]]])
    config = replace(SMALL, support_share=0.01)
    support = support_of(config, jax.random.key(0), jnp.log(jnp.asarray(mu)), 0)
    assert support.actions is None
    np.testing.assert_allclose(
        np.exp(support.log_mu)[:, 0], [[0.6 / 0.995, 0.395 / 0.995, 0], [0.2, 0.3, 0.5]], rtol=1e-12
    )


def test_drawn_support_follows_the_law_of_each_token(rejected):
    mu = np.array([[[0.6, 0.395, 0.005], [0.2, 0.3, 0.5]]])  # one state, two tokens
    config = replace(SMALL, support_share=0.01)
    support = support_of(config, jax.random.key(1), jnp.log(jnp.asarray(mu, jnp.float32)), 50_000)
    assert support.actions.shape == (1, 50_000, 2)
    np.testing.assert_allclose(support.log_mu, -np.log(50_000), rtol=1e-6)
    joint = np.zeros((3, 3))
    np.add.at(joint, tuple(np.asarray(support.actions)[0].T), 1)
    assert not rejected({"joint": (joint, np.outer([0.6 / 0.995, 0.395 / 0.995, 0], [0.2, 0.3, 0.5]))})


def test_beta_is_fitted_in_units_of_the_values():
    data, mu = mdp(1)
    batch = jax.tree.map(jnp.asarray, data)
    one = jnp.ones((len(data), 1))
    log_mu = jnp.log(jnp.asarray(mu, jnp.float32))[np.argmax(data.observation, -1), None]
    for scale in ("none", "mean_abs", "share"):
        beta = None if scale == "share" else BETA
        config = replace(SMALL, beta=beta, beta_scale=scale, share_target=0.7).resolve(data.spec)
        state = CriticState(init_critic(config, data.spec, jax.random.key(0)), first_beta(config))
        critic = state.learner.average
        fitted = float(fit_beta(config, data.spec, state, batch, one, Support(log_mu)))
        taken = preferred_values(config, data.spec, critic, batch.observation, one, batch.action[:, None])
        if scale == "none":
            assert fitted == BETA
        elif scale == "mean_abs":
            assert fitted == pytest.approx(BETA / np.abs(taken).mean(), rel=1e-5)
        else:
            q = np.asarray(preferred_values(config, data.spec, critic, batch.observation, one), np.float64)
            p, w = np.exp(np.asarray(log_mu, np.float64)), np.exp(fitted * (q - q.max(-1, keepdims=True)))
            share = np.mean((p * w).sum(-1) ** 2 / (p * w**2).sum(-1))
            assert share == pytest.approx(0.7, abs=1e-3)


def test_beta_follows_the_share_where_the_backup_asks_for_it():
    data, mu = mdp(1)
    batch = jax.tree.map(jnp.asarray, data)
    one = jnp.ones((len(data), 1))
    log_mu = jnp.log(jnp.asarray(mu, jnp.float32))[np.argmax(data.next_observation, -1), None]
    config = replace(SMALL, beta=None, beta_scale="share", share_target=0.7, critic_learning_rate=1e-9).resolve(
        data.spec
    )
    for kind in ("boltzmann", "mean"):
        config = replace(config, backup=kind)
        state = CriticState(init_critic(config, data.spec, jax.random.key(0)), first_beta(config))
        q = preferred_values(config, data.spec, state.learner.average, batch.next_observation, one)
        at = (batch, one, Support(log_mu))
        found = jax.lax.fori_loop(0, 600, lambda _, s: update_critic(config, data.spec, s, *at)[0], state)  # noqa: B023
        share = float(jnp.mean(effective_share(log_mu, q, found.beta)))
        assert share == pytest.approx(0.7, abs=0.01) if kind == "boltzmann" else found.beta == state.beta
    unguided = replace(config, beta=0.0)
    state = CriticState(state.learner, first_beta(unguided))
    assert state.beta == fit_beta(unguided, data.spec, state, batch, one, Support(log_mu)) == 0


def test_what_guidance_promises():
    """In NumPy: the tilt by advantages less twice their deviation, beside the behaviour, by the same."""
    data, mu = mdp(1)
    batch, one = jax.tree.map(jnp.asarray, data), jnp.ones((len(data), 1))
    log_mu = jnp.log(jnp.asarray(mu, jnp.float32))[np.argmax(data.observation, -1), None]
    log_mu = log_mu.at[0, 0, 0].set(-jnp.inf)
    log_mu = jax.nn.log_softmax(log_mu, -1)
    config = replace(SMALL, critics=3, pessimism="mean", caution=2.0, state_share=0.8).resolve(data.spec)
    state = CriticState(init_critic(config, data.spec, jax.random.key(0)), jnp.float32(5))
    q = np.asarray(state.learner.average.values(batch.observation)[..., 0, :, 0], np.float64)  # [E, B, K]
    p = np.exp(np.asarray(log_mu, np.float64))[:, 0]
    advantage = q - (p * q).sum(-1, keepdims=True)
    weighed = advantage.mean(0) - 2 * advantage.std(0)
    spread = np.sqrt((p * (weighed - (p * weighed).sum(-1, keepdims=True)) ** 2).sum(-1, keepdims=True))
    w = p * np.exp(np.minimum(5, np.sqrt(-np.log(0.8)) / spread) * weighed)
    w /= w.sum(-1, keepdims=True)
    gain = ((w - p) * weighed).sum(-1).mean()
    size = np.abs(q.mean(0)[np.arange(len(p)), data.action[:, 0]]).mean()
    expected = gain / (1 - config.gamma) / size
    assert promise(config, data.spec, state, batch, one, Support(log_mu)) == pytest.approx(expected, rel=1e-3)


def test_drawn_candidates_weigh_the_same():
    support = drawn_support(jnp.zeros((2, 8, 3), jnp.int32))
    np.testing.assert_allclose(np.exp(support.log_mu), 1 / 8, rtol=1e-6)


@pytest.mark.parametrize("change", [{"beta_scale": "mean_abs"}, {"backup": "soft"}])
def test_beta_zero_means_unguided(change):
    data, mu = mdp(1)
    exact = value_iteration("mean", data, mu, np.ones(1), data.terminated)
    got = fit(replace(SMALL, beta=0.0, **change), data, mu, np.ones((len(data), 1)))
    assert np.abs(got - exact).max() < 0.02 * np.abs(exact).max()


def test_a_falling_step_size_averages_noise_away():
    """One state, one action, rewards of mean 1 and deviation 3: a constant step size follows the last batches, one that
    falls to 0 ends near the mean of all."""
    n, steps = 4000, 400
    reward = 1 + 3 * np.random.default_rng(0).standard_normal(n)
    nothing = np.zeros((n, 1))
    data = Dataset.from_arrays(nothing, np.zeros(n, int), reward, nothing, np.ones(n), num_actions=2, normalise=False)
    ends = {}
    for decay in (False, True):
        config = QDFM(
            critic_steps=steps, critic_decay=decay, critic_learning_rate=0.2, hidden=(8,), critics=4, pessimism="mean"
        ).resolve(data.spec)
        rate = config.critic_rate()
        if callable(rate):
            assert [float(rate(at)) for at in (0, 200, 400)] == pytest.approx([0.2, 0.1, 0])
        start = init_critic(config, data.spec, jax.random.key(0), decomposed=False)

        def step(learner, key, config=config):
            batch, one = data.sample(key, 4), jnp.ones((4, 1))
            return critics.regress(config, data.spec, learner, batch, one, jnp.zeros((4, 1)))[0], None

        def run(key, start=start, step=step):
            net = jax.lax.scan(step, start, jax.random.split(key, steps))[0].net
            return net.values(jnp.zeros((1, 1)), jnp.zeros((1, 1, 1), int)).ravel()

        ends[decay] = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(1), 32))
    off = {decay: float(jnp.sqrt(jnp.mean((q - reward.mean()) ** 2))) for decay, q in ends.items()}
    assert 2 * off[True] < off[False]
