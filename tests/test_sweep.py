"""Sweeps over preferences: numbers by hand in a table and in MO-Gymnasium's deep sea, the file, and the picture."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdfm.agent import Agent
from qdfm.algorithms import BC, Config
from qdfm.algorithms.base import Algorithm
from qdfm.data.actions import Discrete
from qdfm.data.spec import Spec
from qdfm.envs.tabular import Tabular
from qdfm.errors import QDFMError
from qdfm.frontplot import draw_front, text_front
from qdfm.metrics import simplex
from qdfm.sweep import Sweep, sweep, worst_corner

# At once (1, 0) or (-1, 1); or nothing now and (0, 4) one step later.
NOW, LATER, BADLY = range(3)
FORK = Tabular(
    observations=np.eye(2, dtype=np.float32),
    start=0,
    next_state=np.array([[[0], [1], [0]], [[1], [1], [1]]]),
    probability=np.ones((2, 3, 1)),
    reward=np.array([[[[1, 0]], [[0, 0]], [[-1, 1]]], [[[0, 4]]] * 3], np.float32),
    terminated=np.array([[[True], [False], [True]], [[True]] * 3]),
    horizon=5,
)


@dataclass(frozen=True)
class Leaning(Config):
    """Greedily: now if the first weight is above one half, later if below, badly in between. Else now at that rate."""

    name = "leaning"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def act(policy, noise, observation, preference, mask, carry, greedy=False):
            w = preference[:, 0]
            firm = jnp.where(w > 0.5, NOW, jnp.where(w < 0.5, LATER, BADLY))
            drawn = jnp.where(noise[:, 0] < w, NOW, LATER)
            return (firm if greedy else drawn)[:, None].astype(jnp.int32), carry

        return Algorithm(lambda key: jnp.zeros(1), (), lambda state: state, act, 1, None)


@dataclass(frozen=True)
class Diver(Config):
    """In the deep sea: right until column 3w, rounded, for the first weight w, then down."""

    name = "diver"
    about = "for tests"

    def build(self, spec: Spec) -> Algorithm:
        def act(policy, noise, observation, preference, mask, carry, greedy=False):
            down = observation[:, 1] >= jnp.round(3 * preference[:, 0])
            return jnp.where(down, 1, 3)[:, None].astype(jnp.int32), carry

        return Algorithm(lambda key: jnp.zeros(1), (), lambda state: state, act, 1, None)


LEANING = Agent(Leaning(), FORK.spec, jnp.zeros(1))
DIVER = Agent(Diver(), Spec((2,), Discrete(4), objectives=2), jnp.zeros(1))


@pytest.fixture(scope="module")
def greedy() -> Sweep:
    return sweep(LEANING, FORK, simplex(2, 5))


def test_a_greedy_sweep_by_hand(greedy):
    np.testing.assert_allclose(greedy.preferences[:, 0], [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(greedy.returns, [[0, 4], [0, 4], [-1, 1], [1, 0], [1, 0]])
    np.testing.assert_array_equal(greedy.std, np.zeros((5, 2)))
    assert greedy.non_dominated().tolist() == [True, False, False, True, False]
    discounted = sweep(LEANING, FORK, simplex(2, 5), gamma=0.5)
    np.testing.assert_array_equal(discounted.returns, [[0, 2], [0, 2], [-1, 1], [1, 0], [1, 0]])


def test_the_file_of_a_sweep(greedy, tmp_path):
    greedy.write_csv(tmp_path / "front.csv")
    assert (tmp_path / "front.csv").read_text().splitlines() == [
        "preference_1,preference_2,return_1,return_2,std_1,std_2,non_dominated",
        "0.0,1.0,0.0,4.0,0.0,0.0,1",
        "0.25,0.75,0.0,4.0,0.0,0.0,0",
        "0.5,0.5,-1.0,1.0,0.0,0.0,0",
        "0.75,0.25,1.0,0.0,0.0,0.0,1",
        "1.0,0.0,1.0,0.0,0.0,0.0,0",
    ]
    with pytest.raises(QDFMError, match="Cannot write"):
        greedy.write_csv(tmp_path / "none" / "front.csv")


def test_sampled_episodes_belong_to_their_preference_and_deviate_as_coins_do():
    n = 200
    drawn = sweep(LEANING, FORK, simplex(2, 5), episodes=n, seed=1, greedy=False)
    share = drawn.returns[:, 0]  # of episodes that took (1, 0); the others took (0, 4)
    np.testing.assert_allclose(drawn.returns[:, 1], 4 * (1 - share))
    np.testing.assert_allclose(drawn.std, np.sqrt(n / (n - 1) * share * (1 - share))[:, None] * [1, 4], atol=1e-12)
    law = np.array([0, 0.25, 0.5, 0.75, 1])
    assert (np.abs(share - law) <= 4 * np.sqrt(law * (1 - law) / n)).all()


@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_the_deep_sea_of_mo_gymnasium(gamma):
    # Columns 0 to 3 lead to treasures of .7, 8.2, 11.5 and 14 after 1, 3, 5 and 7 steps.
    steps, treasure = np.array([1, 3, 5, 7]), np.array([0.7, 8.2, 11.5, 14.0])
    time = [sum(gamma**t for t in range(n)) for n in steps]
    swept = sweep(DIVER, "deep-sea-treasure-v0", simplex(2, 4), episodes=2, gamma=gamma, progress=False)
    np.testing.assert_allclose(swept.returns, np.c_[treasure * gamma ** (steps - 1), np.negative(time)], rtol=1e-6)
    np.testing.assert_array_equal(swept.std, 0)
    assert swept.non_dominated().all()


def test_agents_without_a_preference_to_vary():
    def agent(config: Config, spec: Spec) -> Agent:
        algorithm = config.build(spec)
        return Agent(config, spec, algorithm.policy(algorithm.init(jax.random.key(0))))

    single = agent(BC(hidden=(8,)), Spec((2,), Discrete(3)))
    with pytest.raises(QDFMError, match="has one objective"):
        sweep(single, FORK, [[1.0]])
    fixed = agent(BC(hidden=(8,), preference=(0.5, 0.5)), FORK.spec)
    with pytest.raises(QDFMError, match=r"trained for the preference \[0.5, 0.5\] only"):
        sweep(fixed, FORK, simplex(2, 5))
    with pytest.raises(QDFMError, match="does not sum to 1 in row 1"):
        sweep(LEANING, FORK, [[0.5, 0.5], [0.5, 0.6]])
    with pytest.raises(QDFMError, match="0 episodes"):
        sweep(LEANING, FORK, simplex(2, 5), episodes=0)


def test_the_worst_corner_is_a_tenth_of_the_range_below():
    np.testing.assert_allclose(worst_corner(np.array([[0.0, -3.0], [10.0, -3.0], [5.0, -3.0]])), [-1.0, -3.1])


def drawn_axes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of figures that are saved from now on."""
    from matplotlib.figure import Figure

    axes: list[Any] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (axes.extend(self.axes), save(self, *a, **k)))
    return axes


