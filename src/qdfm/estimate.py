"""Off-policy estimates: what an agent would earn, read off a log of somebody else's decisions.

Weighted per-decision importance sampling (Precup et al., 2000) and fitted Q evaluation (`qdfm.fqe`), beside what the
log itself earned and how near the agent is to it.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms.bc import BC
from qdfm.data.actions import told_apart
from qdfm.data.dataset import Dataset
from qdfm.data.episodes import borders
from qdfm.data.spec import Spec
from qdfm.errors import QDFMError
from qdfm.fqe import FQE, fitted_values, in_blocks
from qdfm.seeds import check_seed
from qdfm.train import train

BEHAVIOUR = BC(hidden=(64, 64), ema=0.98, decay=True)  # where the log does not tell its probabilities
PASSES, LEAST, MOST = (
    10,
    500,
    5_000,
)  # over its rows, and steps: a policy that knows few episodes by heart errs elsewhere
DOUBT = 0.01  # share of its probabilities that is spread over all legal choices: one log does not show all that is done
RESAMPLES = 500  # of the episodes, for the interval
INTERVAL = (2.5, 97.5)  # percentiles
TABLE = 50_000_000  # episodes × steps of the longest, up to which importance sampling holds all at once
FEW = 10  # effective episodes below which importance sampling means little


@dataclass(frozen=True)
class Estimate:
    """What a log tells of an agent; returns are discounted, in the units of the reward, by objective."""

    gamma: float
    log_returns: np.ndarray  # [episodes, objectives], of the log itself
    agent_log_prob: np.ndarray  # [n], of the logged actions under the agent
    behaviour_log_prob: np.ndarray  # [n], under the behaviour
    uniform_log_prob: np.ndarray  # [n], if all legal choices were equally likely
    agrees: np.ndarray  # [n], whether the agent's most likely choice is the logged one
    importance: np.ndarray  # [objectives], by importance sampling; NaN where the agent would never act as any episode
    interval: np.ndarray  # [2, objectives], its 95 % bootstrap interval over episodes
    effective_episodes: float  # (Σ w)² / Σ w² of the weights of whole episodes
    fitted: np.ndarray  # [objectives], by fitted Q evaluation

    def summary(self) -> dict[str, Any]:
        """Plain numbers; None where there is none, such as the logarithm of 0."""
        error = self.log_returns.std(0, ddof=1) / np.sqrt(len(self.log_returns))
        return {
            "episodes": len(self.log_returns),
            "gamma": self.gamma,
            "log_return": _plain(self.log_returns.mean(0)),
            "log_error": _plain(error),
            "log_prob_agent": _plain(self.agent_log_prob.mean()),
            "log_prob_behaviour": _plain(self.behaviour_log_prob.mean()),
            "log_prob_uniform": _plain(self.uniform_log_prob.mean()),
            "agreement": float(self.agrees.mean()),
            "importance": _plain(self.importance),
            "importance_interval": _plain(self.interval.T),
            "effective_episodes": self.effective_episodes,
            "fitted": _plain(self.fitted),
        }


def estimate(
    agent: Agent,
    data: Dataset,
    gamma: float = 0.99,
    behaviour: Any = None,
    preference: Any = None,
    seed: int = 0,
    steps: int = 10_000,
    progress: bool = True,
) -> Estimate:
    """What the agent would earn if it drew its actions where the log was written, from episodes that it was preferably
    not trained on.

    Importance sampling weighs what was logged by how much likelier the agent was to do it than the behaviour, step by
    step, and divides by the sum of the weights. `behaviour` is the agent that wrote the log, or the probability with
    which each logged action was taken, `[n]`, in the order of the data's rows; None: a small BC fitted on half of the
    episodes tells those of the other half. Fitted Q evaluation learns the agent's values in so many `steps`; the
    estimate is their mean over the first states of the episodes.

    Truncated episodes: fitted Q evaluation goes on beyond their end by its own values, importance sampling counts what
    was logged, and so does the log's return. With several objectives every figure is one for each, of the agent under
    the preference. The agent needs exact action probabilities of one choice per decision.
    """
    spec = _check(agent, data, gamma, steps)
    seed = check_seed(seed)
    if agent.spec.history > data.spec.history:
        data = data.with_history(agent.spec.history)
    _check_fits("agent", agent.spec, data.spec)
    data = replace(data, spec=spec)
    wanted = agent.preferences(preference, len(data), "rows")
    law = probabilities(agent, data.observation, data.mask, wanted)
    next_law = probabilities(agent, data.next_observation, data.next_mask, wanted)
    # Of the seeds of the halves, the behaviour, the resampling and the critic none is another's.
    halves, cloning, resampling, fitting = (int(s) for s in np.random.default_rng(seed).integers(2**31, size=4))
    logged = _crossfitted(data, halves, cloning) if behaviour is None else _propensities(behaviour, data, wanted)
    with np.errstate(divide="ignore"):
        likely, logged = np.log(_of_logged(law, data)), np.log(logged)
    importance, interval, effective = weighted_return(data, likely - logged, gamma, resampling)
    first, _ = borders(data.episode)
    config = FQE(gamma=gamma, evaluate_steps=steps)
    values = fitted_values(config, data, next_law, first, law[first], fitting, progress)
    return Estimate(
        gamma,
        data.returns(gamma),
        likely,
        logged,
        -np.log(_legal(data)),
        law.argmax(1) == data.action[:, 0],
        importance,
        interval,
        effective,
        values.mean(0),
    )


def weighted_return(
    data: Dataset, log_ratio: np.ndarray, gamma: float, seed: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Weighted per-decision importance sampling with log π/μ `[n]` of the logged actions: the return `[objectives]`,
    its bootstrap interval `[2, objectives]` and the effective number of episodes.

    An episode that is over keeps its weight and earns nothing, or those that last would stand for all.
    """
    weight, paid = _weights(data, log_ratio, gamma)
    episodes, length, objectives = paid.shape
    earned = (weight[..., None] * paid).reshape(episodes, -1)

    def mean(count: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # 0/0: no episode is left that the agent could have seen
            shares = (count @ earned).reshape(length, objectives) / (count @ weight)[:, None]
        return np.asarray(shares.sum(0))

    rng = np.random.default_rng(seed)
    drawn = (np.bincount(rng.integers(episodes, size=episodes), minlength=episodes) for _ in range(RESAMPLES))
    means = np.stack([mean(count.astype(float)) for count in drawn])
    known = means[~np.isnan(means).any(1)]
    interval = np.percentile(known, INTERVAL, 0) if len(known) else np.full((2, objectives), np.nan)
    last = weight[:, -1]
    effective = float(last.sum() ** 2 / np.sum(last**2)) if last.any() else 0.0
    return mean(np.ones(episodes)), interval, effective


def _weights(data: Dataset, log_ratio: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """The weight of each episode up to each step `[episodes, T]`, of which only the shares of a step count, and what
    the step pays `[episodes, T, objectives]`."""
    first, last = borders(data.episode)
    lengths = last - first + 1
    if len(first) * int(lengths.max()) > TABLE:
        raise QDFMError(
            f"{len(first):,} episodes of up to {lengths.max():,} steps are too many to weigh together; give fewer "
            "episodes, such as data.split(0.1)[0], or leave out the longest."
        )
    at = np.repeat(np.arange(len(first)), lengths), np.arange(len(data)) - np.repeat(first, lengths)
    total = np.zeros((len(first), lengths.max()))
    total[at] = log_ratio
    total = np.cumsum(total, 1)
    largest = total.max(0)
    weight = np.exp(total - np.where(np.isfinite(largest), largest, 0))
    paid = np.zeros((*total.shape, data.spec.objectives))
    paid[at] = np.asarray(data.reward, np.float64) * (gamma ** at[1])[:, None]
    return weight, paid


def probabilities(agent: Agent, observation: Any, mask: Any, preference: np.ndarray | None) -> np.ndarray:
    """The agent's probabilities `[n, K]` of all choices at many observations."""

    def some(observation: Any, mask: Any, preference: Any) -> np.ndarray:
        return agent.action_probabilities(observation, preference, mask)

    return in_blocks(some, np.asarray(observation), mask, preference)


def _crossfitted(data: Dataset, seed: int, cloning: int) -> np.ndarray:
    """The probability of each logged action `[n]`, by a BC that saw none of its episode."""
    first, last = borders(data.episode)
    side = np.repeat(np.random.default_rng(seed).permutation(len(first)) % 2, last - first + 1)
    most = max(np.bincount(side))
    config = replace(BEHAVIOUR, clone_steps=min(max(LEAST, PASSES * most // BEHAVIOUR.batch_size), MOST))
    asked = data.preference
    if asked is None:  # the behaviour had none; networks that expect one are told always the same
        config = replace(config, preference=(1 / data.spec.objectives,) * data.spec.objectives)
    else:
        config = replace(config, preferences="logged")
    found = np.zeros(len(data))
    for half in (0, 1):
        # As many rows for both, the first ones again where there are fewer: what trains them is compiled once.
        rows = np.resize(np.flatnonzero(side != half), most)
        clone = train(config, data[rows], seeds=(cloning,), progress=False)[0]
        here = data[side == half]
        p = probabilities(clone, here.observation, here.mask, None if asked is None else here.preference)
        found[side == half] = _of_logged(p, here)
    return (1 - DOUBT) * found + DOUBT / _legal(data)


def _propensities(behaviour: Any, data: Dataset, preference: np.ndarray | None) -> np.ndarray:
    """The probability of each logged action `[n]` that the caller tells, by an agent or by numbers."""
    if isinstance(behaviour, Agent):
        _check_probs(behaviour)
        _check_fits("behaviour", behaviour.spec, data.spec)
        asked = preference if data.preference is None else data.preference
        asked = behaviour.preferences(None if behaviour.config.preference else asked, len(data), "rows")
        given = _of_logged(probabilities(behaviour, data.observation, data.mask, asked), data)
    else:
        try:
            given = np.asarray(behaviour, np.float64)
        except (TypeError, ValueError):
            raise QDFMError(
                f"The behaviour is a {type(behaviour).__name__}; give an Agent, or the probability of each logged "
                "action."
            ) from None
        if given.shape != (len(data),):
            raise QDFMError(
                f"The behaviour has shape {given.shape} for {len(data)} rows; give the probability of each logged "
                "action, one per row."
            )
    bad = np.flatnonzero(~((given > 0) & (given <= 1 + 1e-6)))
    if bad.size:
        raise QDFMError(
            f"The behaviour gives the logged action of row {bad[0]} the probability {given[bad[0]]:g}, but it was "
            "taken; give the behaviour that wrote the log, with probabilities above 0 and at most 1."
        )
    return given


def _legal(data: Dataset) -> np.ndarray:
    """How many choices each row has `[n]`."""
    legal = data.spec.legal[None] if data.mask is None else np.asarray(data.mask) & data.spec.legal
    return np.broadcast_to(legal.sum((1, 2)), len(data))


def _of_logged(law: np.ndarray, data: Dataset) -> np.ndarray:
    """The probability of each logged action `[n]`."""
    return np.asarray(law[np.arange(len(data)), data.action[:, 0]], np.float64)


def _check(agent: Any, data: Any, gamma: float, steps: int) -> Spec:
    """Refuse what no estimate can be made of; the spec that the data is read by: the agent's own, as far as it tells
    what networks see."""
    if not isinstance(agent, Agent):
        raise QDFMError(f"The agent is a {type(agent).__name__}; give an Agent, as fit and qdfm.load(path) give one.")
    if not isinstance(data, Dataset):
        raise QDFMError(f"The data is a {type(data).__name__}; give a Dataset, as qdfm.load_dataset gives one.")
    if agent.spec.tokens > 1:
        raise QDFMError(
            f"The agent's decisions have {agent.spec.tokens} parts but estimates are for one choice per decision; play "
            "it in an environment with qdfm.evaluate."
        )
    _check_probs(agent)
    if not 0 <= gamma <= 1:
        raise QDFMError(f"gamma is {gamma}; it must be at least 0 and at most 1.")
    if steps < 1:
        raise QDFMError(f"steps is {steps}; give at least 1.")
    if len(data) == 0 or len(borders(data.episode)[0]) < 2:
        raise QDFMError("The data has fewer than 2 episodes, which show no spread; give more of them.")
    norm = replace(agent.spec.normalisation, reward_scale=())
    return replace(agent.spec, normalisation=norm, preference_range=())


def _check_probs(agent: Agent) -> None:
    if agent.compiled.algorithm.probs is None:
        raise QDFMError(
            f"{agent.config.name} has no exact action probabilities, which an estimate weighs the log by; play it in "
            "an environment with qdfm.evaluate."
        )


def _check_fits(who: str, mine: Spec, its: Spec) -> None:
    for what, one, other in (
        ("observations of shape", mine.observation_shape, its.observation_shape),
        ("objectives", mine.objectives, its.objectives),
    ):
        if one != other:
            raise QDFMError(
                f"The {who} was trained on {what} {one} but the data has {other}; give data as it was trained on."
            )
    if mine.actions != its.actions:
        known, found = told_apart(mine.actions, its.actions)
        raise QDFMError(
            f"The {who} was trained on {known} but the data has {found}; read it with those of the {who}, without "
            f"--bins, --codebook and --num-actions (in Python: actions={who}.spec.actions)."
        )


def _plain(values: Any) -> Any:
    """Numbers as JSON has them."""
    array = np.asarray(values, np.float64)
    return np.where(np.isfinite(array), array.astype(object), np.array(None)).tolist()
