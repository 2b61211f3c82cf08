"""MO-Gymnasium's grids as tables, against walks in the real environments, counts and routes worked out by hand."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from qdfm.envs.mogym import deep_sea_treasure, resource_gathering
from qdfm.envs.pareto import pareto_front
from qdfm.errors import QDFMError

UP, DOWN, LEFT, RIGHT = range(4)
NAMES = {
    "deep-sea-treasure-v0": lambda: deep_sea_treasure("convex"),
    "deep-sea-treasure-concave-v0": lambda: deep_sea_treasure("concave"),
    "resource-gathering-v0": resource_gathering,
}
ENEMIES = [[1, 2], [0, 3]]
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered")  # MO-Gymnasium's own, about its spaces


@pytest.fixture
def make():
    deep_sea_treasure()  # the first import, without the greeting
    import mo_gymnasium

    return mo_gymnasium.make


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_walks_in_the_real_environment_follow_the_table(make, name, seed):
    env, table, rng = make(name), NAMES[name](), np.random.default_rng(seed)
    assert table.horizon == env.spec.max_episode_steps == 100
    outcomes, s = set(), None
    for _ in range(400):
        if s is None:
            seen, _ = env.reset(seed=int(rng.integers(1000)))
            s = table.start
            np.testing.assert_array_equal(table.observations[s], seen)
        a = int(rng.choice(4, p=[0.4, 0.1, 0.25, 0.25]))
        seen, reward, terminated, truncated, _ = env.step(a)
        matches = [
            o
            for o in range(table.next_state.shape[2])
            if table.probability[s, a, o] > 0
            and (table.observations[table.next_state[s, a, o]] == seen).all()
            and (table.reward[s, a, o] == reward).all()
            and table.terminated[s, a, o] == terminated
        ]
        assert len(matches) == 1
        outcomes.add(matches[0])
        s = None if terminated or truncated else table.next_state[s, a, matches[0]]
    assert outcomes == set(range(table.next_state.shape[2]))


def test_tables_by_hand():
    sea, gathering = deep_sea_treasure(), resource_gathering()
    assert sea.observations.dtype == gathering.observations.dtype == np.float32
    assert sea.observations[3 * 11 + 7].tolist() == [3, 7]
    assert gathering.observations[((3 * 5 + 1) * 2 + 1) * 2].tolist() == [3, 1, 1, 0]
    assert (sea.start, gathering.start) == (0, (4 * 5 + 2) * 4)
    # The enemies' cells have 4 and 3 neighbours, and from the upper one a move upwards stays there; 4 sets of flags.
    np.testing.assert_array_equal(gathering.probability.sum(-1), 1)
    drawn = gathering.probability[..., 1] > 0
    assert drawn.sum() == (4 + 3 + 1) * 4
    np.testing.assert_array_equal(gathering.probability[drawn], np.tile([0.9, 0.1], (32, 1)))
    np.testing.assert_array_equal(gathering.reward[drawn], np.tile([[0, 0, 0], [-1, 0, 0]], (32, 1, 1)))
    np.testing.assert_array_equal(gathering.terminated[drawn], np.tile([False, True], (32, 1)))
    # Home is entered from three sides or by standing there and moving down; every treasure is there once for each map.
    assert gathering.terminated[..., 0].sum() == (3 + 1) * 4
    assert sorted(np.unique(deep_sea_treasure("concave").reward[..., 0])) == [0, 1, 2, 3, 5, 8, 16, 24, 50, 74, 124]


def test_a_map_is_one_table():
    assert deep_sea_treasure() is deep_sea_treasure("convex") is deep_sea_treasure(map_name="convex")
    assert deep_sea_treasure("concave") is not deep_sea_treasure()
    assert resource_gathering() is resource_gathering()
    with pytest.raises(QDFMError, match="Unknown map 'convexe'; did you mean 'convex'"):
        deep_sea_treasure("convexe")


@pytest.mark.parametrize("gamma", [1.0, 0.99])
@pytest.mark.parametrize("name", list(NAMES)[:2])
def test_front_of_the_sea_is_the_published_one(make, name, gamma):
    published = np.array(make(name).unwrapped.pareto_front(gamma))
    front = pareto_front(NAMES[name](), gamma)
    assert len(front) == 10
    np.testing.assert_allclose(front, published[np.argsort(published[:, 0])], rtol=1e-6)  # rewards are float32


def test_front_of_gathering_by_hand():
    table = resource_gathering()
    np.testing.assert_allclose(pareto_front(table, 1.0), [[0, 1, 1]], atol=1e-12)
    g = 0.9
    routes = [
        # Gold in 8 steps, past the lower enemy both ways; in 10 past it on the way home; in 12 round it.
        (-0.1 * g**2 - 0.09 * g**4, 0.81 * g**7, 0),
        (-0.1 * g**6, 0.9 * g**9, 0),
        (0, g**11, 0),
        # The diamond in 10 steps.
        (0, 0, g**9),
        # Both in 12 steps past both enemies; in 14 past the upper one; the same after a step of waiting, which puts
        # the danger off; in 16 past the lower one on the way home; in 18 past none.
        (-0.1 * g**6 - 0.09 * g**8, 0.81 * g**11, 0.81 * g**11),
        (-0.1 * g**6, 0.9 * g**13, 0.9 * g**13),
        (-0.1 * g**7, 0.9 * g**14, 0.9 * g**14),
        (-0.1 * g**12, 0.9 * g**15, 0.9 * g**15),
        (0, g**17, g**17),
    ]
    front = pareto_front(table, g)
    assert front.shape == (9, 3)
    assert all(np.abs(front - route).max(1).min() < 1e-8 for route in routes)


def test_gold_and_diamond_can_be_had_without_danger(make):
    # MO-Gymnasium's own front of resource-gathering lacks this route, which is why ours is used.
    env = make("resource-gathering-v0")
    seen, _ = env.reset(seed=0)
    total = np.zeros(3)
    to_diamond, to_gold = [RIGHT] * 2 + [UP] * 3, [DOWN] + [LEFT] * 3 + [UP] * 2 + [RIGHT]
    for t, action in enumerate([*to_diamond, *to_gold, LEFT, *[DOWN] * 4, RIGHT]):
        seen, reward, terminated, _, _ = env.step(action)
        assert seen[:2].tolist() not in ENEMIES
        assert terminated == (t == 17)
        total += 0.9**t * reward
    np.testing.assert_allclose(total, [0, 0.9**17, 0.9**17])
    assert not any((point >= total - 1e-9).all() for point in env.unwrapped.pareto_front(0.9))


def test_importing_mo_gymnasium_says_nothing():
    script = (
        "import os\nfrom qdfm.envs.mogym import deep_sea_treasure\nbefore = dict(os.environ)\ndeep_sea_treasure()\n"
        "assert os.environ.get('PYGAME_HIDE_SUPPORT_PROMPT') == before.get('PYGAME_HIDE_SUPPORT_PROMPT')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_without_mo_gymnasium_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mo_gymnasium", None)
    for name in [name for name in gymnasium.registry if name.startswith(("deep-sea", "resource"))]:
        monkeypatch.delitem(gymnasium.registry, name)  # as before the package's import
    with pytest.raises(QDFMError, match=r'pip install "qdfm\[morl\]"'):
        resource_gathering.__wrapped__()
