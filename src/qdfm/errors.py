"""Errors for people: one sentence that says what was wrong, where, and what to do."""

import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches


class QDFMError(ValueError):
    """A mistake in the input. The command line prints its sentence and exits with code 2."""


class Diverged(RuntimeError):
    """Training produced a non-finite loss; the last good checkpoint is kept."""


def told(run: Callable[[], int | None]) -> int:
    """What `run` returns (None: 0); after a mistake its sentence is printed, and the code is 2, or 3 if it diverged."""
    try:
        return run() or 0
    except (QDFMError, Diverged) as error:
        print(f"qdfm: {error}", file=sys.stderr)
        return 2 if isinstance(error, QDFMError) else 3


def unknown(kind: str, name: str, known: Iterable[str], note: str = "") -> QDFMError:
    """The error for an unknown name, which offers the nearest known one; a note follows the name in brackets."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}."
    return QDFMError(f"Unknown {kind} {name!r}{note and f' ({note})'}; {hint}")
