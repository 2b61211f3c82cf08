"""The data of the SMAX battles: counted again from the global states, and policies as good as their files say."""

import jax
import numpy as np
import pytest

from qdfm.collect import smax as collect
from qdfm.collect.actor import NAMES, POLICIES
from qdfm.collect.smax import EARLIER, MEASURED, MEMBERS, Make, battles, collect_smax, policy_of, statistics
from qdfm.data.arrays import read_arrays
from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset
from qdfm.envs.smax import MAPS, STOP, Smax
from qdfm.errors import QDFMError

ROWS = 3_000
EACH = 100  # battles by which a shipped actor is checked


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load_dataset("smax-3m-medium-replay", transitions=ROWS)


def health(state: np.ndarray) -> np.ndarray:
    """Of all six units, ours first, as a share, `[..., 6]`."""
    return state[..., :60].reshape(*state.shape[:-1], 6, 10)[..., 0]


def test_rows_follow_one_another(data):
    assert len(data) == ROWS
    last = np.r_[data.episode[1:] != data.episode[:-1], True]
    for name in ("observation", "mask", "state"):
        here, there = getattr(data, name), getattr(data, f"next_{name}")
        np.testing.assert_array_equal(there[~last], here[1:][~last[:-1]])
    np.testing.assert_array_equal(data.terminated | data.truncated, last)
    units = health(data.next_state)
    over = ~((units[:, :3] > 0).any(1) & (units[:, 3:] > 0).any(1))
    np.testing.assert_array_equal(data.terminated, over)
    assert data.truncated[-1] != data.terminated[-1]  # the recording ends there, if the battle does not
    assert set(data.episode) == set(range(data.episode[-1] + 1))


def test_actions_are_legal_and_those_of_the_dead_are_stops(data):
    assert np.take_along_axis(data.mask, data.action[..., None], 2).all()
    dead = health(data.state)[:, :3] == 0
    assert dead.any()
    assert (data.action[dead] == STOP).all()
    assert len(np.unique(data.action[~dead])) == 8


def test_rewards_and_victories_are_those_of_the_states(data):
    before, after = health(data.state)[:, 3:], health(data.next_state)[:, 3:]
    won = (after == 0).all(1) & (health(data.next_state)[:, :3] > 0).any(1)
    np.testing.assert_allclose(data.reward[:, 0], 10 * (before - after).mean(1) + 10 * won, atol=1e-4)
    last = np.flatnonzero(np.r_[data.episode[1:] != data.episode[:-1], True])
    np.testing.assert_array_equal(collect.won_battles(data), won[last])
    counted = {"episodes": len(last), "return_mean": data.reward.sum() / len(last), "win_rate": won.sum() / len(last)}
    assert statistics(data) == pytest.approx(counted, rel=1e-5)
    assert 0 < won.sum() < len(last)


def test_the_team(data):
    spec = data.spec
    assert (spec.agents, spec.choices, spec.state_shape) == (3, (8, 8, 8), (72,))
    seen = data.observation.reshape(-1, 75).astype(np.float64)
    np.testing.assert_allclose(np.reshape(spec.normalisation.observation_mean, (3, 75)), [seen.mean(0)] * 3, rtol=1e-6)


def test_fewer_are_the_first_of_more_and_the_seed_decides(data):
    fewer, other = collect_smax("smax-3m-medium-replay", 1_000), collect_smax("smax-3m-medium-replay", 1_000, seed=1)
    for name in ("observation", "action", "reward", "state", "episode", "terminated"):
        np.testing.assert_array_equal(getattr(fewer, name), getattr(data, name)[:1_000])
    assert not np.array_equal(other.state[0], fewer.state[0])


def test_battles_are_fought_on_the_cpu_whatever_device_trains(monkeypatch):
    compiled, fought = collect._compiled, []

    def watched(*args):
        play = compiled(*args)
        return lambda *given: fought.append(jax.config.jax_default_device) or play(*given)

    monkeypatch.setattr(collect, "_compiled", watched)
    collect_smax("smax-3m-medium-replay", 10)
    assert fought == [jax.devices("cpu")[0]]
    assert jax.config.jax_default_device is None


def test_actors_take_turns():
    """Each always makes the same move while it lives. As many and as large as those of `data`: compiled already."""
    known, moves = policy_of("smax-3m-medium-replay").actors, np.array([STOP, 1, 0, 3, 2, 1])
    actors = (*(np.zeros_like(layer) for layer in known[:-1]), 100 * np.eye(8, dtype=np.float32)[moves])
    data = battles(Smax("3m"), actors, episodes=7, transitions=None)
    assert data.episode[-1] == 6
    alive = health(data.state)[:, :3] > 0
    expected = np.where(alive, moves[data.episode % 6][:, None], STOP)
    np.testing.assert_array_equal(data.action, expected)


@pytest.mark.parametrize("name", MAPS)
def test_shipped_actors_win_as_often_as_they_say(name):
    """EACH battles of expert, medium and poor in turn; within four deviations of both countings.

    Each is there twice, which makes as many actors as `data` has: one program serves both.
    """
    known = [policy_of(f"smax-{name}-{quality}") for quality in ("expert", "medium", "poor")]
    actors = tuple(np.concatenate(layer * 2) for layer in zip(*(policy.actors for policy in known)))
    data = battles(Smax(name), actors, episodes=3 * EACH, transitions=None, seed=2, normalise=False)
    won, returns = collect.won_battles(data).reshape(EACH, 3), data.returns().reshape(EACH, 3)
    for i, policy in enumerate(known):
        share = np.clip(policy.won[0], 0.01, 0.99)
        error = np.sqrt(share * (1 - share) * (1 / EACH + 1 / MEASURED))
        assert abs(won[:, i].mean() - policy.won[0]) <= 4 * error
        spread = returns[:, i].std(ddof=1) * np.sqrt(1 / EACH + 1 / MEASURED)
        assert abs(returns[:, i].mean() - policy.returned[0]) <= 4 * spread
    expert, medium, poor = (policy.won[0] for policy in known)
    assert poor <= 0.1
    assert poor < medium < expert
    assert abs(medium - expert / 2) <= 0.15


@pytest.mark.parametrize("name", MAPS)
def test_a_replay_goes_from_the_first_checkpoint_to_the_medium_one(name):
    replay, medium = policy_of(f"smax-{name}-medium-replay"), policy_of(f"smax-{name}-medium")
    assert len(replay.steps) == len(MEMBERS["medium-replay"]) == 6
    assert replay.steps[0] == 0
    assert (np.diff(replay.steps) > 0).all()
    assert replay.steps[-1] == medium.steps[0]
    assert replay.returned[0] < replay.returned.mean() < medium.returned[0]
    for path in POLICIES.glob(f"smax_{name}_*.npz"):
        assert path.stat().st_size < 200_000


def test_the_table_of_the_docstring_is_what_the_files_say():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in collect.__doc__.splitlines()]
    table = {(row[0], row[1]): row[2:] for row in rows if row[0] in MAPS}
    assert len(table) == len(MAPS) * len(MEMBERS)
    for (name, quality), told in table.items():
        policy = policy_of(f"smax-{name}-{quality}")
        assert told == [f"{100 * policy.won.mean():.1f} %", f"{policy.returned.mean():.1f}"]


def test_the_choice_of_checkpoints():
    won = np.array([0, 0, 0.01, 0.02, 0.1, 0.3, 0.35, 0.5, 0.45, 0.8, 0.79, 0.8])
    found = collect.chosen(won, np.linspace(1, 2, 12))
    assert (found["expert"], found["medium"], found["poor"]) == (11, 6, 3)  # .35 is nearer to .4 than .5
    assert [found[name] for name in EARLIER] == [0, 1, 2, 4, 5]  # 0, 1.2, 2.4, 3.6, 4.8


def test_making_the_files(tmp_path, capsys, monkeypatch):
    """Untrained actors: the counts and the weights that were written, in half precision."""
    monkeypatch.setattr(collect, "TOGETHER", 20)
    rng = np.random.default_rng(0)
    shapes = ((12, 78, 4), (12, 4), (12, 4, 4), (12, 4), (12, 4, 8), (12, 8))
    run = {name: rng.normal(size=shape).astype(np.float32) for name, shape in zip(NAMES, shapes)}
    won = np.linspace(0, 0.8, 12)
    np.savez(tmp_path / "run.npz", **run, steps=1000 * np.arange(12), won=won, returned=won)
    collect.make(Make("3m", tmp_path / "run.npz", tmp_path), episodes=40)
    assert len(capsys.readouterr().out.splitlines()) == 8
    expert = read_arrays(tmp_path / "smax_3m_expert.npz")
    assert expert["w0"].dtype == np.float16
    np.testing.assert_allclose(expert["w0"], run["w0"][11], rtol=1e-3)
    assert expert["steps"] == 11_000
    actors = tuple(expert[name][None].astype(np.float32) for name in NAMES)
    again = statistics(battles(Smax("3m"), actors, 40, None, seed=1))
    assert (expert["won"], expert["returned"]) == (again["win_rate"], again["return_mean"])


def test_refusals():
    with pytest.raises(QDFMError, match="Unknown SMAX task 'smax-3m-good'"):
        collect_smax("smax-3m-good")
    with pytest.raises(QDFMError, match="0 transitions cannot be collected"):
        load_dataset("smax-3m-poor", transitions=0)
    with pytest.raises(QDFMError, match="bins does not concern smax-3m-poor"):
        load_dataset("smax-3m-poor", bins=3)
