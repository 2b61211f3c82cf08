"""The other side of `peers.py`: gradient steps per second of one algorithm of d3rlpy, on the CPU.

Run by an interpreter that has d3rlpy and PyTorch; the last line it prints is one JSON object.

    python benchmarks/peer_d3rlpy.py LOG.npz cql --batch 256 --hidden 256 256 --learning-rate 3e-4 --seconds 5
"""

import argparse
import itertools
import json
import os
import platform
import time
from functools import partial
from typing import Any

import d3rlpy
import numpy as np
import torch

CONFIGS = {
    "cql": d3rlpy.algos.DiscreteCQLConfig,
    "bcq": partial(d3rlpy.algos.DiscreteBCQConfig, share_encoder=False),
    "bcq-shared": d3rlpy.algos.DiscreteBCQConfig,
    "bc": d3rlpy.algos.DiscreteBCConfig,
}
EPOCH = 100  # shorter than the default of 10,000: the running means over an epoch cost next to nothing then
READY = 64


def fit_rate(algo: Any, dataset: Any, seconds: float) -> float:
    """Steps per second of `fit`, epoch by epoch, its own sampling from the replay buffer included."""
    epochs = algo.fitter(
        dataset, n_steps=10**9, n_steps_per_epoch=EPOCH, show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip
    next(epochs)  # builds the networks, warms up
    began, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        next(epochs)
        steps += EPOCH
    return steps / passed


def update_rate(algo: Any, batches: list[Any], seconds: float) -> float:
    """Steps per second of `update` alone, on batches that are ready."""
    for batch in batches:
        algo.update(batch)
    began, steps = time.perf_counter(), 0
    ready = itertools.cycle(batches)
    while (passed := time.perf_counter() - began) < seconds:
        for batch in itertools.islice(ready, READY):
            algo.update(batch)
        steps += READY
    return steps / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("algorithm", choices=CONFIGS)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--hidden", type=int, nargs="+", required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    log = np.load(args.log)
    dataset = d3rlpy.dataset.MDPDataset(
        log["observation"], log["action"], log["reward"], log["terminated"].astype(np.float32),
        action_space=d3rlpy.ActionSpace.DISCRETE, action_size=int(log["choices"]),
    )  # fmt: skip
    settings = {"gamma": 0.99} if args.algorithm != "bc" else {}
    config = CONFIGS[args.algorithm](
        batch_size=args.batch,
        learning_rate=args.learning_rate,
        encoder_factory=d3rlpy.models.VectorEncoderFactory(hidden_units=args.hidden),
        compile_graph=True,
        **settings,
    )
    d3rlpy.seed(0)
    algo = config.create(device="cpu:0")
    fit, update = {}, {}
    batches = [dataset.sample_transition_batch(args.batch) for _ in range(READY)]
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        fit[threads] = fit_rate(algo, dataset, args.seconds)
        update[threads] = update_rate(algo, batches, args.seconds)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "d3rlpy": d3rlpy.__version__}
    print(json.dumps({"versions": versions, "compiled": algo.compiled, "fit": fit, "update": update}))


if __name__ == "__main__":
    main()
