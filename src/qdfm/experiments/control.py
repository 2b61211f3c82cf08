"""What `mujoco`, `guidance`, `divisions` and `ablations` share: data, quantiser, training and play, as cells.

All data are rollouts of our own policies (`qdfm data make hopper-medium`), not Minari's. A cell of a trained method
keeps the return of every episode, so that any table can be made of it again.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from qdfm.agent import Agent
from qdfm.algorithms import QDFM
from qdfm.algorithms.base import Config
from qdfm.collect.mujoco import MILLION, collect_mujoco, replayed, whole_returns
from qdfm.data.actions import quantisation_error
from qdfm.data.dataset import Dataset, fingerprint
from qdfm.data.sources import load_dataset
from qdfm.errors import QDFMError
from qdfm.evaluate import evaluate
from qdfm.experiments.cells import Cells
from qdfm.experiments.fitting import Fit, fit
from qdfm.experiments.report import PLAYED
from qdfm.metrics import Summary, summarise
from qdfm.tasks import TASKS, normalised

MEDIUM = tuple(name for name in TASKS if name.endswith("-medium"))
# In the order of the paper's tables.
PAPER_TASKS = (
    "halfcheetah-expert", "halfcheetah-medium", "hopper-expert", "hopper-medium", "walker2d-expert", "walker2d-medium",
)  # fmt: skip
FRESH = 20_000  # transitions, collected anew, on which the quantisation error is measured
FRESH_SEED = 10_000  # far from the seeds of the data
REPLAYED = 40  # episodes of the behaviour through the quantiser, to which others are compared

SOURCE = (
    "The data are rollouts of our own policies (`qdfm data make`), not Minari's, so that scores can be compared within "
    "a table but only roughly with the paper's, whose data and quantiser are others. Scores are D4RL's: 0 for a random "
    "policy, 100 for D4RL's expert. Behaviour, data: the data's whole episodes; behaviour, replayed: "
    f"{REPLAYED} new episodes of the policy that made the data, every action first quantised. Quantisation error: root "
    f"mean square in units of the actions' standard deviation, on {FRESH:,} fresh transitions."
)


@dataclass(frozen=True)
class Coding:
    """How continuous actions become tokens: a codebook of joint actions (D = 1), or bins of every dimension."""

    kind: str  # codebook or bins
    count: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.count}"


@dataclass(frozen=True)
class Size:
    """How much is done for a cell."""

    transitions: int = MILLION
    """Of the data."""
    episodes: int = 20
    """Per seed and way to play."""
    share: float = 1.0
    """Of the gradient steps."""


FULL = Size()
QUICK = Size(transitions=20_000, episodes=3, share=0.002)


@dataclass(frozen=True)
class Place:
    """A task with a coding, at a size: what a cell is about, apart from the method."""

    task: str
    coding: Coding
    size: Size

    def described(self) -> dict[str, Any]:
        """What all cells of this place depend on."""
        return {"task": self.task, "coding": asdict(self.coding), "transitions": self.size.transitions}

    def data(self) -> Dataset:
        """The transitions, kept while a process stays at this task and coding."""
        return load(self.task, self.coding, self.size.transitions)


@lru_cache(maxsize=2)
def load(task: str, coding: Coding, transitions: int) -> Dataset:
    """The data of a task with its actions as tokens; a million of them are kept as the task's Minari set."""
    kinds: dict[str, Any] = {coding.kind: coding.count}
    if transitions < MILLION:
        return load_dataset(task, transitions=transitions, seed=0, **kinds)
    data = load_dataset(task, seed=0, **kinds)
    if len(data) != transitions:
        raise QDFMError(
            f"The Minari set of {task} has {len(data):,} transitions where {transitions:,} are needed; "
            f"make it anew: qdfm data make {task} --replace."
        )
    return data


