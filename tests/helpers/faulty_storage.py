"""A local storage that fails where a test wants it to.

The fixture `faulty` in conftest puts one in the place of the local storage: whatever this process does with checkpoint
bytes from then on goes through it. A rule names an operation of `Storage` (also `rename` and `exchange`, the steps of a
local publication, `readinto` and `put`, the reads and writes of open blobs), and a pattern that a name given to it
must contain.
"""

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from converter.storage import Publication
from converter.storage.base import Mark, Space
from converter.storage.chunk_file import ChunkFile
from converter.storage.file_reader import FileReader
from converter.storage.local import LocalStorage

OPERATIONS = frozenset(name for name, value in vars(LocalStorage).items() if callable(value) and name[0] != "_")


class Kill(BaseException):
    """Stands for SIGKILL: nothing of ours is done any more."""


@dataclass
class _Rule:
    operation: str
    pattern: re.Pattern[str]
    action: Callable[[str], Any]
    skipped: int
    times: int


class FaultyStorage(LocalStorage):
    """Does what the local storage does, except where a rule says otherwise.

    Attributes:
      free: what `space` says is free, where set.
      room: bytes that can still be written, where set; then the disk is full.
      most: bytes that one system call writes at most, where set.
      exchanges: whether two directories can be swapped in one step.
      seen: every operation so far, with the names given to it.
    """

    def __init__(self) -> None:
        self.free: int | None = None
        self.room: int | None = None
        self.most: int | None = None
        self.exchanges = True
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()

    def before(
        self, operation: str, pattern: str, action: Callable[[str], Any], *, nth: int = 1, times: int = 1
    ) -> None:
        """Does something before an operation, from its nth time on a matching name; what it raises is the outcome."""
        self._rules.append(_Rule(operation, re.compile(pattern), action, nth - 1, times))

    def fail(self, operation: str, pattern: str, number: int = errno.EIO, *, nth: int = 1) -> None:
        """Lets an operation end with an error of the system, each time from the nth on."""

        def raise_error(name: str) -> None:
            raise OSError(number, os.strerror(number), name)

        self.before(operation, pattern, raise_error, nth=nth, times=1 << 30)

    def kill(self, operation: str, pattern: str = "", *, nth: int = 1) -> None:
        """Ends the process, as far as its own code can tell, where an operation would begin."""

        def end(name: str) -> None:
            raise Kill(name)

        self.before(operation, pattern, end, nth=nth)

    def heal(self) -> None:
        """Forgets all rules and limits."""
        self.free = self.room = self.most = None
        self.exchanges = True
        self._rules.clear()

    def meet(self, operation: str, *names: str) -> None:
        """Lets rules act; called before every operation."""
        with self._lock:
            self.seen.append((operation, names))
            due = next((rule for rule in self._rules if self._is_due(rule, operation, names)), None)
        if due is not None:
            due.action(next(name for name in names if due.pattern.search(name)))

    @staticmethod
    def _is_due(rule: _Rule, operation: str, names: tuple[str, ...]) -> bool:
        if rule.operation != operation or not rule.times or not any(map(rule.pattern.search, names)):
            return False
        if rule.skipped:
            rule.skipped -= 1
            return False
        rule.times -= 1
        return True

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in OPERATIONS:
            return value

        def call(*arguments: Any, **keywords: Any) -> Any:
            arguments = tuple(list(a) if isinstance(a, Iterator) else a for a in arguments)
            self.meet(name, *_names(arguments))
            return value(*arguments, **keywords)

        return call

    def space(self, name: str) -> Space | None:
        space = super().space(name)
        return space if space is None or self.free is None else Space(free=self.free, place=space.place)

    def exchange(self, first: str, second: str) -> bool:
        return self.exchanges and super().exchange(first, second)

    def open(self, name: str) -> FileReader:
        return _FaultyReader(self, name)

    def create(self, name: str, size: int = 0, mark: Mark | None = None) -> ChunkFile:
        file = super().create(name, size, mark)
        put_some = file._put_some

        def put(view: memoryview) -> int:
            self.meet("put", name)
            if self.room is not None and len(view) > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            count = put_some(view[: self.most] if self.most else view)
            if self.room is not None:
                self.room -= count
            return count

        file._put_some = put
        return file


class _FaultyReader(FileReader):
    def __init__(self, storage: FaultyStorage, path: str):
        super().__init__(path)
        self._storage, self._path = storage, path

    def read(self, size: int | None = -1, /) -> bytes | None:
        self._storage.meet("read", self._path)
        return super().read(size)

    def read_range(self, start: int, count: int) -> bytes:
        self._storage.meet("read_range", self._path)
        return super().read_range(start, count)

    def readinto(self, room: Any, /) -> int | None:
        self._storage.meet("readinto", self._path)
        return super().readinto(room)


def _names(arguments: tuple[Any, ...]) -> list[str]:
    """The names that an operation is about."""
    found: list[str] = []
    for argument in arguments:
        if isinstance(argument, Publication):
            found.append(argument.destination)
        elif isinstance(argument, str):
            found.append(argument)
        elif isinstance(argument, list | tuple):
            found += argument
    return found or [""]
