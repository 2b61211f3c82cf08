"""Data of the matrix game: its behaviour drawn part by part, as `qdfm.envs.matrix` tells it."""

import numpy as np

from qdfm.data.dataset import Dataset
from qdfm.envs.matrix import ACTIONS, AGENTS, CONTEXTS, FOLLOWED, PREFERRED, payoffs
from qdfm.errors import QDFMError


def collect_matrix(transitions: int = 20_000, seed: int = 0) -> Dataset:
    """So many episodes of one step each, the same for the same seed."""
    if transitions < 1:
        raise QDFMError(f"{transitions} transitions cannot be collected; give at least 1.")
    rng = np.random.default_rng(seed)
    context = rng.integers(CONTEXTS, size=transitions)
    part = np.where(rng.random(transitions) < PREFERRED, context, 1 - context)[:, None]
    follows = rng.random((transitions, AGENTS)) < FOLLOWED
    other = (part + rng.integers(1, ACTIONS, size=(transitions, AGENTS))) % ACTIONS
    action = np.where(follows, part, other)  # [n, 2]
    state = np.eye(CONTEXTS, dtype=np.float32)[context]
    observation = np.repeat(state[:, None], AGENTS, axis=1)  # [n, 2, 2]
    return Dataset.from_arrays(
        observation=observation,
        action=action,
        reward=payoffs()[action[:, 0], action[:, 1]],
        next_observation=observation,
        terminated=np.ones(transitions, bool),
        num_actions=(ACTIONS,) * AGENTS,
        state=state,
        next_state=state,
        agents=AGENTS,
    )
