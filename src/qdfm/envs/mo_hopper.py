"""MO-Hopper as D4MORL has it (Zhu et al., 2023; the robot is PGMORL's, Xu et al., 2020), in current MuJoCo.

Running against jumping: the reward is [1.5·vx, 12·(z − 1.25)], to both of which 1 − 2·10⁻⁴‖a‖² is added. An episode
ends when z ≤ .4 or an angle is beyond 90°, and is truncated after 500 steps of .01 s. The observation is all of the
state but x; velocities are cut off at ±10. This is not MO-Gymnasium's mo-hopper-2obj-v5, whose robot is weaker and
whose rewards differ.

The robot is Gymnasium's Hopper with stronger motors, more damping, no limits of the joints, and the capsules of the
MuJoCo before 2.1.2: mass and inertia of a capsule were those of a cylinder as long as the capsule is with half a radius
at each end. With that, steps from recorded states give recorded ones to single precision.
"""

from copy import copy
from functools import lru_cache
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.mujoco.mujoco_env import expand_model_path
from gymnasium.utils import EzPickle

from qdfm.envs.gymnasium import box
from qdfm.envs.mujoco import quiet

FRAMES = 5  # of .002 s in a step
DENSITY = 1000.0  # MuJoCo's own
DAMPING = 40.0
MOTORS = {"thigh": (2.0, 200.0), "leg": (2.0, 200.0), "foot": (4.0, 300.0)}  # largest control, gear
RUN, JUMP, ALIVE, EFFORT = 1.5, 12.0, 1.0, 2e-4  # of the reward
LOWEST, WIDEST = 0.4, np.pi / 2  # of the torso's height, of the angles
NOISE = 1e-3  # of the first state


class MOHopper(MujocoEnv, EzPickle):
    """A hopping robot; the reward is a vector: running and jumping."""

    metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"], "render_fps": 100}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        EzPickle.__init__(self, **options)
        space = spaces.Box(-np.inf, np.inf, (11,), np.float64)
        MujocoEnv.__init__(self, "hopper.xml", FRAMES, space, **{"camera_name": "track", **options})
        self.reward_space = box((2,), "float32")
        self.reward_dim = 2  # as MO-Gymnasium's environments say it

    def _initialize_simulation(self) -> tuple[Any, Any]:
        model = copy(hopper_model())
        picture = model.vis.global_
        picture.offwidth, picture.offheight = max(picture.offwidth, self.width), max(picture.offheight, self.height)
        return model, mujoco.MjData(model)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """Five frames with the action held, which is first cut off at the largest."""
        action = np.clip(np.asarray(action, np.float64), *self.model.actuator_ctrlrange.T)
        before = self.data.qpos[0]
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, FRAMES)
        x, z, *angles = self.data.qpos
        both = ALIVE - EFFORT * np.sum(action**2)
        reward = np.array([RUN * (x - before) / self.dt, JUMP * (z - self.init_qpos[1])]) + both
        fallen = not (z > LOWEST and np.all(np.abs(angles) < WIDEST))
        if self.render_mode == "human":
            self.render()
        return self._observation(), reward.astype(np.float32), fallen, False, {}

    def reset_model(self) -> np.ndarray:
        """The upright robot, all but its height a little disturbed."""
        qpos = self.init_qpos + self.np_random.uniform(-NOISE, NOISE, self.model.nq)
        qpos[1] = self.init_qpos[1]
        self.set_state(qpos, self.init_qvel + self.np_random.uniform(-NOISE, NOISE, self.model.nv))
        return self._observation()

    def _observation(self) -> np.ndarray:
        return np.concatenate([self.data.qpos[1:], np.clip(self.data.qvel, -10, 10)])


@lru_cache
def hopper_model() -> Any:
    """The compiled robot, to be copied."""
    robot = mujoco.MjSpec.from_file(expand_model_path("hopper.xml"))
    robot.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_AUTO  # only where none is given
    for name in ("torso", *MOTORS):
        body, capsule = robot.body(name), robot.geom(f"{name}_geom")
        radius, half = capsule.size[:2]
        length = 2 * half + radius
        body.mass = DENSITY * np.pi * radius**2 * length
        across = body.mass * (3 * radius**2 + length**2) / 12
        body.inertia = [across, across, body.mass * radius**2 / 2]
        body.ipos, body.iquat = capsule.pos, capsule.quat
    for motor, (name, (largest, gear)) in zip(robot.actuators, MOTORS.items(), strict=True):
        motor.ctrlrange, motor.gear = [-largest, largest], [gear, 0, 0, 0, 0, 0]
        joint = robot.joint(f"{name}_joint")
        joint.limited = mujoco.mjtLimited.mjLIMITED_FALSE
        joint.damping = np.r_[DAMPING, np.zeros(np.size(joint.damping) - 1)]  # newer MuJoCos have terms of higher order
    with quiet():
        return robot.compile()
