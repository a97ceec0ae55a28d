"""A file for a result, such as `--junit FILE`: written whole, or not at all."""

import contextlib
import os
from collections.abc import Callable
from types import TracebackType

from converter.errors import DestinationError
from converter.location import locate


class ResultFile:
    """Opens a file beside the wanted one before the work starts, and takes its place when the text is written.

    A file that cannot be written is found before the work and not after it; and what stood there before stays whole
    until then.
    """

    def __init__(self, option: str, path: str | None) -> None:
        """Takes the option's name, for messages, and its value; None for no file."""
        self.option, self.given = option, path
        self.file = "" if path is None else locate(path, DestinationError, local=True).path
        self.part = f"{self.file}.{os.getpid()}.part"

    def __enter__(self) -> "ResultFile":
        """Makes the file beside the wanted one.

        Raises:
          DestinationError: it cannot be made, or a directory has the name.
        """
        if self.file:
            if os.path.isdir(self.file):
                raise DestinationError(f"{self.option} {self.given}: is a directory; give the name of a file")
            self._do(lambda: open(self.part, "w", encoding="utf-8").close())
        return self

    def write(self, text: str) -> None:
        """Writes the text and puts the file in its place.

        Raises:
          DestinationError: it cannot be written.
        """

        def write() -> None:
            with open(self.part, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self.part, self.file)

        self._do(write)

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise DestinationError(
                f"{self.option} {self.given}: cannot be written: {error.strerror or error}"
            ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.file:
            with contextlib.suppress(OSError):
                os.unlink(self.part)
