"""Fixtures of all tests: double precision on demand, and goodness of fit for whole families of samplers."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxlib.version

# Compiling is most of what the tests do: compile with little effort, and keep the result for the other worker and for
# the processes that tests start. All must stand in the environment before JAX is imported. The fusion emitters alone
# are half of the compiler's work on programs as small as these; the preset saves a fifth of the rest, but older
# versions stop at a flag that they do not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"
    * (jaxlib.version.__version_info__ >= (0, 10, 2)),
)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # programs need not say where they were written
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax
import numpy as np
import pytest

from qdfm.metrics import chi_square, holm

gc.set_threshold(100_000, 20, 50)  # tracing makes many objects that live on; looking for garbage among them is dear

FAMILY_ALPHA = 1e-3
MAPS_MAX = 10_000  # of the 65,530 that Linux gives a process


@pytest.fixture(autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """A process that keeps thousands of compiled programs runs out of memory maps and crashes; forget them in time."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPS_MAX:
        jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision for one test; the library never switches it on."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rejected() -> Callable[[dict[str, tuple[np.ndarray, np.ndarray]]], dict[str, float]]:
    """Which of the named pairs (counts, law) do not fit, by Holm's step-down at a family error of 1e-3."""

    def judge(cases: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
        p = {name: chi_square(counts, law) for name, (counts, law) in cases.items()}
        names = list(p)
        return {names[i]: p[names[i]] for i in holm(list(p.values()), FAMILY_ALPHA)}

    return judge
