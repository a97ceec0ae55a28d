"""Lets Orbax commit in a process of its own.

Importing jax and Orbax takes a second of Python. In a process beside ours it takes place while the leaves are staged,
on another core, and does not hold up the threads that write them. A process that has Orbax already commits itself.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

from converter.checkpoints.commit import Commit
from converter.environment import child_variables
from converter.errors import Ax2mtError, DestinationError, ResourceError
from converter.own_process import HOME, import_path


class Committer:
    """A process that gets ready to commit; a context, at whose end it is gone."""

    def __init__(self, *, at_once: bool = True) -> None:
        """Starts the process; without `at_once` only when there is something to commit, which may be never."""
        self.peak_memory = 0
        self._process: subprocess.Popen[bytes] | None = None
        if at_once:
            self.start()

    def start(self) -> None:
        """Starts the process, unless it runs or there is no need of one."""
        if self._process is None and "orbax.checkpoint" not in sys.modules:
            self._process = _start()

    def __enter__(self) -> "Committer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def check(self) -> None:
        """Looks whether the process still waits for its work: there is no use in hours of staging without it.

        Raises:
          Ax2mtError: it could not load Orbax.
          ResourceError: it was killed.
          RuntimeError: it ended in another way.
        """
        if self._process is not None and self._process.poll() is not None:
            answer, _ = self._process.communicate()
            _raise_failure(_parse(answer), answer, self._process.returncode)

    def commit(self, work: Commit) -> None:
        """Makes the checkpoint.

        Raises:
          DestinationError: the files cannot be linked or written, or not be read back.
          Ax2mtError: the process could not load Orbax.
          ResourceError: the process was killed, or ran out of memory.
          RuntimeError: something else went wrong.
        """
        self.start()
        if self._process is None:
            from converter.checkpoints.orbax_commit import commit

            commit(work)
            return
        answer, _ = self._process.communicate(json.dumps(asdict(work)).encode())
        result = _parse(answer)
        if result is None or result.outcome != DONE:
            _raise_failure(result, answer, self._process.returncode)
        else:
            self.peak_memory = result.peak_memory


@dataclass(frozen=True, slots=True)
class Answer:
    """What the process says at its end.

    Attributes:
      outcome: one of OUTCOMES.
      message: what went wrong, in one line.
      details: further lines, one a finding.
      traceback: where, if that is a fault of the program.
      peak_memory: the process's largest resident set, in bytes.
    """

    outcome: str
    message: str = ""
    details: Sequence[str] = ()
    traceback: str = ""
    peak_memory: int = 0


DONE, REFUSED, NOT_LOADED, NO_MEMORY, FAILED = OUTCOMES = ("done", "refused", "not loaded", "no memory", "failed")

PROCESS = "the process that commits the checkpoint"


def _parse(answer: bytes) -> Answer | None:
    """The answer, or None where it is none."""
    try:
        result = Answer(**json.loads(answer))
    except (ValueError, TypeError):
        return None
    return result if result.outcome in OUTCOMES and isinstance(result.peak_memory, int) else None


def _raise_failure(result: Answer | None, answer: bytes, code: int) -> NoReturn:
    """Says what became of the process: what it reported comes first, then what ended it."""
    if result is None:
        if code < 0:
            raise ResourceError(f"{PROCESS} was {_killer(-code)}", -code)
        said = f"answered {answer[:40]!r}" if answer else "gave no answer"
        raise RuntimeError(f"{PROCESS} {said} and ended with code {code}")
    if result.outcome == REFUSED:
        raise DestinationError(result.message, result.details)
    if result.outcome == NOT_LOADED:
        raise Ax2mtError(f"{PROCESS} cannot load Orbax: {result.message}; repair this Python's packages")
    if result.outcome == NO_MEMORY:
        raise ResourceError(f"{PROCESS} ran out of memory")
    error = RuntimeError(f"{PROCESS} failed: {result.message}" if result.message else f"{PROCESS} ended too early")
    if result.traceback:
        error.add_note(result.traceback)
    raise error


def _killer(number: int) -> str:
    """What a signal is, in words."""
    if number == signal.SIGKILL:
        return f"killed by signal {number} (probably out of memory)"
    try:
        return f"killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"killed by signal {number}"


def _start() -> subprocess.Popen[bytes] | None:
    """Starts the process, with this very package and the packages that this process has.

    Returns:
      None where no process can be started: then this one commits itself.
    """
    path = import_path(sys.path)
    program = (
        f"import sys; sys.path[:] = [{HOME!a}]; import converter; sys.path[:] = {path!a}; "
        "from converter.checkpoints.commit_process import main; main()"
    )
    flags = ["-P", "-X", "utf8", *(["-s"] if sys.flags.no_user_site else [])]
    # Ctrl-C at a terminal reaches both processes. What follows from it is for this one to say, from the first moment.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, *flags, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_variables(),
            # Not the user's, which may have been removed. All paths of a commit are absolute.
            cwd="/",
        )
    except (OSError, ValueError):
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
