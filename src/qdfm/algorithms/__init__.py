"""One readable file per algorithm. To add one: write its file with a `Config` subclass, and name it here."""

from qdfm.algorithms.base import Config
from qdfm.algorithms.bc import BC
from qdfm.algorithms.boltzbc import BoltzBC
from qdfm.algorithms.boltzq import BoltzQ
from qdfm.algorithms.greedyq import GreedyQ
from qdfm.algorithms.qdfm import QDFM

ALGORITHMS: dict[str, type[Config]] = {c.name: c for c in (QDFM, BC, BoltzBC, GreedyQ, BoltzQ)}

__all__ = ["ALGORITHMS", "BC", "QDFM", "BoltzBC", "BoltzQ", "Config", "GreedyQ"]
