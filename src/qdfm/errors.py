"""Errors for people: one sentence that says what was wrong, where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class QDFMError(ValueError):
    """A mistake in the input. The command line prints its sentence and exits with code 2."""


class Diverged(RuntimeError):
    """Training produced a non-finite loss; the last good checkpoint is kept."""


def unknown(kind: str, name: str, known: Iterable[str], note: str = "") -> QDFMError:
    """The error for an unknown name, which offers the nearest known one; a note follows the name in brackets."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}."
    return QDFMError(f"Unknown {kind} {name!r}{note and f' ({note})'}; {hint}")
