"""Trained networks against closed forms on small tables: the tilt μ·exp(βQ)/C, the bias of drawn endpoints."""

import dataclasses
from functools import cache
from itertools import pairwise

import jax
import numpy as np
import pytest

import qdfm
from qdfm.experiments import tabular
from qdfm.experiments.tabular import World, self_normalised, table, trained_laws, variation

BETA = 2.0


@pytest.fixture(autouse=True)
def optimised(monkeypatch):
    """Thousands of steps are worth more than the cheapest code, which is what the tests compile to otherwise."""
    program, options = tabular._program, {"xla_backend_optimization_level": 1}
    monkeypatch.setattr(tabular, "_program", cache(lambda *key: jax.jit(program(*key), compiler_options=options)))


def trained_law(config: qdfm.QDFM, world: World) -> np.ndarray:
    """The law of one seed at the end of training."""
    return trained_laws(config, [world], [0], BETA)[0, -1]


BASE = qdfm.QDFM(
    beta=BETA, beta_scale="none", support_share=0.0, clone_steps=6_000, warmup_steps=3_000, improve_steps=4_000,
    hidden=(64, 64), critics=1, pessimism="mean",
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"endpoints": "data", "warmup_steps": 1_000, "improve_steps": 6_000},
        {"steps": 20, "behaviour": "network"},
        {"steps": 20, "behaviour": "network", "rates": "softplus", "loss": "l2", "improve_steps": 9_000},
    ],
    ids=["posterior, one step", "logged endpoints", "posterior, 20 steps", "softplus, 20 steps"],
)
def test_a_trained_flow_has_the_boltzmann_law(changes):
    world = table()
    law = world.optimum(BETA)
    assert variation(world.mu, law) > 0.2  # the tilt is no small one
    assert variation(trained_law(dataclasses.replace(BASE, **changes), world), law) < 0.02


@pytest.mark.parametrize(
    "changes",
    [{"rates": "energy"}, {"rates": "diffuse", "loss": "l2", "steps": 3, "behaviour": "network"}],
    ids=["energy, one step", "diffuse, 3 steps"],
)
def test_the_alternative_rates_reach_it_too(changes):
    """Smaller and shorter than the above, so less exact."""
    world = table()
    small = dataclasses.replace(BASE, hidden=(32, 32), batch_size=64, clone_steps=3_000, improve_steps=3_000)
    found = trained_law(dataclasses.replace(small, **changes), world)
    assert variation(found, world.optimum(BETA)) < 0.04


def test_drawn_endpoints_are_biased_as_self_normalisation_says():
    """At M = 16 and 64: the trained law is at the self-normalised law, off the Boltzmann law, the more the fewer."""
    world = table()
    law = world.optimum(BETA)
    off = []
    for m in (16, 64):
        expected = self_normalised(world.mu, BETA * world.q, m)
        found = trained_law(dataclasses.replace(BASE, endpoints="behaviour", samples=m, improve_steps=2_500), world)
        assert variation(found, expected) < 0.02
        bias = variation(expected, law)
        off.append(bias)
        print(f"M={m}: bias of the endpoints {bias:.4f}, trained {variation(found, law):.4f}")
    for few, many in pairwise(off):
        assert 3 < few / many < 5  # falls as 1/M
