"""SMAX: masks, ends, victories and rewards counted again from the units' places and health."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdfm
from qdfm.agent import Agent
from qdfm.algorithms import BC
from qdfm.envs import smax
from qdfm.envs.base import Contest, JaxEnv
from qdfm.envs.simulate import record
from qdfm.envs.smax import STOP, Smax
from qdfm.errors import QDFMError
from qdfm.video import check_film

EAST, REACH, HEALTH, SIGHT = 1, 5.0, 45.0, 9.0  # of marines
LANES = 48
KEY = jax.random.key(0)


class Staged(Smax):
    """Every fourth battle begins with our units in a corner where nobody looks for them."""

    def reset(self, key):
        state = super().reset(key)
        places = state.state.unit_positions
        hidden = places.at[:3].set(jnp.array([[2.0, 28.0], [2.0, 29.5], [3.5, 29.5]]))
        places = jnp.where(jax.random.bernoulli(key, 0.25), hidden, places)
        return state.replace(state=state.state.replace(unit_positions=places))


class Played(NamedTuple):
    """Battles, time first: the units as JaxMARL has them, and what our environment makes of them."""

    places: np.ndarray  # [T + 1, LANES, 6, 2]
    alive: np.ndarray  # [T + 1, LANES, 6]
    health: np.ndarray  # [T + 1, LANES, 6]
    observation: np.ndarray  # [T + 1, LANES, 3, 75]
    mask: np.ndarray  # [T + 1, LANES, 3, 8]
    whole: np.ndarray  # [T + 1, LANES, 72]
    won: np.ndarray  # [T + 1, LANES]
    reward: np.ndarray  # [T, LANES, 1]
    running: np.ndarray  # [T, LANES]
    terminated: np.ndarray  # [LANES]


@pytest.fixture(scope="module")
def played() -> Played:
    """One third of the lanes goes east and attacks the first enemy in reach, one draws, one stands still."""
    env, habit = Staged("3m"), jnp.arange(LANES) % 3

    def act(uniforms: Any, observation: Any, mask: Any, carry: Any) -> Any:
        bold = jnp.where(mask[..., STOP + 1 :].any(-1), STOP + 1 + jnp.argmax(mask[..., STOP + 1 :], -1), EAST)
        drawn = jnp.argmax(jnp.where(mask, uniforms.reshape(mask.shape), -1), -1)
        choice = jnp.select([habit[:, None] == 0, habit[:, None] == 1], [bold, drawn], STOP)
        return jnp.where(mask[..., 0], choice, STOP), carry

    @jax.jit
    def play(key: Any) -> Any:
        states, *rest, _ = record(env, act, 3 * 8, LANES, key)
        views = (env.observation, env.mask, env.global_state, env.won)
        units = states.state
        seen = (jax.vmap(jax.vmap(view))(states) for view in views)
        return units.unit_positions, units.unit_alive, units.unit_health, *seen, *rest

    return Played(*jax.device_get(play(KEY)))


@pytest.mark.parametrize(
    ("name", "agents", "choices", "features", "state"),
    [("3m", 3, 8, 75, 72), ("2s3z", 5, 10, 127, 120), ("5m_vs_6m", 5, 11, 140, 132)],
)
def test_shapes(name, agents, choices, features, state):
    env = Smax(name)
    assert isinstance(env, JaxEnv)
    assert isinstance(env, Contest)
    assert (env.spec.agents, env.spec.choices, env.horizon) == (agents, (choices,) * agents, 101)
    assert (env.spec.observation_shape, env.spec.state_shape) == ((agents, features), (state,))
    assert hash(env) == hash(Smax(name))


def test_masks_by_distance(played):
    distance = np.linalg.norm(played.places[:, :, :3, None] - played.places[:, :, None, 3:], axis=-1)
    ours, theirs = played.alive[..., :3], played.alive[..., 3:]
    clear = np.abs(distance - REACH).min((2, 3)) > 1e-4  # of rounding
    attack = (distance < REACH) & ours[..., None] & theirs[:, :, None]
    np.testing.assert_array_equal(played.mask[..., STOP + 1 :][clear], attack[clear])
    np.testing.assert_array_equal(played.mask[..., :STOP], np.repeat(ours[..., None], STOP, -1))
    assert played.mask[..., STOP].all()
    assert attack.any()
    assert (~ours).any()


def test_dead_units_only_stop_and_see_nothing(played):
    dead = ~played.alive[..., :3]
    np.testing.assert_array_equal(played.mask[dead], np.tile(np.arange(8) == STOP, (dead.sum(), 1)))
    assert not played.observation[dead].any()
    assert played.observation[~dead].any(-1).all()


def test_observations_and_states_tell_of_the_units(played):
    ours = played.alive[..., :3]
    own = played.observation[..., -10:]  # health, x, y, cooldown, six kinds
    np.testing.assert_allclose(own[ours][:, 0], played.health[..., :3][ours] / HEALTH, rtol=1e-6)
    np.testing.assert_allclose(own[ours][:, 1:3], played.places[:, :, :3][ours] / 32, rtol=1e-6)
    units = played.whole[..., :60].reshape(*played.whole.shape[:2], 6, 10)
    np.testing.assert_allclose(units[..., 0], played.health / HEALTH, rtol=1e-6)
    np.testing.assert_allclose(units[..., 1:3][played.alive], played.places[played.alive], rtol=1e-6)
    # The first enemy, after the two others of the team, is seen within sight only.
    apart = np.linalg.norm(played.places[:, :, 0] - played.places[:, :, 3], axis=-1)
    both = played.alive[..., 0] & played.alive[..., 3] & (np.abs(apart - SIGHT) > 1e-4)
    np.testing.assert_array_equal(played.observation[..., 0, 2 * 13][both] > 0, apart[both] < SIGHT)


def test_ends(played):
    ours, theirs = played.alive[-1, :, :3].any(-1), played.alive[-1, :, 3:].any(-1)
    np.testing.assert_array_equal(played.terminated, ~(ours & theirs))
    lengths = played.running.sum(0)
    assert set(lengths[~played.terminated]) == {101}  # JaxMARL's own limit
    assert lengths[played.terminated].max() < 101
    for lane in np.flatnonzero(played.terminated):  # and not later than the first step at which a side is dead
        sides = played.alive[: lengths[lane], lane].reshape(-1, 2, 3).any(-1)
        assert sides.all()


def test_victory_is_that_all_enemies_are_dead(played):
    ours, theirs = played.alive[..., :3].any(-1), played.alive[..., 3:].any(-1)
    np.testing.assert_array_equal(played.won, ours & ~theirs)
    won = played.won[-1]
    assert won.any() and (played.terminated & ~won).any() and (~played.terminated).any()


def test_rewards_add_up_to_health_and_victory(played):
    lost = 1 - played.health[-1, :, 3:] / HEALTH  # [LANES, 3]
    np.testing.assert_allclose(played.reward.sum((0, 2)), 10 * lost.mean(1) + 10 * played.won[-1], atol=1e-4)
    after = ~played.running
    assert not played.reward[after].any()


def test_an_illegal_choice_is_a_stop():
    env = Smax("3m")
    state = env.reset(KEY)  # nobody is in reach of anybody
    tried = jnp.array([[STOP, STOP, STOP], [STOP + 1, STOP + 3, STOP], [EAST, STOP, STOP]])
    after = jax.jit(jax.vmap(env.step, (None, 0, None)))(state, tried, KEY)
    for leaf in jax.tree.leaves(after):
        np.testing.assert_array_equal(leaf[0], leaf[1])
    places = after.state.state.unit_positions
    assert places[2, 0, 0] > places[0, 0, 0]


def test_evaluation_counts_victories():
    spec = Smax("3m").spec
    config = BC(hidden=(4,))
    algorithm = config.build(spec)
    agent = Agent(config, spec, algorithm.policy(algorithm.init(KEY)))
    done = qdfm.evaluate(agent, "smax-3m", episodes=6)
    assert done.won is not None
    assert done.won.shape == (6,)
    # Only victory pays more than all the enemies' health.
    np.testing.assert_array_equal(done.won, done.returns[:, 0] > 10)
    assert done.summary()["win_rate"] == done.won.mean()
    where = qdfm.evaluate(agent, "smax-3m-medium", episodes=6)
    np.testing.assert_array_equal(where.returns, done.returns)
    assert "win_rate" not in replace(done, won=None).summary()


def test_refusals(monkeypatch):
    with pytest.raises(QDFMError, match=r"Unknown SMAX map '3n'; did you mean '3m'\?"):
        Smax("3n")
    for name in ("smax-3m", "smax-3m-medium"):
        with pytest.raises(QDFMError, match=f"{name} draws no pictures"):
            check_film(Path("battle.gif"), name)
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with pytest.raises(QDFMError, match=r'smax-3m needs JaxMARL; install it with pip install "qdfm\[marl\]"\.'):
        smax._world.__wrapped__("3m")


def test_jaxmarl_is_imported_late_and_silently():
    script = """
import contextlib, io, sys
from qdfm.cli import main
with contextlib.redirect_stdout(io.StringIO()) as listed:
    main(["list"])
assert "smax-2s3z" in listed.getvalue() and "jaxmarl" not in sys.modules
from qdfm.envs.smax import Smax
Smax("3m").spec
assert "jaxmarl" in sys.modules and sys.stdout is sys.__stdout__
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
