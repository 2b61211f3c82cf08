"""Environments by name: our own and games of other packages here, everything else by its Gymnasium id."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from qdfm.envs.acrobot import Acrobot
from qdfm.envs.base import JaxEnv
from qdfm.envs.cartpole import CartPole
from qdfm.envs.cartpole2obj import CartPole2Obj
from qdfm.envs.fork import Fork
from qdfm.envs.matrix import Matrix
from qdfm.envs.mogym import deep_sea_treasure, resource_gathering
from qdfm.envs.multigoal import GOAL_X, MultiGoal
from qdfm.envs.smax import MAPS, Smax
from qdfm.tasks import PLACES

if TYPE_CHECKING:
    import gymnasium

ENVIRONMENTS: dict[str, Callable[[], JaxEnv]] = {
    **{f"multigoal-{goals}": partial(MultiGoal, goals) for goals in GOAL_X},
    "fork": Fork,
    "deep-sea-treasure": deep_sea_treasure,
    "deep-sea-treasure-concave": partial(deep_sea_treasure, "concave"),
    "resource-gathering": resource_gathering,
    "cartpole": CartPole,
    "cartpole-2obj": CartPole2Obj,
    "acrobot": Acrobot,
    "matrix": Matrix,
    **{f"smax-{name}": partial(Smax, name) for name in MAPS},
}


class Game(NamedTuple):
    """A game of another package behind Gymnasium's interface: an environment for each map, named GAME-MAP."""

    make: Callable[..., "gymnasium.Env"]  # of a map's name and the options of `gymnasium.make`
    maps: tuple[str, ...]  # that come with the package; it may have been given others
    copies: int  # that run in one process at most
    about: str  # with what has to be installed


def _smac(map_name: str, **options: Any) -> "gymnasium.Env":
    from qdfm.envs.smac import SMAC  # not above, because it needs Gymnasium, which is slow to import

    return SMAC(map_name, **options)


GAMES: dict[str, Game] = {
    "smac": Game(
        _smac,
        maps=(
            "3m", "8m", "25m", "5m_vs_6m", "8m_vs_9m", "10m_vs_11m", "27m_vs_30m", "MMM", "MMM2", "2s3z", "3s5z",
            "3s5z_vs_3s6z", "3s_vs_3z", "3s_vs_4z", "3s_vs_5z", "1c3s5z", "2m_vs_1z", "corridor", "6h_vs_8z",
            "2s_vs_1sc", "so_many_baneling", "bane_vs_bane", "2c_vs_64zg",
        ),
        copies=1,  # each is a process of some gigabytes
        about="Battles of StarCraft II; needs the game and SMAC (github.com/oxwhirl/smac)",
    ),
}  # fmt: skip


def game_of(name: str) -> tuple[Game, str] | None:
    """The game and the map of a name such as smac-3m."""
    game, dash, map_name = name.partition("-")
    return (GAMES[game], map_name) if dash and game in GAMES else None


def known_names() -> list[str]:
    """All names that are no Gymnasium ids: of environments, and of data that is played in one, for who misspells it."""
    return [*ENVIRONMENTS, *PLACES, *(f"{name}-{one}" for name, game in GAMES.items() for one in game.maps)]
