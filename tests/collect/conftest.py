"""Fixtures of the collectors' tests: which environments were made, and which of them are still open."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import pytest


@dataclass
class Worlds:
    """How many environments were made, and those that nobody has closed."""

    made: int = 0
    open: list[gymnasium.Env] = field(default_factory=list)


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Worlds:
    known, make = Worlds(), gymnasium.make

    def noted(*args: Any, **options: Any) -> gymnasium.Env:
        world = make(*args, **options)
        close = world.close

        def closed() -> None:
            known.open.remove(world)
            close()

        known.made += 1
        known.open.append(world)
        monkeypatch.setattr(world, "close", closed)
        return world

    monkeypatch.setattr(gymnasium, "make", noted)
    return known
