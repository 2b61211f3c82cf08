"""StarCraft II's battles of SMAC (github.com/oxwhirl/smac) behind Gymnasium's interface: smac-3m, smac-2s3z and so on.

One row of observations and one choice per agent, one reward for the team. The time limit truncates, which SMAC tells
apart from the end of a battle only where its `continuing_episode` is on; so does a crash of the game, after which SMAC
begins a new one. Each environment runs a game of its own, of some gigabytes. Its seed is that of the first reset; SMAC
has none for a single episode, so later ones depend on those before them.
"""

from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from qdfm.envs.gymnasium import box
from qdfm.errors import QDFMError

PACKAGE = "pip install git+https://github.com/oxwhirl/smac.git"


class SMAC(gymnasium.Env[np.ndarray, np.ndarray]):
    """A map of SMAC. `info` has "action_mask" `[G, K]` as int8 and, after a step, "won"."""

    def __init__(self, map_name: str) -> None:
        self.map_name, self.started = map_name, False
        self.game = _game(map_name, None)
        facts = self.game.get_env_info()
        self.observation_space = box((facts["n_agents"], facts["obs_shape"]), "float32")
        self.action_space = spaces.MultiDiscrete(np.full(facts["n_agents"], facts["n_actions"]))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new battle; the first starts the game, with the seed if there is one."""
        super().reset(seed=seed)
        if self.started:
            self.game.reset()
        else:
            self._start(seed)
        return self._seen(), {"action_mask": self._mask()}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of the team."""
        action = np.asarray(action)
        if not (self.action_space.contains(action) and self._mask()[np.arange(len(action)), action].all()):
            raise QDFMError(f'The actions {action} are not all allowed by info["action_mask"]; give some that are.')
        reward, over, told = self.game.step(action.tolist())
        crashed = "battle_won" not in told
        truncated = bool(over and (crashed or told.get("episode_limit", False)))
        info = {"action_mask": self._mask(), "won": bool(told.get("battle_won", False))}
        return self._seen(), float(reward), bool(over) and not truncated, truncated, info

    def close(self) -> None:
        """End the game."""
        self.game.close()

    def _start(self, seed: int | None) -> None:
        if seed is not None:
            self.game = _game(self.map_name, seed)
        try:
            self.game.reset()
        except Exception as error:  # SMAC, PySC2 and the game's own connection have no common error
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise QDFMError(
                f"StarCraft II cannot be started for smac-{self.map_name} ({why}); install it and SMAC's maps by "
                "install_sc2.sh of github.com/oxwhirl/smac and set SC2PATH to its folder."
            ) from error
        self.started = True

    def _seen(self) -> np.ndarray:
        return np.array(self.game.get_obs(), np.float32)  # [G, o]

    def _mask(self) -> np.ndarray:
        return np.array(self.game.get_avail_actions(), np.int8)  # [G, K]


def _game(map_name: str, seed: int | None) -> Any:
    """SMAC's environment, which starts no game before its first reset."""
    try:
        from smac.env import StarCraft2Env
    except ImportError as error:
        if find_spec("smac") is None:
            raise QDFMError(f"smac-{map_name} needs SMAC and StarCraft II; begin with {PACKAGE}.") from None
        if error.name in ("smac", "smac.env"):
            raise QDFMError(
                f"The installed package smac is PyPI's, which is not StarCraft's; pip uninstall smac, then {PACKAGE}."
            ) from None
        raise QDFMError(f"smac-{map_name} cannot be played ({error}); install what SMAC needs: {PACKAGE}.") from None
    try:
        return StarCraft2Env(map_name=map_name, seed=seed, continuing_episode=True)
    except KeyError:
        raise QDFMError(f"SMAC has no map {map_name!r}; list those it has by python -m smac.bin.map_list.") from None
