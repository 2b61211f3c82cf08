"""Pictures as files."""

from struct import unpack
from typing import Any

import pytest
from matplotlib.figure import Figure

from qdfm.errors import QDFMError
from qdfm.figures import DPI, save_figure


def test_a_picture_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    figure, path = Figure(figsize=(2, 1)), tmp_path / "a.png"
    save_figure(figure, path)
    whole = path.read_bytes()
    assert unpack(">II", whole[16:24]) == (2 * DPI, DPI)
    save = Figure.savefig

    def cut_off(self: Figure, file: Any, **options: Any) -> None:
        save(self, file, **options)
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", cut_off)
    with pytest.raises(OSError, match="no space left"):
        save_figure(figure, path)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    with pytest.raises(QDFMError, match=r"Cannot write .*nowhere"):
        save_figure(figure, tmp_path / "nowhere" / "a.png")
