"""Where episodes begin and end."""

import pytest

from qdfm.data.episodes import borders


@pytest.mark.parametrize(
    ("episode", "first", "last"),
    [
        ([7], [0], [0]),
        ([0, 0, 0], [0], [2]),
        ([0, 0, 1, 3, 3, 3], [0, 2, 3], [1, 2, 5]),
        ([2, 1, 1], [0, 1], [0, 2]),  # numbers need not rise
    ],
)
def test_borders(episode, first, last):
    begins, ends = borders(episode)
    assert begins.tolist() == first
    assert ends.tolist() == last
