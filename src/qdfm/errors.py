"""Errors for people: one sentence that says what was wrong, where, and what to do."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class QDFMError(ValueError):
    """A mistake in the input. The command line prints its sentence and exits with code 2."""


class DataWarning(UserWarning):
    """What was done to data on reading it that its owner may not have meant, in one sentence."""


class Diverged(RuntimeError):
    """Training produced a non-finite loss; the last good checkpoint is kept."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, of which the user has already been told what it leaves behind."""


_interrupts: list[int] = []  # those that a command has received


@contextmanager
def remembered_interrupts() -> Iterator[None]:
    """While a command runs, Ctrl-C is also written down: one that falls into a callback of JAX is lost otherwise."""

    def interrupt(number: int, frame: object) -> None:
        _interrupts.append(number)
        raise KeyboardInterrupt

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):  # somebody else's to handle, or ignored
        yield
        return
    tell = sys.unraisablehook
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, KeyboardInterrupt) else tell(lost)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = tell
        _interrupts.clear()


def interrupted() -> bool:
    """Whether a command has received Ctrl-C."""
    return bool(_interrupts)


def raise_interrupt() -> None:
    """Raise an interrupt that was lost."""
    if interrupted():
        raise KeyboardInterrupt


def told(run: Callable[[], int | None]) -> int:
    """What `run` returns (None: 0); after a mistake its sentence is printed, and the code is 2, or 3 if it diverged."""
    try:
        return run() or 0
    except (QDFMError, Diverged) as error:
        print(f"qdfm: {str(error).removeprefix('qdfm: ')}", file=sys.stderr)  # as those on QDFM's settings begin
        return 2 if isinstance(error, QDFMError) else 3


def unknown(kind: str, name: str, known: Iterable[str], note: str = "") -> QDFMError:
    """The error for an unknown name, which offers the nearest known one; a note follows the name in brackets."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}."
    return QDFMError(f"Unknown {kind} {name!r}{note and f' ({note})'}; {hint}")
