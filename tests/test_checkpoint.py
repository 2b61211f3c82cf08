"""Checkpoints: exact round trips, writing that survives a crash, and a sentence for every other file."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from qdfm.checkpoint import FORMAT_VERSION, check_writable, read_header, read_tree, write_file, write_tree, writing
from qdfm.errors import QDFMError

HEADER = {"name": "größe", "numbers": [1, 2.5, None], "nested": {"yes": True}}


def tree() -> dict[str, Any]:
    return {
        "weights": (jnp.arange(6.0).reshape(2, 3) / 7, np.array([-0.0, np.inf, 1e-45], np.float32)),
        "count": jnp.int32(2**31 - 1),
        "flags": np.array([True, False]),
        "none": None,
        "transposed": np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_tree(path, "agent", tree(), HEADER)
    return path


def test_round_trip_to_the_bit(file):
    assert read_header(file, "agent") == HEADER
    back = read_tree(file, "agent", jax.eval_shape(tree))
    assert jax.tree.structure(back) == jax.tree.structure(tree())
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(tree()), strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == np.ascontiguousarray(b).tobytes()


def test_the_file_is_plain_safetensors(file):
    with safe_open(file, framework="numpy") as opened:
        assert opened.metadata()["format"] == "qdfm-agent"
        assert opened.metadata()["version"] == str(FORMAT_VERSION)
        assert len(list(opened.keys())) == len(jax.tree.leaves(tree()))


def test_same_content_same_bytes(file, tmp_path):
    for _ in range(8):  # safetensors itself puts the metadata in a random order
        write_tree(tmp_path / "b.safetensors", "agent", tree(), HEADER)
        assert (tmp_path / "b.safetensors").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_file(file, monkeypatch, step):
    before = file.read_bytes()

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, crash)
    with pytest.raises(KeyboardInterrupt):
        write_tree(file, "agent", {"other": np.zeros(3)}, {})
    assert file.read_bytes() == before
    monkeypatch.undo()
    write_tree(file, "agent", {"other": np.zeros(3)}, {})  # what the crash left behind does no harm
    assert file.read_bytes() != before
    assert [f.name for f in file.parent.iterdir()] == [file.name]


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QDFMError, match=r"Cannot write .*a\.safetensors \(No space left on device\); choose"):
        write_file(file, b"new")
    assert file.read_bytes() == before
    assert [f.name for f in file.parent.iterdir()] == [file.name]


def test_an_unwritable_place(file):
    with pytest.raises(QDFMError, match=r"Cannot write .*Not a directory"):
        write_tree(file / "below.safetensors", "agent", tree(), {})


def test_what_cannot_be_done_is_named(file):
    says = r"Cannot create .*below \(Not a directory\); choose a writable place\.$"
    with pytest.raises(QDFMError, match=says), writing(file / "below", "create"):
        (file / "below").mkdir()


def test_a_place_is_tried_without_leaving_anything(file):
    before = file.read_bytes()
    check_writable(file)
    check_writable(file.with_name("other"))
    for path, says in (
        (file / "below", "Not a directory"),
        (file.parent / "none" / "a", "No such file or directory"),
        (file.parent, "Is a directory"),
    ):
        with pytest.raises(QDFMError, match=rf"Cannot write {re.escape(str(path))} \({says}\); choose"):
            check_writable(path)
    assert [f.name for f in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() == before


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_truncated(file, share):
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(QDFMError, match="corrupt or no safetensors file; train the agent again"):
        read_header(file, "agent")


@pytest.mark.parametrize("content", [b"not a checkpoint", b"\xff" * 64, b"\x80\x04\x95pickle" * 10])
def test_something_else_altogether(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(QDFMError, match="corrupt or no safetensors file"):
        read_tree(tmp_path / "x", "agent", {})


@pytest.mark.parametrize(("metadata", "says"), [(None, "another program"), ({"format": "pt"}, "pt")])
def test_foreign_safetensors(tmp_path, metadata, says):
    save_file({"w": np.zeros(2)}, tmp_path / "x", metadata)
    with pytest.raises(QDFMError, match=f"is not a qdfm agent but {says}"):
        read_header(tmp_path / "x", "agent")


def test_another_kind(file):
    with pytest.raises(QDFMError, match="is not a qdfm state but qdfm-agent"):
        read_header(file, "state")


def meta(**changes: str) -> dict[str, str]:
    return {"format": "qdfm-agent", "version": str(FORMAT_VERSION), "qdfm": "9.9", "header": "{}", **changes}


def test_a_newer_format(tmp_path):
    save_file({"w": np.zeros(2)}, tmp_path / "x", meta(version=str(FORMAT_VERSION + 1)))
    with pytest.raises(QDFMError, match=r"written by qdfm 9\.9, which is newer than this; upgrade qdfm"):
        read_header(tmp_path / "x", "agent")


def test_an_older_format(tmp_path):
    save_file({"w": np.zeros(2)}, tmp_path / "x", meta(version="1", qdfm="0.0"))
    with pytest.raises(QDFMError, match=r"older qdfm \(0\.0\) whose networks were others; train it again"):
        read_header(tmp_path / "x", "agent")


@pytest.mark.parametrize("changes", [{"version": "x"}, {"header": "{"}, {"header": ""}])
def test_a_damaged_header(tmp_path, changes):
    save_file({"w": np.zeros(2)}, tmp_path / "x", meta(**changes))
    with pytest.raises(QDFMError, match="damaged header; train the agent again"):
        read_header(tmp_path / "x", "agent")


def test_no_such_file(tmp_path):
    with pytest.raises(QDFMError, match=r"There is no file .*; give the path of a saved agent"):
        read_header(tmp_path / "nothing", "agent")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(QDFMError, match="is a folder; give the path of a saved agent, of which there is none in it"):
        read_header(tmp_path, "agent")
    for name in ("agent-1", "agent-0", "state"):
        write_tree(tmp_path / f"{name}.safetensors", name.partition("-")[0], tree(), HEADER)
    with pytest.raises(QDFMError, match=r"is a folder; .* in it, such as .*/agent-0\.safetensors\."):
        read_header(tmp_path, "agent")


def test_a_state_that_is_lost(tmp_path):
    (tmp_path / "state.safetensors").write_bytes(b"half a file")
    with pytest.raises(QDFMError, match="corrupt or no safetensors file; start the run anew in another folder"):
        read_header(tmp_path / "state.safetensors", "state")


@pytest.mark.parametrize("like", [{"w": (3,)}, {"v": (2,)}, {"w": (2,), "v": (2,)}, {}])
def test_arrays_that_do_not_fit(tmp_path, like):
    write_tree(tmp_path / "x", "agent", {"w": np.zeros(2)}, {})
    with pytest.raises(QDFMError, match="does not hold the arrays that its header promises"):
        read_tree(tmp_path / "x", "agent", {name: np.zeros(shape) for name, shape in like.items()})
