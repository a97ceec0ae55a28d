"""Objects of S3 and of stores that speak its protocol."""

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Any

from converter.storage.base import DIRECTORY, FILE, Blob, Limits, Space
from converter.storage.s3_client import Found, Place, S3Client, place_of
from converter.storage.s3_reader import S3Reader, get_body

NEARBY = 20
"""A name and a prefix of the same name are usually this near to each other in a listing."""

FEW = 8
"""So many names are looked up one by one, more of them by a listing."""

LONGEST_KEY = 1024


class S3Storage:
    """See `base.Storage`. What a listing shows is pinned: later reads want the same ETag."""

    def __init__(self) -> None:
        self.client = S3Client()
        self._pins: dict[str, Found] = {}

    def resolve(self, name: str) -> str:
        return name

    def stat(self, name: str) -> Blob:
        place = place_of(name)
        found = self._find(place) if place.key else Found(key="/") if self._holds(place) else None
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._blob(place, found, name)

    def exists(self, name: str) -> bool:
        try:
            self.stat(name)
        except OSError:
            return False
        return True

    def is_directory(self, name: str) -> bool:
        try:
            return self._holds(place_of(name))
        except OSError:
            return False  # as of a local one that is not for us to see; `stat` says why

    def is_mount(self, name: str) -> bool:  # noqa: ARG002
        return False

    def is_writable(self, directory: str) -> bool:  # noqa: ARG002
        return True

    def names(self, directory: str) -> "list[str]":
        return [blob.name for blob in self.list(directory)]

    def list(self, directory: str) -> Iterator[Blob]:
        place = _directory(directory)
        is_empty = True
        for found in self.client.list(place, prefix=place.key, delimiter="/"):
            is_empty = False
            if found.key != place.key:
                yield self._blob(place, found, found.key.removeprefix(place.key).rstrip("/"))
        if is_empty and place.key:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)

    def walk(self, directory: str) -> Iterator[Blob]:
        place = _directory(directory)
        seen: set[str] = set()
        for found in self.client.list(place, prefix=place.key):
            name = found.key.removeprefix(place.key)
            for above in _above(name):
                if above not in seen:
                    seen.add(above)
                    yield Blob(name=above, kind=DIRECTORY)
            if not name.endswith("/") and name:
                yield self._blob(place, found, name)

    def is_unfinished(self, name: str) -> bool:  # noqa: ARG002
        return False

    def missing(self, names: Iterable[str]) -> "list[str]":
        wanted = list(names)
        if len(wanted) <= FEW:
            return [name for name in wanted if not self._is_file(name)]
        above = os.path.dirname(os.path.commonprefix(wanted) + "x")
        there = {f"{above}/{blob.name}" for blob in self.walk(above) if blob.kind == FILE}
        return [name for name in wanted if name not in there]

    def read(self, name: str, limit: int) -> bytes:
        place = place_of(name)

        def read() -> bytes:
            body = get_body(self.client, place, 0, limit, "")
            try:
                return body.read()
            finally:
                body.close()

        try:
            return self.client.repeat(place, read)
        except OSError as error:
            if "InvalidRange" in str(error):
                return b""  # an empty object has no first byte
            raise

    def open(self, name: str) -> S3Reader:
        place = place_of(name)
        return S3Reader(self.client, place, self._pins.get(name) or self._pin(name, self.client.head(place)))

    def kvstore(self, directory: str) -> dict[str, Any]:
        return self.client.kvstore(_directory(directory))

    def space(self, name: str) -> Space | None:  # noqa: ARG002
        return None

    def limits(self, name: str) -> Limits:
        length = LONGEST_KEY + len(f"s3://{place_of(name).bucket}/")
        return Limits(name=LONGEST_KEY, blob=LONGEST_KEY, path=length)

    def _is_file(self, name: str) -> bool:
        try:
            return self.stat(name).kind == FILE
        except OSError:
            return False

    def _holds(self, place: Place) -> bool:
        """Whether anything is below a place; a bucket is there even if it is empty."""
        prefix = _directory(place.url).key
        return next(self.client.list(place, prefix=prefix, limit=1), None) is not None or not prefix

    def _find(self, place: Place) -> Found | None:
        """What has a name: an object, else a common prefix; one listing tells both."""
        folder = place.key + "/"
        names = 0
        for found in self.client.list(place, prefix=place.key, delimiter="/", limit=NEARBY):
            names += 1
            if found.key in (place.key, folder):
                return found
        if names < NEARBY:
            return None
        below = next(self.client.list(place, prefix=folder, limit=1), None)
        return Found(key=folder) if below else None

    def _blob(self, place: Place, found: Found, name: str) -> Blob:
        if found.key.endswith("/"):
            return Blob(name=name, kind=DIRECTORY)
        self._pin(f"s3://{place.bucket}/{found.key}", found)
        return Blob(name=name, kind=FILE, size=found.size, version=found.etag)

    def _pin(self, name: str, found: Found) -> Found:
        self._pins[name] = found
        return found


def _directory(url: str) -> Place:
    """The place whose key is the prefix of all that is below a directory."""
    place = place_of(url)
    key = place.key.rstrip("/")
    return Place(url=url, bucket=place.bucket, key=f"{key}/" if key else "")


def _above(name: str) -> Iterator[str]:
    """The directories that a name is in, from the top."""
    end = name.find("/")
    while end >= 0:
        yield name[:end]
        end = name.find("/", end + 1)
