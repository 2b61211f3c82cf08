"""Films: how many pictures, which ones, how they are laid out; and a sentence where nothing can be drawn.

The environments here paint their own pictures, so that no display and no OpenGL is needed.
"""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import mujoco
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import BC
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs import camera
from qdfm.errors import QDFMError
from qdfm.video import SIDE, record, strip, write_film

STEPS = 7


class Painted(gymnasium.Env):
    """Ends after seven steps; the picture is 4 × 6, its red the number of steps so far times 30."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, size: tuple[int, int] = (4, 6), fps: int = 25):
        self.render_mode, self.size, self.metadata = render_mode, size, {**self.metadata, "render_fps": fps}
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, ...]:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == STEPS, False, {}

    def render(self) -> np.ndarray:
        picture = np.zeros((*self.size, 3), np.uint8)
        picture[..., 0] = 30 * self.steps
        return picture

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def agent() -> Agent:
    config, spec = BC(hidden=(4,)), Spec((2,), Discrete(2))
    algorithm = config.build(spec)
    return Agent(config, spec, algorithm.policy(algorithm.init(jax.random.key(0))))


def reds(path: Path) -> list[int]:
    """The red of the first pixel of each picture."""
    film, found = Image.open(path), []
    for i in range(film.n_frames):
        film.seek(i)
        found.append(film.convert("RGB").getpixel((0, 0))[0])
    return found


def test_a_gif_has_the_first_picture_and_one_per_step(agent, tmp_path):
    env = Painted("rgb_array")
    played = qdfm.record(agent, env, tmp_path / "new" / "film.gif")
    assert reds(tmp_path / "new" / "film.gif") == [30 * i for i in range(STEPS + 1)]
    film = Image.open(tmp_path / "new" / "film.gif")
    assert film.size == (6, 4)
    assert film.info["duration"] == 40  # ms, 25 per second
    assert played.returns.tolist() == [[STEPS]]
    assert not env.closed  # its owner's business


def test_fast_environments_are_shown_every_few_steps_and_long_films_end(agent, tmp_path):
    record(agent, Painted("rgb_array", fps=75), tmp_path / "fast.gif")
    assert reds(tmp_path / "fast.gif") == [0, 90, 180]  # every third step
    record(agent, Painted("rgb_array"), tmp_path / "short.gif", seconds=0.16)
    assert reds(tmp_path / "short.gif") == [0, 30, 60, 90]  # 4 of 25 per second


def test_a_strip_shows_moments_side_by_side(agent, tmp_path):
    record(agent, Painted("rgb_array"), tmp_path / "strip.png")
    picture = np.asarray(Image.open(tmp_path / "strip.png"))
    assert picture.shape == (4, 6 * (STEPS + 1), 3)
    np.testing.assert_array_equal(picture[0, :, 0], np.repeat(30 * np.arange(STEPS + 1), 6))
    frames = np.arange(15, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 1, 3), np.uint8)
    np.testing.assert_array_equal(strip(frames)[0, :, 0], [0, 2, 4, 6, 8, 10, 12, 14])  # eight of fifteen


def test_large_pictures_are_made_smaller(agent, tmp_path):
    record(agent, Painted("rgb_array", size=(2 * SIDE, 4 * SIDE)), tmp_path / "large.gif")
    assert Image.open(tmp_path / "large.gif").size == (SIDE, SIDE // 2)


def test_an_id_is_made_for_drawing(agent, tmp_path, monkeypatch):
    registry = gymnasium.envs.registration
    monkeypatch.setitem(gymnasium.registry, "painted-v0", registry.EnvSpec("painted-v0", Painted))
    record(agent, "painted-v0", tmp_path / "film.gif")
    assert reds(tmp_path / "film.gif") == [30 * i for i in range(STEPS + 1)]


def test_the_camera_follows_robots_and_nothing_else():
    assert [camera.follow(name) for name in ("HalfCheetah-v5", "CartPole-v1", "no-such-v0")] == [
        {"camera_name": "track"}, {}, {},
    ]  # fmt: skip
    world = gymnasium.make("Hopper-v5", **camera.follow("Hopper-v5")).unwrapped
    renderer = world.mujoco_renderer
    assert renderer.camera_id == mujoco.mj_name2id(world.model, mujoco.mjtObj.mjOBJ_CAMERA, "track") >= 0
    world.close()


def test_cartpole_is_drawn(tmp_path):
    config, spec = BC(hidden=(4,)), Spec((4,), Discrete(2))
    algorithm = config.build(spec)
    pusher = Agent(config, spec, algorithm.policy(algorithm.init(jax.random.key(0))))
    played = record(pusher, "CartPole-v1", tmp_path / "cart.gif", seed=3)
    assert Image.open(tmp_path / "cart.gif").size == (240, 160)
    assert played.lengths[0] == qdfm.evaluate(pusher, "CartPole-v1", 1, seed=3).lengths[0]  # the same episode


class Broken(Painted):
    """Has no way to draw."""

    def render(self) -> np.ndarray:
        raise RuntimeError("no\ncontext.")


class Mute(Painted):
    """Takes no render mode."""

    def __init__(self) -> None:
        super().__init__()


def test_what_cannot_be_drawn(agent, tmp_path, monkeypatch):
    film = tmp_path / "film.gif"
    with pytest.raises(QDFMError, match=r"Broken cannot be drawn on this machine \(no context\); install"):
        record(agent, Broken("rgb_array"), film)
    with pytest.raises(QDFMError, match='Painted draws no pictures; make it with render_mode="rgb_array"'):
        record(agent, Painted(), film)
    with pytest.raises(QDFMError, match="multigoal-4 draws no pictures; record in a Gymnasium environment"):
        record(agent, "multigoal-4", film)
    registry = gymnasium.envs.registration
    monkeypatch.setitem(gymnasium.registry, "mute-v0", registry.EnvSpec("mute-v0", Mute))
    with pytest.raises(QDFMError, match="mute-v0 draws no pictures"):
        record(agent, "mute-v0", film)
    assert not film.exists()

    def unloaded(*_: Any, **__: Any) -> None:
        raise AttributeError("no glGetError")

    monkeypatch.setattr(camera, "make", unloaded)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(QDFMError, match=r"Hopper-v5 cannot be drawn with MUJOCO_GL=osmesa \(no glGetError\)"):
        record(agent, "hopper-medium", film)
    monkeypatch.setattr(Broken, "mujoco_renderer", None, raising=False)  # as MuJoCo's robots have one
    with pytest.raises(QDFMError, match="Debian: libegl1 libgl1-mesa-dri"):
        record(agent, Broken("rgb_array"), film)


def test_files_that_cannot_be_written(agent, tmp_path, monkeypatch):
    with pytest.raises(QDFMError, match=r"Unknown kind of film '\.avi'"):
        record(agent, Painted("rgb_array"), tmp_path / "film.avi")
    (tmp_path / "file").touch()
    with pytest.raises(QDFMError, match=r"Cannot write .*file/film\.gif"):
        record(agent, Painted("rgb_array"), tmp_path / "file" / "film.gif")
    monkeypatch.setattr("qdfm.video.find_spec", lambda name: None)
    with pytest.raises(QDFMError, match=r"needs imageio-ffmpeg; .* or write a \.gif instead"):
        record(agent, Painted("rgb_array"), tmp_path / "film.mp4")


def test_an_mp4_gets_even_sides(tmp_path, monkeypatch):
    written = {}

    class Writer:
        """Notes what imageio is given."""

        @staticmethod
        def mimsave(path: Path, frames: list[np.ndarray], **options: Any) -> None:
            written.update(shapes={f.shape for f in frames}, count=len(frames), **options)

    monkeypatch.setitem(sys.modules, "imageio", Writer)
    write_film(tmp_path / "film.mp4", np.zeros((3, 5, 7, 3), np.uint8), 20)
    assert (written["shapes"], written["count"], written["fps"]) == ({(4, 6, 3)}, 3, 20)


@pytest.mark.parametrize(
    ("there", "environment", "chosen"),
    [
        ({"libEGL.so.1", "libOSMesa.so.8"}, {}, "egl"),
        ({"libOSMesa.so.8"}, {}, "osmesa"),
        (set(), {}, None),
        ({"libEGL.so.1"}, {"DISPLAY": ":0"}, None),
        ({"libEGL.so.1"}, {"MUJOCO_GL": "glfw"}, "glfw"),
    ],
)
def test_how_mujoco_is_told_to_draw(there, environment, chosen, monkeypatch):
    monkeypatch.setattr(camera, "_loads", lambda library: library in there)
    monkeypatch.setattr(camera.os, "environ", dict(environment))
    camera.choose_backend()
    assert camera.os.environ.get("MUJOCO_GL") == chosen
