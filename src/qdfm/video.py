"""A film of an episode: what an agent does, to look at.

A .gif moves, a .png is a strip of a few moments side by side, an .mp4 needs imageio-ffmpeg. The episode is the first
that `evaluate` plays with the same seed.
"""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdfm.agent import Agent
from qdfm.checkpoint import writing
from qdfm.envs.registry import ENVIRONMENTS
from qdfm.errors import QDFMError, unknown
from qdfm.evaluate import Evaluation, evaluate
from qdfm.tasks import played_in

if TYPE_CHECKING:
    import gymnasium

SIDE = 240  # pixels of a picture's longer side, at most
MOMENTS = 8  # pictures of a strip
KINDS = (".gif", ".png", ".mp4")


def record(
    agent: Agent,
    env: "str | gymnasium.Env",
    path: str | Path,
    seed: int = 0,
    greedy: bool = False,
    preference: Any = None,
    seconds: float = 10.0,
) -> Evaluation:
    """Play an episode, write at most so many seconds of it to a .gif, .png or .mp4 file, and give its return.

    `env` is a Gymnasium id, a MuJoCo task such as hopper-medium, or an environment made with render_mode="rgb_array".
    """
    out = Path(path)
    check_film(out, env)
    from qdfm.envs.camera import Camera, make_drawn

    world = make_drawn(played_in(env), agent.spec.actions) if isinstance(env, str) else env
    try:
        camera = Camera(world, seconds)
        played = evaluate(agent, camera, 1, seed, greedy, preference)
    finally:
        if isinstance(env, str):
            world.close()
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_film(out, np.stack([shrunk(frame) for frame in camera.frames]), camera.rate)
    return played


def check_film(path: Path, env: "str | gymnasium.Env") -> None:
    """Refuse a kind of file that cannot be written and an environment without pictures, before anything is played."""
    if isinstance(env, str) and played_in(env) in ENVIRONMENTS:
        raise QDFMError(f"{env} draws no pictures; record in a Gymnasium environment, such as CartPole-v1.")
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise unknown("kind of film", kind or path.name, KINDS)
    if kind == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise QDFMError('An .mp4 needs imageio-ffmpeg; pip install "imageio[ffmpeg]", or write a .gif instead.')


def write_film(path: Path, frames: np.ndarray, rate: float) -> None:
    """Write the pictures `[T, H, W, 3]`, so many per second."""
    from PIL import Image

    kind = path.suffix.lower()
    if kind == ".png":
        Image.fromarray(strip(frames)).save(path)
    elif kind == ".gif":
        first, *rest = (Image.fromarray(frame) for frame in frames)
        first.save(path, save_all=True, append_images=rest, duration=round(1000 / rate), loop=0)
    else:
        import imageio

        height, width = (side // 2 * 2 for side in frames.shape[1:3])  # the codec wants even sides
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*os\.fork")  # by JAX, about the start of a program, which is safe
            imageio.mimsave(path, list(frames[:, :height, :width]), fps=rate, macro_block_size=1)


def strip(frames: np.ndarray) -> np.ndarray:
    """A few of the pictures `[T, H, W, 3]` side by side, evenly spread from the first to the last."""
    moments = np.linspace(0, len(frames) - 1, min(MOMENTS, len(frames))).round().astype(int)
    return np.concatenate(frames[moments], 1)


def shrunk(frame: np.ndarray) -> np.ndarray:
    """A picture `[H, W, 3]` whose longer side is SIDE at most."""
    from PIL import Image

    image = Image.fromarray(frame)
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)
