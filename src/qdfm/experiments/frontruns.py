"""How deep-sea-treasure and resource-gathering are run: train, sweep preferences, tabulate, draw the fronts."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from qdfm.algorithms.base import Config
from qdfm.data.sources import load_dataset
from qdfm.envs.exact import expected_returns
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.fronts import Problem, both_ways, data_returns, followed, judge, score, true_front, volumes
from qdfm.experiments.report import Headline, Table, finish
from qdfm.frontplot import draw_front, text_front
from qdfm.metrics import Summary, simplex, summarise
from qdfm.train import train


@dataclass(frozen=True)
class PerPreference:
    """A method that is trained anew for each of some preferences."""

    config: Config
    count: int


@dataclass(frozen=True)
class Study:
    """One problem, the methods that are tried on it, and what the paper has for them."""

    problem: Problem
    methods: dict[str, Any]  # Config or PerPreference
    headline: str  # the method whose front is drawn
    behaviours: Callable[[], dict[str, np.ndarray]]  # names and laws [S, A] of the data's own policies
    paper: dict[str, str] = field(default_factory=dict)
    paper_hv: dict[str, float] = field(default_factory=dict)
    title: str = ""


def run_studies(
    settings: Settings, name: str, heading: str, studies: tuple[Study, ...], quick_methods: tuple[str, ...],
    quick_share: float, objectives: tuple[str, ...], notes: str, findings: str,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """All studies of an experiment; returns its results by problem and method."""
    known = dict.fromkeys(method for study in studies for method in study.methods)
    chosen = settings.chosen("method", known, quick_methods)
    cells, seeds = Cells(settings), settings.seed_range(5)
    results: dict[str, dict[str, Any]] = {}
    steps: dict[str, dict[str, int]] = {}
    asked = [study for study in studies if study.methods.keys() & set(chosen)][: 1 if settings.quick else None]
    for study in asked:
        here = {m: c for m, c in study.methods.items() if m in chosen}
        rows = results[study.title] = _fixed_rows(study)
        for method, entry in here.items():
            config = entry.config if isinstance(entry, PerPreference) else entry
            config = config.scaled(quick_share) if settings.quick else config
            rows[method] = _trained(cells, study.problem, config, entry, seeds, settings)
            spec = config.adapt(load_dataset(study.problem.task)).spec
            steps.setdefault(study.title, {})[method] = config.total_steps(spec)
    finish(
        cells, settings.command(name, len(seeds)), heading, results, [_table(s, results[s.title]) for s in asked],
        settings.notes(notes, findings), [line for s in asked for line in _headlines(s, results[s.title])],
        seeds=list(seeds), steps=steps, volumes={s.title: volumes(s.problem) for s in asked},
    )  # fmt: skip
    for study in asked:
        _draw(settings, study, results[study.title], objectives)
    return results


def _trained(
    cells: Cells, problem: Problem, config: Config, entry: Config | PerPreference, seeds: tuple[int, ...],
    settings: Settings,
) -> dict[str, Any]:  # fmt: skip
    key = {"problem": dataclasses.asdict(problem), "config": config.described(), "seeds": seeds}
    if isinstance(entry, PerPreference):
        omegas = simplex(len(problem.reference), entry.count)
        parts = [
            cells.get(
                key | {"preference": omega.tolist()}, partial(_alone, config, problem, omega, seeds, settings.progress)
            )
            for omega in omegas
        ]
        per_seed = [
            {
                played: _scored(np.array([part["seeds"][i][played] for part in parts]), problem)
                for played in ("greedy", "sampled")
            }
            for i in range(len(seeds))
        ]
        return {"seeds": per_seed}

    def compute() -> dict[str, Any]:
        agents = train(config, load_dataset(problem.task), seeds=seeds, progress=settings.progress, task=problem.task)
        rows = [judge(agent, problem) for agent in agents]
        for row in rows[1:]:  # the sweep of one seed is enough to draw
            for played in row.values():
                del played["returns"]
        return {"seeds": rows}

    return cells.get(key, compute)


def _alone(
    config: Config, problem: Problem, omega: np.ndarray, seeds: tuple[int, ...], progress: bool
) -> dict[str, Any]:
    """Policies trained for one preference: their expected returns."""
    one = dataclasses.replace(config, preference=tuple(omega.tolist()))
    agents = train(one, load_dataset(problem.task), seeds=seeds, progress=progress, task=problem.task)
    laws = np.stack([agent.action_probabilities(problem.table.observations) for agent in agents])
    returns = both_ways(laws, problem)
    return {"seeds": [{played: points[i].tolist() for played, points in returns.items()} for i in range(len(seeds))]}


def _scored(points: np.ndarray, problem: Problem) -> dict[str, Any]:
    return {**score(points, problem, problem.preferences), "returns": np.round(points, 5).tolist()}


def _fixed_rows(study: Study) -> dict[str, Any]:
    """What needs no training: the data's own policies together, and one that draws actions uniformly."""
    table, problem = study.problem.table, study.problem
    laws = np.stack(list(study.behaviours().values()))
    uniform = np.full((1, *laws.shape[1:]), 1 / laws.shape[2])
    rows = {}
    for name, some in (("the behaviours", laws), ("random", uniform)):
        rows[name] = {"seeds": [{"sampled": _scored(expected_returns(table, some, problem.gamma), problem)}]}
    return rows


