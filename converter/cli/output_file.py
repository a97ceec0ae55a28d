"""A file that a command writes beside what it prints: refused before any work, and there whole or not at all."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from converter.errors import DestinationError
from converter.location import locate


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file that can be written, as far as that can be seen beforehand. One that is there is replaced.

    Attributes:
      option: that named it, for messages.
      given: as the user wrote it.
      path: its absolute path, without symbolic links.
    """

    option: str
    given: str
    path: str

    @classmethod
    def checked(cls, option: str, given: str, *, outside: Sequence[str | None] = ()) -> "OutputFile":
        """The file that a user named.

        Args:
          option: that named it.
          given: as the user wrote it.
          outside: checkpoints, in which a file of ours would be a foreign one.

        Raises:
          DestinationError: it cannot be written, or not there.
        """
        start = f"{option} {given}"
        path = os.path.realpath(locate(given, DestinationError, local=True).path)
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            raise DestinationError(f"{start}: there is no directory {parent}; make it first")
        if os.path.lexists(path) and not os.path.isfile(path):
            what = "a directory" if os.path.isdir(path) else "not a regular file"
            raise DestinationError(f"{start}: is {what}; expected the name of a file")
        if not os.access(parent, os.W_OK):
            raise DestinationError(f"{start}: cannot be written: no permission to create files in {parent}")
        for checkpoint in filter(None, outside):
            place = locate(checkpoint, DestinationError).path
            if "://" not in place and f"{path}/".startswith(f"{os.path.realpath(place)}/"):
                raise DestinationError(
                    f"{start}: lies in the checkpoint {checkpoint}, where `verify` would find a foreign file; choose "
                    "another directory"
                )
        return cls(option=option, given=given, path=path)

    def write(self, text: str) -> int:
        """Writes the file and returns its size; what was there stays until all is written.

        Raises:
          DestinationError: it cannot be written.
        """
        data, part = text.encode("utf-8", "backslashreplace"), f"{self.path}.{os.getpid()}.part"
        try:
            with open(part, "xb") as file:
                file.write(data)
            os.replace(part, self.path)
        except OSError as error:
            why = error.strerror or error
            raise DestinationError(f"{self.option} {self.given}: cannot be written: {why}") from None
        finally:
            if os.path.lexists(part):
                os.unlink(part)
        return len(data)
