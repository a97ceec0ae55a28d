"""The process in which Orbax commits, see `committer`: takes one commit from stdin, answers on stdout."""

import ctypes
import gc
import json
import os
import signal
import sys

from converter.errors import DestinationError
from converter.launch import open_standard_descriptors
from converter.memory import peak_resident

PR_SET_PDEATHSIG = 1
"""Linux's prctl(2) option: the signal that a process gets when its parent dies."""


def main() -> None:
    """Commits what the parent sends, if it ever does."""
    open_standard_descriptors()
    _die_with_parent()
    # A sixth of the time that importing Orbax takes, and what is imported stays anyway.
    gc.disable()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer

    from converter.committer import decode
    from converter.orbax import commit

    document = sys.stdin.buffer.read()
    if not document:
        return
    refused = ""
    try:
        commit(decode(json.loads(document)))
    except DestinationError as error:
        refused = error.message
    json.dump({"refused": refused, "peak_memory": peak_resident()}, answers)
    answers.flush()
    # Nothing is left to do; jax takes a third of a second to take itself apart.
    os._exit(0)


def _die_with_parent() -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass
