"""The process in which Orbax commits, see `committer`: takes one commit from stdin, answers on stdout."""

import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict

from converter.checkpoints.commit import decode
from converter.checkpoints.committer import DONE, FAILED, NO_MEMORY, NOT_LOADED, REFUSED, Answer
from converter.errors import DestinationError
from converter.own_process import open_standard_descriptors
from converter.work import peak_resident

PR_SET_PDEATHSIG = 1
"""Linux's prctl(2) option: the signal that a process gets when its parent dies."""


def main() -> None:
    """Commits what the parent sends, if it ever does."""
    # Ctrl-C and a scheduler's SIGTERM reach us as well; what follows from them is for our parent to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open_standard_descriptors()
    _die_with_parent()
    # A sixth of the time that importing Orbax takes, and what is imported stays anyway.
    gc.disable()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not be read as an answer
    answer = _serve()
    if answer is not None:
        json.dump(asdict(answer), answers)
        answers.flush()
    # Nothing is left to do; jax takes a third of a second to take itself apart.
    os._exit(0)


def _serve() -> Answer | None:
    """Loads Orbax, waits for the work and does it; None where the parent wants nothing any more."""
    try:
        from converter.checkpoints.orbax_commit import commit
    except MemoryError:
        return Answer(NO_MEMORY)
    except Exception as error:
        return Answer(NOT_LOADED, _line(error))
    document = sys.stdin.buffer.read()
    if not document:
        return None
    try:
        commit(decode(json.loads(document)))
    except DestinationError as error:
        return Answer(REFUSED, error.message, error.details)
    except MemoryError:
        return Answer(NO_MEMORY)
    except Exception as error:
        return Answer(FAILED, _line(error), traceback=traceback.format_exc())
    return Answer(DONE, peak_memory=peak_resident())


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _die_with_parent() -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass
