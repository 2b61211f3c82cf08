"""What a run's folder holds, and when it is gone on with."""

import dataclasses
import json
import sys
import threading

import jax
import numpy as np
import pytest

import qdfm
from qdfm.data.dataset import fingerprint
from qdfm.runfolder import RunFolder
from qdfm.train import _Loop, train
from small_runs import CONFIG, OFTEN, rows, small_data

BOARD = dataclasses.replace(OFTEN, tensorboard=True)


def test_metrics_after_the_last_checkpoint_are_dropped(tmp_path):
    train(CONFIG, small_data(), out=tmp_path / "run", progress=False, options=OFTEN)
    expected = rows(tmp_path / "run")
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write('{"phase": "improve", "step": 70, "half a li')
    train(CONFIG, small_data(), out=tmp_path / "run", resume=True, progress=False, options=OFTEN)
    assert rows(tmp_path / "run") == expected


def test_the_folder_of_a_run(tmp_path):
    agents = train(CONFIG, small_data(), seeds=(0, 5), out=tmp_path / "run", progress=False, options=OFTEN)
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == [
        "agent-0.safetensors", "agent-5.safetensors", "config.json", "metrics.jsonl", "state.safetensors",
    ]  # fmt: skip
    described = json.loads((tmp_path / "run/config.json").read_text())
    assert described["schema"] == 1
    assert described["config"]["endpoints"] == "enumerated"  # choices that were open are written as they were made
    assert described["data"] == fingerprint(small_data()) != fingerprint(small_data(1))
    read = rows(tmp_path / "run")
    assert [r["phase"] for r in read[::12]] == ["warmup", "critic", "improve"]
    assert {r["seed"] for r in read} == {0, 5}
    assert {"loss", "effective_share", "beta"} <= read[-1].keys()
    obs = np.asarray(small_data().observation)
    for seed, agent in zip((0, 5), agents, strict=True):
        loaded = qdfm.load(tmp_path / f"run/agent-{seed}.safetensors")
        np.testing.assert_array_equal(agent.action_probabilities(obs), loaded.action_probabilities(obs))


def test_a_folder_is_neither_overwritten_nor_resumed_with_other_settings(tmp_path):
    out = tmp_path / "run"
    train(CONFIG, small_data(), out=out, progress=False, options=OFTEN)
    with pytest.raises(qdfm.QDFMError, match=r"already holds a run; go on with --resume \(in Python: resume=True\)"):
        train(CONFIG, small_data(), out=out, progress=False, options=OFTEN)
    other = dataclasses.replace(CONFIG, beta=3.0)
    with pytest.raises(qdfm.QDFMError, match=r"config.beta=10.0 but is resumed with config.beta=3.0"):
        train(other, small_data(), out=out, resume=True, progress=False, options=OFTEN)
    with pytest.raises(qdfm.QDFMError, match="data="):
        train(CONFIG, small_data(1), out=out, resume=True, progress=False, options=OFTEN)
    with pytest.raises(qdfm.QDFMError, match="seeds="):
        train(CONFIG, small_data(), seeds=(1,), out=out, resume=True, progress=False, options=OFTEN)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(qdfm.QDFMError, match="no run to resume"):
        train(CONFIG, small_data(), out=tmp_path / "other", resume=True, progress=False, options=OFTEN)


def test_where_the_data_comes_from_is_noted_and_not_compared(tmp_path, monkeypatch):
    out = tmp_path / "run"
    notes = {"source": "log.csv", "columns": {"action": ["dose"]}}
    train(CONFIG, small_data(), out=out, progress=False, options=OFTEN, notes=notes)
    written = (out / "config.json").read_text()
    described = json.loads(written)
    assert (described["source"], described["columns"]) == ("log.csv", {"action": ["dose"]})
    assert described["version"] == qdfm.__version__
    monkeypatch.setattr("qdfm.runfolder.__version__", "9.9")
    elsewhere = {"source": "/elsewhere/log.csv"}
    train(CONFIG, small_data(), out=out, resume=True, progress=False, options=OFTEN, notes=elsewhere)
    assert (out / "config.json").read_text() == written
    for name in ("source", "columns", "version"):  # as folders of before lack them
        del described[name]
    (out / "config.json").write_text(json.dumps(described))
    train(CONFIG, small_data(), out=out, resume=True, progress=False, options=OFTEN)
    with pytest.raises(qdfm.QDFMError, match="data="):
        train(CONFIG, small_data(1), out=out, resume=True, progress=False, options=OFTEN, notes=notes)


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_is_no_folder_of_a_run(tmp_path, resume):
    (tmp_path / "run").touch()
    with pytest.raises(qdfm.QDFMError, match=r"run \(.*\); choose a writable"):
        train(CONFIG, small_data(), out=tmp_path / "run", resume=resume, progress=False, options=OFTEN)


def test_metrics_that_cannot_be_written_are_said(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(qdfm.QDFMError, match=r"Cannot write .*metrics.jsonl \(Is a directory\)"):
        RunFolder(tmp_path, None).log([{"phase": "clone"}])


def test_fit_goes_on_with_its_run_and_nothing_goes_on_without_a_folder(tmp_path, monkeypatch):
    first = CONFIG.fit(small_data(), seed=3, out=tmp_path / "run", progress=False)
    monkeypatch.setattr(_Loop, "_record", None)  # all steps are done, so that none is recorded
    again = CONFIG.fit(small_data(), seed=3, out=tmp_path / "run", progress=False, resume=True)
    for one, other in zip(jax.tree.leaves(first.policy), jax.tree.leaves(again.policy), strict=True):
        np.testing.assert_array_equal(one, other)
    for resumed in (CONFIG.fit, lambda *args, **kwargs: train(CONFIG, *args, **kwargs)):
        with pytest.raises(qdfm.QDFMError, match="give the folder as out"):
            resumed(small_data(), resume=True)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_a_run_that_ends_before_its_first_chunk_leaves_its_folder_to_another(tmp_path, monkeypatch, stop):
    def end(loop, *_):
        assert (out / "config.json").exists()  # meanwhile the folder is taken
        loop.folder.log([{"phase": "warmup", "step": 1, "seed": 0, "loss": 1.0}])
        assert len(list(out.iterdir())) == 3  # with a file of TensorBoard's
        with pytest.raises(qdfm.QDFMError, match="already holds a run"):
            CONFIG.fit(small_data(), out=out, progress=False)
        raise stop

    out = tmp_path / "run"
    for resume in (False, True):
        monkeypatch.setattr(_Loop, "phase", end)
        with pytest.raises(stop):
            train(CONFIG, small_data(), out=out, resume=resume, progress=False, options=BOARD)
        assert not list(out.iterdir())
    monkeypatch.undo()
    other = dataclasses.replace(CONFIG, beta=3.0)
    other.fit(small_data(), out=out, progress=False)
    assert json.loads((out / "config.json").read_text())["config"]["beta"] == 3.0


def test_a_run_killed_before_its_first_checkpoint_is_begun_anew_on_resuming(tmp_path):
    out = tmp_path / "run"
    killed = RunFolder.open(out, {"schema": 1, "config": {"beta": 10.0}}, resume=False, tensorboard=False)
    killed.log([{"phase": "warmup", "step": 10, "seed": 0, "loss": -1.0}])
    other = dataclasses.replace(CONFIG, beta=3.0)
    with pytest.raises(qdfm.QDFMError, match="already holds a run; go on with --resume"):  # it may be running still
        other.fit(small_data(), out=out, progress=False)
    other.fit(small_data(), out=out, progress=False, resume=True)
    assert json.loads((out / "config.json").read_text())["config"]["beta"] == 3.0
    assert all(row["loss"] != -1.0 for row in rows(out))
    (out / "state.safetensors").unlink()  # of a run with agents
    with pytest.raises(qdfm.QDFMError, match=r"beta=3.0 but is resumed with config.beta=10.0"):
        CONFIG.fit(small_data(), out=out, progress=False, resume=True)


def test_the_folder_of_a_newer_version_is_left_alone(tmp_path):
    content = json.dumps({"schema": 2})
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(qdfm.QDFMError, match="written by a newer qdfm; upgrade"):
        CONFIG.fit(small_data(), out=tmp_path, progress=False, resume=True)
    assert (tmp_path / "config.json").read_text() == content


def test_tensorboard_files(tmp_path):
    pytest.importorskip("tensorboardX")
    train(CONFIG, small_data(), out=tmp_path / "run", progress=False, options=BOARD)
    assert any(p.name.startswith("events.out.tfevents") for p in (tmp_path / "run").iterdir())
    assert not [t for t in threading.enumerate() if "tensorboardX" in type(t).__module__]  # the writer's own has ended


def test_tensorboard_files_of_an_interrupted_run_are_whole(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    made = []

    class Board:
        def __init__(self, folder):
            made.append((folder, []))

        def add_scalar(self, *row):
            made[-1][1].append(row)

        def close(self):
            made[-1][1].append("closed")

    def log(self, rows):
        first(self, rows)
        raise KeyboardInterrupt

    first = RunFolder.log
    monkeypatch.setattr(RunFolder, "log", log)
    monkeypatch.setattr("tensorboardX.SummaryWriter", Board)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, small_data(), out=tmp_path / "run", progress=False, options=BOARD)
    ((folder, (*written, end)),) = made
    assert folder == str(tmp_path / "run")
    assert ("warmup/loss/seed0", 10) in [(name, step) for name, _, step in written]
    assert end == "closed"


def test_without_the_extra_no_folder_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(qdfm.QDFMError, match="TensorBoard files need an extra"):
        train(CONFIG, small_data(), out=tmp_path / "run", options=BOARD)
    assert not (tmp_path / "run").exists()


def test_metrics_that_were_lost_are_not_made_up(tmp_path):
    """After a crash the log may be shorter than the checkpoint says; it is not filled up."""
    train(CONFIG, small_data(), out=tmp_path / "run", progress=False, options=OFTEN)
    log = tmp_path / "run/metrics.jsonl"
    first = log.read_text().splitlines()[0] + "\n"
    log.write_text(first)
    train(CONFIG, small_data(), out=tmp_path / "run", resume=True, progress=False, options=OFTEN)
    assert log.read_text() == first


@pytest.mark.parametrize("content", ["[1]", "{", "null", "{}", '{"schema": "mine"}'])
def test_a_damaged_description_of_a_run_is_said(tmp_path, content):
    train(CONFIG, small_data(), out=tmp_path / "run", progress=False, options=OFTEN)
    (tmp_path / "run/config.json").write_text(content)
    with pytest.raises(qdfm.QDFMError, match=r"config\.json is damaged"):
        train(CONFIG, small_data(), out=tmp_path / "run", resume=True, progress=False, options=OFTEN)
