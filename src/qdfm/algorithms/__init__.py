"""One readable file per algorithm. To add one: write its file with a `Config` subclass, and name it here."""

from qdfm.algorithms.awac import AWAC
from qdfm.algorithms.awbc import AWBC
from qdfm.algorithms.base import Config
from qdfm.algorithms.bc import BC
from qdfm.algorithms.bcq import BCQ
from qdfm.algorithms.boltzbc import BoltzBC
from qdfm.algorithms.boltzq import BoltzQ
from qdfm.algorithms.brac import BRAC
from qdfm.algorithms.cfcql import CFCQL
from qdfm.algorithms.cql import CQL
from qdfm.algorithms.greedyq import GreedyQ
from qdfm.algorithms.iql import IQL
from qdfm.algorithms.macql import MACQL
from qdfm.algorithms.moduli import MODULI
from qdfm.algorithms.omar import OMAR
from qdfm.algorithms.omiga import OMIGA
from qdfm.algorithms.qdfm import QDFM

CONFIGS = (QDFM, BC, BoltzBC, GreedyQ, BoltzQ, CQL, IQL, AWAC, AWBC, BCQ, BRAC, MACQL, CFCQL, OMAR, OMIGA, MODULI)
ALGORITHMS: dict[str, type[Config]] = {c.name: c for c in CONFIGS}

__all__ = [
    "ALGORITHMS", "AWAC", "AWBC", "BC", "BCQ", "BRAC", "CFCQL", "CQL", "IQL", "MACQL", "MODULI", "OMAR", "OMIGA",
    "QDFM", "BoltzBC", "BoltzQ",
    "Config", "GreedyQ",
]  # fmt: skip