def test_the_picture_of_two_objectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    axes = drawn_axes(monkeypatch)
    front = np.array([[3.0, 0.0], [0.0, 3.0], [2.0, 2.0]])
    reached = np.array([[0.0, 3.0], [1.0, 1.0], [2.0, 1.0]])
    draw_front(tmp_path / "front.png", reached, data=np.zeros((4, 2)), front=front, names=("gold", "time"), title="t")
    (axis,) = axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("gold", "time")
    shown = {points.get_label(): points.get_offsets().tolist() for points in axis.collections}
    assert shown["data"] == [[0, 0]] * 4
    assert shown["reached, dominated"] == [[1, 1]]
    assert shown["reached"] == [[0, 3], [2, 1]]
    (line,) = axis.lines
    assert line.get_xydata().tolist() == [[0, 3], [2, 2], [3, 0]]
    assert line.get_drawstyle() == "steps-pre"  # left of a point the border has the point's height
    content = (tmp_path / "front.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", content[16:24])) > 100


def test_a_panel_for_each_pair_of_objectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    axes = drawn_axes(monkeypatch)
    draw_front(tmp_path / "front.png", np.eye(4), front=2 * np.eye(4))
    assert axes[0].get_legend_handles_labels()[1] == ["true front", "reached"]  # nothing that is dominated
    pairs = [(axis.get_xlabel()[-1], axis.get_ylabel()[-1]) for axis in axes]
    assert pairs == [("1", "2"), ("1", "3"), ("1", "4"), ("2", "3"), ("2", "4"), ("3", "4")]
    assert all(axis.lines[0].get_linestyle() == "None" and axis.lines[0].get_marker() == "x" for axis in axes)


def test_a_front_in_text():
    assert text_front(np.eye(2)).splitlines()[-1] == "● reached"
    reached = np.array([[0.0, 2.0], [1.0, 1.0], [0.0, 1.0]])
    lines = text_front(reached, front=np.array([[0.0, 2.0], [2.0, 0.0]]), names=("gold", "time")).splitlines()
    assert lines[0] == "│●"  # (0, 2): reached, over the true front's own mark
    assert lines[17] == "│" + " " * 63 + "·"  # (2, 0): not reached
    middle = next(line for line in lines if "○" in line)
    assert (middle.index("○"), middle.index("●")) == (1, 33)  # (0, 1) is dominated by (1, 1), half way
    assert lines[19:] == ["gold: 0 to 2 →   time: 0 to 2 ↑", "● reached   ○ reached, dominated   · true front"]


def test_the_mean_utility_is_that_of_heeding_the_preference():
    omega, returns = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[2.0, 7.0], [1.0, 3.0]])
    assert Sweep(omega, returns, 0 * returns).mean_utility() == pytest.approx((2 + 2) / 2)
