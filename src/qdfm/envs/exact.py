"""Exact calculations on a finite decision process, in float64: what a policy does, without sampling, and the
KL-regularised optimum π* ∝ μ exp(β Q) that the learned policies are measured against.
"""

from dataclasses import dataclass

import numpy as np

from qdfm.envs.tabular import Tabular
from qdfm.errors import QDFMError, unknown

BACKUPS = ("boltzmann", "soft", "mean")
TOLERANCE = 1e-12
MAX_SWEEPS = 10_000


@dataclass(frozen=True)
class Carried:
    """What a policy does within the horizon."""

    expected_return: np.ndarray  # [objectives], undiscounted
    visits: np.ndarray  # [S], expected visits per episode, the first and the last state included
    running: float  # probability that an episode is still running at the horizon


def carry(table: Tabular, probabilities: np.ndarray) -> Carried:
    """Carry the distribution over states through the horizon under action probabilities `[S, A]`."""
    weights = np.asarray(probabilities, np.float64)[..., None] * table.probability  # [S, A, O]
    goes_on = np.where(table.terminated, 0.0, weights)
    states = len(table.observations)
    alive: np.ndarray = np.zeros(states)
    alive[table.start] = 1.0
    visits, flat = alive.copy(), table.next_state.ravel()
    for _ in range(table.horizon):
        visits += np.bincount(flat, (alive[:, None, None] * weights).ravel(), states)
        alive = np.bincount(flat, (alive[:, None, None] * goes_on).ravel(), states)
    total = expected_returns(table, np.asarray(probabilities)[None])[0]
    return Carried(total, visits, float(alive.sum()))


def expected_returns(table: Tabular, probabilities: np.ndarray, gamma: float = 1.0) -> np.ndarray:
    """The expected returns `[policies, objectives]` of many policies `[policies, S, A]` at once, within the horizon."""
    laws = np.asarray(probabilities, np.float64)
    states, actions, _ = table.next_state.shape
    goes_on = np.zeros((states, actions, states))
    at = (*np.indices(table.next_state.shape)[:2], table.next_state)
    np.add.at(goes_on, at, np.where(table.terminated, 0.0, table.probability))
    paid = np.einsum("psa,sar->psr", laws, (table.probability[..., None] * table.reward).sum(2))
    moves = np.einsum("psa,sat->pst", laws, goes_on)
    alive, total = np.zeros(laws.shape[:2]), np.zeros((len(laws), table.objectives))
    alive[:, table.start] = 1.0
    for step in range(table.horizon):
        total += gamma**step * np.einsum("ps,psr->pr", alive, paid)
        alive = np.einsum("ps,pst->pt", alive, moves)
    return total


def kl_optimum(
    table: Tabular,
    mu: np.ndarray,
    beta: float,
    gamma: float,
    backup: str = "boltzmann",
    preference: np.ndarray | None = None,
) -> np.ndarray:
    """The policy μ exp(βQ) / C `[S, A]` at the fixed point of Q = r + γ (1 − terminated) V(s').

    `mu` is the behaviour `[S, A]`. `backup` says what V is: "boltzmann" is the value Σ p Q of p ∝ μ exp(βQ) itself,
    "soft" is (1/β) log Σ μ exp(βQ), "mean" is Σ μ Q, the behaviour's own value. Several objectives are weighed by the
    preference. Actions outside the data have μ = 0 and count nowhere; at states never seen (rows of zeros) V is 0 and
    the policy uniform.
    """
    if backup not in BACKUPS:
        raise unknown("backup", backup, BACKUPS)
    if beta <= 0:
        raise QDFMError(f"beta is {beta:g}; give a positive inverse temperature.")
    omega = np.ones(1) if preference is None else np.asarray(preference, np.float64)
    if len(omega) != table.objectives:
        raise QDFMError(f"The task has {table.objectives} objectives; give a preference with a weight for each.")
    reward = (table.probability * (table.reward @ omega)).sum(-1)  # [S, A]
    goes_on = np.where(table.terminated, 0.0, table.probability)
    states, actions = reward.shape
    seen = mu.any(1)
    mu = mu[seen]
    log_mu = np.log(mu, out=np.full_like(mu, -np.inf), where=mu > 0)
    value, change = np.zeros(states), np.inf
    for _ in range(MAX_SWEEPS):
        q = (reward + gamma * (goes_on * value[table.next_state]).sum(-1))[seen]
        # Differences to the best logged action, so that a large β magnifies no rounding error of Q itself.
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
            probabilities = np.full((states, actions), 1 / actions)
            probabilities[seen] = p
            return probabilities
    raise QDFMError(f"The {backup} backup still changes by {change:g} after {MAX_SWEEPS} sweeps; lower beta or gamma.")
