"""Off-policy estimates: against exact values of a small Markov decision process, a loop, and sums by hand."""

import json
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.agent import Agent
from qdfm.algorithms import BC, Config
from qdfm.algorithms.base import Algorithm
from qdfm.data.actions import Bins, Codebook, Discrete, MultiDiscrete
from qdfm.data.dataset import Dataset
from qdfm.data.spec import Spec
from qdfm.errors import Diverged, QDFMError
from qdfm.estimate import _check_fits, _crossfitted, estimate
from qdfm.fqe import FQE

STATES, CHOICES, END = 5, 3, 4  # state 4 is terminal
GAMMA = 0.9


@dataclass(frozen=True)
class Table(Config):
    """A policy that is a table [objectives, states, choices] of probabilities, mixed by the preference; legal choices
    share what there is."""

    exact: bool = True
    name = "table"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def probs(table: Any, observation: Any, preference: Any, mask: Any) -> Any:
            p = jnp.einsum("bm,mbk->bk", preference, table[:, observation.argmax(1)])
            p = p if mask is None else p * mask[:, 0]
            return p / p.sum(-1, keepdims=True)

        shape = (spec.objectives, STATES, spec.num_choices)
        return Algorithm(
            lambda key: jnp.zeros(shape), (), lambda state: state, lambda *_: None, 1, probs if self.exact else None
        )


def agent_of(*tables: np.ndarray, exact: bool = True) -> Agent:
    spec = Spec((STATES,), Discrete(CHOICES), objectives=len(tables))
    return Agent(Table(exact=exact), spec, jnp.asarray(np.stack(tables), jnp.float32))


class World:
    """Random transitions and rewards, and what a policy is worth there."""

    def __init__(self, objectives: int = 1):
        rng = np.random.default_rng(5)
        self.move = rng.dirichlet(np.ones(STATES), (STATES, CHOICES))  # [s, a, s']
        self.reward = rng.normal(2.0, 1.0, (STATES, CHOICES, objectives))
        self.behaviour, self.policy, self.other = rng.dirichlet(2 * np.ones(CHOICES), (3, STATES))
        self.start = np.array([0.5, 0.3, 0.2, 0.0, 0.0])

    def values(self, policy: np.ndarray, move: np.ndarray | None = None) -> np.ndarray:
        """V [states, objectives] by solving (1 − γ P) V = r, with other transitions where they are given."""
        move = np.einsum("sa,sat->st", policy, self.move if move is None else move)[:END, :END]
        reward = np.einsum("sa,sam->sm", policy, self.reward)[:END]
        return np.vstack([np.linalg.solve(np.eye(END) - GAMMA * move, reward), np.zeros((1, reward.shape[1]))])

    def log(self, episodes: int, horizon: int, mask: np.ndarray | None = None) -> tuple[Dataset, np.ndarray]:
        """Episodes of the behaviour, cut off at a horizon, and the probabilities of what it did; mask [s, a]."""
        rng, rows = np.random.default_rng(8), []
        behaviour = self.behaviour if mask is None else renormalised(self.behaviour, mask)
        for episode in range(episodes):
            s = rng.choice(STATES, p=self.start)
            for step in range(horizon):
                a = rng.choice(CHOICES, p=behaviour[s])
                t = rng.choice(STATES, p=self.move[s, a])
                rows.append((s, a, t, episode, step == horizon - 1 and t != END))
                s = t
                if t == END:
                    break
        s, a, t, episode, cut = (np.array(column) for column in zip(*rows, strict=True))
        masks = {} if mask is None else {"mask": mask[s][:, None], "next_mask": mask[t][:, None]}
        hot = np.eye(STATES, dtype=np.float32)
        data = Dataset.from_arrays(
            hot[s], a, self.reward[s, a], hot[t], t == END, cut, episode=episode, num_actions=CHOICES, **masks
        )
        return data, behaviour[s, a]


