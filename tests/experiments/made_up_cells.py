"""Cells of the MuJoCo experiments as they would be found on disk, with numbers made up for tests."""

from typing import Any

import numpy as np

from qdfm.tasks import TASKS


def episodes(task: str, score: float) -> dict[str, Any]:
    """Two episodes of one policy, 1 above and 1 below the return of a normalised score."""
    known = TASKS[task]
    mean = known.low + score / 100 * (known.high - known.low)
    return {"returns": [mean - 1, mean + 1], "score": score}


def trained_cell(task: str, sampled: list[float], greedy: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """A method with a score for each seed."""
    seeds = [{"sampled": episodes(task, s), "greedy": episodes(task, g)} for s, g in zip(sampled, greedy or sampled)]
    return {"seeds": seeds, "train_seconds": 12.3, "steps": {"warmup": 30, "critic": 100}, "data": facts(None)} | more


def facts(mean: float | None) -> dict[str, Any]:
    """Of the data."""
    return {"transitions": 1000, "fingerprint": "f", "episodes": 1, "return": mean, "quantisation_error": 0.125}


def behaviour_cell(task: str, score: float, data: float | None = None) -> dict[str, Any]:
    """The behaviour, replayed at a score; the data's own score where it is known."""
    known = TASKS[task]
    mean = None if data is None else known.low + data / 100 * (known.high - known.low)
    return {"data": facts(mean), "replayed": episodes(task, score)}


def row(task: str, replayed: float, **methods: list[float]) -> dict[str, Any]:
    """A data set of a table: the behaviour and the sampled scores of some methods, greedy ones 1 more."""
    made = {
        name.replace("_", "-"): trained_cell(task, values, (np.array(values) + 1).tolist())
        for name, values in methods.items()
    }
    return {"behaviour": behaviour_cell(task, replayed, replayed + 2), "methods": made}
