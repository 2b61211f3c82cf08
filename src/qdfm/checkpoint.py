"""Files that hold a pytree of arrays: safetensors, with everything else as JSON in the header. Nothing in them runs.

A file is written under a temporary name and renamed, so a crash leaves the old one or the new one, never half of one.
"""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from qdfm._version import __version__
from qdfm.errors import QDFMError

FORMAT_VERSION = 2  # raised whenever a network has other arrays, or answers otherwise by the same ones
REMEDY = {"agent": "train the agent again", "state": "start the run anew in another folder"}  # for files that are lost


def check_writable(path: Path) -> None:
    """Refuse a place where no file can be written, before the work that is to end in one."""
    with writing(path):
        with TemporaryFile(dir=path.parent):
            pass
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write and rename; an unwritable place gets one sentence."""
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


@contextmanager
def writing(path: Path, verb: str = "write") -> Iterator[None]:
    """What fails while something is written there gets one sentence: no space, no permission, no such place."""
    try:
        yield
    except OSError as error:
        raise QDFMError(f"Cannot {verb} {path} ({error.strerror}); choose a writable place.") from None


def write_tree(path: str | Path, kind: str, tree: Any, header: dict[str, Any]) -> None:
    """Save the arrays of a pytree with a header of plain JSON values."""
    tensors = {name: np.array(leaf, order="C") for name, leaf in _named(jax.device_get(tree)).items()}
    meta = {"format": f"qdfm-{kind}", "version": str(FORMAT_VERSION), "qdfm": __version__}
    write_file(Path(path), _ordered(save(tensors, {**meta, "header": json.dumps(header)})))


def read_header(path: str | Path, kind: str) -> dict[str, Any]:
    """The header of a file that `write_tree` wrote."""
    return _open(path, kind)[0]


def read_tree(path: str | Path, kind: str, like: Any) -> Any:
    """The arrays of a file, in the structure of `like` (arrays or shapes)."""
    _, tensors = _open(path, kind)
    expected = _named(like)
    if expected.keys() != tensors.keys() or any(tensors[k].shape != v.shape for k, v in expected.items()):
        raise QDFMError(f"{path} does not hold the arrays that its header promises; {REMEDY[kind]}.")
    return jax.tree.unflatten(jax.tree.structure(like), [tensors[name] for name in expected])


def _ordered(content: bytes) -> bytes:
    """The same file with sorted metadata (the library's order is random): equal content, equal bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:end])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the arrays stay aligned
    return len(text).to_bytes(8, "little") + text + content[end:]


def _named(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _open(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if Path(path).is_dir():
        found = sorted(Path(path).glob(f"{kind}*.safetensors"))
        such = f" in it, such as {found[0]}" if found else ", of which there is none in it"
        raise QDFMError(f"{path} is a folder; give the path of a saved {kind}{such}.")
    if not Path(path).is_file():
        raise QDFMError(f"There is no file {path}; give the path of a saved {kind}.")
    try:
        with safe_open(path, framework="numpy") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        raise QDFMError(f"{path} is corrupt or no safetensors file; {REMEDY[kind]}.") from None
    if meta.get("format") != f"qdfm-{kind}":
        raise QDFMError(f"{path} is not a qdfm {kind} but {meta.get('format', 'another program’s file')}.")
    try:
        version, header = int(meta["version"]), json.loads(meta["header"])
    except (KeyError, ValueError):
        version, header = 0, None
    if not isinstance(header, dict):
        raise QDFMError(f"{path} has a damaged header; {REMEDY[kind]}.")
    if version > FORMAT_VERSION:
        raise QDFMError(f"{path} was written by qdfm {meta.get('qdfm')}, which is newer than this; upgrade qdfm.")
    if version < FORMAT_VERSION:
        raise QDFMError(
            f"{path} was written by an older qdfm ({meta.get('qdfm')}) whose networks were others; train it again, or "
            "use the version that wrote it."
        )
    return header, tensors
