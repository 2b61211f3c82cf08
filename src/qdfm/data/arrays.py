"""Files of arrays, `.npz` and HDF5: nothing in them runs, and there is never half of an `.npz`."""

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from qdfm.checkpoint import write_file
from qdfm.errors import QDFMError

# What NumPy and zipfile raise on pickled objects, other formats, cut files and flipped bits.
UNREADABLE = (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def check_suffix(path: str | Path) -> None:
    """Refuse a name by which the file would be read as one of another kind."""
    if Path(path).suffix.lower() != ".npz":
        raise QDFMError(f"{path} is not the name of a file of arrays; give one that ends in .npz.")


def write_arrays(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write one compressed `.npz` file; whoever reads it meanwhile finds the one before."""
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    write_file(Path(path), content.getbuffer())


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file; pickled objects are refused unread."""
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise QDFMError(f"Cannot read {path} ({error.strerror or error}); check the path.") from None
    except UNREADABLE:
        pass
    raise QDFMError(
        f"{path} is damaged or no .npz file of numbers (Python objects could run code and are not loaded); "
        "write it again with numpy.savez."
    )


def hdf5_names(path: str | Path) -> set[str]:
    """What stands at the top of an HDF5 file."""
    with _hdf5(path) as file:
        return set(file)


def read_hdf5(path: str | Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of these names at the top of an HDF5 file, as far as they are there."""
    with _hdf5(path) as file:
        return {name: file[name][()] for name in names if hasattr(file.get(name), "dtype")}  # which groups lack


@contextmanager
def _hdf5(path: str | Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError:
        raise QDFMError(f'Reading {path} needs h5py; run: pip install "qdfm[marl]"') from None
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:  # what h5py raises on other kinds of files, cut files and flipped bits
        reason = str(error).splitlines()[0].rstrip(".")
        raise QDFMError(f"{path} is damaged or no HDF5 file ({reason}); fetch it again.") from None
