"""Reads objects: from front to back in one request, which is sent again from where it ended early, or by ranges."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from crc32c import crc32c

from converter.storage.base import Blob, Reader, ReadError
from converter.storage.retries import Transient, retried

if TYPE_CHECKING:
    from converter.storage.remote import ObjectStorage

COPY_SIZE = 1 << 20


class Body(Protocol):
    """The content that a request returns, from front to back."""

    def readinto(self, room: Any, /) -> int | None:
        """Puts the next bytes into memory; returns how many, 0 at the end. Raises `Transient`."""
        ...

    def close(self) -> None:
        """Ends the request, be it in the middle."""
        ...


class ObjectReader:
    """An open object: one request for all of it, which is sent again from where it ended early; or ranges.

    What is read from front to back is compared with the checksum that the store knows.
    """

    def __init__(self, storage: "ObjectStorage", blob: Blob):
        self.storage = storage
        self.blob = blob
        self._at = 0
        self._sum = 0
        self._body: Body | None = None

    def __enter__(self) -> "ObjectReader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def read(self, size: int = -1, /) -> bytes:
        rest = self.blob.size - self._at
        room = memoryview(bytearray(rest if size < 0 else min(size, rest)))
        done = 0
        while done < len(room) and (count := self.readinto(room[done:])):
            done += count
        return bytes(room[:done])

    def readinto(self, room: Any, /) -> int:
        view = memoryview(room).cast("B")
        if not len(view) or self._at == self.blob.size:
            return 0
        count = retried(self.blob.name, lambda: self._read_some(view))
        self._sum = crc32c(view[:count], self._sum)
        self._at += count
        if self._at == self.blob.size:
            self.close()
            if self.blob.checksum not in (None, self._sum.to_bytes(4, "big")):
                raise OSError(errno.EIO, "its bytes were damaged on the way: they have another CRC-32C", self.blob.name)
        return count

    def read_range(self, start: int, count: int) -> bytes:
        stop = min(start + count, self.blob.size)
        if stop <= start:
            return b""

        def fetch() -> bytes:
            body = self.storage.get(self.blob.name, start, stop, self.blob.version or None)
            try:
                return _all(body, stop - start)
            finally:
                body.close()

        return retried(self.blob.name, fetch)

    def size(self) -> int:
        return self.blob.size

    def close(self) -> None:
        """Ends the request that is under way."""
        if self._body is not None:
            self._body.close()
            self._body = None

    def _read_some(self, view: memoryview) -> int:
        try:
            if self._body is None:
                self._body = self.storage.get(self.blob.name, self._at, None, self.blob.version or None)
            count = self._body.readinto(view)
            if not count:
                raise Transient(f"the connection ended after {self._at} of {self.blob.size} bytes")
            return count
        except Transient:
            self.close()
            raise


def copy_bytes(source: Reader, look: Callable[[memoryview], None], take: Callable[[memoryview], None]) -> None:
    """Streams a blob into a writer and shows every piece; see `base.Writer.copy_from`.

    Raises:
      ReadError: the source cannot be read, or became shorter.
      OSError: `take` failed.
    """
    size, done = source.size(), 0
    room = memoryview(bytearray(min(COPY_SIZE, size)))
    while done < size:
        try:
            count = source.readinto(room[: size - done])
        except OSError as error:
            raise ReadError(f"cannot be read: {error.strerror}") from None
        if not count:
            raise ReadError(f"became shorter while it was read ({done} of {size} bytes)")
        done += count
        look(room[:count])
        take(room[:count])
    if source.size() != size:
        raise ReadError("changed its size while it was read")


def _all(body: Body, count: int) -> bytes:
    room, done = memoryview(bytearray(count)), 0
    while done < count:
        got = body.readinto(room[done:])
        if not got:
            raise Transient(f"the connection ended after {done} of {count} bytes")
        done += got
    return bytes(room)
