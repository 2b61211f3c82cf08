"""Tables: the same data from every format, the rules for episodes and successors, and what is refused."""

import builtins
import warnings
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from qdfm.data.arraylogs import D4RL, read_npz
from qdfm.data.columns import Columns, matched
from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset
from qdfm.data.tables import columns_of, read_table
from qdfm.errors import DataWarning, QDFMError

polars = pytest.importorskip("polars")
pytestmark = pytest.mark.filterwarnings("ignore::qdfm.data.checks.DataWarning")


def same(a: Dataset, b: Dataset) -> bool:
    if a.spec != b.spec or jax.tree.structure(a) != jax.tree.structure(b):
        return False
    return all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))
    )


def log(**changes: Any) -> dict[str, Any]:
    """Two episodes of three rows; a column that is None is left out."""
    good = {
        "episode": [0, 0, 0, 1, 1, 1],
        "step": [0, 1, 2, 0, 1, 2],
        "obs_0": [0.0, 1.0, 2.0, 10.0, 11.0, 12.0],
        "obs_1": [0.5, 1.5, 2.5, 10.5, 11.5, 12.5],
        "action": [0, 1, 2, 0, 1, 2],
        "reward": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "terminated": [False, False, True, False, False, True],
    }
    return {k: v for k, v in (good | changes).items() if v is not None}


def write(folder: Path, table: dict[str, Any], suffix: str = ".parquet") -> Path:
    path = folder / f"log{suffix}"
    frame = polars.DataFrame(table)
    if suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    return path


def refused(path: Path, *parts: str, **options: Any) -> None:
    with pytest.raises(QDFMError) as error:
        (read_npz if path.suffix == ".npz" else read_table)(path, **options)
    sentence = str(error.value)
    assert "\n" not in sentence
    for part in (";", *parts):
        assert part in sentence, sentence


def test_parquet_csv_and_npz_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 40
    obs, following = rng.normal(size=(n, 12)).astype(np.float32), rng.normal(size=(n, 12)).astype(np.float32)
    action = np.stack([rng.integers(0, 3, n), rng.integers(0, 2, n)], 1)
    mask = rng.random((n, 2, 3)) < 0.5
    np.put_along_axis(mask, action[..., None], True, -1)
    mask[:, 1, 2] = False
    weight = rng.random(n).astype(np.float32)
    arrays = {
        "observation": obs,
        "action": action,
        "reward": rng.normal(size=(n, 2)).astype(np.float32),
        "next_observation": following,
        "terminated": np.arange(n) % 10 == 9,
        "truncated": np.arange(n) == n - 5,
        "mask": mask,
        "next_mask": mask,
        "episode": np.repeat(np.arange(5), [10, 10, 10, 6, 4]),
        "preference": np.stack([weight, 1 - weight], 1),
    }
    names = {"observation": "obs", "next_observation": "next_obs"}
    table = {}
    for field, values in arrays.items():
        name, flat = names.get(field, field), values.reshape(n, -1)
        for i in range(flat.shape[1]):
            table[name if values.ndim == 1 else f"{name}_{i}"] = flat[:, i]
    lists = {names.get(k, k): v if v.ndim == 1 else list(v.reshape(n, -1)) for k, v in arrays.items()}
    nested = lists | {"mask": mask.tolist(), "next_mask": polars.Series(mask)}
    (tmp_path / "lists").mkdir()
    (tmp_path / "nested").mkdir()
    np.savez(tmp_path / "log.npz", **arrays)

    expected = Dataset.from_arrays(**arrays, num_actions=(3, 2))
    assert expected.observation.shape == (n, 12)
    for path in (
        write(tmp_path, table),
        write(tmp_path, table, ".csv"),
        write(tmp_path / "lists", lists),
        write(tmp_path / "nested", nested),
    ):
        assert same(read_table(path, num_actions=(3, 2)), expected)
    assert same(read_npz(tmp_path / "log.npz", num_actions=(3, 2)), expected)
    raw = Dataset.from_arrays(**arrays, num_actions=(3, 2), normalise=False)
    assert same(read_table(write(tmp_path, table), num_actions=(3, 2), normalise=False), raw)
    assert same(read_npz(tmp_path / "log.npz", num_actions=(3, 2), normalise=False), raw)


ENDED = {"reward": [0.0, 1.0], "terminated": [1, 1]}


def test_numbered_columns_come_by_number(tmp_path: Path) -> None:
    width = 12
    table = {f"obs_{i}": [float(i)] * 2 for i in reversed(range(width))}
    path = write(tmp_path, table | {"action": [0, 1]} | ENDED)
    assert read_table(path).observation[0].tolist() == list(range(width))
    assert columns_of(path)["observation"] == [f"obs_{i}" for i in range(width)]
    parts = {f"mask_{d}_{k}": [1, 1] for k in (1, 0) for d in (10, 9)}
    header = [*parts, *table, "action", *ENDED]
    assert matched(header, Columns())["mask"] == ["mask_9_0", "mask_9_1", "mask_10_0", "mask_10_1"]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_other_columns_come_as_in_the_file(tmp_path: Path, suffix: str) -> None:
    table = {
        "next_obs_age": [41.0, 51.0], "action_drug": [1, 0], "obs_pulse": [70.0, 80.0], "obs_age": [40.0, 50.0],
        "next_obs_pulse": [71.0, 81.0], "action_dose": [2, 0], "preference_cost": [0.75, 1.0],
        "reward_benefit": [1.0, 2.0], "reward_cost": [3.0, 4.0], "preference_benefit": [0.25, 0.0],
        "terminated": [1, 1],
    }  # fmt: skip
    path = write(tmp_path, table, suffix)
    data = read_table(path)
    assert data.observation.tolist() == [[70, 40], [80, 50]]
    assert data.next_observation.tolist() == [[71, 41], [81, 51]]
    assert data.action.tolist() == [[1, 2], [0, 0]]
    assert data.spec.choices == (2, 3)
    assert data.reward.tolist() == [[1, 3], [2, 4]]
    assert data.preference.tolist() == [[0.25, 0.75], [0, 1]]
    assert columns_of(path) == {
        "observation": ["obs_pulse", "obs_age"],
        "next_observation": ["next_obs_pulse", "next_obs_age"],
        "action": ["action_drug", "action_dose"],
        "reward": ["reward_benefit", "reward_cost"],
        "terminated": ["terminated"],
        "preference": ["preference_benefit", "preference_cost"],
    }
    # One that is not numbered among them, and all keep their places.
    assert matched([*table, "obs_10", "obs_2"], Columns(next_observation="obs_2"))["observation"][2:] == ["obs_10"]


