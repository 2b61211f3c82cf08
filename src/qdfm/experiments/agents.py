"""agents: what a decision of a team costs, and learning it, as the team grows from 2 to 32.

K = 10 choices per agent, so that 32 agents have 10^32 joint actions. The factorised flow never lists them: one Euler
step evaluates G·K rates. The data mean nothing; networks need not be trained for their cost. Teams of all sizes are
timed in turn, so that they meet the same machine, with the same number of Euler steps N and the same batch.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdfm.algorithms import QDFM
from qdfm.algorithms.base import legal_choices
from qdfm.algorithms.qdfm_phases import Phases
from qdfm.data.dataset import Dataset
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.report import Headline, Table, finish
from qdfm.experiments.timing import Timing, phase_rates
from qdfm.figures import save_figure
from qdfm.nets import context

EXECUTIONS = ("decentralised", "centralised")
CHOICES, SEEN, STATE = 10, 32, 64  # of every agent: actions, numbers it sees; of the team: numbers of the global state


@dataclass(frozen=True)
class Size:
    """How much is timed."""

    teams: tuple[int, ...] = (2, 4, 8, 16, 32)
    steps: int = 16
    """N, Euler steps, the same for all."""
    batch: int = 256
    """Decisions at a time."""
    repeats: int = 30
    """Timed calls, of which the median is taken."""
    rows: int = 4096
    """Of the data."""
    chunk: int = 20
    """Gradient steps per timed scan."""


FULL = Size()
QUICK = Size(teams=(2, 4), steps=2, batch=16, repeats=3, rows=256, chunk=2)

NOTES = (
    f"Random data, {CHOICES} choices and {SEEN} observed numbers per agent, two layers of 128 units. Acting: a batch "
    "of joint decisions from observation to action in one compiled call, median, divided by N. Decentralised: every "
    "agent's rates by one network of its own observation and current action; centralised: all rates by one network of "
    "all observations and the joint action, whose first and last layer grow with the team. Learning: gradient steps "
    "per second of phases 1 and 3. Growth: the exponent b of time ~ G^b from the first to the last team, and between "
    "the last two. Linear growth is 1; below it, a larger team makes fuller use of the same operations."
)


def run(settings: Settings) -> None:
    """Time, tabulate, draw."""
    report(settings, QUICK if settings.quick else FULL)


def report(settings: Settings, size: Size) -> None:
    """The chosen executions at one size."""
    chosen = settings.chosen("execution", EXECUTIONS)
    settings.require_no_seeds("agents measures time alone")
    cells = Cells(settings)
    results: dict[str, Any] = {}
    for execution in chosen:
        key = {"execution": execution, "size": asdict(size)}
        results[execution] = cells.get(key, partial(timed, execution, size))["teams"]
    tables = [_table(execution, teams, size) for execution, teams in results.items()]
    finish(
        cells, settings.command("agents"), "Teams of 2 to 32 agents", results, tables, NOTES, headlines(results),
        settings=asdict(size),
    )  # fmt: skip
    draw(settings.out, results)


def config(execution: str, steps: int) -> QDFM:
    """The flow that is timed."""
    return QDFM(
        warmup_steps=1, critic_steps=0, improve_steps=1, execution=execution, steps=steps, hidden=(128, 128),
        endpoints="behaviour", samples=4, mixing="qmix",
    )  # fmt: skip


def team_data(agents: int, rows: int) -> Dataset:
    """Transitions of a team that mean nothing."""
    rng = np.random.default_rng(agents)
    seen, then = rng.standard_normal((2, rows, agents, SEEN), np.float32)
    state, after = rng.standard_normal((2, rows, STATE), np.float32)
    return Dataset.from_arrays(
        seen, rng.integers(CHOICES, size=(rows, agents)), rng.random(rows), then, np.arange(rows) % 100 == 99,
        num_actions=(CHOICES,) * agents, state=state, next_state=after, agents=agents,
    )  # fmt: skip


def timed(execution: str, size: Size) -> dict[str, Any]:
    """By the number of agents: milliseconds of one Euler step, and gradient steps per second."""
    acts = {agents: _acting(execution, agents, size) for agents in size.teams}
    seconds: dict[int, list[float]] = {agents: [] for agents in size.teams}
    for _ in range(size.repeats):
        for agents, act in acts.items():
            began = time.perf_counter()
            act()
            seconds[agents].append(time.perf_counter() - began)
    out = {}
    for agents in size.teams:
        timing = Timing(seconds=0.2, chunk=size.chunk)
        phases = phase_rates(config(execution, size.steps), team_data(agents, size.rows), 1, timing)
        out[str(agents)] = {
            "step_ms": 1e3 * float(np.median(seconds[agents])) / size.steps,
            "rates": rates(execution, agents, size.steps),
            "learning": {name: phase["steps_per_second"] for name, phase in phases.items()},
        }
    return {"teams": out}


def rates(execution: str, agents: int, steps: int) -> int:
    """How many rates the flow gives for a joint action in one Euler step."""
    spec = team_data(agents, 2).spec
    phases = Phases(config(execution, steps).resolve(spec), spec)

    def given() -> jax.Array:
        x = context(spec, jnp.zeros((1, agents, SEEN)), jnp.ones((1, 1)))
        net = phases.init(jax.random.key(0)).flow.net
        return phases.policy.scores(net, x)(jnp.zeros((1, agents), int), jnp.zeros(1))

    return jax.eval_shape(given).size


def _acting(execution: str, agents: int, size: Size) -> Any:
    """A compiled batch of decisions, called once already."""
    spec = team_data(agents, 2).spec
    phases = Phases(config(execution, size.steps).resolve(spec), spec)
    net = phases.init(jax.random.key(0)).flow.net
    seen = jax.random.normal(jax.random.key(1), (size.batch, agents, SEEN))
    uniforms = jax.random.uniform(jax.random.key(2), (size.batch, phases.policy.noise))
    legal = legal_choices(spec, None, size.batch)

    @jax.jit
    def act(net: Any, seen: jax.Array, uniforms: jax.Array) -> jax.Array:
        return phases.policy.sample(net, context(spec, seen, jnp.ones((size.batch, 1))), legal, uniforms)

    def call() -> None:
        jax.block_until_ready(act(net, seen, uniforms))

    call()
    return call


def growth(teams: dict[str, Any], first: int, last: int) -> float:
    """The exponent b of step time ~ G^b between two of the teams, by their places."""
    sizes = list(teams)
    (g0, t0), (g1, t1) = ((int(sizes[i]), teams[sizes[i]]["step_ms"]) for i in (first, last))
    return float(np.log(t1 / t0) / np.log(g1 / g0))


def _table(execution: str, teams: dict[str, Any], size: Size) -> Table:
    learning = list(next(iter(teams.values()))["learning"])
    columns = ("agents", "joint actions", "rates per step", f"one of N = {size.steps} Euler steps, ms", "per agent, µs")
    table = Table(execution, (*columns, *(f"{name}, steps/s" for name in learning)))
    for agents, row in teams.items():
        per = 1e3 * row["step_ms"] / int(agents)
        speeds = (f"{row['learning'][name]:.1f}" for name in learning)
        table.add(agents, f"10^{agents}", row["rates"], f"{row['step_ms']:.3f}", f"{per:.1f}", *speeds)
    return table


def headlines(results: dict[str, Any]) -> list[Headline]:
    """How the time of a step grows."""
    lines = []
    for execution, teams in results.items():
        lines.append(Headline(f"{execution}: exponent of step time, smallest to largest team", growth(teams, 0, -1)))
        lines.append(Headline(f"{execution}: exponent of step time, the two largest teams", growth(teams, -2, -1)))
    return lines


def draw(folder: Path, results: dict[str, Any]) -> None:
    """agents.png: time of an Euler step against the number of agents."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    for execution, teams in results.items():
        sizes = np.array([int(g) for g in teams])
        times = np.array([row["step_ms"] for row in teams.values()])
        (line,) = axes.plot(sizes, times, "o-", label=execution)
        axes.plot(sizes, times[-1] * sizes / sizes[-1], ":", color=line.get_color(), label="linear")
    axes.set(xscale="log", yscale="log", xlabel="agents", ylabel="one Euler step, ms")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, folder / "agents.png")
