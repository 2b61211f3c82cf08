"""Sources: names, paths, and where files are looked for."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from qdfm.data.actions import Bins, Codebook, Discrete, MultiDiscrete
from qdfm.data.builtin import GENERATORS, Generator
from qdfm.data.columns import Columns
from qdfm.data.dataset import Dataset
from qdfm.data.sources import load_dataset, table_columns, takes_actions
from qdfm.errors import QDFMError


@pytest.fixture
def data() -> Dataset:
    row = np.arange(8.0)
    return Dataset.from_arrays(row, row % 2, row, row + 1, row % 4 == 3)


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("QDFM_DATA", raising=False)


@pytest.mark.parametrize("goals", [2, 3, 4, 5])
def test_multigoal(goals: int) -> None:
    name = f"multigoal-{goals}"
    loaded = load_dataset(name)
    assert len(loaded.returns()) == 250 * goals
    assert GENERATORS[name].about


def test_a_generator_can_be_added(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GENERATORS, "mine", Generator(lambda: data, "my own"))
    assert load_dataset("mine") is data


@pytest.mark.parametrize("name", ["multigoal4", "multigaol-4", "Multigoal-4", "multigoal-v4"])
def test_unknown_names_offer_the_nearest(name: str) -> None:
    with pytest.raises(QDFMError, match=r"task or data file .*; did you mean 'multigoal-\d'\?"):
        load_dataset(name)


def test_files_by_path_string_and_suffix(data: Dataset, tmp_path: Path) -> None:
    data.save(tmp_path / "log.npz")
    for path in (tmp_path / "log.npz", str(tmp_path / "log.npz"), "../log.npz"):
        np.testing.assert_array_equal(load_dataset(path).observation, data.observation)
    data.save(tmp_path / "log.NPZ")
    assert len(load_dataset(tmp_path / "log.NPZ")) == 8


def test_tables_and_their_options(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"x": [1.0, 2.0], "action": [0, 1], "reward": [0.0, 1.0], "terminated": [0, 1]})
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        for columns in (Columns(observation="x"), {"observation": "x"}, {"observation": ["x"]}):
            loaded = load_dataset(tmp_path / name, columns=columns, num_actions=4, normalise=False)
            assert loaded.spec.choices == (4,)
            assert not loaded.spec.normalisation.observation_mean
        assert table_columns(tmp_path / name, columns)["observation"] == ["x"]
    with pytest.raises(QDFMError, match=r"Unknown field of columns 'observatoin'; did you mean 'observation'\?"):
        load_dataset(tmp_path / "log.csv", columns={"observatoin": "x"})
    with pytest.raises(QDFMError, match=r"columns is 'x'; give qdfm\.Columns"):
        load_dataset(tmp_path / "log.csv", columns="x")  # type: ignore[arg-type]
    assert table_columns("multigoal-2") == {}


def test_options_reach_npz(data: Dataset, tmp_path: Path) -> None:
    names = ("observation", "action", "reward", "next_observation", "terminated")
    np.savez(tmp_path / "log.npz", **{name: getattr(data, name) for name in names})
    loaded = load_dataset(tmp_path / "log.npz", num_actions=4, normalise=False)
    assert loaded.spec.choices == (4,)
    assert not loaded.spec.normalisation.observation_mean
    with pytest.raises(QDFMError, match="leave out columns"):
        load_dataset(tmp_path / "log.npz", columns=Columns())


def test_continuous_actions_of_files(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    row = np.arange(9.0)
    push = np.stack([row / 4 - 1, 7 - row], 1)  # [n, 2], from −1 to 1 and from 7 to −1
    arrays = {"observation": row, "reward": row, "next_observation": row + 1, "terminated": row == 8}
    np.savez(tmp_path / "two.npz", action=push, **arrays)
    np.savez(tmp_path / "one.npz", action=push[:, 0], **arrays)
    frame = polars.DataFrame(
        {"obs": row, "reward": row, "action_0": push[:, 0], "action_1": push[:, 1], "terminated": row == 8}
    )
    frame.write_csv(tmp_path / "two.csv")
    frame.write_parquet(tmp_path / "two.parquet")
    frame.rename({"action_0": "action"}).drop("action_1").write_csv(tmp_path / "one.csv")
    nearest = [0, 0, 0, 1, 1, 1, 1, 2, 2]  # of −1, 0 and 1; halfway, the one below
    for name in ("two.npz", "two.csv", "two.parquet", "one.npz", "one.csv"):
        loaded = load_dataset(tmp_path / name, bins=3)
        parts = 2 if name.startswith("two") else 1
        assert loaded.spec.actions.values == ((-1.0, 0.0, 1.0), (-1.0, 3.0, 7.0))[:parts]
        np.testing.assert_array_equal(loaded.action[:, 0], nearest)
        assert load_dataset(tmp_path / name, codebook=4).spec.choices == (4,)
        with pytest.raises(QDFMError, match=r"not a whole number in row 1; .* bins=21 \(--bins 21\) of a file"):
            load_dataset(tmp_path / name)
        with pytest.raises(QDFMError, match=r"num_actions counts discrete actions.*; give one"):
            load_dataset(tmp_path / name, bins=3, num_actions=3)
    load_dataset(tmp_path / "two.npz", bins=3).save(tmp_path / "saved.npz")
    with pytest.raises(QDFMError, match=r"by Dataset\.save with its actions; leave out num_actions, bins and codebook"):
        load_dataset(tmp_path / "saved.npz", bins=3)


@pytest.mark.parametrize("options", [{}, {"bins": 21}, {"codebook": 21}])
def test_an_id_with_continuous_actions_points_to_data(options: dict[str, int]) -> None:
    with pytest.raises(QDFMError, match=r"neither Discrete.* which bins or codebook discretise: .* hopper-medium"):
        load_dataset("Pendulum-v1", **options)


def test_data_folder(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "deep"
    folder.mkdir(parents=True)
    data.save(folder / "log.npz")
    with pytest.raises(QDFMError, match=r"no file .*QDFM_DATA is not set"):
        load_dataset("deep/log.npz")
    monkeypatch.setenv("QDFM_DATA", str(tmp_path / "data"))
    assert len(load_dataset("deep/log.npz")) == 8
    with pytest.raises(QDFMError, match=r"no file .*nor under QDFM_DATA"):
        load_dataset("other.csv")
    with pytest.raises(QDFMError, match="no file"):
        load_dataset("/deep/log.npz")
    Path("deep").mkdir()
    data[:4].save("deep/log.npz")  # the working folder comes first
    assert len(load_dataset("deep/log.npz")) == 4


@pytest.mark.parametrize("source", ["multigoal-2", "matrix", "CartPole-v1"])
def test_what_is_not_standardised_cannot_be_left_raw(source: str) -> None:
    with pytest.raises(QDFMError, match=f"normalise does not concern {source}; leave it out"):
        load_dataset(source, normalise=False)


def test_saved_data_keeps_its_normalisation(data: Dataset, tmp_path: Path) -> None:
    data.save(tmp_path / "saved.npz")
    with pytest.raises(QDFMError, match=r"by Dataset\.save with its normalisation; leave out normalise"):
        load_dataset(tmp_path / "saved.npz", normalise=False)


def test_the_built_in_data_that_can_be_left_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hopper-medium", "mo-hopper-expert", "smax-3m-poor"):
        made = Generator(lambda **options: options, "", GENERATORS[name].options)  # type: ignore[arg-type,return-value]
        monkeypatch.setitem(GENERATORS, name, made)
        assert load_dataset(name, normalise=False) == {"normalise": False}
        assert load_dataset(name) == {}


@pytest.mark.parametrize("source", [None, 3, ["multigoal-2"]])
def test_what_is_no_name_is_refused(source: object) -> None:
    with pytest.raises(QDFMError, match=r"The data to load is .*; give the name of a task or the path of a file\."):
        load_dataset(source)  # type: ignore[arg-type]


def test_a_file_of_an_unknown_kind(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text("a\tb\n")
    with pytest.raises(QDFMError, match=r"no known kind; write it as one of \.npz, \.parquet, \.csv"):
        load_dataset(tmp_path / "log.tsv")


def test_folders_and_files_that_are_not_there(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.save(tmp_path / "shop.npz")
    (tmp_path / "shop.py").touch()
    (tmp_path / "log.npz").mkdir()
    for folder in (str(tmp_path), ".", "..", tmp_path / "log.npz"):
        with pytest.raises(QDFMError, match=r"^\S+ is a folder; give a file\.$"):
            load_dataset(folder)
    for name in ("shop.npzz", "shp.npz", "shop.tsv"):
        near = re.escape(str(tmp_path / "shop.npz"))
        with pytest.raises(QDFMError, match=rf"^There is no file .*{re.escape(name)} here.*; did you mean '{near}'\?$"):
            load_dataset(tmp_path / name)
    for name in ("shop.cvs", "../visits", "../visits.cvs", "~/nowhere/at/all"):
        with pytest.raises(QDFMError, match=r"^There is no file .*, and QDFM_DATA is not set; check the path\.$"):
            load_dataset(name)
    monkeypatch.setenv("QDFM_DATA", str(tmp_path))
    with pytest.raises(QDFMError, match=r"did you mean '.*shop\.npz'\?"):
        load_dataset("shop.npy")
    with pytest.raises(QDFMError, match=r"shop\.py is of no known kind; write it as one of \.npz"):
        load_dataset("shop.py")
    Path("multigoal-2").mkdir()  # as a folder of runs may be called
    assert len(load_dataset("multigoal-2")) == 7_000
    Path("CartPole-v1").mkdir()
    assert len(load_dataset("CartPole-v1", transitions=10)) == 10


def test_random_behaviour_in_an_id() -> None:
    loaded = load_dataset("deep-sea-treasure-v0")
    assert len(loaded) == 10_000
    assert loaded.spec.objectives == 2
    assert (np.bincount(loaded.action[:, 0]) > 2_300).all()  # 2,500 expected of each, 43 the standard deviation
    with pytest.raises(QDFMError, match="task or data file 'deep-sea-treasure-v9'; did you mean 'deep-sea-tre"):
        load_dataset("deep-sea-treasure-v9")


@pytest.mark.parametrize("option", ["bins", "codebook"])
def test_a_division_into_one_is_refused_before_anything_is_collected(option, monkeypatch):
    monkeypatch.setattr("qdfm.collect.mujoco.load_mujoco", lambda *args: pytest.fail("collected"))
    with pytest.raises(QDFMError, match=r"1 .* say nothing; give at least 2"):
        load_dataset("hopper-medium", **{option: 1})


def test_actions_of_before(tmp_path):
    """A few rows of a log read with the bins, the codebook or the choices that were found in all of it."""
    rng = np.random.default_rng(0)
    arrays = {"observation": rng.normal(size=(40, 2)), "reward": np.zeros(40), "terminated": np.ones(40)}
    arrays["next_observation"] = arrays["observation"]
    actions = {"torque": rng.normal(size=(40, 2)), "choice": np.arange(40) % 5}
    for name, action in actions.items():
        for file, rows in (("all", slice(None)), ("few", slice(3))):
            np.savez(tmp_path / f"{name}-{file}.npz", action=action[rows], **{k: v[rows] for k, v in arrays.items()})
    for name, options in (("torque", {"bins": 4}), ("torque", {"codebook": 6}), ("choice", {})):
        whole = load_dataset(tmp_path / f"{name}-all.npz", **options)
        few = load_dataset(tmp_path / f"{name}-few.npz", actions=whole.spec.actions)
        assert few.spec.actions == whole.spec.actions
        np.testing.assert_array_equal(few.action, whole.action[:3])
        whole.save(tmp_path / "kept.npz")
        assert load_dataset(tmp_path / "kept.npz", actions=whole.spec.actions).spec.actions == whole.spec.actions
    parts = {**{name: array[:3] for name, array in arrays.items()}, "action": np.zeros((3, 2), int)}
    for stated, agrees in (((3, 2), True), (3, False), (2, False), ((3, 3), False)):
        np.savez(tmp_path / "parts.npz", num_actions=stated, **parts)
        if agrees:
            assert load_dataset(tmp_path / "parts.npz", actions=MultiDiscrete((3, 2))).spec.choices == (3, 2)
        else:
            with pytest.raises(QDFMError, match="says num_actions itself"):
                load_dataset(tmp_path / "parts.npz", actions=MultiDiscrete((3, 2)))
    kept = r"keeps the actions it was written with \(.*\), not those asked for \(7 choices\); write it anew with these"
    with pytest.raises(QDFMError, match=kept):
        load_dataset(tmp_path / "kept.npz", actions=Discrete(7))
    with pytest.raises(QDFMError, match="bins, codebook and actions are ways to discretise actions; give one"):
        load_dataset(tmp_path / "torque-few.npz", bins=3, actions=Discrete(7))
    with pytest.raises(QDFMError, match="actions does not concern multigoal-4"):
        load_dataset("multigoal-4", actions=Discrete(7))


@pytest.mark.parametrize(("name", "actions"), [("hopper-medium", 3), ("mo-hopper-amateur", 3), ("walker2d-expert", 6)])
def test_actions_of_before_of_a_robot(name, actions, tmp_path, monkeypatch):
    """Tokens of a few transitions are the nearest centres, by distances in full, and the bins those that were given."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    centres = np.random.default_rng(0).uniform(-1, 1, (7, actions)).astype(np.float32)
    raw = []

    def noted(rows: np.ndarray) -> Codebook:
        raw.append(rows)
        return codebook

    codebook = Codebook(tuple(tuple(row) for row in centres.tolist()))
    read = load_dataset(name, actions=codebook, transitions=25)
    assert load_dataset(name, actions=noted, transitions=25).spec.actions == read.spec.actions == codebook
    nearest = ((raw[0][:, None] - centres) ** 2).sum(2).argmin(1)
    np.testing.assert_array_equal(read.action[:, 0], nearest)
    assert len(set(nearest)) > 1
    bins = Bins(((-1.0, 0.5),) * actions)
    np.testing.assert_array_equal(load_dataset(name, actions=bins, transitions=25).action, raw[0] > -0.25)


def test_which_sources_take_actions_of_before(tmp_path):
    for name in ("log.npz", "log.csv", "log.pkl", "hopper-medium", "mo-hopper-expert", "mujoco/hopper/medium-v0"):
        assert takes_actions(name)
    for name in ("multigoal-4", "matrix", "smax-3m-poor", "CartPole-v1", "Hopper-v5"):
        assert not takes_actions(name)
    for field, taken in (("observations", True), ("obs", False)):  # as D4RL and as SMAC name them
        with h5py.File(tmp_path / f"{field}.h5", "w") as file:
            file[field] = np.zeros(3)
        assert takes_actions(str(tmp_path / f"{field}.h5")) == taken
