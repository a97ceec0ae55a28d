"""A storage in memory, as an object store is: names and contents, no directories, and copies that it makes by itself.

It has what reading a checkpoint and writing a leaf need, and nothing else.
"""

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from crc32c import crc32c

from converter.storage import DIRECTORY, FILE, Blob, Reader


class MemoryStorage:
    """Blobs by their URL."""

    concurrency = 1
    renames = False

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def pin(self, directory: str, *, described: bool = False, parts: Iterable[str] = ()) -> None:
        """Nothing changes here."""

    def browsing(self, directory: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def release(self, directory: str) -> None:
        """Nothing was pinned."""

    def load(self, directory: Path, url: str) -> None:
        """Takes the files of a local directory."""
        for path in directory.rglob("*"):
            if path.is_file():
                self.blobs[f"{url}/{path.relative_to(directory)}"] = path.read_bytes()

    def resolve(self, name: str) -> str:
        return name

    def stat(self, name: str) -> Blob:
        if name in self.blobs:
            return Blob(name=name, kind=FILE, size=len(self.blobs[name]))
        if self.is_directory(name):
            return Blob(name=name, kind=DIRECTORY)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def exists(self, name: str) -> bool:
        return name in self.blobs or self.is_directory(name)

    def is_directory(self, name: str) -> bool:
        return next(self.walk(name), None) is not None

    def names(self, directory: str) -> "list[str]":
        return list({blob.name.split("/")[0] for blob in self.walk(directory)})

    def list(self, directory: str) -> Iterator[Blob]:
        for name in self.names(directory):
            blob = self.stat(f"{directory}/{name}")
            yield Blob(name=name, kind=blob.kind, size=blob.size)

    def walk(self, directory: str) -> Iterator[Blob]:
        prefix = directory.removesuffix("/.") + "/"
        for name, content in list(self.blobs.items()):
            if name.startswith(prefix):
                yield Blob(name=name.removeprefix(prefix), kind=FILE, size=len(content))

    def missing(self, names: Iterable[str]) -> "list[str]":
        return [name for name in names if name not in self.blobs]

    def read(self, name: str, limit: int) -> bytes:
        with self.open(name) as blob:
            return blob.read(limit)

    def open(self, name: str) -> "MemoryReader":
        if name not in self.blobs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return MemoryReader(self.blobs[name])

    def create(self, name: str, _size: int = 0) -> "MemoryWriter":
        return MemoryWriter(self.blobs, name)

    def write(self, name: str, data: bytes) -> None:
        self.blobs[name] = data

    def make_directory(self, directory: str) -> None:
        """An object store has none."""


class MemoryReader(io.BytesIO):
    """An open blob."""

    def read_range(self, start: int, count: int) -> bytes:
        return self.getvalue()[start : start + count]

    def size(self) -> int:
        return len(self.getvalue())


class MemoryWriter:
    """A blob in the making."""

    def __init__(self, blobs: dict[str, bytes], name: str):
        self.blobs, self.name = blobs, name
        self.content = b""

    def write(self, data: Any) -> None:
        self.content += bytes(data)

    def copy_from(self, source: Reader, look: Callable[[memoryview], None]) -> int | None:
        """Takes a blob of its own kind without showing it, and streams any other."""
        if isinstance(source, MemoryReader):
            self.content = source.getvalue()
            return crc32c(self.content)
        while piece := source.read(1 << 20):
            look(memoryview(piece))
            self.write(piece)
        return None

    def commit(self) -> None:
        self.blobs[self.name] = self.content

    def abort(self) -> None:
        self.content = b""
