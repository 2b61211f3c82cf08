"""The tables of `boltzmann` and its headlines."""

from typing import Any

from qdfm.experiments.report import Headline, Table
from qdfm.metrics import Summary, summarise

Results = dict[str, dict[str, Any]]


def over_seeds(cell: dict[str, Any], metric: str, part: int = -1) -> Summary:
    """A metric of one cell over its seeds, after a part of the improvement (by default the last)."""
    return summarise([rows[part][metric] for rows in cell["seeds"]])


def tabulate(results: Results) -> list[Table]:
    """One table per sweep that was run."""
    makers = {"beta": _beta, "samples": _samples, "steps": _steps, "endpoints": _endpoints, "drift": _drift}
    return [makers[name](cells) for name, cells in results.items()]


def _values(cell: dict[str, Any], *metrics: str, part: int = -1) -> list[str]:
    return [f"{over_seeds(cell, metric, part):.4f}" for metric in metrics]


def _beta(cells: dict[str, Any]) -> Table:
    columns = ("β", "TV to optimum", "warm-up: TV to μ", "effective share", "KL(π‖μ)", "the optimum's KL")
    out = Table("Strength of the tilt", columns)
    for label, cell in cells.items():
        warm = f"{over_seeds(cell, 'tv_power', 0):.4f}"
        out.add(label, *_values(cell, "tv"), warm, *_values(cell, "share", "kl", "optimum_kl"))
    return out


def _samples(cells: dict[str, Any]) -> Table:
    columns = ("M", "TV to optimum", "predicted", "predicted × M", "TV to the predicted law")
    out = Table("M endpoints drawn from the behaviour", columns)
    for label, cell in cells.items():
        product = int(label) * over_seeds(cell, "expected_tv").mean
        out.add(label, *_values(cell, "tv", "expected_tv"), f"{product:.3f}", *_values(cell, "tv_expected"))
    return out


def _steps(cells: dict[str, Any]) -> Table:
    out = Table("N Euler steps, by rates and loss", ("rates and loss", "N", "TV, half the steps", "TV, all steps", "k̂"))
    for label, cell in cells.items():
        out.add(*label.rsplit(" ", 1), *_values(cell, "tv", part=1), *_values(cell, "tv", "exponent"))
    return out


def _endpoints(cells: dict[str, Any]) -> Table:
    columns = ("endpoints", "objective", "TV to optimum", "predicted", "TV to the predicted law")
    out = Table("Endpoints and objective", columns)
    for label, cell in cells.items():
        out.add(*label.split(), *_values(cell, "tv", "expected_tv", "tv_expected"))
    return out


def _drift(cells: dict[str, Any]) -> Table:
    columns = ("endpoints", "k", "TV to optimum", "TV to μ·exp(kβQ)", "k̂", "predicted k̂", "TV to the predicted law")
    out = Table("Renewals of the proposal", columns)
    metrics = ("tv", "tv_power", "exponent", "expected_exponent", "tv_expected")
    for label, cell in cells.items():
        for part in range(len(cell["seeds"][0])):
            out.add(label, part, *_values(cell, *metrics, part=part))
    return out


def headlines(results: Results) -> list[Headline]:
    """Of the sweeps that were run."""
    out = []
    if "beta" in results:
        out.append(Headline("TV to the optimum, base setting", over_seeds(results["beta"]["2"], "tv").mean))
    if "samples" in results:
        drawn = results["samples"]["64"]
        out.append(Headline("TV to the optimum, M = 64 drawn endpoints", over_seeds(drawn, "tv").mean))
        out.append(Headline("the same, predicted bias", over_seeds(drawn, "expected_tv").mean))
    for kind, cell in results.get("drift", {}).items():
        k = len(cell["seeds"][0]) - 1
        out.append(Headline(f"k̂ after {k} renewals, {kind} endpoints", over_seeds(cell, "exponent").mean))
    return out
