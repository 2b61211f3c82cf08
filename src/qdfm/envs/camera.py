"""Pictures of a Gymnasium environment while it is played.

MuJoCo draws by OpenGL. Where there is no display it is told to use EGL (Debian: libegl1 and libgl1-mesa-dri), else
OSMesa (libosmesa6), unless the user has set MUJOCO_GL.
"""

import ctypes
import os
import warnings
from typing import Any

import gymnasium
import numpy as np

from qdfm.data.actions import ActionSpace
from qdfm.envs.gymnasium import make
from qdfm.errors import QDFMError

MUJOCO = "gymnasium.envs.mujoco"  # where Gymnasium keeps its robots
RATE = 25  # pictures per second at most, which a .gif can show
BACKENDS = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")}
OPENGL = "install EGL (Debian: libegl1 libgl1-mesa-dri) or OSMesa (libosmesa6) and set MUJOCO_GL to egl or osmesa"


class Camera(gymnasium.Wrapper):
    """Keeps pictures of an episode: the first, then every so many steps, for some seconds of a film."""

    def __init__(self, env: gymnasium.Env, seconds: float) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise QDFMError(f'{_name(env)} draws no pictures; make it with render_mode="rgb_array" where it has that.')
        speed = env.metadata.get("render_fps") or RATE
        self.stride = max(1, round(speed / RATE))
        self.rate = speed / self.stride  # pictures per second
        self.most, self.steps = max(1, int(seconds * self.rate)), 0
        self.frames: list[np.ndarray] = []  # [H, W, 3] each

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As it is, with the first picture."""
        seen = self.env.reset(seed=seed, options=options)
        self._look()
        return seen

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As it is, with a picture where it is time for one."""
        result = self.env.step(action)
        self.steps += 1
        if self.steps % self.stride == 0 and len(self.frames) < self.most:
            self._look()
        return result

    def _look(self) -> None:
        try:
            self.frames.append(np.array(self.env.render(), np.uint8))
        except Exception as error:  # each way of drawing fails in its own, from a missing module to OpenGL's errors
            why, remedy = _reason(error), _remedy(self.env)
            raise QDFMError(f"{_name(self.env)} cannot be drawn on this machine ({why}); {remedy}.") from None


def make_drawn(name: str, trained: ActionSpace | None = None) -> gymnasium.Env:
    """As `make`, for a `Camera`."""
    choose_backend()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*not in the possible render_modes")  # said below
            return make(name, trained, render_mode="rgb_array", **follow(name))
    except TypeError:
        raise QDFMError(f"{name} draws no pictures; record where the render mode rgb_array exists.") from None
    except (AttributeError, RuntimeError) as error:  # MuJoCo loads its library when it is imported
        way = os.environ.get("MUJOCO_GL")
        raise QDFMError(f"{name} cannot be drawn with MUJOCO_GL={way} ({_reason(error)}); {OPENGL}.") from None


def follow(name: str) -> dict[str, Any]:
    """The option by which a MuJoCo robot stays in the picture, if its model has such a camera."""
    known = gymnasium.registry.get(name)
    return {"camera_name": "track"} if known is not None and MUJOCO in str(known.entry_point) else {}


def choose_backend() -> None:
    """Tell MuJoCo how to draw where there is no display and the user has not said."""
    if any(os.environ.get(name) for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
        return
    for name, files in BACKENDS.items():
        if any(_loads(file) for file in files):
            os.environ["MUJOCO_GL"] = name
            return


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _name(env: gymnasium.Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _remedy(env: gymnasium.Env) -> str:
    return OPENGL if hasattr(env.unwrapped, "mujoco_renderer") else "install what it needs first"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
