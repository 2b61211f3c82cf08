"""Where built-in data is played, and D4RL's scale of returns."""

import numpy as np
import pytest

from qdfm.errors import QDFMError
from qdfm.tasks import PLACES, Place, normalised, played_in


def test_scores():
    np.testing.assert_allclose(normalised("hopper-medium", [-20.272305, 3234.3]), [0, 100])
    assert normalised("walker2d-expert", (1.629008 + 4592.3) / 2) == pytest.approx(50)
    assert normalised("halfcheetah-medium", 5034) == pytest.approx(42.8, abs=0.05)  # of the policy's own record
    with pytest.raises(QDFMError, match="did you mean 'hopper-medium'"):
        normalised("hoper-medium", 0)


def test_places():
    assert played_in("hopper-medium") == "Hopper-v5" == played_in("Hopper-v5")
    np.testing.assert_allclose(PLACES["hopper-medium"].score(np.array([-20.272305, 3234.3])), [0, 100], atol=1e-9)
    assert PLACES["mo-hopper-expert"] == Place("mo-hopper-d4morl") and PLACES["smax-3m-poor"] == Place("smax-3m")
