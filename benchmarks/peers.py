"""Throughput of CQL, BCQ and BC against d3rlpy's DiscreteCQL, DiscreteBCQ and DiscreteBC, measured side by side.

Gradient steps per second on the CPU: ours in the compiled chunks that `qdfm.train` runs, compilation apart; theirs in
`fit` with logging off, and in bare `update` calls on batches that are ready, each with one thread or one per core,
whichever is faster. Rounds alternate between the two, and figures are medians over rounds. Prints a table and writes
JSON.

    python benchmarks/peers.py [--choices 18 --batch 256 --rounds 3 --seconds 5 --out results/peers/peers.json]

Both get the same log, hidden layers of 256 and 256 with ReLU, the same batch size, Adam with the same step size,
float32 and γ = .99. What differs remains theirs or ours:

- Ours averages the weights at every step (target network, acting weights); theirs copies them every 8,000 steps.
- BCQ is compared on the same networks, one for the values and one for the behaviour; a second row has their default, in
  which the two share hidden layers, so that they do less work than ours.
- Their BC and BCQ penalise logits, their CQL and BCQ use Huber's loss.
- Ours draws rows uniformly on the device; theirs picks transitions out of episodes in Python, which is why the bare
  `update` is measured as well. Ours includes its sampling in both ratios.
- Their `compile_graph` is asked for, but d3rlpy compiles on CUDA devices only; the JSON says whether it did.

d3rlpy and PyTorch are no dependencies: they run in a process and an environment of their own, `--peer-python`, or
`.peers/`, which is made where it is missing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm import BC, BCQ, CQL, Dataset
from qdfm.algorithms.base import Config
from qdfm.checkpoint import write_file
from qdfm.experiments.report import Table, provenance
from qdfm.train import Options, compiled_phase

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".peers"
PACKAGES = ("torch==2.13.0", "d3rlpy==2.8.1")
ROWS, FEATURES, EPISODE = 100_000, 17, 100
HIDDEN, LEARNING_RATE = (256, 256), 3e-4
RUN = 20_000  # gradient steps of the computed wall time
NAMES = {
    "cql": "DiscreteCQL",
    "bcq": "DiscreteBCQ, networks as ours",
    "bcq-shared": "DiscreteBCQ, its default of shared layers",
    "bc": "DiscreteBC",
}


def peer_python() -> str:
    """The interpreter of the peer's environment, which is made on the first use."""
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "-".join(PACKAGES).replace("==", "-")
    if not done.exists():
        print(f"Installing {' and '.join(PACKAGES)} in {ENVIRONMENT.name}/", flush=True)
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True
        )
        done.touch()
    return str(python)


def synthetic(choices: int) -> dict[str, np.ndarray]:
    """A log of episodes; an observation's successor is the next row."""
    rng = np.random.default_rng(0)
    return {
        "observation": rng.normal(size=(ROWS, FEATURES)).astype(np.float32),
        "action": rng.integers(choices, size=(ROWS, 1)),
        "reward": rng.normal(size=(ROWS, 1)).astype(np.float32),
        "terminated": np.arange(ROWS) % EPISODE == EPISODE - 1,
        "choices": np.array(choices),
    }


def configs(batch: int) -> dict[str, Config]:
    common: dict[str, Any] = {"batch_size": batch, "hidden": HIDDEN, "learning_rate": LEARNING_RATE}
    valued = common | {"critic_learning_rate": LEARNING_RATE, "gamma": 0.99, "critics": 1, "pessimism": "mean"}
    return {"cql": CQL(**valued), "bcq": BCQ(**valued), "bcq-shared": BCQ(**valued), "bc": BC(**common)}


class Ours:
    """One algorithm in training: the loop of `qdfm.train` without folder and progress bar."""

    def __init__(self, config: Config, data: Dataset):
        config = config.resolve(data.spec)
        self.chunk = compiled_phase(config, data.spec, 0)[-1]
        self.keys = jax.random.split(jax.random.key(0), 1)
        self.state = jax.jit(jax.vmap(config.build(data.spec).init))(self.keys)
        self.data = jax.device_put(data.normalised())
        self.done, self.length = 0, Options().chunk
        first, later = self.advance(), self.advance()
        self.compile_seconds = first - later

    def advance(self) -> float:
        """One chunk; the seconds it took."""
        began = time.perf_counter()
        first = jnp.int32(self.done)
        self.state, metrics = self.chunk(self.state, self.data, None, self.keys, first, length=self.length)
        if not all(np.isfinite(np.asarray(values)).all() for values in metrics.values()):
            raise RuntimeError("training diverged, so that its speed means nothing")
        self.done += self.length
        return time.perf_counter() - began

    def rate(self, seconds: float) -> float:
        """Steps per second."""
        passed, chunks = 0.0, 0
        while passed < seconds:
            passed, chunks = passed + self.advance(), chunks + 1
        return chunks * self.length / passed


