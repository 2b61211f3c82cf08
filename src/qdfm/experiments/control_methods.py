"""The methods of the MuJoCo experiments: QDFM with a codebook and with a token per dimension, and the baselines.

Within a setting all have networks of the same width and equally many gradient steps.
"""

from dataclasses import replace
from typing import Any

from qdfm.algorithms import AWAC, AWBC, BC, BCQ, BRAC, CQL, IQL, QDFM, BoltzBC, BoltzQ, GreedyQ
from qdfm.algorithms.base import Config
from qdfm.experiments.control import Coding

PAPER_STEPS = 1_000_000  # of the paper's schedule; QDFM has 150k + 500k + 350k of them
CODINGS = {"codebook": Coding("codebook", 256), "tokens": Coding("bins", 41)}
STEPS = {"codebook": 60_000, "tokens": 120_000}  # gradient steps of every method
NETWORKS: dict[str, Any] = {"ema": 0.9995}  # the policies are averaged over some thousand steps
# For one token per dimension: what the expert of HalfCheetah takes to be imitated; the critic may stay small.
WIDE: dict[str, Any] = {"hidden": (512, 512), "critic_hidden": (256, 256), "batch_size": 1024, "ema": 0.9995}
# The returns of HalfCheetah are large: critics in units of them learn sooner, and less noise is left in what they say.
SCALED: dict[str, Any] = {"value_scale": True, "pessimism": "mean", "critic_decay": True}
CANDIDATES = 16  # of best-of-n
TOKENS_RIVALS = ("AWAC", "BC", "IQL")  # imitation, and those that do not maximise over actions never seen


def schedule(steps: int, shares: tuple[float, float, float] = (0.15, 0.5, 0.35)) -> dict[str, Any]:
    """So many steps of QDFM in all; by default in the paper's proportions, 150k : 500k : 350k."""
    warmup, critic, improve = (round(share * steps) for share in shares)
    return {"warmup_steps": warmup, "critic_steps": critic, "improve_steps": improve}


def unguided(config: QDFM) -> QDFM:
    """The same run without guidance: the critic does not touch the flow, which is that of the warm-up."""
    return replace(config, improve_steps=0)


def baselines(steps: int, flow: QDFM, **networks: Any) -> dict[str, Config]:
    """The paper's seven, and three beside; those that read a policy off QDFM's critic train it, and are guided by it,
    like that `flow`."""
    cloned: dict[str, Any] = {k: v for k, v in networks.items() if k != "critic_hidden"}
    alike = ("critic_steps", "target_rate", "share_target", "state_share", "support_share")
    critic: dict[str, Any] = {name: getattr(flow, name) for name in alike}
    guided = {"clone_steps": steps - flow.critic_steps, **critic, **networks}
    clone = round(0.15 * steps)
    return {
        "AWAC": AWAC(train_steps=steps, **networks),
        "AWBC": AWBC(train_steps=steps, **networks),
        "BCQ": BCQ(train_steps=steps, **networks),
        "CQL": CQL(train_steps=steps, **networks),
        "GreedyQ": GreedyQ(**guided),
        "BRAC": BRAC(clone_steps=clone, train_steps=steps - clone, **networks),
        "BoltzQ": BoltzQ(**guided),
        "BC": BC(clone_steps=steps, **cloned),
        "BoltzBC": BoltzBC(**guided),
        "IQL": IQL(train_steps=steps, **networks),
    }


# The logged actions as endpoints: the last phase goes on learning the behaviour while it is guided. The nearest of a
# few joint actions moves an expert off its path, which the critic does not see: guided is only where much is promised.
CODEBOOK_QDFM = QDFM(
    **schedule(STEPS["codebook"], (0.6, 0.3, 0.1)), endpoints="data", target_rate=0.02, worthwhile=0.15, **NETWORKS
)
# A longer warm-up; in the last phase the weights are at hand, and the flow has not far to go.
TOKENS_QDFM = QDFM(
    **schedule(STEPS["tokens"], (0.45, 0.45, 0.1)), samples=16, target_rate=0.01, support_share=0.1, **SCALED,
    share_target=0.35, **WIDE,
)  # fmt: skip
METHODS: dict[str, dict[str, Config]] = {
    "codebook": {"QDFM": CODEBOOK_QDFM, **baselines(STEPS["codebook"], CODEBOOK_QDFM, **NETWORKS)},
    "tokens": {
        "QDFM": replace(TOKENS_QDFM, averaged=True),
        **{name: baselines(STEPS["tokens"], TOKENS_QDFM, **WIDE)[name] for name in TOKENS_RIVALS},
    },
}