def renormalised(policy: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return policy * mask / (policy * mask).sum(1, keepdims=True)


def seen_moves(data: Dataset) -> np.ndarray:
    """The transitions [s, a, s'] as the log has them, by counting: all that a fit can know of them."""
    count = np.zeros((STATES, CHOICES, STATES))
    np.add.at(count, (data.observation.argmax(1), data.action[:, 0], data.next_observation.argmax(1)), 1)
    return count / np.maximum(count.sum(2, keepdims=True), 1)


def first_states(data: Dataset) -> np.ndarray:
    first = np.flatnonzero(np.r_[True, data.episode[1:] != data.episode[:-1]])
    return data.observation[first].argmax(1)


def looped(data: Dataset, policy: np.ndarray, propensity: np.ndarray) -> tuple[np.ndarray, float]:
    """Weighted per-decision importance sampling and its effective sample size, one number after the other."""
    episodes = [np.flatnonzero(data.episode == e) for e in np.unique(data.episode)]
    total = np.zeros(data.spec.objectives)
    for t in range(max(len(rows) for rows in episodes)):
        above, below = 0.0, 0.0
        for rows in episodes:
            weight = 1.0
            for i in rows[: t + 1]:
                weight *= policy[data.observation[i].argmax(), data.action[i, 0]] / propensity[i]
            below += weight
            if t < len(rows):
                above = above + weight * GAMMA**t * data.reward[rows[t]].astype(float)
        total += above / below
    whole = np.array(
        [
            np.prod([policy[data.observation[i].argmax(), data.action[i, 0]] / propensity[i] for i in r])
            for r in episodes
        ]
    )
    return total, whole.sum() ** 2 / (whole**2).sum()


def test_fitted_q_against_exact_values():
    world = World()
    data, propensity = world.log(2_000, horizon=4)
    assert data.truncated.mean() > 0.05  # beyond which the values go on
    found = estimate(agent_of(world.policy), data, GAMMA, propensity, steps=1_500, progress=False)
    first = first_states(data)
    assert found.fitted == pytest.approx(world.values(world.policy, seen_moves(data))[first].mean(0), rel=0.02)
    exact = world.values(world.policy)[first].mean(0)
    assert found.fitted == pytest.approx(exact, rel=0.05)
    assert abs(exact - found.log_returns.mean(0)) > 0.1 * exact  # it is not the log's


def test_importance_sampling_against_a_loop_and_the_exact_return_until_the_horizon():
    world = World(objectives=2)
    data, propensity = world.log(3_000, horizon=4)
    few = data[data.episode < 60]
    mixed = 0.25 * world.policy + 0.75 * world.other
    agent = agent_of(world.policy, world.other)
    found = estimate(agent, few, GAMMA, propensity[data.episode < 60], [0.25, 0.75], steps=1, progress=False)
    total, effective = looped(few, mixed, propensity[data.episode < 60])
    assert found.importance == pytest.approx(total, rel=1e-5)  # the agent's probabilities are single precision
    assert found.effective_episodes == pytest.approx(effective, rel=1e-5)
    assert (found.interval[0] < found.importance).all()
    assert (found.importance < found.interval[1]).all()

    found = estimate(agent, data, GAMMA, propensity, [0.25, 0.75], steps=1, progress=False)
    state, exact = np.bincount(first_states(data), minlength=STATES) / 3_000, np.zeros(2)
    for t in range(4):  # what comes after the last logged step does not count
        state = state * (np.arange(STATES) != END)
        exact += GAMMA**t * np.einsum("s,sa,sam->m", state, mixed, world.reward)
        state = np.einsum("s,sa,sat->t", state, mixed, world.move)
    assert (found.interval[0] < exact).all()
    assert (exact < found.interval[1]).all()
    assert (found.interval[1] - found.interval[0] < 0.2).all()


def test_both_objectives_under_a_preference():
    world = World(objectives=2)
    world.reward[..., 1] *= 100  # another unit
    data, propensity = world.log(1_500, horizon=4)
    agent = agent_of(world.policy, world.other)
    found = estimate(agent, data, GAMMA, propensity, [0.25, 0.75], steps=1_500, progress=False)
    exact = world.values(0.25 * world.policy + 0.75 * world.other, seen_moves(data))[first_states(data)].mean(0)
    assert found.fitted == pytest.approx(exact, rel=0.02)
    with pytest.raises(QDFMError, match="give weights that sum to 1"):
        estimate(agent, data, GAMMA, propensity)


def test_masks_are_respected():
    world = World()
    mask = np.ones((STATES, CHOICES), bool)
    mask[0, 2] = mask[1, 0] = mask[2, 1] = False
    data, propensity = world.log(1_500, 4, mask)
    found = estimate(agent_of(world.policy), data, GAMMA, propensity, steps=1_500, progress=False)
    exact = world.values(renormalised(world.policy, mask), seen_moves(data))[first_states(data)].mean(0)
    assert found.fitted == pytest.approx(exact, rel=0.02)
    state, action = data.observation.argmax(1), data.action[:, 0]
    assert found.agent_log_prob == pytest.approx(np.log(renormalised(world.policy, mask)[state, action]), rel=1e-4)
    assert found.uniform_log_prob == pytest.approx(-np.log(mask.sum(1)[state]))
    assert (found.agrees == (renormalised(world.policy, mask)[state].argmax(1) == action)).all()


def three_episodes(**others: Any) -> Dataset:
    """Of lengths 2, 1 and 1; rewards 1, 2 | 3 | 5."""
    state = np.eye(STATES, dtype=np.float32)[[0, 1, 0, 1]]
    return Dataset.from_arrays(
        state, [0, 1, 0, 2], [1.0, 2.0, 3.0, 5.0], state, [False, True, True, True], num_actions=CHOICES, **others
    )


def test_sums_by_hand():
    table = np.tile([0.5, 0.25, 0.25], (STATES, 1))
    found = estimate(agent_of(table), three_episodes(), 0.5, [0.5, 0.5, 0.25, 0.25], steps=1, progress=False)
    assert found.log_returns.tolist() == [[2.0], [3.0], [5.0]]  # 1 + ½·2, 3, 5
    summary = found.summary()
    assert summary["log_return"] == pytest.approx([10 / 3])
    assert summary["log_error"] == pytest.approx([np.sqrt(7 / 3 / 3)])
    assert summary["log_prob_agent"] == pytest.approx(np.log(1 / 64) / 4)
    assert summary["log_prob_behaviour"] == pytest.approx(np.log(1 / 64) / 4)
    assert summary["log_prob_uniform"] == pytest.approx(-np.log(3))
    assert summary["agreement"] == 0.5
    # Weights after the first step 1, 2, 1; after the second ½, 2, 1, since episodes that are over keep theirs.
    assert found.importance == pytest.approx([(1 * 1 + 2 * 3 + 1 * 5) / 4 + 0.5 * 0.5 * 2 / 3.5])
    assert found.effective_episodes == pytest.approx(3.5**2 / (0.25 + 4 + 1))
    again = estimate(agent_of(table), three_episodes(), 0.5, [0.5, 0.5, 0.25, 0.25], steps=1, progress=False)
    assert again.summary() == summary


def test_an_agent_that_would_never_have_done_so():
    table = np.tile([0.0, 0.5, 0.5], (STATES, 1))
    table[1] = [1.0, 0.0, 0.0]
    found = estimate(agent_of(table), three_episodes(), 0.5, np.full(4, 0.5), steps=1, progress=False)
    summary = found.summary()
    assert summary["importance"] == [None]
    assert summary["importance_interval"] == [[None, None]]
    assert summary["effective_episodes"] == 0
    assert summary["log_prob_agent"] is None
    json.dumps(summary, allow_nan=False)


def test_a_behaviour_that_nobody_tells():
    world = World()
    data, propensity = world.log(800, horizon=4)
    agent = agent_of(world.policy)
    found = estimate(agent, data, GAMMA, steps=1, progress=False)
    # The average over rows of KL(true, fitted), which is at least 0 but for the sample.
    assert 0 < np.log(propensity).mean() - found.behaviour_log_prob.mean() < 0.01
    known = estimate(agent, data, GAMMA, propensity, steps=1, progress=False)
    assert found.importance == pytest.approx(known.importance, rel=0.05)
    told = estimate(agent, data, GAMMA, agent_of(world.behaviour), steps=1, progress=False)
    assert told.importance == pytest.approx(known.importance, rel=1e-5)


def test_no_propensity_was_fitted_on_its_own_row():
    data, _ = World().log(40, horizon=4)
    before = _crossfitted(data, seed=0, cloning=0)
    side = np.random.default_rng(0).permutation(40) % 2
    here = data.episode == np.flatnonzero(side == 0)[0]
    data.action[here] = (data.action[here] + 1) % CHOICES
    after, mine = _crossfitted(data, seed=0, cloning=0), side[data.episode] == 0
    assert (before[mine & ~here] == after[mine & ~here]).all()
    assert (before[~mine] != after[~mine]).all()


def test_preferences_that_were_logged():
    """The behaviour follows the preference of a row, and so does what is fitted to it."""
    rng, n = np.random.default_rng(0), 2_000
    corner = rng.integers(2, size=n)
    action = np.where(rng.random(n) < 0.9, corner, 2)
    state = np.eye(STATES, dtype=np.float32)[np.zeros(n, int)]
    reward = np.eye(CHOICES)[action][:, :2]
    data = Dataset.from_arrays(
        state, action, reward, state, np.ones(n), num_actions=CHOICES, preference=np.eye(2)[corner]
    )
    p = _crossfitted(data, seed=0, cloning=0)
    assert p == pytest.approx(np.where(action == 2, 0.1, 0.9), abs=0.04)


def test_a_choice_that_one_half_never_shows_is_not_ruled_out():
    state = np.eye(STATES, dtype=np.float32)[np.arange(600) % STATES]
    action = np.where(np.arange(600) == 0, 2, 0)
    mask = np.ones((600, 1, CHOICES), bool)
    mask[:, :, 1] = False
    data = Dataset.from_arrays(state, action, np.ones(600), state, np.ones(600), mask=mask, next_mask=mask)
    p = _crossfitted(data, seed=0, cloning=0)
    assert 0.01 / 2 < p[0] < 0.05
    assert (p[1:] > 0.95).all()


def test_what_is_refused():
    data, agent = three_episodes(), agent_of(np.ones((STATES, CHOICES)) / CHOICES)
    two = Spec((STATES,), MultiDiscrete((2, 2)))
    algorithm = BC(hidden=(4,)).build(two)
    parts = Agent(BC(hidden=(4,)), two, algorithm.policy(algorithm.init(jnp.array([0, 1], jnp.uint32))))
    many = Dataset.from_arrays(data.observation, [0, 1, 2, 3], data.reward, data.observation, data.terminated)
    wide = Dataset.from_arrays(np.ones((4, 3)), [0, 1, 2, 0], data.reward, np.ones((4, 3)), data.terminated)
    for says, given, options in (
        ("The agent is a str; give an Agent", ("agent", data), {}),
        ("The data is a str; give a Dataset", (agent, "log.csv"), {}),
        ("decisions have 2 parts but estimates are for one choice", (parts, data), {}),
        ("table has no exact action probabilities", (agent_of(np.ones((STATES, CHOICES)), exact=False), data), {}),
        ("fewer than 2 episodes", (agent, data[:2]), {}),
        ("gamma is 2; it must be", (agent, data), {"gamma": 2}),
        ("steps is 0; give at least 1", (agent, data), {"steps": 0}),
        ("The seed is -1", (agent, data), {"seed": -1}),
        (r"observations of shape \(5,\) but the data has \(3,\)", (agent, wide), {}),
        (r"on 3 choices but the data has 4 choices; .* \(in Python: actions=agent\.spec\.actions\)", (agent, many), {}),
        (r"The behaviour has shape \(2,\) for 4 rows", (agent, data), {"behaviour": [0.5, 0.5]}),
        ("The behaviour is a str; give an Agent", (agent, data), {"behaviour": "random"}),
        ("logged action of row 2 the probability 0,", (agent, data), {"behaviour": [0.5, 0.5, 0, 0.5]}),
        ("logged action of row 1 the probability 1.5,", (agent, data), {"behaviour": [0.5, 1.5, 0.5, 0.5]}),
        ("logged action of row 3 the probability nan,", (agent, data), {"behaviour": [0.5, 0.5, 0.5, np.nan]}),
    ):
        with pytest.raises(QDFMError, match=says):
            estimate(*given, **options)


CODEBOOK = Codebook(tuple((i / 256, 0.0, -1.0) for i in range(256)))


@pytest.mark.parametrize(
    ("mine", "its", "says"),
    [
        (CODEBOOK, Bins((tuple(range(41)),) * 3), "256 actions of a codebook but the data has 3 parts of 41 bins"),
        (CODEBOOK, Bins((tuple(range(41)),)), "256 actions of a codebook but the data has 41 bins"),
        (
            CODEBOOK,
            Codebook(tuple((i / 256, 1.0, -1.0) for i in range(256))),
            "256 actions of a codebook but the data has others, as many",
        ),
        (MultiDiscrete((4, 2, 2)), Discrete(4), "3 parts of 2 or 4 choices but the data has 4 choices"),
    ],
)
def test_other_actions_are_told_of_in_short(mine, its, says):
    remedy = "read it with those of the agent, without --bins, --codebook and --num-actions (in Python: "
    with pytest.raises(QDFMError) as refused:
        _check_fits("agent", Spec((2,), mine), Spec((2,), its))
    assert str(refused.value) == f"The agent was trained on {says}; {remedy}actions=agent.spec.actions)."


def test_values_that_are_no_longer_finite(monkeypatch):
    monkeypatch.setattr(FQE, "critic_rate", lambda self: 1e30)
    with pytest.raises(Diverged, match=r"fqe: the values are no longer finite; lower gamma \(0\.99\)") as diverged:
        estimate(agent_of(np.ones((STATES, CHOICES))), three_episodes(), behaviour=np.ones(4), steps=20, progress=False)
    assert "became non-finite in phase evaluate, step" in str(diverged.value.__cause__)


def test_fqe_does_not_act():
    with pytest.raises(QDFMError, match="act with that agent"):
        FQE().build(Spec((STATES,), Discrete(CHOICES))).act()
