"""An open object of S3: one request from front to back, taken up where it broke off, and requests for ranges."""

import errno
from typing import Any

from converter.storage.s3_client import Found, Place, S3Client
from converter.storage.s3_errors import S3Error

WHOLE = 1 << 20
"""Objects up to this size are fetched at once with their first range: that spares a request for each small chunk."""

ALL = 1 << 40


class S3Reader:
    """See `base.Reader`. Every request names the ETag, so that all bytes are of one version."""

    def __init__(self, client: S3Client, place: Place, found: Found):
        """Nothing is requested before the first bytes are wanted.

        Args:
          client: what sends requests.
          place: the object.
          found: its size and its ETag.
        """
        self.client = client
        self.place = place
        self.found = found
        self._position = 0
        self._body: Any = None
        self._held: bytes | None = None

    def __enter__(self) -> "S3Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self) -> int:
        return self.found.size

    def read(self, size: int = -1, /) -> bytes:
        left = self.found.size - self._position
        room = memoryview(bytearray(left if size < 0 else min(size, left)))
        done = 0
        while done < len(room) and (count := self.readinto(room[done:])):
            done += count
        return bytes(room[:done])

    def readinto(self, room: Any, /) -> int:
        view = memoryview(room)[: self.found.size - self._position]
        if not len(view):
            return 0
        if self._held is not None:
            view[:] = self._held[self._position : self._position + len(view)]
            count = len(view)
        else:
            count = self.client.repeat(self.place, lambda: self._read_some(view))
        self._position += count
        return count

    def read_range(self, start: int, count: int) -> bytes:
        count = max(0, min(count, self.found.size - start))
        if self._held is None and start == 0 and self.found.size <= WHOLE:
            self._held = self._fetch(0, self.found.size)
        if self._held is not None:
            return self._held[start : start + count]
        return self._fetch(start, count)

    def close(self) -> None:
        """Ends a request that is under way."""
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def _read_some(self, view: memoryview) -> int:
        """Bytes at the position; begins a request where none is under way, as after an error."""
        try:
            if self._body is None:
                self._body = self._get(self._position, self.found.size)
            count = self._body.readinto(view)
            if not count:
                raise S3Error(errno.EIO, "the connection ended too early", self.place.url, may_pass=True)
            return count
        except BaseException:
            self.close()
            raise

    def _fetch(self, start: int, count: int) -> bytes:
        if not count:
            return b""

        def fetch() -> bytes:
            body = self._get(start, start + count)
            try:
                data = body.read()
            finally:
                body.close()
            if len(data) != count:
                raise S3Error(errno.EIO, "the connection ended too early", self.place.url, may_pass=True)
            return data

        return self.client.repeat(self.place, fetch)

    def _get(self, start: int, stop: int) -> Any:
        return get_body(self.client, self.place, start, stop, self.found.etag)


def get_body(client: S3Client, place: Place, start: int, stop: int, etag: str) -> Any:
    """The body of an object, or of a range of it.

    Raises:
      S3Error: the object is another one than the ETag says.
      OSError: see `S3Client.request`.
    """
    arguments = {"IfMatch": etag} if etag else {}
    try:
        answer = client.request_once(
            place, "get_object", Key=place.key, Range=f"bytes={start}-{stop - 1}", **arguments
        )
    except FileExistsError:
        raise S3Error(errno.ESTALE, "was written again while it was read", place.url) from None
    except FileNotFoundError:
        if etag:
            raise S3Error(errno.ESTALE, "was removed while it was read", place.url) from None
        raise
    return answer["Body"]
