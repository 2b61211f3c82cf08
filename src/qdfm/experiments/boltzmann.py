"""boltzmann: how close a trained policy comes to the KL optimum μ·exp(βQ)/C where μ and Q are known (a study of ours).

Each seed has its own random table (8 states, 6 actions) and its own network; the known Q stands in place of the critic.
Each sweep changes one thing from a base setting and measures the mean total variation of the exact law of the policy.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from qdfm.algorithms import QDFM
from qdfm.algorithms.guidance import effective_share
from qdfm.experiments.boltzmann_figures import draw
from qdfm.experiments.boltzmann_tables import headlines, tabulate
from qdfm.experiments.cells import Cells, Settings
from qdfm.experiments.report import finish
from qdfm.experiments.tabular import World, divergence, exponent, self_normalised, table, trained_laws, variation

# One critic, read as it is: the known values are no ensemble. One renewal, where endpoints come from the model.
BASE = QDFM(
    beta=2.0, beta_scale="none", support_share=0.0, hidden=(64, 64), critics=1, pessimism="mean", clone_steps=4_000,
    warmup_steps=4_000, improve_steps=2_000, renew_every=2_000,
)  # fmt: skip
DRIFT_BETA, DRIFT_SAMPLES = 0.5, 64  # a weak tilt, so that the bias of M draws does not hide the drift
ENDPOINT_SAMPLES = 16
RATES: dict[str, dict[str, Any]] = {
    "posterior, cross-entropy": {},
    "softplus, squared": {"rates": "softplus", "loss": "l2"},
}
QUICK_SHARE = 0.5  # of the steps

NOTES = (
    "A table of 8 states and 6 actions, drawn anew for each seed: μ uniform on the simplex, Q standard normal; 24,000 "
    "rows with the frequencies μ. TV is the total variation to the optimum μ·exp(βQ)/C, averaged over states, of the "
    "policy's exact law; means ± sample standard deviations over seeds. Predicted: the expected law of self-normalised "
    "draws of the true μ, by quadrature, applied once per renewal for model endpoints. "
    "k̂ = Σ_s Cov_π(log π/μ, βQ) / Σ_s Var_π(βQ), a least-squares fit weighted by π. The base setting stands above. The "
    "sweep of N has a separate behaviour network, trained as long as the warm-up, and twice the improvement; the sweep "
    f"of endpoints M = {ENDPOINT_SAMPLES} and half the improvement, as the literal sum is slow; the drift "
    f"β = {DRIFT_BETA:g}, M = {DRIFT_SAMPLES} and a whole improvement between renewals. The warm-up is the collapsed "
    "one throughout."
)
FINDINGS = (
    "What the full run shows. With enumerated endpoints and one step the mean distance to the optimum is no larger "
    "than the warm-up's own to μ, at every β; at β = 10 the seeds differ most. Drawn endpoints have the bias that "
    "self-normalisation predicts: predicted × M levels off, so it falls as 1/M once M is large, faster before; at M "
    "= 256 it is below what the network leaves. More Euler steps bring nothing here and cost accuracy at equal "
    "gradient steps; for N > 1, softplus rates with the squared loss are further off than posterior rates and gain "
    "more from the second half of the steps. With one Euler step both objectives look at t = 0 only and coincide for "
    "given endpoints, as the table shows; behaviour endpoints and model endpoints that are renewed once end at the "
    "same bias. Model endpoints that are renewed drift: after k renewals the policy is near μ·exp(kβQ)/C, on its way "
    "to greedy, while with behaviour endpoints it stays at k = 1."
)


class Size(NamedTuple):
    """The points of each sweep."""

    betas: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0)
    samples: tuple[int, ...] = (4, 16, 64, 256)
    steps: tuple[int, ...] = (1, 2, 5, 20, 50)
    renewals: int = 6
    share: float = 1.0
    """Of the gradient steps."""


FULL = Size()
QUICK = Size(betas=(0.5, 2.0, 10.0), samples=(4, 64), steps=(1, 20), renewals=3, share=QUICK_SHARE)


class Setting(NamedTuple):
    """A config, and the number of equal parts of its improvement after which the policy is judged."""

    config: QDFM
    parts: int = 1

    @property
    def beta(self) -> float:
        """β, which is known here, unscaled."""
        assert self.config.beta is not None
        return self.config.beta


def _changed(size: Size, renewals: int = 1, **changes: Any) -> QDFM:
    """The base with changes; the steps scaled, and the proposal of model endpoints renewed so many times."""
    config = dataclasses.replace(BASE, **changes).scaled(size.share)
    each = config.improve_steps
    return dataclasses.replace(config, improve_steps=renewals * each, renew_every=each)


def beta_sweep(size: Size) -> dict[str, Setting]:
    """The strength of the tilt."""
    return {f"{beta:g}": Setting(_changed(size, beta=beta)) for beta in size.betas}


def samples_sweep(size: Size) -> dict[str, Setting]:
    """M endpoints drawn from the behaviour."""
    return {str(m): Setting(_changed(size, endpoints="behaviour", samples=m)) for m in size.samples}


def steps_sweep(size: Size) -> dict[str, Setting]:
    """N Euler steps with either kind of rates; a separate behaviour network, and twice the improvement."""
    changes: dict[str, Any] = {"behaviour": "network", "improve_steps": 2 * BASE.improve_steps}
    return {
        f"{name} {n}": Setting(_changed(size, steps=n, **changes, **rates), parts=2)
        for name, rates in RATES.items()
        for n in size.steps
    }


def endpoints_sweep(size: Size) -> dict[str, Setting]:
    """Where endpoints come from, and which objective they enter; half the improvement, as the literal sum is slow."""
    changes: dict[str, Any] = {"samples": ENDPOINT_SAMPLES, "improve_steps": BASE.improve_steps // 2}
    return {
        f"{kind} {objective}": Setting(_changed(size, endpoints=kind, objective=objective, **changes))
        for kind in ("enumerated", "behaviour", "model")
        for objective in ("collapsed", "literal")
    }


def drift_sweep(size: Size) -> dict[str, Setting]:
    """Renewals of the proposal, judged at the end of each; the behaviour as a control, which has none."""
    changes: dict[str, Any] = {"beta": DRIFT_BETA, "samples": DRIFT_SAMPLES}
    return {
        kind: Setting(_changed(size, size.renewals, endpoints=kind, **changes), parts=size.renewals)
        for kind in ("model", "behaviour")
    }


SWEEPS: dict[str, Callable[[Size], dict[str, Setting]]] = {
    "beta": beta_sweep,
    "samples": samples_sweep,
    "steps": steps_sweep,
    "endpoints": endpoints_sweep,
    "drift": drift_sweep,
}


def run(settings: Settings) -> None:
    """Train, judge, tabulate, draw."""
    report(settings, settings.chosen("sweep", SWEEPS), QUICK if settings.quick else FULL)


def report(settings: Settings, chosen: Sequence[str], size: Size) -> None:
    """The chosen sweeps at a given size."""
    seeds = settings.seed_range(5)
    cells = Cells(settings)
    results: dict[str, dict[str, Any]] = {}
    for name in chosen:
        for label, setting in SWEEPS[name](size).items():
            key = {"config": setting.config.described(), "parts": setting.parts, "seeds": seeds}
            results.setdefault(name, {})[label] = cells.get(key, _cell(setting, seeds))
    base = _changed(size)
    finish(
        cells, settings.command("boltzmann", len(seeds)), "The Boltzmann law on a table", results, tabulate(results),
        settings.notes(NOTES, FINDINGS), headlines(results), seeds=list(seeds),
        base=f"QDFM() with β {base.beta:g} unscaled, support_share 0, hidden {base.hidden}, "
        f"{base.warmup_steps} warm-up and {base.improve_steps} improvement steps",
    )  # fmt: skip
    draw(settings.out, results)


def _cell(setting: Setting, seeds: tuple[int, ...]) -> Callable[[], dict[str, Any]]:
    def compute() -> dict[str, Any]:
        began = time.perf_counter()
        worlds = [table(seed) for seed in seeds]
        laws = trained_laws(setting.config, worlds, seeds, setting.beta, setting.parts)
        rows = [judge(setting, world, of_seed) for world, of_seed in zip(worlds, laws, strict=True)]
        return {"seeds": rows, "seconds": round(time.perf_counter() - began, 1)}

    return compute


def judge(setting: Setting, world: World, laws: np.ndarray) -> list[dict[str, float]]:
    """One row for the warm-up's law and for the law after each part, `laws` `[1 + parts, S, K]`."""
    config, beta = setting.config, setting.beta
    optimum, expected, rows = world.optimum(beta), world.mu, []
    share = effective_share(jnp.log(world.mu), jnp.asarray(world.q), beta)
    renewals = 0
    for part, law in enumerate(laws):
        due = -(-part * config.improve_steps // (setting.parts * config.renew_every))
        for _ in range(due - renewals):
            expected = tilted(setting, world, expected if config.endpoints == "model" else world.mu)
        renewals = due
        rows.append({
            "tv": variation(law, optimum),
            "kl": divergence(law, world.mu),
            "optimum_kl": divergence(optimum, world.mu),
            "share": float(share.mean()),
            "expected_tv": variation(expected, optimum),  # the bias of the endpoints, whatever the network does
            "tv_expected": variation(law, expected),
            "renewals": renewals,
            "tv_power": variation(law, world.optimum(renewals * beta)),
            "exponent": exponent(law, world, beta),
            "expected_exponent": exponent(expected, world, beta),
        })  # fmt: skip
    return rows


def tilted(setting: Setting, world: World, proposal: np.ndarray) -> np.ndarray:
    """The law to which the improvement tends: the exact tilt of enumerated endpoints, or that of M drawn ones."""
    if setting.config.endpoints in (None, "enumerated"):
        return World(proposal, world.q).optimum(setting.beta)
    return self_normalised(proposal, setting.beta * world.q, setting.config.samples)
