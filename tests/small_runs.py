"""Runs of a second for the tests of training and of run folders."""

import json

import numpy as np

import qdfm
from qdfm.train import Options

STEPS = {"warmup_steps": 60, "critic_steps": 60, "improve_steps": 60}
CONFIG = qdfm.QDFM(batch_size=16, hidden=(16, 16), **STEPS)
OFTEN = Options(chunk=10, checkpoint_seconds=0.0)


def small_data(seed: int = 0) -> qdfm.Dataset:
    rng = np.random.default_rng(seed)
    n = 100
    obs = rng.normal(size=(n, 3))
    return qdfm.Dataset.from_arrays(
        obs, rng.integers(4, size=n), rng.normal(size=n), np.roll(obs, -1, 0), np.arange(n) % 10 == 9
    )


def rows(folder) -> list[dict]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in read:
        del row["steps_per_second"]
    return read
