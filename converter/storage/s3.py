"""Objects of S3 and of stores that speak its protocol."""

import base64
import errno
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from crc32c import crc32c

from converter.storage.base import CONVERSION, DIRECTORY, FILE, Blob, Mark, Reader
from converter.storage.listing import Page
from converter.storage.object_reader import ObjectReader
from converter.storage.remote import ObjectStorage, split_url
from converter.storage.retries import retried
from converter.storage.s3_client import BytesFile, S3Client
from converter.storage.s3_errors import translate
from converter.storage.s3_writer import LEAST_PART, S3Writer

PAGE = 1000
"""Names of one listing request at most."""

ROOMS = 10
"""Writers that hold a part at once: more threads than this wait, so that memory stays within bounds."""

READ_SIZE = 1 << 20


class S3Storage(ObjectStorage):
    """See `base.Storage`. The version of an object is its ETag."""

    def __init__(self) -> None:
        super().__init__()
        self.client = S3Client()
        self.copies_with_sums = True
        """Whether the store reports the checksum of what it copies; false once it did not."""
        self.rooms = threading.Semaphore(ROOMS)

    def pages(
        self, prefix: str, *, shallow: bool = False, most: int | None = None, start: str = "", stop: str = ""
    ) -> Iterator[Page]:
        bucket, beginning = split_url(prefix)
        arguments: dict[str, Any] = {"Prefix": beginning, "MaxKeys": min(most or PAGE, PAGE)}
        if shallow:
            arguments["Delimiter"] = "/"
        if start:
            arguments["StartAfter"] = split_url(start)[1]
        while True:
            page = self.client.call(prefix, "list_objects_v2", **arguments)
            names = [one["Prefix"].removesuffix("/") for one in page.get("CommonPrefixes", ())]
            blobs = [_blob(f"s3://{bucket}/{one['Key']}", one, one["Size"]) for one in page.get("Contents", ())]
            within = [blob for blob in blobs if not stop or blob.name < stop]
            more = bool(page.get("IsTruncated")) and len(within) == len(blobs)
            yield Page(
                blobs=[*within, *(Blob(name=f"s3://{bucket}/{name}", kind=DIRECTORY) for name in names)], more=more
            )
            if most or not more:
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def head(self, name: str) -> Blob:
        if not split_url(name)[1]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)  # a bucket is not an object
        try:
            answer = self.client.call(name, "head_object", ChecksumMode="ENABLED")
        except FileNotFoundError:
            raise
        except OSError:
            # Answers to HEAD have no body, which would say more: a wrong clock and an expired token are both 403.
            self.get(name, 0, 1, None).close()
            raise
        return _blob(name, answer, answer["ContentLength"])

    def get(self, name: str, start: int, stop: int | None, version: int | str | None) -> "S3Body":
        arguments: dict[str, Any] = {"IfMatch": version} if version else {}
        if start or stop is not None:
            arguments["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        try:
            answer = self.client.once(name, "get_object", **arguments)
        except FileExistsError:
            raise OSError(errno.ESTALE, "was written again while it was read", name) from None
        except FileNotFoundError:
            if version:
                raise OSError(errno.ESTALE, "was removed while it was read", name) from None
            raise
        return S3Body(name, answer["Body"])

    def put(self, name: str, data: bytes, *, mark: Mark | None = None, version: int | str | None = None) -> Blob:
        tags = {} if mark is None else {CONVERSION: mark.conversion}
        return self.insert(name, data, tags, once=mark is not None or version == 0, etag=str(version or ""))

    def insert(self, name: str, data: Any, tags: dict[str, str], *, once: bool, etag: str = "") -> Blob:
        """Writes an object in one request, with the checksum that the store has to find.

        A request that failed may have been carried out: what is there then counts as written if it is the same.

        Args:
          name: its URL.
          data: its content.
          tags: its metadata.
          once: nothing is replaced.
          etag: the version that is replaced; empty for any.

        Raises:
          FileExistsError: something else is there.
        """
        checksum = crc32c(data).to_bytes(4, "big")
        condition = {"IfNoneMatch": "*"} if once else {"IfMatch": etag} if etag else {}

        def send() -> Any:
            return self.client.once(
                name, "put_object", Body=BytesFile(memoryview(data)), ContentLength=len(data), Metadata=tags,
                ChecksumAlgorithm="CRC32C", ChecksumCRC32C=base64.b64encode(checksum).decode(), **condition,
            )  # fmt: skip

        try:
            answer = retried(name, send)
        except FileExistsError:
            found = self.describe(self.head(name))
            if (found.checksum, found.size, dict(found.tags)) != (checksum, len(data), tags):
                raise
            return found
        return Blob(name=name, kind=FILE, size=len(data), version=answer["ETag"], checksum=checksum, tags=tags)

    def moves(self, source: Reader) -> bool:
        own = isinstance(source, ObjectReader) and source.storage is self
        return own and self.copies_with_sums and source.size() >= LEAST_PART

    def described(self, blobs: Iterable[Blob]) -> Iterable[Blob]:
        """See `ObjectStorage`; a request for each, because listings of S3 show neither tags nor checksums."""
        return [blob for blob in self.together(self._describe_listed, list(blobs)) if blob is not None]

    def look(self, name: str) -> Blob | None:
        try:
            return self.describe(self.head(name))
        except FileNotFoundError:
            return None

    def _describe_listed(self, blob: Blob) -> Blob | None:
        return blob if blob.kind != FILE else self.look(blob.name)

    def describe(self, blob: Blob) -> Blob:
        """An object with its checksum; where the store does not tell it, its content is read."""
        if blob.checksum is not None:
            return blob
        checksum = 0
        with ObjectReader(self, blob) as reader:
            while piece := reader.read(READ_SIZE):
                checksum = crc32c(piece, checksum)
        return replace(blob, checksum=checksum.to_bytes(4, "big"))

    def delete(self, name: str, version: int | str | None = None) -> None:
        try:
            self.client.call(name, "delete_object", **({"IfMatch": version} if version else {}))
        except FileNotFoundError:
            pass

    def create(self, name: str, size: int = 0, mark: Mark | None = None) -> S3Writer:
        return S3Writer(self, name, size, mark)

    def kvstore(self, directory: str) -> dict[str, Any]:
        return self.client.kvstore(directory.removesuffix("/.").rstrip("/") + "/")

    def abort_uploads(self, directory: str) -> int:
        prefix = directory.rstrip("/") + "/"
        bucket, start = split_url(prefix)
        found: list[tuple[str, str]] = []
        arguments: dict[str, Any] = {"Prefix": start}
        while True:
            page = self.client.call(prefix, "list_multipart_uploads", **arguments)
            found += [(f"s3://{bucket}/{one['Key']}", one["UploadId"]) for one in page.get("Uploads", ())]
            if not page.get("IsTruncated"):
                break
            arguments.update(KeyMarker=page["NextKeyMarker"], UploadIdMarker=page["NextUploadIdMarker"])
        self.together(self._abort_upload, found)
        return len(found)

    def _abort_upload(self, upload: tuple[str, str]) -> None:
        name, number = upload
        try:
            self.client.call(name, "abort_multipart_upload", UploadId=number)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


class S3Body:
    """The content of one answer."""

    def __init__(self, name: str, body: Any):
        self._name = name
        self._body = body

    def readinto(self, room: Any, /) -> int:
        try:
            return self._body.readinto(room)
        except Exception as error:
            raise translate(error, self._name) from None

    def close(self) -> None:
        self._body.close()


def _blob(name: str, found: dict[str, Any], size: int) -> Blob:
    """An object as a listing or a HEAD request shows it."""
    # A checksum of checksums ends in a dash and the number of parts.
    text = found.get("ChecksumCRC32C", "")
    return Blob(
        name=name,
        kind=FILE,
        size=size,
        version=found["ETag"],
        checksum=base64.b64decode(text) if text and "-" not in text else None,
        storage_class=found.get("StorageClass", "STANDARD"),
        tags=found.get("Metadata", {}),
    )
