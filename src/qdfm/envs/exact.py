"""Exact calculations on the multigoal grid by dynamic programming in float64: what a policy does, without
sampling, and the KL-regularised optimum π* ∝ μ exp(β Q) that the learned policies are measured against.

Cells are numbered y · 11 + x, so that an array over cells reshaped to `[11, 11]` is a picture with rows y.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.dataset import Dataset
from qdfm.envs.multigoal import MOVES, SIZE, START, MultiGoal
from qdfm.errors import QDFMError, unknown

CELLS = SIZE * SIZE
START_CELL = START[1] * SIZE + START[0]
BACKUPS = ("boltzmann", "soft", "mean")
TOLERANCE = 1e-12
MAX_SWEEPS = 10_000


@dataclass(frozen=True)
class Table:
    """The grid's dynamics for every cell and move."""

    next_cell: np.ndarray  # [121, 4] int
    reward: np.ndarray  # [121, 4]
    terminated: np.ndarray  # [121, 4] bool
    outcome: np.ndarray  # [121] int, as MultiGoal.outcome says


@dataclass(frozen=True)
class Outcome:
    """What a policy does within the horizon. `shares`, `trap` and `timeout` sum to one."""

    shares: np.ndarray  # [K], probability that an episode ends at each goal
    trap: float
    timeout: float
    expected_return: float  # undiscounted
    visits: np.ndarray  # [11, 11] by (y, x): expected visits per episode, first and last cell included


def cell_of(state: np.ndarray) -> np.ndarray:
    """The number of the cell of states (x, y) `[..., 2]`."""
    return state[..., 1] * SIZE + state[..., 0]


def all_states() -> np.ndarray:
    """The state (x, y) of every cell, `[121, 2]`."""
    y, x = np.divmod(np.arange(CELLS, dtype=np.int32), SIZE)
    return np.stack([x, y], 1)


def all_observations(env: MultiGoal) -> np.ndarray:
    """The observation of every cell, `[121, 22]`."""
    return np.asarray(jax.vmap(env.observation)(jnp.asarray(all_states())))


def transition_table(env: MultiGoal) -> Table:
    """The environment's own step, taken from every cell with every move."""
    states, actions = jnp.asarray(all_states()), jnp.arange(len(MOVES))[:, None]
    step = jax.vmap(jax.vmap(env.step, (None, 0, None)), (0, None, None))(states, actions, jax.random.key(0))
    return Table(
        next_cell=cell_of(np.asarray(step.state)),
        reward=np.asarray(step.reward[..., 0], np.float64),
        terminated=np.asarray(step.terminated),
        outcome=np.asarray(env.outcome(states)),
    )


def propagate(env: MultiGoal, probabilities: np.ndarray) -> Outcome:
    """Carry the distribution over cells through the horizon under action probabilities `[121, 4]`."""
    table = transition_table(env)
    final = table.outcome >= 0
    alive = np.zeros(CELLS)
    alive[START_CELL] = 1.0
    visits, expected_return = alive.copy(), 0.0
    for _ in range(env.horizon):
        flow = alive[:, None] * np.asarray(probabilities, np.float64)
        reached = np.bincount(table.next_cell.ravel(), flow.ravel(), CELLS)
        expected_return += float((flow * table.reward).sum())
        visits += reached
        alive = np.where(final, 0.0, reached)
    # An episode stops in the first final cell it reaches, so the visits there are probabilities.
    ended = np.bincount(table.outcome[final], visits[final], env.goals + 1)
    return Outcome(
        shares=ended[: env.goals],
        trap=float(ended[env.goals]),
        timeout=float(alive.sum()),
        expected_return=expected_return,
        visits=visits.reshape(SIZE, SIZE),
    )


def behaviour(dataset: Dataset) -> np.ndarray:
    """Empirical μ(a|s) `[121, 4]` by counting; zero rows at cells never seen."""
    state = np.asarray(dataset.observation).reshape(-1, 2, SIZE).argmax(-1)
    counts = np.zeros((CELLS, len(MOVES)))
    np.add.at(counts, (cell_of(state), np.asarray(dataset.action)[:, 0]), 1)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def kl_optimum(dataset: Dataset, env: MultiGoal, beta: float, gamma: float, backup: str = "boltzmann") -> np.ndarray:
    """The policy μ exp(βQ) / C `[121, 4]` at the fixed point of Q = r + γ (1 − terminated) V(s').

    `backup` says what V is: "boltzmann" is the value Σ p Q of p ∝ μ exp(βQ) itself, "soft" is
    (1/β) log Σ μ exp(βQ), "mean" is Σ μ Q, the behaviour's own value. Moves outside the data have μ = 0 and
    count nowhere; at cells never seen V is 0 and the policy uniform.
    """
    if backup not in BACKUPS:
        raise unknown("backup", backup, BACKUPS)
    if beta <= 0:
        raise QDFMError(f"beta is {beta:g}; give a positive inverse temperature.")
    table, mu = transition_table(env), behaviour(dataset)
    seen = mu.any(1)
    mu = mu[seen]
    log_mu = np.log(mu, out=np.full_like(mu, -np.inf), where=mu > 0)
    value, change = np.zeros(CELLS), np.inf
    for _ in range(MAX_SWEEPS):
        q = (table.reward + gamma * np.where(table.terminated, 0.0, value[table.next_cell]))[seen]
        # Differences to the best logged move, so that a large β magnifies no rounding error of Q itself.
        best = q.max(1, where=mu > 0, initial=-np.inf)
        advantage = q - best[:, None]
        logits = log_mu + beta * advantage
        log_c = np.logaddexp.reduce(logits, axis=1)
        p = np.exp(logits - log_c[:, None])
        against_best = {
            "boltzmann": (p * advantage).sum(1),
            "soft": log_c / beta,
            "mean": (mu * advantage).sum(1),
        }
        updated = best + against_best[backup]
        change = np.abs(updated - value[seen]).max()
        value[seen] = updated
        if change <= TOLERANCE:
            probabilities = np.full((CELLS, len(MOVES)), 1 / len(MOVES))
            probabilities[seen] = p
            return probabilities
    raise QDFMError(f"The {backup} backup still changes by {change:g} after {MAX_SWEEPS} sweeps; lower beta or gamma.")
