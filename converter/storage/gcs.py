"""Cloud Storage, gs://: objects are read in the generation that was listed, and joined by the store itself.

A chunk that is passed through never comes here: `compose` joins the source's object with four bytes, which are its
CRC-32C that the store knows. Composed objects have a CRC-32C too, and that of a text with its own CRC-32C behind it is
always the same number, `RESIDUE`: a listing shows which chunks are whole.
"""

import base64
import errno
import itertools
from collections.abc import Iterator
from typing import Any

import xxhash

from converter.storage.base import CONVERSION, DIRECTORY, FILE, Blob, Mark
from converter.storage.gcs_client import GcsClient, object_path
from converter.storage.gcs_writer import GcsWriter
from converter.storage.listing import Page
from converter.storage.object_reader import Body
from converter.storage.remote import ObjectStorage, split_url
from converter.storage.retries import Transient

PAGE = 1000

FIELDS = "name,size,generation,crc32c,storageClass,metadata,customerEncryption"

BINARY = "application/octet-stream"


class GcsStorage(ObjectStorage):
    """See `base.Storage`; versions are generations."""

    def __init__(self) -> None:
        super().__init__()
        self.client = GcsClient()

    def pages(
        self, prefix: str, *, shallow: bool = False, most: int | None = None, start: str = "", stop: str = ""
    ) -> Iterator[Page]:
        bucket, beginning = split_url(prefix)
        token: str | None = None
        while True:
            page = self.client.call(
                "GET", f"/storage/v1/b/{bucket}/o", prefix, params={
                    "prefix": beginning, "delimiter": "/" if shallow else None, "maxResults": most or PAGE,
                    "startOffset": split_url(start)[1] or None, "endOffset": split_url(stop)[1] or None,
                    "pageToken": token, "fields": f"nextPageToken,prefixes,items({FIELDS})",
                },
            )  # fmt: skip
            blobs = [_blob(bucket, item) for item in page.get("items", ())]
            blobs += [Blob(name=f"gs://{bucket}/{name[:-1]}", kind=DIRECTORY) for name in page.get("prefixes", ())]
            token = page.get("nextPageToken")
            yield Page(blobs=blobs, more=bool(token))
            if not token or most is not None:
                return

    def head(self, name: str) -> Blob:
        bucket, key = split_url(name)
        if not key:
            raise FileNotFoundError(errno.ENOENT, "is a bucket", name)
        return _blob(bucket, self.client.call("GET", object_path(bucket, key), name, params={"fields": FIELDS}))

    def get(self, name: str, start: int, stop: int | None, version: int | str | None) -> Body:
        headers = {} if not start and stop is None else {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        try:
            response = self.client.send(
                "GET", object_path(*split_url(name)), name, params={"alt": "media", "generation": version},
                headers=headers, streamed=True,
            )  # fmt: skip
        except FileNotFoundError:
            if version is None:
                raise
            text = "was removed or written again while it was read"
            raise OSError(errno.ESTALE, text, name) from None
        return _Content(response)

    def put(self, name: str, data: bytes, *, mark: Mark | None = None, version: int | str | None = None) -> Blob:
        tags = {} if mark is None else {CONVERSION: mark.conversion}
        return self.insert(name, data, tags, version)

    def insert(self, name: str, data: Any, tags: dict[str, str], version: int | str | None) -> Blob:
        """Writes an object in one request, with the checksum that the store has to find; see `put`.

        A request that failed may have been carried out: what is there then counts as written if it is the same.
        """
        from crc32c import crc32c

        bucket, key = split_url(name)
        checksum = crc32c(data).to_bytes(4, "big")
        resource: dict[str, Any] = {
            "name": key, "contentType": BINARY, "crc32c": base64.b64encode(checksum).decode(), "metadata": tags,
        }  # fmt: skip
        border, body = _multipart(resource, data)
        try:
            made = self.client.call(
                "POST", f"/upload/storage/v1/b/{bucket}/o", name, body=body,
                params={"uploadType": "multipart", "ifGenerationMatch": version, "fields": FIELDS},
                headers={"Content-Type": f"multipart/related; boundary={border}"},
            )  # fmt: skip
        except FileExistsError:
            there = self.find(name)
            if there is None or (there.checksum, there.size, dict(there.tags)) != (checksum, len(data), tags):
                raise
            return there
        return _blob(bucket, made)

    def find(self, name: str) -> Blob | None:
        """The object as it is now; None where none is."""
        try:
            return self.head(name)
        except FileNotFoundError:
            return None

    def compose(self, name: str, parts: list[Blob], tags: dict[str, str], *, delete_parts: bool) -> Blob:
        """Joins objects of the same bucket to one that was not there.

        Raises:
          FileExistsError, FileNotFoundError: there is one, or a part is not there any more in its generation.
        """
        bucket, key = split_url(name)
        sources = [
            {
                "name": split_url(part.name)[1],
                "generation": str(part.version),
                "objectPreconditions": {"ifGenerationMatch": str(part.version)},
            }
            for part in parts
        ]
        body: dict[str, Any] = {
            "sourceObjects": sources,
            "destination": {"contentType": BINARY, "metadata": tags},
        }
        if delete_parts:
            body["deleteSourceObjects"] = True
        params = {"ifGenerationMatch": 0}
        return _blob(
            bucket, self.client.call("POST", f"{object_path(bucket, key)}/compose", name, body=body, params=params)
        )

    def rewrite(self, source: Blob, name: str) -> Blob:
        """Copies an object inside the store, to any bucket and its default class."""
        bucket, key = split_url(name)
        path = (
            f"{object_path(*split_url(source.name))}/rewriteTo/b/{bucket}/o/{object_path('', key).rpartition('/')[2]}"
        )
        token: str | None = None
        while True:
            answer = self.client.call(
                "POST", path, source.name, body={"contentType": BINARY},
                params={"sourceGeneration": source.version, "rewriteToken": token},
            )  # fmt: skip
            if answer.get("done"):
                return _blob(bucket, answer["resource"])
            token = answer["rewriteToken"]

    def delete(self, name: str, version: int | str | None = None) -> None:
        try:
            self.client.call("DELETE", object_path(*split_url(name)), name, params={"ifGenerationMatch": version})
        except FileNotFoundError:
            pass

    def create(self, name: str, size: int = 0, mark: Mark | None = None) -> GcsWriter:
        return GcsWriter(self, name, size, mark)

    def location(self, name: str) -> str:
        bucket, _ = split_url(name)
        try:
            return self.client.call("GET", f"/storage/v1/b/{bucket}", name, params={"fields": "location"})["location"]
        except OSError:
            return ""  # it takes a permission of its own, which copying does not need

    def kvstore(self, directory: str) -> dict[str, Any]:
        bucket, name = split_url(directory)
        return {"driver": "gcs", "bucket": bucket, "path": name.rstrip("/") + "/" if name else ""}


class _Content:
    """See `object_reader.Body`."""

    def __init__(self, response: Any):
        self._response = response

    def readinto(self, room: Any, /) -> int:
        from urllib3.exceptions import HTTPError

        try:
            return self._response.raw.readinto(room)
        except (HTTPError, OSError) as error:
            raise Transient(f"the connection failed: {' '.join(str(error).split())[:120]}") from None

    def close(self) -> None:
        self._response.close()


_borders = itertools.count()


def _multipart(resource: dict[str, Any], data: Any) -> tuple[str, bytes]:
    """A border that is not in the data, and the body."""
    import json

    border = f"ax2mt-{xxhash.xxh3_128_hexdigest(data)}-{next(_borders)}"
    head = f"--{border}\r\nContent-Type: application/json\r\n\r\n{json.dumps(resource)}\r\n--{border}\r\n"
    return border, b"".join((f"{head}Content-Type: {BINARY}\r\n\r\n".encode(), data, f"\r\n--{border}--".encode()))


def _blob(bucket: str, item: dict[str, Any]) -> Blob:
    """An object's resource; one that is encrypted with a key of the user has no checksum that is any use."""
    checksum = item.get("crc32c", "")
    known = checksum and "customerEncryption" not in item
    return Blob(
        name=f"gs://{bucket}/{item['name']}",
        kind=FILE,
        size=int(item["size"]),
        version=int(item["generation"]),
        checksum=base64.b64decode(checksum) if known else None,
        storage_class=item.get("storageClass", ""),
        tags=item.get("metadata", {}),
    )
