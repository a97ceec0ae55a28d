"""The errors a user can meet, each with the exit code of the process.

Every message is one line that says what is wrong, where, what was expected and found, and what to do. Several
findings of one kind are collected and raised together: `details` then holds one line for each of them.
"""

from collections.abc import Sequence


def reason(error: Exception) -> str:
    """The first line of a library's message, without TensorStore's specification and source locations."""
    text = str(error)
    for appendix in (" [tensorstore_spec=", " [source locations="):
        text = text.split(appendix)[0]
    return (text.splitlines() or [type(error).__name__])[0][:300]


class Ax2mtError(Exception):
    """Base of all errors that are not bugs of this program.

    Attributes:
      message: one line for a person.
      details: further lines, one for each finding; shown below the message.
      exit_code: what the process exits with.
    """

    exit_code = 1
    kind = "internal"

    def __init__(self, message: str, details: Sequence[str] = ()):
        super().__init__(message)
        self.message = message
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n".join((self.message, *(f"  {line}" for line in self.details)))


class UsageError(Ax2mtError):
    """The command line contradicts itself or asks for something impossible, such as too small a budget."""

    exit_code = 2
    kind = "usage"


class SourceError(Ax2mtError):
    """The source is not a committed checkpoint, or is damaged or incomplete."""

    exit_code = 3
    kind = "source"


class MappingError(Ax2mtError):
    """A mapping table is wrong, or does not fit the checkpoint."""

    exit_code = 4
    kind = "mapping"


class DestinationError(Ax2mtError):
    """The destination is refused or cannot be written."""

    exit_code = 5
    kind = "destination"


class VerificationError(Ax2mtError):
    """The checkpoint is not what it should be, or cannot be verified at all."""

    exit_code = 6
    kind = "verification"


class InexactError(Ax2mtError):
    """The result cannot be exact in stock MaxText, and `--require-exact` was given."""

    exit_code = 7
    kind = "inexact"


class ResourceError(Ax2mtError):
    """The system killed one of our processes or ran out of memory; neither data nor program is at fault."""

    exit_code = 137
    kind = "resources"

    def __init__(self, message: str, signal: int = 9):
        """Takes the message and the signal that killed the process; memory that ran out counts as the killer's, 9."""
        super().__init__(message)
        self.exit_code = 128 + signal
