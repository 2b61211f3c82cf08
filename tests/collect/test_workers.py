"""Work shared among processes: in order, elsewhere, and with the errors that it met."""

import math
import os

import pytest

from qdfm.collect.workers import in_processes
from qdfm.errors import QDFMError


def test_results_come_in_order_from_other_processes():
    assert list(in_processes(math.sqrt, [9.0, 4.0, 1.0], 2)) == [3, 2, 1]
    assert list(in_processes(math.sqrt, [9.0, 4.0], 1)) == [3, 2]
    assert not {os.getpid()} & set(in_processes(eval, ["__import__('os').getpid()"] * 2, 2))


@pytest.mark.parametrize("workers", [0, -2])
def test_fewer_than_one_worker(workers):
    with pytest.raises(QDFMError, match=f"workers is {workers}; give at least 1"):
        list(in_processes(math.sqrt, [9.0], workers))


def test_errors_are_told_where_the_work_was_asked_for():
    with pytest.raises(ValueError, match="domain"):
        list(in_processes(math.sqrt, [4.0, -1.0], 2))
    with pytest.raises(RuntimeError, match="A worker process has died"):
        list(in_processes(os._exit, [3, 3], 2))
