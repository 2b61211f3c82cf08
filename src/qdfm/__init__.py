"""qdfm: offline reinforcement learning with discrete actions by Q-weighted discrete flow matching.

data  = qdfm.load_dataset("multigoal-4")
agent = qdfm.QDFM(beta=5.0).fit(data, seed=0)
agent.act(data.observation[0])
"""

from typing import TYPE_CHECKING, Any

from qdfm._version import __version__
from qdfm.agent import Agent, load
from qdfm.algorithms import (
    ALGORITHMS,
    AWAC,
    AWBC,
    BC,
    BCQ,
    BRAC,
    CFCQL,
    CQL,
    IQL,
    MACQL,
    MODULI,
    OMAR,
    OMIGA,
    QDFM,
    BoltzBC,
    BoltzQ,
    GreedyQ,
)
from qdfm.data.actions import Bins, Codebook
from qdfm.data.columns import Columns
from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset
from qdfm.data.spec import Spec
from qdfm.errors import DataWarning, Diverged, QDFMError
from qdfm.estimate import Estimate, estimate
from qdfm.evaluate import Evaluation, evaluate
from qdfm.sweep import Sweep, sweep
from qdfm.train import Options, train
from qdfm.video import record

__all__ = [
    "ALGORITHMS",
    "AWAC",
    "AWBC",
    "BC",
    "BCQ",
    "BRAC",
    "CFCQL",
    "CQL",
    "IQL",
    "MACQL",
    "MODULI",
    "OMAR",
    "OMIGA",
    "QDFM",
    "Agent",
    "Bins",
    "BoltzBC",
    "BoltzQ",
    "Codebook",
    "Columns",
    "DataWarning",
    "Dataset",
    "Diverged",
    "Estimate",
    "Evaluation",
    "GreedyQ",
    "GymEnv",
    "Options",
    "QDFMError",
    "Spec",
    "Sweep",
    "__version__",
    "estimate",
    "evaluate",
    "load",
    "load_dataset",
    "record",
    "sweep",
    "train",
]

if TYPE_CHECKING:
    from qdfm.envs.gymenv import GymEnv
else:

    def __getattr__(name: str) -> Any:
        """GymEnv when it is asked for, because Gymnasium takes a while to import."""
        if name == "GymEnv":
            from qdfm.envs.gymenv import GymEnv

            return GymEnv
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
