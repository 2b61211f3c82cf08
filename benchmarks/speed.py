"""Speed as ratios, measured side by side in one run.

Phases of QDFM, the literal against the collapsed objective, one seed against five, and the latency of `act` by sampler
against a bare compiled forward pass of the same network. Prints a table and writes JSON.

    python benchmarks/speed.py [--choices 256 --batch 256 --samples 64 --steps 20 --out results/speed/speed.json]
"""

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm import QDFM, Dataset
from qdfm.agent import Agent
from qdfm.algorithms.base import Config
from qdfm.checkpoint import write_file
from qdfm.experiments.report import Table, provenance
from qdfm.experiments.timing import in_turn
from qdfm.nets import context
from qdfm.train import compiled_phase

ROWS, FEATURES, REPEATS = 20_000, 17, 5
BARE = "bare forward pass"  # of the network that an action asks, compiled


def synthetic(choices: int) -> Dataset:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return Dataset.from_arrays(
        obs, rng.integers(choices, size=ROWS), rng.normal(size=ROWS), rng.permutation(obs),
        np.arange(ROWS) % 100 == 99, num_actions=choices,
    )  # fmt: skip


def median_time(function: Callable[[], Any], seconds: float) -> float:
    """Seconds per call: the median over repeats, each repeat long enough to be measured."""
    jax.block_until_ready(function())
    began = time.perf_counter()
    jax.block_until_ready(function())
    count = max(1, int(seconds / max(time.perf_counter() - began, 1e-7)))
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(count):
            last = function()
        jax.block_until_ready(last)
        times.append((time.perf_counter() - began) / count)
    return float(np.median(times))


def phase_time(config: Config, data: Dataset, name: str, seeds: int, length: int) -> float:
    """Seconds per gradient step of one phase, all seeds together, as the training loop runs it."""
    config = config.resolve(data.spec)
    algorithm = config.build(data.spec)
    index = [p.name for p in algorithm.phases].index(name)
    chunk = compiled_phase(config, data.spec, index)[-1]
    keys = jax.random.split(jax.random.key(0), seeds)
    state, placed = jax.jit(jax.vmap(algorithm.init))(keys), jax.device_put(data.normalised())
    return median_time(lambda: chunk(state, placed, None, keys, jnp.int32(0), length=length), 0.5) / length


def act_times(configs: dict[str, QDFM], data: Dataset) -> dict[str, float]:
    """Milliseconds of one decision, NumPy in to NumPy out."""
    spec, one = data.spec, np.asarray(data.observation[0])
    calls: dict[str, Callable[[], Any]] = {}
    for name, config in configs.items():
        config = config.resolve(spec)
        algorithm = config.build(spec)
        agent = Agent(config, spec, algorithm.policy(algorithm.init(jax.random.key(0))))
        calls[name] = lambda agent=agent: agent.act(one)
        net = agent.policy[0]

        def forward(net: Any, x: jax.Array) -> jax.Array:
            start = jnp.zeros((1, spec.tokens), jnp.int32)
            return net.scores(net.embed(context(spec, x, None)), start, jnp.zeros(1))

        compiled = jax.jit(forward)
        calls[f"{BARE}, {name}"] = lambda net=net, compiled=compiled: np.asarray(compiled(net, one[None]))
    return in_turn(calls, 2_000, warm=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choices", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/speed/speed.json"))
    args = parser.parse_args()
    data = synthetic(args.choices)
    common: dict[str, Any] = {"batch_size": args.batch, "samples": args.samples, "beta_scale": "none"}
    ours = QDFM(**common)
    # The printed algorithm, and the same one with nothing changed but the endpoints, then also the objective.
    fresh = QDFM.paper(**common, backup_samples=args.samples, renew_every=1, steps=args.steps)
    at_hand = dataclasses.replace(fresh, endpoints="enumerated")
    collapsed = dataclasses.replace(at_hand, objective="collapsed")

    steps: dict[str, float] = {}
    for label, config, name, seeds, length in (
        ("warmup", ours, "warmup", 1, 50),
        ("critic", ours, "critic", 1, 50),
        ("improve, QDFM() defaults", ours, "improve", 1, 50),
        ("improve, collapsed", collapsed, "improve", 1, 50),
        ("improve, literal, endpoints at hand", at_hand, "improve", 1, 4),
        ("improve, literal, fresh Euler endpoints", fresh, "improve", 1, 1),
        ("critic, paper (M draws)", fresh, "critic", 1, 20),
        ("warmup, five seeds", ours, "warmup", 5, 20),
        ("critic, five seeds", ours, "critic", 5, 20),
        ("improve, QDFM() defaults, five seeds", ours, "improve", 5, 20),
    ):
        steps[label] = phase_time(config, data, name, seeds, length)
        print(f"{label}: {1 / steps[label]:,.1f} steps/s", flush=True)
    acts = act_times(
        {
            "act, one step (posterior)": ours,
            f"act, {args.steps} Euler steps (posterior)": QDFM(**common, steps=args.steps),
            f"act, {args.steps} Euler steps (softplus)": QDFM(
                **common, steps=args.steps, rates="softplus", loss="l2", behaviour="network"
            ),
            f"act, {args.steps} Euler steps from μ̂ (paper)": fresh,
        },
        data,
    )
    one_five = [k for k in steps if k.endswith(", five seeds")]
    ratios = {
        "collapsed over literal with endpoints at hand": steps["improve, literal, endpoints at hand"]
        / steps["improve, collapsed"],
        "collapsed over literal with fresh Euler endpoints": steps["improve, literal, fresh Euler endpoints"]
        / steps["improve, collapsed"],
        "QDFM() over QDFM.paper(), improve": steps["improve, literal, fresh Euler endpoints"]
        / steps["improve, QDFM() defaults"],
        "QDFM() over QDFM.paper(), critic": steps["critic, paper (M draws)"] / steps["critic"],
        **{f"{k} against one": steps[k] / steps[k.removesuffix(", five seeds")] for k in one_five},
        **{
            f"{k} against a bare forward pass": v / acts[f"{BARE}, {k}"]
            for k, v in acts.items()
            if not k.startswith(BARE)
        },
    }
    table = Table(f"|A|={args.choices}, B={args.batch}, M={args.samples}, N={args.steps}", ("ratio", "×"))
    for name, ratio in ratios.items():
        table.add(name, f"{ratio:.2f}")
    table.show()
    made = provenance(
        "python benchmarks/speed.py", cores=os.cpu_count(), settings={k: v for k, v in vars(args).items() if k != "out"}
    )
    payload = {
        "provenance": made,
        "steps_per_second": {k: round(1 / v, 2) for k, v in steps.items()},
        "act_microseconds": {k: round(1e3 * v, 1) for k, v in acts.items()},
        "ratios": {k: round(v, 2) for k, v in ratios.items()},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(args.out, (json.dumps(payload, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
