"""The command line. Options come from the config dataclasses; a mistake gets one sentence and exit code 2.

A command is a function of the words after it, in a module of its name.
"""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qdfm._version import __version__
from qdfm.cli import data, evaluate, listing, pareto, reproduce, train
from qdfm.errors import DataWarning, Interrupted, interrupted, remembered_interrupts, told, unknown

DATA_LINES = """  qdfm data inspect NAME_OR_FILE  what is in the data
  qdfm data make NAME             write built-in data, that of a MuJoCo task, or random behaviour in a Gymnasium id"""
DATA_USAGE = f"""usage: qdfm data COMMAND ...

{DATA_LINES}

qdfm data COMMAND --help says more."""
USAGE = f"""usage: qdfm COMMAND ...

  qdfm list                       tasks, algorithms, environments and experiments
  qdfm train TASK                 train on a built-in or MuJoCo task or a file; --algo A, --seeds 5, --quick, --resume
  qdfm evaluate CHECKPOINT        play episodes with a saved agent, or judge it by a log; --video FILE, --data LOG
  qdfm pareto CHECKPOINT          the front that an agent reaches as its preference varies
  qdfm reproduce EXPERIMENT       a table or figure of the paper; --quick
{DATA_LINES}

qdfm COMMAND --help says more. qdfm --version prints the version."""
INTERRUPTED = 130
COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": listing.run,
    "train": train.run,
    "evaluate": evaluate.run,
    "pareto": pareto.run,
    "reproduce": reproduce.run,
}
DATA_COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {"inspect": data.inspect, "make": data.make}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a mistake in the input, 3 for a diverged run, 130 when interrupted."""
    code = _run(tuple(sys.argv[1:] if argv is None else argv))
    if code == INTERRUPTED and argv is None:
        sys.stdout.flush()
        os._exit(code)  # a program of JAX may still be computing, and would crash an interpreter that tidies up
    return code


def _run(words: Sequence[str]) -> int:
    with remembered_interrupts(), warnings.catch_warnings():
        warnings.showwarning = partial(_warn, warnings.showwarning)
        try:
            return told(lambda: _dispatch(words))
        except BrokenPipeError:
            return 0
        except Interrupted:
            return INTERRUPTED
        except BaseException as stop:
            if not isinstance(stop, KeyboardInterrupt) and not interrupted():
                raise  # what an interrupt breaks on its way may raise something else
            left = "go on with --resume" if words[:1] == ("reproduce",) else "nothing was saved yet"
            print(f"Interrupted; {left}.", file=sys.stderr)
            return INTERRUPTED


def _warn(others: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """What is to be said about data as its sentence alone."""
    if issubclass(category, DataWarning):
        print(f"qdfm: {message}", file=sys.stderr, flush=True)
    else:
        others(message, category, *where)


def _dispatch(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    command, rest = words[0], words[1:]
    if command == "data":
        if not rest or rest[0] in ("-h", "--help"):
            print(DATA_USAGE)
            return 0 if rest else 2
        if rest[0] not in DATA_COMMANDS:
            raise unknown("command", " ".join(words[:2]), [f"data {name}" for name in DATA_COMMANDS])
        DATA_COMMANDS[rest[0]](rest[1:])
    elif command in COMMANDS:
        COMMANDS[command](rest)
    else:
        raise unknown("command", command, [*COMMANDS, "data"])
    return 0
