"""What MODULI's planner is shown: windows of an episode's states, and returns relative to those of near preferences."""

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.data.dataset import Dataset
from qdfm.data.episodes import borders
from qdfm.nets import features

EVEN = 1e-6  # returns that differ by less than this share of the largest are the same


def conditions(dataset: Dataset, side: float, penalty: float) -> np.ndarray:
    """Preference and relative return-to-go of every row, `[n, 2 · objectives]`.

    A return-to-go becomes 0 at the least and 1 at the most that an episode of a near preference has at the same step
    (none once it has ended); where all are the same it is 1. Preferences are near if they lie in the same or in
    adjoining cells of a grid with this side. A step that ends the task costs `penalty` of every objective.
    """
    from scipy.spatial import cKDTree

    omega = np.asarray(dataset.preference)
    first, last = borders(dataset.episode)
    length = last - first + 1
    which = np.repeat(np.arange(len(first)), length)
    step = np.arange(len(which)) - first[which]
    paid = np.zeros((len(first), length.max(), dataset.spec.objectives))  # [episodes, T, objectives]
    paid[which, step] = np.asarray(dataset.reward) - penalty * np.asarray(dataset.terminated)[:, None]
    ahead = np.cumsum(paid[:, ::-1], 1)[:, ::-1]
    cells, cell = np.unique(np.floor(omega[first] / side), axis=0, return_inverse=True)
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(len(cells)))
    least, most = (f.reduceat(ahead[order], starts) for f in (np.minimum, np.maximum))  # [cells, T, objectives]
    near = cKDTree(cells).query_ball_point(cells, 1, p=np.inf)
    low, high = np.stack([least[n].min(0) for n in near]), np.stack([most[n].max(0) for n in near])
    span = (high - low)[cell]
    same = span <= EVEN * np.abs(ahead).max((0, 1))
    score = np.where(same, 1, (ahead - low[cell]) / np.where(same, 1, span))
    return np.concatenate([omega, score[which, step]], 1).astype(np.float32)


def last_rows(episode: jax.Array) -> jax.Array:
    """The last row `[n]` of every row's episode, whose numbers `[n]` do not decrease."""
    return jnp.searchsorted(episode, episode, side="right").astype(jnp.int32) - 1


def windows(dataset: Dataset, last: jax.Array, start: jax.Array, horizon: int) -> tuple[jax.Array, jax.Array]:
    """The states `[B, H, features]` from rows `start` on, and which of them are real `[B, H]`.

    The first is the row's own state, the others those that its steps led to; after the end of the episode the last one
    is repeated, and not real.
    """
    step = start[:, None] + jnp.arange(horizon - 1)
    end = last[start][:, None]
    states = jnp.concatenate(
        [
            features(dataset.spec, jnp.asarray(dataset.observation)[start])[:, None],
            features(dataset.spec, jnp.asarray(dataset.next_observation)[jnp.minimum(step, end)]),
        ],
        1,
    )
    return states, jnp.concatenate([jnp.ones_like(start, bool)[:, None], step <= end], 1)
