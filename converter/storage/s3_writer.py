"""An object of S3 in the making: one request if it is small, else parts; and parts that the store copies by itself.

A copied part comes back with its CRC-32C, so that a chunk gets the checksum at its end without a byte of it being read.
"""

import base64
import errno
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from converter.storage.base import CONTENT_SUM, CONVERSION, Mark, Reader, ReadError, write_through
from converter.storage.crc import combine
from converter.storage.object_reader import ObjectReader, copy_bytes
from converter.storage.remote import split_url
from converter.storage.retries import Transient, retried
from converter.storage.s3_client import BytesFile
from converter.storage.s3_errors import UploadGone

if TYPE_CHECKING:
    from converter.storage.s3 import S3Storage

PART_SIZE = 8 << 20
"""Bytes that are held and sent at once. At 100 ms a request, one upload moves 80 MB/s."""

LEAST_MEMORY = 4 << 10
SUM_BYTES = 4

MOST_PARTS = 10_000
LEAST_PART = 5 << 20
"""Bytes of a part that is not the last one, at least."""

LARGEST_COPY = 5 << 30
"""Bytes of one copied part, at most. https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html"""


class S3Writer:
    """See `base.Writer`."""

    def __init__(self, storage: "S3Storage", name: str, size: int, mark: Mark | None):
        """Nothing is sent before a part is full.

        Args:
          storage: where it goes.
          name: its URL.
          size: its bytes, about.
          mark: whose it is; with one, nothing is replaced.
        """
        self.name = name
        self._storage = storage
        self._client = storage.client
        self._mark = mark
        self._part_size = max(PART_SIZE, math.ceil(1.1 * size / MOST_PARTS))
        self._memory = bytearray()
        self._first_size = min(self._part_size, size + SUM_BYTES)
        self._held = 0
        self._upload = ""
        self._parts: list[dict[str, Any]] = []
        self._sum = 0
        self._is_done = False
        """An equal run made the object while this one was at it: what comes is dropped."""

    def write(self, data: Any) -> None:
        write_through(self, data)

    def room(self) -> memoryview:
        if not self._memory:
            self._storage.rooms.acquire()
            self._memory = bytearray(max(self._first_size, LEAST_MEMORY))
        elif self._held == len(self._memory):
            # A new one: who holds a view of the old one keeps that.
            self._memory = self._memory + bytearray(min(self._held, self._part_size - self._held))
        return memoryview(self._memory)[self._held :]

    def added(self, count: int) -> None:
        self._held += count
        if self._held == self._part_size:
            self._send_part()

    def copy_from(self, source: Reader, look: Callable[[memoryview], None]) -> int | None:
        if isinstance(source, ObjectReader) and self._storage.moves(source):
            try:
                checksum = self._copy_parts(source)
            except UploadGone:
                checksum = self._copy_parts(source)  # by an equal run that tidied up; `commit` finds what it made
            if checksum is not None:
                return checksum
        copy_bytes(source, look, self.write)
        return None

    def commit(self) -> None:
        if self._upload and self._held:
            self._send_part()
        if self._upload:
            self._complete()
        elif not self._is_done:
            self._put()
        self._forget()

    def abort(self) -> None:
        self._forget()
        upload, self._upload = self._upload, ""
        if upload:
            try:
                self._client.once(self.name, "abort_multipart_upload", UploadId=upload)
            except (OSError, Transient):
                pass  # a lifecycle rule removes what is left

    def _copy_parts(self, source: ObjectReader) -> int | None:
        """Lets the store copy a blob; returns its CRC-32C, or None where the store does not tell it."""
        blob = source.blob
        bucket, key = split_url(blob.name)
        self._parts, self._sum = [], 0
        self._begin()
        for start, stop in copied_ranges(blob.size):
            arguments = {"CopySourceRange": f"bytes={start}-{stop - 1}"} if stop - start < blob.size else {}
            try:
                answer = self._client.call(
                    self.name, "upload_part_copy", UploadId=self._upload, PartNumber=len(self._parts) + 1,
                    CopySource={"Bucket": bucket, "Key": key}, CopySourceIfMatch=blob.version, **arguments,
                )["CopyPartResult"]  # fmt: skip
            except FileExistsError:
                raise ReadError("was written again while it was read") from None
            except FileNotFoundError:
                raise ReadError("was removed while it was read") from None
            if "ChecksumCRC32C" not in answer:
                self._storage.copies_with_sums = False
                self.abort()
                self._parts, self._sum = [], 0
                return None
            checksum = base64.b64decode(answer["ChecksumCRC32C"])
            self._note_part(answer["ETag"], int.from_bytes(checksum, "big"), stop - start)
        return self._sum

    def _put(self) -> None:
        """Sends a small object at once; of a chunk the last bytes are the checksum of what comes before."""
        data = memoryview(self._memory)[: self._held]
        tail = data[-SUM_BYTES:]
        content = {CONTENT_SUM: f"{int.from_bytes(tail, 'little'):08x}"} if len(tail) == SUM_BYTES else {}
        self._storage.insert(self.name, data, self._tags(content), once=self._mark is not None)

    def _tags(self, more: dict[str, str]) -> dict[str, str]:
        return {CONVERSION: self._mark.conversion, **more} if self._mark else {}

    def _forget(self) -> None:
        """Leaves the memory to other writers."""
        if self._memory:
            self._memory = bytearray()
            self._storage.rooms.release()

    def _send_part(self) -> None:
        if self._is_done:
            self._held = 0
            return
        if not self._upload:
            self._begin()
        body = memoryview(self._memory)[: self._held]
        checksum = crc32c(body)

        def send() -> Any:
            return self._client.once(
                self.name, "upload_part", UploadId=self._upload, PartNumber=len(self._parts) + 1, Body=BytesFile(body),
                ContentLength=len(body), ChecksumCRC32C=_text(checksum),
            )  # fmt: skip

        try:
            answer = retried(self.name, send)
        except UploadGone:
            if not self._is_there(None):
                raise
            self._upload, self._held, self._is_done = "", 0, True
            return
        self._note_part(answer["ETag"], checksum, self._held)
        self._held = 0

    def _note_part(self, etag: str, checksum: int, size: int) -> None:
        part = {"PartNumber": len(self._parts) + 1, "ETag": etag, "ChecksumCRC32C": _text(checksum)}
        self._parts.append(part)
        self._sum = combine(self._sum, checksum, size)

    def _begin(self) -> None:
        self._upload = self._client.call(
            self.name, "create_multipart_upload", ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT",
            Metadata=self._tags({}),
        )["UploadId"]  # fmt: skip

    def _complete(self) -> None:
        """Makes the object appear; one that is there already and the same is left, whoever made it."""
        condition = {"IfNoneMatch": "*"} if self._mark else {}

        def complete() -> None:
            try:
                self._client.once(
                    self.name, "complete_multipart_upload", UploadId=self._upload, ChecksumType="FULL_OBJECT",
                    ChecksumCRC32C=_text(self._sum), MultipartUpload={"Parts": self._parts}, **condition,
                )  # fmt: skip
            except Transient:
                # The answer was lost, or it was a conflict (409) with somebody who was quicker.
                if not self._mark or not self._is_there(self._sum):
                    raise

        try:
            retried(self.name, complete)
        except (FileExistsError, UploadGone) as error:
            if not self._is_there(self._sum):
                raise OSError(errno.EEXIST, error.strerror, self.name) from None
            self.abort()

    def _is_there(self, checksum: int | None) -> bool:
        """Whether the object is there as this writer would have made it, as far as its checksum is known."""
        try:
            found = self._storage.head(self.name)
        except FileNotFoundError:
            return False
        own = self._mark is None or self._mark.is_on(found)
        return own and (checksum is None or self._storage.describe(found).checksum == checksum.to_bytes(4, "big"))


def copied_ranges(size: int) -> Iterator[tuple[int, int]]:
    """Start and stop of the parts that a blob is copied in: as few as the limit allows, of about one size."""
    count = math.ceil(size / LARGEST_COPY)
    yield from itertools.pairwise(size * number // count for number in range(count + 1))


def _text(checksum: int) -> str:
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()