def test_next_columns_without_counterparts(tmp_path: Path) -> None:
    now = {"obs_pulse": [70.0, 80.0], "obs_age": [40.0, 50.0], "action": [1, 0]} | ENDED
    lacking = write(tmp_path, now | {"next_obs_age": [41.0, 51.0]})
    refused(lacking, "no column 'next_obs_pulse' to go with 'obs_pulse'", "add it or rename")
    both = {"next_obs_age": [41.0, 51.0], "next_obs_pulse": [71.0, 81.0]}
    refused(write(tmp_path, now | both | {"next_obs_x": [1.0, 2.0]}), "'next_obs_x' goes with no column of observation")
    masks = {"mask_0": [1, 1], "mask_1": [1, 1], "next_mask_0": [1, 1]}
    refused(
        write(tmp_path, now | masks), "'next_mask_1' to go with 'mask_1'; next_mask needs one for each column of mask"
    )


def test_several_names(tmp_path: Path) -> None:
    table = {
        "next_pulse": [71.0, 81.0], "next_age": [41.0, 51.0], "pulse": [70.0, 80.0], "age": [40.0, 50.0],
        "lab_1": [7.0, 8.0], "lab_0": [5.0, 6.0], "drug": [1, 0], "dose": [2, 0], "cost": [3.0, 4.0],
        "benefit": [1.0, 2.0],
    }  # fmt: skip
    path = write(tmp_path, table)
    named: dict[str, Any] = {"action": ("dose", "drug"), "reward": ["benefit", "cost"]}
    for following in ("next", ("next_age", "next_pulse")):
        data = read_table(path, Columns(observation=["age", "pulse"], next_observation=following, **named))
        assert data.observation.tolist() == [[40, 70], [50, 80]]
        assert data.next_observation.tolist() == [[41, 71], [51, 81]]
        assert data.action.tolist() == [[2, 1], [0, 0]]
        assert data.reward.tolist() == [[1, 3], [2, 4]]
    assert same(read_table(path, {"observation": ("age", "pulse"), "next_observation": "next", **named}), data)
    found = matched([*table, "terminated"], Columns(observation=("lab", "age"), **named))
    assert found["observation"] == ["lab_0", "lab_1", "age"]
    refused(path, "'plus'", "did you mean 'pulse'?", columns=Columns(observation=("age", "plus"), **named))
    wrong = Columns(observation="lab", next_observation=("next_age", "next_pulse"), **named)
    refused(path, "give as many names, in the same order", columns=wrong)


@pytest.mark.parametrize(
    ("field", "names", "sentence"),
    [
        ("observation", (), "give the name of a column"),
        ("observation", ("a", "a"), "or several that differ"),
        ("action", 3, "columns.action is 3"),
        ("reward", ["a", 3], "give the name of a column"),
        ("episode", ("a", "b"), "it is one column, give its name"),
    ],
)
def test_names_that_are_none(field: str, names: Any, sentence: str) -> None:
    with pytest.raises(QDFMError, match=sentence):
        Columns(**{field: names})


def test_one_name_is_the_same_alone_and_in_a_tuple() -> None:
    assert Columns(observation=["obs"], episode=("episode",)) == Columns()  # type: ignore[arg-type]
    assert hash(Columns(observation=["obs"])) == hash(Columns())


def test_next_observation_is_the_next_row(tmp_path: Path) -> None:
    data = read_table(write(tmp_path, log()))
    assert data.next_observation[:, 0].tolist() == [1, 2, 2, 11, 12, 12]
    assert data.terminated.tolist() == [False, False, True] * 2
    assert data.episode.tolist() == [0, 0, 0, 1, 1, 1]


def test_rows_in_any_order_and_episodes_by_name(tmp_path: Path) -> None:
    ordered = read_table(write(tmp_path, log()))
    shuffle = [0, 5, 2, 4, 1, 3]
    table = log(episode=["b", "b", "b", "a", "a", "a"])
    mixed = {k: [v[i] for i in shuffle] for k, v in table.items()}
    for suffix in (".parquet", ".csv"):
        assert same(read_table(write(tmp_path, mixed, suffix)), ordered)
    kinds = polars.DataFrame(mixed).with_columns(polars.col("episode").cast(polars.Categorical))
    kinds.write_parquet(tmp_path / "kinds.parquet")
    assert same(read_table(tmp_path / "kinds.parquet"), ordered)


def test_without_steps_the_order_of_the_file_counts(tmp_path: Path) -> None:
    interleave = [0, 3, 1, 4, 2, 5]
    mixed = {k: [v[i] for i in interleave] for k, v in log(step=None).items()}
    assert same(read_table(write(tmp_path, mixed)), read_table(write(tmp_path, log())))


