"""Pictures as files."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from qdfm.checkpoint import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 120  # of all pictures


def save_figure(figure: "Figure", path: Path) -> None:
    """A picture as PNG, written whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    write_file(path, content.getvalue())
