"""Work shared among processes.

They are plain Python processes that are sent jobs, not those of `multiprocessing`: these would run the user's script
again, which breaks every script without a guard around its main part.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import IO, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_processes(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int | None) -> Iterator[Result]:
    """What a module's function gives for each job, in order, by so many processes (None: one for each core).

    A single process is this one.
    """
    if workers is not None and workers < 1:
        from qdfm.errors import QDFMError  # here, because a worker runs this file before it needs the package

        raise QDFMError(f"workers is {workers}; give at least 1.")
    count = min(workers or os.cpu_count() or 1, len(jobs))
    if count == 1:
        yield from map(function, jobs)
        return
    # By this file, not by the package, so that a worker imports no more than its jobs need.
    start = f"import runpy, sys; sys.path = {sys.path!r}; runpy.run_path({__file__!r})['serve']()"
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # the other cores have work of their own
    processes = [
        subprocess.Popen([sys.executable, "-c", start], env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(count)
    ]
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    with ExitStack() as stack:
        for process in processes:
            stack.callback(_close, process)
            free.put(process)
        pool = stack.enter_context(ThreadPoolExecutor(count))
        for process in processes:
            stack.callback(process.kill)  # before the pool waits for the jobs at hand, which nobody wants any more

        def ask(job: Job) -> Result:
            process = free.get()
            try:
                assert process.stdin and process.stdout
                _send(process.stdin, (function, job))
                result, error = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                raise RuntimeError("A worker process has died; its error stands above.") from None
            finally:
                free.put(process)
            if error is not None:
                raise error
            done: Result = result
            return done

        yield from pool.map(ask, jobs)


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin and process.stdout
    process.stdout.close()
    with suppress(OSError):  # what it was not sent any more
        process.stdin.close()
    process.wait()


def serve() -> None:
    """What a worker does: the jobs that come in, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the results
    while True:
        try:
            function, job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _send(results, (function(job), None))
        except Exception as error:
            _send(results, (None, error))


def _send(pipe: IO[bytes], message: object) -> None:
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()