def _table(study: Study, rows: dict[str, Any]) -> Table:
    front = len(true_front(study.problem))
    columns = (
        "method", "HV / true front", "HV / data", f"points of {front}", "SP", "ND", "expected utility",
        "⟨ω, return⟩ lost (seed 0)", "sampled: HV / true front", "sampled: HV / mixtures", "sampled: SP", "sampled: ND",
        "paper: HV, SP, ND",
    )  # fmt: skip
    table = Table(study.title, columns)
    for name, row in rows.items():

        def over(played: str, metric: str, form: str, row: Any = row) -> str:
            values = [seed[played][metric] for seed in row["seeds"] if played in seed]
            return format(summarise(values), form) if values else "–"

        table.add(
            name, over("greedy", "hv_front", ".4f"), over("greedy", "hv_data", ".3f"), over("greedy", "points", ".1f"),
            over("greedy", "spacing", ".2f"), over("greedy", "nd", ".1f"), over("greedy", "utility", ".3f"),
            _lost(study.problem, row), over("sampled", "hv_front", ".4f"), over("sampled", "hv_hull", ".4f"),
            over("sampled", "spacing", ".2f"),
            over("sampled", "nd", ".1f"), study.paper.get(name, "–"),
        )  # fmt: skip
    return table


def _lost(problem: Problem, row: dict[str, Any]) -> str:
    """What the greedy sweep of seed 0 loses by not heeding ω; of one that was swept at all these preferences."""
    points = np.asarray(row["seeds"][0].get("greedy", {}).get("returns", ()))
    if len(points) != len(problem.preferences):
        return "–"
    return f"{max(followed(points, problem), 0.0):.3f}"  # the kept returns are rounded


def _headlines(study: Study, rows: dict[str, Any]) -> list[Headline]:
    lines = []
    for name, row in rows.items():
        if "greedy" in row["seeds"][0]:
            ours: Summary = summarise([seed["greedy"]["hv_front"] for seed in row["seeds"]])
            what = f"{study.title}, {name} (greedy): hypervolume over the true front's"
            lines.append(Headline(what, ours.mean, study.paper_hv.get(name)))
    return lines


def _draw(settings: Settings, study: Study, rows: dict[str, Any], objectives: tuple[str, ...]) -> None:
    """The front of the headline method, seed 0, as a picture and in the terminal."""
    trained = [name for name in study.methods if name in rows]
    name = study.headline if study.headline in rows else trained[0]
    achieved = np.asarray(rows[name]["seeds"][0]["greedy"]["returns"])
    front = true_front(study.problem)
    file = "-".join(re.findall(r"\w+", study.title.lower())) + ".png"
    title = f"{study.title}: {name}, greedy, {len(study.problem.preferences)} preferences"
    draw_front(settings.out / file, achieved, data_returns(study.problem), front, objectives, title)
    if len(objectives) == 2:
        print(text_front(achieved, front, objectives))
