"""Each table and figure of the paper as one short file. To add one: write its file with a `run`, and name it here."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from qdfm.experiments.cells import Settings


class Experiment(NamedTuple):
    """What `qdfm reproduce` needs to know; the module is imported only when it runs."""

    module: str
    about: str

    def load(self) -> Callable[[Settings], None]:
        """The experiment's `run(settings)`."""
        run: Callable[[Settings], None] = import_module(self.module).run
        return run


EXPERIMENTS = {
    "critics": Experiment(
        "qdfm.experiments.critics",
        "a critic that sees the preference against one that does not: where the latter must fail",
    ),
    "fork": Experiment(
        "qdfm.experiments.fork", "two goals, each for one objective, and a trap: does one model follow the preference?"
    ),
    "deep-sea-treasure": Experiment(
        "qdfm.experiments.deepsea", "treasure or time: how much of the exact Pareto front does one model reach?"
    ),
    "resource-gathering": Experiment(
        "qdfm.experiments.resource", "gold, a diamond, safety: the same with three objectives and chance"
    ),
    "multigoal": Experiment(
        "qdfm.experiments.multigoal", "several equally good goals: does a policy keep them all, and stay off the trap?"
    ),
    "sampler": Experiment(
        "qdfm.experiments.sampler",
        "CartPole and Acrobot, no learning: does the simulated chain have the law it should?",
    ),
    "ratefields": Experiment(
        "qdfm.experiments.ratefields", "jump-to-endpoint rates, an energy, a pairwise generator: what does each cost?"
    ),
    "boltzmann": Experiment(
        "qdfm.experiments.boltzmann", "how close does a trained policy come to μ·exp(βQ)/C, and what keeps it off?"
    ),
    "cartpole-2obj": Experiment(
        "qdfm.experiments.cartpole2obj",
        "staying up or pushing steadily: does one model follow the preference, and the right way?",
    ),
    "matrix": Experiment(
        "qdfm.experiments.matrix",
        "two agents who are to agree or not: does the team follow the preference, and how far?",
    ),
    "mo-hopper": Experiment(
        "qdfm.experiments.mo_hopper", "running or jumping on D4MORL's data: how much of its front, against MODULI?"
    ),
    "mujoco": Experiment(
        "qdfm.experiments.mujoco", "Hopper, Walker2d and HalfCheetah with 256 joint actions, and with a token each"
    ),
    "guidance": Experiment(
        "qdfm.experiments.guidance", "how strongly may a critic guide, with one setting for all data and no harm done?"
    ),
    "divisions": Experiment(
        "qdfm.experiments.divisions",
        "how finely must continuous actions be divided? Codebooks of 8 to 256, 3 to 41 bins",
    ),
    "ablations": Experiment(
        "qdfm.experiments.ablations", "M and N with their times, the scale of the rates, where the chain starts"
    ),
    "smax": Experiment(
        "qdfm.experiments.smax", "teams in battle on three maps, data of four qualities, five baselines for teams"
    ),
    "agents": Experiment(
        "qdfm.experiments.agents", "what a decision costs, and learning it, as a team grows from 2 to 32 agents"
    ),
    "runtime": Experiment(
        "qdfm.experiments.runtime", "training and acting time of every method, and scaling over |A| and M"
    ),
}
