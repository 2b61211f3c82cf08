"""Settings that `qdfm train` refuses: those that make no sense, and options that were given but have no effect.

What is wrong with any data is told before the data is loaded, since collecting it may take minutes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from qdfm.algorithms import ALGORITHMS
from qdfm.algorithms.base import Config
from qdfm.data.actions import Bins, Codebook, Discrete, MultiDiscrete
from qdfm.data.spec import Accumulation, Spec
from qdfm.errors import QDFMError

KINDS = (  # of decisions, as far as settings depend on them, and how many agents make them
    (Discrete(2), 1),
    (Codebook(((0.0,), (1.0,))), 1),
    (MultiDiscrete((2, 2)), 1),
    (Bins(((0.0, 1.0), (0.0, 1.0))), 1),
    (MultiDiscrete((2, 2)), 2),
)


def given_in(words: Sequence[str]) -> frozenset[str]:
    """The names of the options among the words of a command."""
    return frozenset(word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--"))


def check_settings(config: Config, spec: Spec, given: frozenset[str]) -> None:
    """Refuse what does not suit this data, and what was given but has no effect with it."""
    if sentence := _idle(config.resolve(spec), given):
        raise QDFMError(sentence)


def check_beforehand(config: Config, given: frozenset[str]) -> None:
    """Refuse what no kind of data suits, in words that are the same for all, and options that have no effect with any
    kind that the rest suits."""
    suited, refusals = [], []
    for spec in _specs(config):
        try:
            suited.append(config.resolve(spec))
        except QDFMError as error:
            refusals.append(error)
    if not suited and len({str(error) for error in refusals}) == 1:
        raise refusals[0]
    idle = [sentence for resolved in suited if (sentence := _idle(resolved, given))]
    if idle and len(idle) == len(suited):
        raise QDFMError(idle[0])


def _specs(config: Any) -> Iterator[Spec]:
    """A spec of each kind of data, adapted to the config: it has what the config asks data for."""
    objectives = len(config.preference or (1,))
    so_far = getattr(config, "utility", "linear") == "chebyshev"
    for actions, agents in KINDS:
        if agents > 1 or not config.teams_only:
            yield Spec(
                (agents, 1) if agents > 1 else (1,),
                actions,
                objectives=objectives,
                agents=agents,
                accumulation=Accumulation(config.gamma, (1.0,) * objectives, (0.0,) * objectives) if so_far else None,
                preference_range=((0.0, 1.0),) * objectives if config.preferences == "logged" else (),
            )


def _idle(config: Any, given: frozenset[str]) -> str | None:
    """What to say of an option that was given but has no effect with this resolved config: often another algorithm was
    meant."""
    for field, (switch, value) in getattr(config, "only_with", {}).items():
        if field in given and getattr(config, switch) != value:
            others = [name for name, other in ALGORITHMS.items() if hasattr(other, field) and name != config.name]
            return _unless(config.name, field, switch, value, f"--algo {others[0]} or " if others else "")
    if "share_target" in given and config.beta is not None:
        if "beta" in given:
            return f"--share-target finds β, but --beta {config.beta:g} gives it; leave one of them out."
        return _unless(config.name, "share_target", "beta_scale", "share")
    if "caution" in given and config.caution > 0 and config.critics == 1:
        return (
            f"--caution {config.caution:g} discounts what critics disagree on, but there is only one; leave it out, or "
            "give --critics 2 or more."
        )
    return None


def _unless(name: str, field: str, switch: str, value: str, other: str = "") -> str:
    option = f"--{switch.replace('_', '-')} {value}"
    return (
        f"--{field.replace('_', '-')} does not concern {name} unless {switch} is {value}; leave it out, or give {other}"
        f"{option}."
    )
