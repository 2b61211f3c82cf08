"""Files of arrays, `.npz`: nothing in them runs, and there is never half of one."""

import zipfile
import zlib
from collections.abc import Mapping
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
