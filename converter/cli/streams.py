"""stdout and stderr of the command line: writing never raises, and a failure is reported once, at the end.

A result that cannot be printed, on a full disk or in a terminal's encoding, must not stop work halfway or change the
reported outcome.
"""

import errno
import io
import os
import select
import sys
from typing import Any, TextIO


class Descriptor(io.FileIO):
    """A descriptor whose first error in writing is kept instead of raised.

    Attributes:
      failure: the error; None where there was none.
    """

    def __init__(self, number: int, *, stop: bool):
        """Takes a descriptor, which stays open; with `stop`, nothing is written any more after an error."""
        super().__init__(number, "wb", closefd=False)
        self.failure: OSError | None = None
        self.stop = stop

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self.stop and self.failure is not None:
            return size
        try:
            while (written := super().write(data)) is None:
                # Somebody else made the pipe non-blocking, and it is full.
                select.select([], [self.fileno()], [])
        except OSError as error:
            self.failure = self.failure or error
            return size
        return written


class StandardStreams:
    """Takes the place of `sys.stdout` and `sys.stderr`.

    Characters that an encoding does not have are written as escapes; so are the bytes of paths that cannot be decoded.
    """

    def __init__(self) -> None:
        self._stdout = Descriptor(1, stop=True)
        if sys.stdout is None:
            self._stdout.failure = OSError(errno.EBADF, "stdout is closed")
        sys.stdout = _text(self._stdout, sys.stdout)
        sys.stderr = _text(Descriptor(2, stop=False), sys.stderr)

    def finish(self, code: int, *, output_is_result: bool) -> int:
        """Flushes both streams, and reports an error in writing to stdout.

        A pipe that its reader closed, as `| head -1` does, is not an error.

        Args:
          code: the exit code of what was done.
          output_is_result: the command did nothing but print; an output that is cut short is a failure then.

        Returns:
          The exit code of the process.
        """
        sys.stdout.flush()
        error = self._stdout.failure
        if error is not None and not isinstance(error, BrokenPipeError):
            print(f"ax2mt: the output on stdout is incomplete: {error.strerror or error}", file=sys.stderr)
            code = 1 if code == 0 and output_is_result else code
        sys.stderr.flush()
        return code


def _text(descriptor: Descriptor, before: TextIO | None) -> TextIO:
    terminal = descriptor.isatty()
    unbuffered = bool(getattr(before, "write_through", False))
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=getattr(before, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=terminal or descriptor.fileno() == 2,
        write_through=unbuffered,
    )


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which a line can be written over."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