def test_times_are_steps(tmp_path: Path) -> None:
    start = datetime(2024, 1, 1)
    times = [start + timedelta(hours=h) for h in (2, 1, 0, 2, 1, 0)]
    for suffix in (".parquet", ".csv"):
        data = read_table(write(tmp_path, log(step=times, terminated=None), suffix))
        assert data.observation[:, 0].tolist() == [2, 1, 0, 12, 11, 10]


def test_a_cut_episode_loses_its_last_row(tmp_path: Path) -> None:
    data = read_table(write(tmp_path, log(terminated=[False, False, False, False, False, True])))
    assert data.observation[:, 0].tolist() == [0, 1, 10, 11, 12]
    assert data.next_observation[:, 0].tolist() == [1, 2, 11, 12, 12]
    assert data.truncated.tolist() == [False, True, False, False, False]
    assert data.terminated.tolist() == [False, False, False, False, True]
    assert data.episode.tolist() == [0, 0, 1, 1, 1]


def test_an_episode_of_one_cut_row_vanishes(tmp_path: Path) -> None:
    table = log(episode=[0, 1, 1, 2, 2, 2], step=None, terminated=[0, 0, 1, 0, 0, 1])
    data = read_table(write(tmp_path, table))
    assert data.observation[:, 0].tolist() == [1, 2, 10, 11, 12]
    assert data.episode.tolist() == [0, 0, 1, 1, 1]


def test_next_observation_columns_keep_the_last_row(tmp_path: Path) -> None:
    after = {"next_obs_0": [9.0] * 6, "next_obs_1": [8.0] * 6}
    data = read_table(write(tmp_path, log(terminated=[False] * 6, truncated=[0, 0, 1, 0, 0, 1], **after)))
    assert data.next_observation.tolist() == [[9.0, 8.0]] * 6
    assert data.truncated.tolist() == [False, False, True] * 2


def test_without_terminated_the_last_row_terminates_unless_truncated(tmp_path: Path) -> None:
    data = read_table(write(tmp_path, log(terminated=None)))
    assert data.terminated.tolist() == [False, False, True] * 2
    data = read_table(write(tmp_path, log(terminated=None, truncated=[0, 0, 1, 0, 0, 0])))
    assert data.terminated.tolist() == [False, False, False, False, True]
    assert data.truncated.tolist() == [False, True, False, False, False]


def test_without_an_episode_column(tmp_path: Path) -> None:
    data = read_table(write(tmp_path, log(episode=None, step=None)))
    assert same(data, read_table(write(tmp_path, log())))
    alone = read_table(write(tmp_path, log(episode=None, step=None, terminated=[1] * 6)))
    assert alone.episode.tolist() == list(range(6))
    assert (alone.next_observation == alone.observation).all()
    endless = log(episode=None, step=None, terminated=None)
    says = ("does not say where episodes end", "--columns.episode NAME", "terminated of ones", "episode of zeros")
    refused(write(tmp_path, endless), *says)
    refused(write(tmp_path, endless | {"step": range(6)}), *says)
    data = read_table(write(tmp_path, endless | {"episode": [0] * 6}))
    assert data.terminated.tolist() == [False] * 5 + [True]
    data = read_table(write(tmp_path, endless | {"next_obs_0": [9.0] * 6, "next_obs_1": [8.0] * 6}))
    assert data.episode.tolist() == [0] * 6
    assert data.terminated.tolist() == [False] * 5 + [True]
    data = read_table(write(tmp_path, log(episode=None, step=None, terminated=None, truncated=[0, 0, 1, 0, 0, 0])))
    assert data.episode.tolist() == [0, 0, 1, 1, 1]


def test_masks_shift_like_observations(tmp_path: Path) -> None:
    legal = {
        "mask_0": [1, 0, 0, 1, 0, 0],
        "mask_1": [0, 1, 1, 1, 1, 0],
        "mask_2": [0, 0, 1, 1, 1, 1],
    }
    data = read_table(write(tmp_path, log(**legal)))
    expected = np.stack([legal[f"mask_{k}"] for k in range(3)], 1).astype(bool)
    np.testing.assert_array_equal(data.mask[:, 0], expected)
    np.testing.assert_array_equal(data.next_mask[:, 0], expected[[1, 2, 2, 4, 5, 5]])
    # With next observations but no next masks, the end of a cut episode is still unknown.
    after = {"next_obs_0": [9.0] * 6, "next_obs_1": [8.0] * 6, "terminated": [0, 0, 0, 0, 0, 1]}
    assert len(read_table(write(tmp_path, log(**legal, **after)))) == 5


def test_masks_by_the_name_of_gymnasium(tmp_path: Path) -> None:
    """Two parts of two choices each, of which the second choice of the second part is illegal in the last row."""
    legal = [[1, 1, 1, 1], [1, 1, 1, 0]]
    table = {"obs": [0.0, 1.0], "action_0": [0, 1], "action_1": [1, 0]} | ENDED
    flags = {f"action_mask_{k}": [row[k] for row in legal] for k in range(4)}
    expected = np.array(legal, bool).reshape(2, 2, 2)
    columns = {"action": ("action_0", "action_1")}
    for path in (
        write(tmp_path, table | flags, ".csv"),
        write(tmp_path, table | {"action_mask": legal}),
        write(tmp_path, table | {"action_mask": expected.tolist()}),
    ):
        for data in (read_table(path), read_table(path, columns)):
            assert data.spec.choices == (2, 2)
            assert data.action.tolist() == [[0, 1], [1, 0]]
            np.testing.assert_array_equal(data.mask, expected)
            np.testing.assert_array_equal(data.next_mask, expected)  # both rows end, and stand for what follows
    after = {f"next_{name}": values for name, values in flags.items()}
    assert matched([*after, *table, *flags], Columns())["next_mask"] == list(after)
    # One under its own name comes first, and what is said to be something else is that.
    mixed = ["mask_0", "mask_1", "action_mask_0", "action_mask_1", "next_action_mask_0", "next_action_mask_1", *table]
    found = matched(mixed, Columns())
    assert (found["mask"], found["next_mask"]) == (mixed[:2], mixed[4:6])
    assert found["action"] == ["action_0", "action_1"]
    worn = matched([*table, "action_mask"], Columns(action=("action_0", "action_mask")))
    assert worn["action"] == ["action_0", "action_mask"]
    assert "mask" not in worn


def test_columns_that_are_not_used_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, log(done=[0] * 6, ward=list("aabbcc")))
    assert columns_of(path)["not used"] == ["done", "ward"]
    assert "not used" not in columns_of(write(tmp_path, log()))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_columns_by_another_name_are_not_overlooked(tmp_path: Path, suffix: str) -> None:
    good = read_table(write(tmp_path, log()))
    # Chained where no row is marked, the last row of one episode would lead to the first of another.
    table = log(
        episode=None, episode_id=[7, 7, 7, 8, 8, 8], terminated=[0, 0, 0, 0, 0, 1], truncated=[0, 0, 1, 0, 0, 0]
    )
    path = write(tmp_path, table, suffix)
    refused(path, "no column for episode but one called 'episode_id'", "(--columns.episode episode_id)")
    assert read_table(path, {"episode": "episode_id"}).episode.tolist() == [0, 0, 1, 1, 1]
    path = write(tmp_path, log(terminated=None, done=[0, 0, 1, 0, 0, 0]), suffix)
    refused(path, "no column for terminated but one called 'done'", "(--columns.terminated done)")
    assert read_table(path, {"terminated": "done"}).terminated.tolist() == [False, False, True, False, False]
    path = write(tmp_path, log(terminals=[0, 0, 1, 0, 0, 0], terminated=None, timeouts=[0, 0, 0, 0, 0, 1]), suffix)
    refused(path, "'terminals'", "(--columns.terminated terminals)")
    refused(path, "'timeouts'", "(--columns.truncated timeouts)", columns={"terminated": "terminals"})
    # No alarm where the field is there, or where all ends are known.
    for extra in (
        {"done": [1] * 6, "episode_id": [1] * 6},
        {"terminated": None, "truncated": [0] * 6, "done": [1] * 6},
    ):
        assert same(read_table(write(tmp_path, log(**extra), suffix)), good)


def test_a_time_by_another_name_is_not_overlooked(tmp_path: Path) -> None:
    good, mixed = read_table(write(tmp_path, log())), {k: v[::-1] for k, v in log(step=None).items()}
    start = datetime(2024, 1, 1)
    for name, times in (
        ("timestep", polars.Series([2, 1, 0, 2, 1, 0], dtype=polars.UInt8)),
        ("t", [start + timedelta(hours=h) for h in (2, 1, 0, 2, 1, 0)]),
    ):
        path = write(tmp_path, mixed | {name: times})
        refused(path, f"Column {name!r}", "within an episode, in row 1;", f"(--columns.step {name})")
        found = read_table(path, {"step": name})
        assert sorted(found.observation[:, 0].tolist()) == sorted(good.observation[:, 0].tolist())
        assert found.observation[:, 0].tolist() == [10, 11, 12, 0, 1, 2]
        # In its order, or where it tells nothing of it, it may go unused.
        for times in ([0, 1, 2, 0, 1, 2], [4, 4, 4, 0, 0, 0], list("cbacba"), [None] * 6):
            assert same(read_table(write(tmp_path, log(step=None) | {name: times})), good)

    exact = polars.Series([Decimal("2.5"), Decimal("1.5"), Decimal("0.5")] * 2)  # as databases write them
    refused(write(tmp_path, mixed | {"t": exact}, ".parquet"), "Column 't'", "falls within an episode, in row 1;")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("terminated", [[False, False, True, False, False, True], None])
def test_empty_next_observations_in_terminated_rows(tmp_path: Path, suffix: str, terminated: Any) -> None:
    """Whether the ends are marked or are the last rows; rewards there count."""
    table = log(
        terminated=terminated,
        next_obs_0=[1.0, 2.0, None, 11.0, 12.0, float("nan")],
        next_obs_1=[1, 2, None, 11, 12, 13],
    )
    data = read_table(write(tmp_path, table, suffix))
    after = [[1, 1], [2, 2], [2, 2.5], [11, 11], [12, 12], [12, 12.5]]
    assert data.next_observation.tolist() == after
    assert data.reward[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert data.terminated.tolist() == [False, False, True] * 2
    assert np.isfinite(data.normalised().next_observation).all()
    # Elsewhere it is refused, by its row in the file.
    refused(write(tmp_path, table | {"next_obs_1": [1, 2, 3, 11, None, 13]}, suffix), "'next_obs_1' is empty in row 4")
    cut = table | {"truncated": [0, 0, 1, 0, 0, 0], "terminated": [0, 0, 0, 0, 0, 1]}
    refused(write(tmp_path, cut, suffix), "'next_obs_0' is empty in row 2")
    late = table | {"next_obs_0": [1.0, 2.0, None, 11.0, float("inf"), None]}
    refused(write(tmp_path, late, suffix), "'next_obs_0' is NaN or infinite in row 4")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_rows_that_stand_alone_need_no_next_observation(tmp_path: Path, suffix: str) -> None:
    table = log(episode=None, step=None, terminated=[1] * 6, next_obs_0=[None] * 6, next_obs_1=[None] * 6)
    data = read_table(write(tmp_path, table, suffix))
    assert (data.next_observation == data.observation).all()
    assert len(data) == 6


def test_empty_lists_in_terminated_rows(tmp_path: Path) -> None:
    lists = {"obs_0": None, "obs_1": None, "obs": [[float(i), 0.5] for i in range(6)]}
    nan = float("nan")
    for none, last in ((None, [nan, 6.0]), ([], [None, 6.0]), ([nan, nan], None)):
        after = [[1.0, 7.0], [2.0, 7.0], none, [4.0, 7.0], [5.0, 7.0], last]
        data = read_table(write(tmp_path, log(**lists, next_obs=after)))
        assert data.next_observation.tolist() == [[1, 7], [2, 7], [2, 0.5], [4, 7], [5, 7], [5, 0.5]]
        refused(write(tmp_path, log(**lists, next_obs=[*after[:3], [4.0, nan], *after[4:]])), "NaN", "row 3")
        refused(write(tmp_path, log(**lists, next_obs=[*after[:4], [5.0], *after[5:]])), "length 1 in row 4")
        short = [row if row in (none, last) else row[:1] for row in after]
        refused(write(tmp_path, log(**lists, next_obs=short)), "next_observation has shape (1,)")
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    seen = {"obs_0": None, "obs_1": None, "obs": polars.Series(pixels)}
    after = polars.Series([*(pixels[:5] + 1).tolist(), None], dtype=polars.List(polars.List(polars.UInt8)))
    data = read_table(write(tmp_path, log(**seen, next_obs=after)))
    assert data.next_observation.dtype == np.uint8
    np.testing.assert_array_equal(data.next_observation, np.concatenate([pixels[:5] + 1, pixels[5:]]))


def test_empty_next_masks_in_terminated_rows(tmp_path: Path) -> None:
    legal = {f"mask_{k}": [1] * 6 for k in range(3)}
    after = {f"next_mask_{k}": [1, 1, None, 1, 1, None] for k in range(3)}
    assert read_table(write(tmp_path, log(**legal, **after))).next_mask.all()
    after["next_mask_1"][1] = None
    refused(write(tmp_path, log(**legal, **after)), "'next_mask_1' is empty in row 1")


def test_names_of_columns(tmp_path: Path) -> None:
    table = {
        "x": [1.0, 2.0],
        "action_taken": [0, 1],
        "action_mask_0": [1, 1],
        "action_mask_1": [1, 1],
        "action_name": ["left", "right"],
        "gain_a": [1.0, 2.0],
        "gain_b": [3.0, 4.0],
        "episode": [0, 0],
    }
    columns = Columns(observation="x", action="action", mask="action_mask", reward="gain")
    path = write(tmp_path, {k: v for k, v in table.items() if k != "action_name"})
    data = read_table(path, columns)
    assert data.action[:, 0].tolist() == [0, 1]
    assert data.mask.shape == (2, 1, 2)
    assert data.reward.tolist() == [[1, 3], [2, 4]]
    refused(write(tmp_path, table), "'action_name'", "'left' in row 0", columns=columns)


def test_bytes_are_numbers_in_columns_and_pixels_in_lists(tmp_path: Path) -> None:
    small = polars.Series([0, 1, 2, 3, 4, 5], dtype=polars.UInt8)
    data = read_table(write(tmp_path, log(obs_0=small, obs_1=None)))
    assert data.observation.dtype == np.float32
    pixels = polars.Series(np.arange(24, dtype=np.uint8).reshape(6, 2, 2))
    data = read_table(write(tmp_path, log(obs_0=None, obs_1=None, obs=pixels)))
    assert data.observation.dtype == np.uint8
    assert data.spec.observation_shape == (2, 2)
    assert data.observation[1].tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("column", ["obs_0", "reward", "step"])
def test_nan_and_infinity(tmp_path: Path, suffix: str, column: str) -> None:
    for value in (float("nan"), float("inf")):
        values = [float(i) for i in range(6)]
        values[4] = value
        refused(write(tmp_path, log(**{column: values}), suffix), repr(column), "row 4")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("column", ["obs_0", "action", "reward", "terminated", "step", "episode"])
def test_empty_cells(tmp_path: Path, suffix: str, column: str) -> None:
    values = list(log()[column])
    values[3] = None
    refused(write(tmp_path, log(**{column: values}), suffix), repr(column), "empty", "row 3")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("column", ["obs_0", "action", "reward", "terminated", "step"])
def test_text(tmp_path: Path, suffix: str, column: str) -> None:
    values = ["1", "0", "1", "0", "oops", "1"]
    refused(write(tmp_path, log(**{column: values}), suffix), repr(column), "'oops' in row 4", "give numbers")


def test_categories_and_records(tmp_path: Path) -> None:
    kinds = polars.Series(list("abcabc"), dtype=polars.Categorical)
    refused(write(tmp_path, log(action=kinds)), "'action'", "Categorical", "'a' in row 0")
    refused(write(tmp_path, log(reward=[{"a": 1}] * 6)), "'reward'", "records")
    for name in ("episode", "step", "terminated"):
        refused(write(tmp_path, log(**{name: [[1]] * 6})), f"'{name}'", "lists")


def test_lists(tmp_path: Path) -> None:
    plain = {"obs_0": None, "obs_1": None}
    ragged = [[1.0, 2.0]] * 4 + [[1.0]] + [[1.0, 2.0]]
    refused(write(tmp_path, log(**plain, obs=ragged)), "'obs'", "length 1 in row 4", "length 2")
    refused(write(tmp_path, log(**plain, obs=[[]] * 6)), "'obs'", "length 0 in row 0")
    hole = [[1.0, 2.0]] * 4 + [[1.0, None]] + [[1.0, 2.0]]
    refused(write(tmp_path, log(**plain, obs=hole)), "'obs'", "empty in row 4")
    hole[4] = [1.0, float("nan")]
    refused(write(tmp_path, log(**plain, obs=hole)), "'obs'", "NaN or infinite in row 4")
    refused(write(tmp_path, log(**plain, obs=[[["a", "b"]]] * 6)), "'obs'", "'a' in row 0")
    deep = [[[1.0], [2.0]]] * 3 + [[[1.0], [2.0, 3.0]]] + [[[1.0], [2.0]]] * 2
    refused(write(tmp_path, log(**plain, obs=deep)), "'obs'", "length 2 in row 3")


@pytest.mark.parametrize(
    ("missing", "there", "field"),
    [("obs", "obsv", "observation"), ("action", "actoin", "action"), ("reward", "rewards", "reward")],
)
def test_missing_columns_name_the_nearest(tmp_path: Path, missing: str, there: str, field: str) -> None:
    table = log(obs_0=None, obs_1=None, obs=[0.0] * 6)
    table[there] = table.pop(missing)
    refused(write(tmp_path, table), field, repr(missing), f"did you mean {there!r}?")


def test_a_renamed_column_must_be_there(tmp_path: Path) -> None:
    path = write(tmp_path, log())
    refused(path, "step", "'steps'", "did you mean 'step'?", columns=Columns(step="steps"))
    refused(path, "preference", "'weights'", columns=Columns(preference="weights"))


def test_errors_of_the_data_name_rows_of_the_file(tmp_path: Path) -> None:
    shuffle = [3, 5, 2, 4, 1, 0]
    mixed = {k: [v[i] for i in shuffle] for k, v in log().items()}
    refused(write(tmp_path, mixed), "action is 2 in row 1", num_actions=2)
    mixed["mask_0"], mixed["mask_1"], mixed["mask_2"] = [1] * 6, [1] * 6, [1, 1, 0, 1, 1, 1]
    refused(write(tmp_path, mixed), "illegal", "row 2")
    refused(write(tmp_path, log(action=[0.0, 1.0, 0.5, 0.0, 1.0, 2.0])), "action", "row 2")
    refused(write(tmp_path, log(action=[0, 1, -1, 0, 1, 2])), "action is -1 in row 2")
    refused(write(tmp_path, log(terminated=[0, 0, 1, 0, 2, 1])), "'terminated'", "row 4")
    refused(write(tmp_path, log(preference_0=[2.0] * 6)), "preference", "row 0")
    refused(write(tmp_path, log(action=[0] * 6)), "single choice")


def test_duplicate_steps(tmp_path: Path) -> None:
    refused(write(tmp_path, log(step=[0, 1, 2, 0, 1, 1])), "step is 1", "row 4", "row 5")
    unfinished = log(episode=None, terminated=None, truncated=[0] * 6)
    refused(write(tmp_path, unfinished), "step is 0", "episode column")


def test_an_episode_that_goes_on_after_its_end(tmp_path: Path) -> None:
    refused(write(tmp_path, log(terminated=[0, 1, 1, 0, 0, 1])), "row 1", "goes on", "episode")


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    refused(write(tmp_path, {k: v[:0] for k, v in log().items()}), "no rows")
    lone = log(episode=list(range(6)), terminated=[False] * 6)
    refused(write(tmp_path, lone), "next observation is known", "next_obs")


def test_damaged_files(tmp_path: Path) -> None:
    for suffix in (".parquet", ".csv", ".npz"):
        path = tmp_path / f"broken{suffix}"
        path.write_bytes(bytes(range(256)) * 4)
        refused(path, str(path))
        path.write_bytes(b"")
        refused(path, str(path))
        path.unlink()
        refused(path, str(path), "Cannot read")
    path = write(tmp_path, log())
    path.write_bytes(path.read_bytes()[:-20])
    refused(path, "not a readable .parquet")
    (tmp_path / "ragged.csv").write_text("obs,action,reward\n1,2,3,4\n")
    refused(tmp_path / "ragged.csv", "not a readable .csv")
    (tmp_path / "twice.csv").write_text("obs_0,obs_0,action,reward\n1,2,0,4\n")
    refused(tmp_path / "twice.csv", "two columns 'obs_0'")


def test_without_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = write(tmp_path, log()), builtins.__import__

    def missing(name: str, *rest: Any, **options: Any) -> Any:
        if name == "polars":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    refused(path, 'pip install "qdfm[tables]"')


def arrays() -> dict[str, Any]:
    row = np.arange(6.0)
    flags = row % 3 == 2
    return {
        "observation": row,
        "action": row % 3,
        "reward": row,
        "next_observation": row,
        "terminated": flags,
    }


def test_npz_names(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    np.savez(path, **arrays(), observations=np.zeros(6))
    refused(path, "'observations'", "did you mean 'observation'?")
    np.savez(path, **{k: v for k, v in arrays().items() if k not in ("reward", "terminated")})
    refused(path, "lacks reward, terminated")
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(path)
    refused(path, "no .npz file")


def test_npz_of_a_team(tmp_path: Path) -> None:
    """Two agents that see a number and one of three categories, and have two actions of which one was never taken."""
    team = {
        "observation": np.stack([np.c_[[0.0, 2, 4, 6], [0.0, 1, 2, 0]], np.c_[[2.0, 4, 6, 8], [1.0, 1, 0, 2]]], 1),
        "action": np.array([[0, 1], [1, 0], [0, 0], [1, 1]]),
        "reward": np.arange(4.0),
        "terminated": np.ones(4),
        "state": np.arange(4.0),
        "next_state": np.arange(4.0),
    }
    team["next_observation"] = team["observation"]
    np.savez(tmp_path / "team.npz", **team, agents=2, categories=(0, 3), num_actions=(3, 3))
    data = read_npz(tmp_path / "team.npz")
    assert (data.spec.agents, data.spec.choices, data.spec.categories) == (2, (3, 3), (0, 3, 0, 3))
    spread = 6**0.5  # of 0, 2, 4, 6 and 2, 4, 6, 8 together, about their mean 4
    assert data.spec.normalisation.observation_mean == pytest.approx((4, 0, 4, 0))
    assert data.spec.normalisation.observation_std == pytest.approx((spread, 1, spread, 1))
    refused(tmp_path / "team.npz", "says num_actions itself", num_actions=3)
    np.savez(tmp_path / "odd.npz", **team, agents=2.5)
    refused(tmp_path / "odd.npz", "agents is 2.5")
    np.savez(tmp_path / "odd.npz", **team, agents=2, categories=3)
    refused(tmp_path / "odd.npz", "categories is 3; give whole numbers in a tuple")
    np.savez(tmp_path / "odd.npz", **team, agents=3)
    refused(tmp_path / "odd.npz", "There are 3 agents but action has 2 parts")


def test_npz_of_a_saved_dataset(tmp_path: Path) -> None:
    data = Dataset.from_arrays(**arrays()).with_normalisation(reward=True)
    data.save(tmp_path / "data.npz")
    assert same(read_npz(tmp_path / "data.npz"), data)
    refused(tmp_path / "data.npz", "leave out num_actions", num_actions=4)


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_npz_with_objects_is_refused_unread(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    np.savez(tmp_path / "log.npz", **(arrays() | {"reward": np.array([Trap(mark)] * 6, object)}))
    refused(tmp_path / "log.npz", "not loaded")
    assert not mark.exists()


def quiet(path: Path, **options: Any) -> Dataset:
    """What is read without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        return read_table(path, **options)


def test_rows_that_are_left_out_are_told(tmp_path: Path) -> None:
    """Of 4 episodes of 5 rows that do not end, each loses its last row, which has no successor."""
    row = np.arange(20)
    table = {"episode": row // 5, "step": row % 5, "obs": row * 1.0, "action": row % 2, "reward": row * 1.0}
    said = (
        r"^4 last rows of episodes were left out of .*log\.parquet, with .* lack of a next observation; add next_obs, "
    )
    with pytest.warns(DataWarning, match=said + r"or mark terminated where an episode really ends\.$"):
        data = read_table(write(tmp_path, table | {"terminated": row * 0}))
    assert data.reward[:, 0].tolist() == [i for i in range(20) if i % 5 != 4]
    ended = table | {"terminated": (row % 5 == 4) & (row > 4)}
    with pytest.warns(DataWarning, match=r"^1 last row of an episode was left out") as given:
        read_table(write(tmp_path, ended))
    assert given[0].filename == __file__  # the caller's line
    assert len(quiet(write(tmp_path, table))) == 20  # without terminated, last rows end their episodes
    assert len(quiet(write(tmp_path, table | {"terminated": row * 0, "next_obs": row + 1.0}))) == 20
    mask = {"mask_0": row * 0 + 1, "mask_1": row * 0 + 1}
    with pytest.warns(DataWarning, match=r"for lack of a next mask; add next_mask, or"):
        read_table(write(tmp_path, ended | mask | {"next_obs": row + 1.0}))


def test_gaps_between_steps_are_told(tmp_path: Path) -> None:
    """Two episodes of nine steps without step 4; the file holds them backwards."""
    pairs = [(e, t) for e in (0, 1) for t in range(9) if t != 4][::-1]
    episode, step = np.array(pairs).T
    row = np.arange(len(pairs))
    table = {"episode": episode, "t": step, "obs": step * 1.0, "action": row % 2, "reward": row * 1.0}
    first = pairs.index((0, 5)) if pairs[0][0] == 0 else pairs.index((1, 5))  # episodes come as in the file
    with pytest.warns(DataWarning, match=rf"^t jumps 2 times within episodes, first from 3 to 5 in row {first}, and"):
        data = read_table(write(tmp_path, table), {"step": "t"}, normalise=False)
    assert data.next_observation[data.observation == 3].tolist() == [5, 5]
    for change in (
        {"next_obs": step + 1.0},  # nothing is joined
        {"t": step * 10},  # does not count rows
        {"t": step + 0.5},
        {"t": np.where(step > 4, step - 1, step)},
        {"t": [datetime(2026, 1, 1) + timedelta(hours=int(s)) for s in step]},
    ):
        quiet(write(tmp_path, table | change), columns={"step": "t"})
    days = {"t": [(datetime(2026, 1, 1) + timedelta(days=int(s))).date() for s in step]}
    with pytest.warns(DataWarning, match="jumps 2 times"):
        read_table(write(tmp_path, table | days), {"step": "t"})


@pytest.mark.parametrize("separator", [";", "\t"])
def test_tables_with_another_separator(tmp_path: Path, separator: str) -> None:
    frame = polars.DataFrame(log())
    frame.write_csv(tmp_path / "other.csv", separator=separator)
    assert same(read_table(tmp_path / "other.csv"), read_table(write(tmp_path, log(), ".csv")))
    assert columns_of(tmp_path / "other.csv")["observation"] == ["obs_0", "obs_1"]
    (tmp_path / "comma.csv").write_text("obs;action;reward;terminated\n1,5;0;1;1\n2,5;1;0;1\n")
    refused(tmp_path / "comma.csv", "'obs'", "'1,5' in row 0")


def offline() -> dict[str, np.ndarray]:
    """D4RL's layout: an episode of 3 rows that terminates, one of 4 that times out, 2 rows of one that goes on."""
    row = np.arange(9)
    return {
        "observations": np.stack([row, row**2], 1).astype(np.float32),
        "actions": np.stack([row / 4 - 1, 7 - row], 1).astype(np.float32),
        "rewards": row.astype(np.float32),
        "terminals": row == 2,
        "timeouts": row == 6,
    }


def test_offline_arrays_without_next_observations(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    made = offline()
    np.savez(tmp_path / "log.npz", **made, **{"infos/qpos": np.zeros(9)})
    for name in ("log.h5", "log.hdf5"):
        with h5py.File(tmp_path / name, "w") as file:
            for field, array in made.items():
                file[field] = array
            file["infos/qpos"], file["metadata/algorithm"] = np.zeros(9), "SAC"
    ours = {D4RL[name]: array for name, array in made.items()}
    np.savez(tmp_path / "ours.npz", **ours)
    for name in ("log.npz", "log.h5", "log.hdf5", "ours.npz"):
        with pytest.warns(DataWarning, match=r"^2 last rows of episodes were left out .*; add next_observation, or "):
            data = load_dataset(tmp_path / name, bins=3, normalise=False)
        # Rows 6 and 8 have no successor, so that 5 and 7 are where their episodes are cut.
        assert data.reward[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 7]
        assert data.next_observation[:, 0].tolist() == [1, 2, 2, 4, 5, 6, 8]
        assert data.episode.tolist() == [0, 0, 0, 1, 1, 1, 2]
        assert np.flatnonzero(data.terminated).tolist() == [2]
        assert np.flatnonzero(data.truncated).tolist() == [5, 6]
        assert data.spec.actions.values == ((-1.0, 0.0, 1.0), (-1.0, 3.0, 7.0))
        assert load_dataset(tmp_path / name, codebook=4).spec.choices == (4,)
        with pytest.raises(QDFMError, match=r"not a whole number in row 1; .* bins=21"):
            load_dataset(tmp_path / name)
        with pytest.raises(QDFMError, match="columns"):
            load_dataset(tmp_path / name, bins=3, columns={"observation": "x"})


def test_offline_arrays_with_next_observations(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    made = offline() | {"next_observations": offline()["observations"] + 1, "actions": np.arange(9) % 3}
    np.savez(tmp_path / "log.npz", **made)
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for field, array in made.items():
            file[field] = array
    expected = Dataset.from_arrays(**{D4RL[name]: array for name, array in made.items()}, num_actions=4)
    assert len(expected) == 9
    for name in ("log.npz", "log.hdf5"):
        assert same(load_dataset(tmp_path / name, num_actions=4), expected)
    np.savez(tmp_path / "odd.npz", **made, next_action=np.zeros(9))
    refused(tmp_path / "odd.npz", "'next_action'", "did you mean ")
    np.savez(tmp_path / "odd.npz", **{(n[:-1] if n == "timeouts" else n): array for n, array in made.items()})
    refused(tmp_path / "odd.npz", "'timeout'", "did you mean 'timeouts'?")
    with h5py.File(tmp_path / "less.h5", "w") as file:
        file["observations"] = made["observations"]
    with pytest.raises(QDFMError, match=r"less\.h5 lacks action, reward, terminated; save one array of each name"):
        load_dataset(tmp_path / "less.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["pixels"] = np.zeros(3)
    with pytest.raises(QDFMError, match=r"lacks the datasets obs, .*D4RL data observations, actions, rewards, term"):
        load_dataset(tmp_path / "other.h5")


def test_offline_arrays_of_different_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **offline() | {"rewards": np.zeros(8)})
    refused(tmp_path / "log.npz", "reward has 8 rows but observation has 9")
    np.savez(tmp_path / "log.npz", **offline() | {"rewards": np.zeros(())})
    refused(tmp_path / "log.npz", "reward is a single value")
    np.savez(tmp_path / "log.npz", **{name: array[:0] for name, array in offline().items()})
    refused(tmp_path / "log.npz", "has no rows")
    np.savez(tmp_path / "log.npz", **{name: array[3:4] for name, array in offline().items()})
    refused(tmp_path / "log.npz", "no row whose next observation is known; add next_observation, or mark terminals")
    np.savez(tmp_path / "log.npz", **offline(), episode=np.zeros(9))
    refused(tmp_path / "log.npz", "episode of row 2 goes on after that row")


def test_a_team_without_what_comes_next(tmp_path: Path) -> None:
    """Two agents over four steps of one battle that ends; the state and the masks shift with the observations."""
    step = np.arange(4)
    legal = np.ones((4, 2, 2), bool)
    legal[2, 0, 0] = False
    team = {
        "observation": np.stack([step, 10 + step], 1)[..., None] * 1.0, "action": np.ones((4, 2), int),
        "reward": step * 1.0, "terminated": step == 3, "state": 100.0 + step[:, None], "mask": legal,
    }  # fmt: skip
    np.savez(tmp_path / "team.npz", **team, agents=2, num_actions=(2, 2))
    data = read_npz(tmp_path / "team.npz", normalise=False)
    assert data.next_observation[:3, :, 0].tolist() == [[1, 11], [2, 12], [3, 13]]
    assert data.next_state[:3, 0].tolist() == [101, 102, 103]
    assert (~data.next_mask[:3]).nonzero() == ([1], [0], [0])
    assert len(data) == 4
