"""Importing qdfm is cheap: no plotting, no command line, no extra, and no change of JAX's settings."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
import qdfm, jax, jax.numpy as jnp
names = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps([names, jax.config.jax_enable_x64, str(jnp.ones(1).dtype), qdfm.__version__]))
"""
UNWANTED = (
    *(
        "gymnasium",
        "jaxmarl",
        "matplotlib",
        "minari",
        "mo_gymnasium",
        "mujoco",
        "polars",
        "pyarrow",
    ),
    *("tensorboardX", "torch", "tyro"),
)


@pytest.fixture(scope="module")
def fresh() -> list:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", UNWANTED)
def test_not_imported(fresh, name):
    assert name not in fresh[0]


def test_imported_at_all_and_in_single_precision(fresh):
    names, x64, dtype, version = fresh
    assert {"qdfm", "jax", "equinox"} <= set(names)
    assert x64 is False
    assert dtype == "float32"
    assert version.count(".") >= 1