def behaviour(cells: Cells, place: Place) -> dict[str, Any]:
    """The cell of the data's own policy: what the data hold, and what is left of it when actions are quantised."""

    def compute() -> dict[str, Any]:
        data = place.data()
        returns, space = whole_returns(place.task, data), data.spec.actions
        fresh = collect_mujoco(place.task, FRESH, seed=FRESH_SEED, workers=1)
        facts = {
            "transitions": len(data),
            "fingerprint": fingerprint(data),
            "episodes": len(returns),
            "return": float(returns.mean()) if len(returns) else None,
            "quantisation_error": quantisation_error(space, fresh.action),
        }
        return {"data": facts, "replayed": played(place.task, replayed(place.task, space, REPLAYED, FRESH_SEED))}

    return cells.get(place.described() | {"policy": "behaviour", "episodes": REPLAYED}, compute)


def played(task: str, returns: np.ndarray) -> dict[str, Any]:
    """Episodes of one policy: their raw returns and the mean normalised score."""
    return {"returns": np.round(returns, 3).tolist(), "score": float(np.mean(normalised(task, returns)))}


def play(agent: Agent, task: str, episodes: int, seed: int, greedy: bool, progress: bool) -> dict[str, Any]:
    """Episodes of an agent."""
    return played(task, evaluate(agent, task, episodes, seed, greedy, progress=progress).returns[:, 0])


def judge(agent: Agent, place: Place, seed: int, progress: bool) -> dict[str, Any]:
    """One trained policy, sampled and greedy; the mean of a law draws nothing and is played once for both."""
    if isinstance(agent.config, QDFM) and agent.config.averaged:
        return dict.fromkeys(PLAYED, play(agent, place.task, place.size.episodes, seed, True, progress))
    return {how: play(agent, place.task, place.size.episodes, seed, how == "greedy", progress) for how in PLAYED}


def trained(
    cells: Cells,
    place: Place,
    config: Config,
    seeds: tuple[int, ...],
    progress: bool,
    judge: Callable[[Agent, Place, int, bool], dict[str, Any]] = judge,
    fit: Fit = fit,
    **describes: Any,
) -> dict[str, Any]:
    """The cell of a method: every seed fitted and judged; `describes` says how, if not as usual."""
    known = behaviour(cells, place)["data"]
    config = config.scaled(place.size.share)

    def compute() -> dict[str, Any]:
        agents, seconds = fit(place.data(), config, seeds, progress)
        phases = config.build(place.data().spec).phases
        return {
            "seeds": [judge(agent, place, seed, progress) for agent, seed in zip(agents, seeds, strict=True)],
            "train_seconds": round(seconds, 1),
            "steps": {phase.name: phase.steps for phase in phases if phase.steps},
            "data": known,
        }

    key = place.described() | {"config": config.described(), "seeds": seeds, "episodes": place.size.episodes}
    return cells.get(key | describes, compute)


# What tables are made of


def scores(cell: dict[str, Any], how: str) -> np.ndarray:
    """The normalised score of each seed `[seeds]`."""
    return np.array([seed[how]["score"] for seed in cell["seeds"]])


def mean_returns(cell: dict[str, Any], how: str) -> Summary:
    """The raw return over seeds."""
    return summarise([float(np.mean(seed[how]["returns"])) for seed in cell["seeds"]])


def gain(guided: dict[str, Any], base: dict[str, Any], how: str) -> tuple[float, float | None]:
    """How much more one cell scores than another, and the standard error of the seeds' differences (None for one)."""
    difference = summarise(scores(guided, how) - scores(base, how))
    return difference.mean, difference.std / math.sqrt(difference.n) if difference.n > 1 else None


def total_steps(cell: dict[str, Any]) -> int:
    """Gradient steps of all phases."""
    return sum(cell["steps"].values())


def data_return(cell: dict[str, Any], task: str) -> float | None:
    """The normalised score of the data's whole episodes, where there are any."""
    mean = cell["data"]["return"]
    return None if mean is None else float(normalised(task, mean))
