"""What experiments time on the device that trains and on the CPU beside it."""

from collections.abc import Callable
from typing import Any

import jax


def here_and_on_cpu(measure: Callable[[], Any]) -> dict[str, Any]:
    """A measurement on the device that trains and on the CPU of the same machine."""
    here = measure()
    if jax.default_backend() == "cpu":
        return {"device": here, "cpu": here}
    with jax.default_device(jax.devices("cpu")[0]):
        return {"device": here, "cpu": measure()}