def theirs(python: str, log: Path, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the peer's process measures of one algorithm; its warnings are not shown."""
    words = [python, str(Path(__file__).with_name("peer_d3rlpy.py")), str(log), name, "--batch", str(args.batch)]
    words += ["--hidden", *map(str, HIDDEN), "--learning-rate", str(LEARNING_RATE), "--seconds", str(args.seconds)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"d3rlpy's side failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def fastest(rounds: list[dict[str, float]]) -> tuple[str, list[float]]:
    """The number of threads with the best median, and its figure of every round."""
    threads = max(rounds[0], key=lambda t: median(r[t] for r in rounds))
    return threads, [r[threads] for r in rounds]


def compare(ours: Ours, mine: list[float], peer: list[dict[str, Any]]) -> dict[str, Any]:
    """All figures of one algorithm; a ratio's range is over rounds, ours against theirs of the same round."""
    rate = median(mine)
    out: dict[str, Any] = {
        "ours": {"steps_per_second": round(rate, 1), "rounds": [round(r, 1) for r in mine]},
        "compile_seconds": round(ours.compile_seconds, 2),
    }
    for what in ("fit", "update"):
        threads, rates = fastest([p[what] for p in peer])
        pairs = [a / b for a, b in zip(mine, rates)]
        out[f"d3rlpy {what}"] = {
            "steps_per_second": round(median(rates), 1),
            "rounds": [round(r, 1) for r in rates],
            "threads": int(threads),
            "other_threads": {t: round(median(p[what][t] for p in peer), 1) for t in peer[0][what] if t != threads},
        }
        out[f"ratio to {what}"] = {
            "median": round(rate / median(rates), 2),
            "range": [round(min(pairs), 2), round(max(pairs), 2)],
        }
    fit = out["d3rlpy fit"]["steps_per_second"]
    out[f"seconds of {RUN} steps, computed"] = {
        "ours, compile + steps / rate": round(ours.compile_seconds + RUN / rate, 1),
        "d3rlpy, steps / rate of fit": round(RUN / fit, 1),
    }
    return out


def command(settings: dict[str, float], defaults: argparse.ArgumentParser) -> str:
    """The command that measures the same again."""
    given = [f"--{name} {value:.9g}" for name, value in settings.items() if value != defaults.get_default(name)]
    return " ".join(["python benchmarks/peers.py", *given])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choices", type=int, default=18)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of every single measurement, at least")
    parser.add_argument("--peer-python", help="an interpreter with d3rlpy and PyTorch (default: that of .peers/)")
    parser.add_argument("--out", type=Path, default=Path("results/peers/peers.json"))
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    python = args.peer_python or peer_python()
    log = synthetic(args.choices)
    data = Dataset.from_arrays(
        log["observation"], log["action"][:, 0], log["reward"], np.roll(log["observation"], -1, 0), log["terminated"],
        num_actions=args.choices,
    )  # fmt: skip
    ours = {name: Ours(config, data) for name, config in configs(args.batch).items()}
    mine: dict[str, list[float]] = {name: [] for name in ours}
    peer: dict[str, list[dict[str, Any]]] = {name: [] for name in ours}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.npz"
        np.savez(file, **log)
        for number in range(args.rounds):
            for name in ours:
                mine[name].append(ours[name].rate(args.seconds))
                peer[name].append(theirs(python, file, name, args))
                best = {what: max(peer[name][-1][what].values()) for what in ("fit", "update")}
                print(
                    f"round {number + 1}, {name}: {mine[name][-1]:,.0f} steps/s; d3rlpy fit {best['fit']:,.0f}, "
                    f"update {best['update']:,.0f}",
                    flush=True,
                )
    results = {name: compare(ours[name], mine[name], peer[name]) for name in ours}
    table = Table(
        f"Gradient steps per second, CPU, |A|={args.choices}, B={args.batch}, medians of {args.rounds} rounds",
        ("algorithm", "qdfm", "d3rlpy fit", "d3rlpy update", "× fit", "× update", f"{RUN:,} steps (computed)"),
    )
    for name, r in results.items():
        ratios = [r[f"ratio to {what}"] for what in ("fit", "update")]
        walls = r[f"seconds of {RUN} steps, computed"].values()
        table.add(
            f"{name.split('-')[0].upper()} against {NAMES[name]}",
            *(f"{r[key]['steps_per_second']:,.0f}" for key in ("ours", "d3rlpy fit", "d3rlpy update")),
            *(f"{x['median']:.2f} ({x['range'][0]:.2f} to {x['range'][1]:.2f})" for x in ratios),
            "{:.0f} s against {:.0f} s".format(*walls),
        )
    table.show()
    last = peer["cql"][-1]
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "peer_python")}
    made = provenance(
        command(settings, parser),
        cores=os.cpu_count(),
        peer={"command": "python benchmarks/peer_d3rlpy.py", "compiled": last["compiled"], **last["versions"]},
        settings=settings | {"rows": ROWS, "features": FEATURES, "hidden": HIDDEN, "learning_rate": LEARNING_RATE},
    )
    payload = {"provenance": made, "results": results}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(args.out, (json.dumps(payload, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
