"""What stores of objects have in common: all of `base.Storage`, made of the few requests that differ.

A store of objects has no directories, no renames and no locks. It has listings that are never stale, versions to read
by, and writes that only succeed where nothing is. Each request is retried where that helps (see `retries`); callers do
not retry.
"""

# ruff: noqa: B027 - what a store of objects has no need of does nothing
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from converter.errors import UsageError
from converter.storage.base import DIRECTORY, FILE, Blob, Limits, Mark, Publication, Reader, Space, Writer
from converter.storage.listing import Page, list_divided
from converter.storage.object_reader import Body, ObjectReader
from converter.storage.snapshot import Listings, Snapshot

CONCURRENCY = 32
"""Requests in flight: at 100 ms each, 320 a second."""

LONGEST_NAME = 1024
"""Bytes of an object's name, in all stores that we know."""


class ObjectStorage(ABC):
    """See `base.Storage`. Names are URLs: a scheme, a bucket, and an object's name."""

    concurrency = CONCURRENCY
    renames = False

    def __init__(self) -> None:
        self._snapshots: dict[str, Snapshot] = {}
        self._listings: list[Listings] = []

    # Requests. All of them retry.

    @abstractmethod
    def pages(
        self, prefix: str, *, shallow: bool = False, most: int | None = None, start: str = "", stop: str = ""
    ) -> Iterator[Page]:
        """Objects whose URLs begin with a prefix, under their URLs, in order, a request a page.

        Args:
          prefix: a bucket's URL with a slash behind it, and a beginning of names.
          shallow: of names with a slash behind the prefix, only what is before it is listed, once, as a directory.
          most: so many at most, where that saves work.
          start: the URL that names come after; an object of that name may come too.
          stop: the URL that names come before; empty for all.
        """

    @abstractmethod
    def head(self, name: str) -> Blob:
        """An object without its content. Raises `FileNotFoundError` where none is."""

    @abstractmethod
    def get(self, name: str, start: int, stop: int | None, version: int | str | None) -> Body:
        """Asks for the content of an object, once.

        Args:
          name: the object.
          start: the first byte.
          stop: behind the last byte; None for the end.
          version: the one that is meant; None for whichever is there.

        Raises:
          Transient: the request is worth being sent again.
          OSError: there is none, or another version; or it may not be read.
        """

    @abstractmethod
    def put(self, name: str, data: bytes, *, mark: Mark | None = None, version: int | str | None = None) -> Blob:
        """Writes a small object at once.

        Args:
          name: the object.
          data: its content.
          mark: whose it is.
          version: what it replaces: a version, 0 for nothing, None for whatever is there.

        Raises:
          FileExistsError: something else is there.
        """

    @abstractmethod
    def delete(self, name: str, version: int | str | None = None) -> None:
        """Removes an object, or only that version of it; nothing is done where it is not there."""

    @abstractmethod
    def create(self, name: str, size: int = 0, mark: Mark | None = None) -> Writer: ...

    @abstractmethod
    def kvstore(self, directory: str) -> dict[str, Any]: ...

    def moves(self, source: Reader) -> bool:
        """Whether an open blob can be copied into this store without its bytes passing this machine."""
        return isinstance(source, ObjectReader) and source.storage is self and source.blob.checksum is not None

    def described(self, blobs: Iterable[Blob]) -> Iterable[Blob]:
        """Listed objects with tags and checksums, where listings do not show them; what is gone is left out."""
        return blobs

    def look(self, name: str) -> Blob | None:
        """An object with its tags and its checksum; None where none is."""
        return self._find(name)

    def abort_uploads(self, directory: str) -> int:  # noqa: ARG002
        """Ends the uploads below a directory that nobody will finish, where the store keeps their parts; how many."""
        return 0

    # What is made of them.

    def objects(self, prefix: str, *, shallow: bool = False, most: int | None = None) -> Iterator[Blob]:
        """What all pages show; see `pages`."""
        for page in self.pages(prefix, shallow=shallow, most=most):
            yield from page.blobs

    def pin(self, directory: str, *, described: bool = False, parts: Iterable[str] = ()) -> None:
        self.release(directory)
        prefix = _below(directory)
        cuts = sorted(_below(part) for part in parts)
        blobs = list_divided(lambda start, stop: self._first_page(prefix, start, stop), cuts, self._threads)
        self._snapshots[prefix] = Snapshot(prefix, self.described(blobs) if described else blobs)

    @contextmanager
    def browsing(self, directory: str) -> Iterator[None]:
        prefix = _below(directory)
        if any(prefix.startswith(one.prefix) for one in self._listings):
            yield
            return
        listings = Listings(prefix, lambda below: self.objects(below, shallow=True), self._find)
        self._listings.append(listings)
        try:
            yield
        finally:
            self._listings.remove(listings)

    def release(self, directory: str) -> None:
        prefix = _below(directory)
        for other in list(self._snapshots):
            if other.startswith(prefix) or prefix.startswith(other):
                self._snapshots.pop(other, None)

    def resolve(self, name: str) -> str:
        return name

    def stat(self, name: str) -> Blob:
        name = name.removesuffix("/.").rstrip("/")
        if blob := self._file(name):
            return blob
        if self.is_directory(name):
            return Blob(name=name, kind=DIRECTORY)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def exists(self, name: str) -> bool:
        return self._file(name) is not None or self.is_directory(name)

    def is_directory(self, name: str) -> bool:
        prefix = _below(name)
        known = self._known(name)
        return known.has_below(prefix) if known else next(self.objects(prefix, most=1), None) is not None

    def is_mount(self, name: str) -> bool:  # noqa: ARG002
        return False

    def is_writable(self, directory: str) -> bool:  # noqa: ARG002
        return True

    def names(self, directory: str) -> "list[str]":
        return [blob.name for blob in self.list(directory)]

    def list(self, directory: str) -> Iterator[Blob]:
        prefix = _below(directory)
        known = self._known(directory)
        found = list(known.entries(prefix) if known else self.objects(prefix, shallow=True))
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        return _inside(prefix, found)

    def walk(self, directory: str) -> Iterator[Blob]:
        prefix = _below(directory)
        snapshot = self._snapshot(directory)
        return _inside(prefix, snapshot.below(prefix) if snapshot else self.objects(prefix))

    def is_unfinished(self, name: str) -> bool:  # noqa: ARG002
        return False

    def missing(self, names: Iterable[str]) -> "list[str]":
        wanted = list(names)
        found = self.together(self._file, wanted)
        return [name for name, blob in zip(wanted, found, strict=True) if blob is None]

    def read(self, name: str, limit: int) -> bytes:
        with self.open(name) as file:
            return file.read(limit) or b""

    def open(self, name: str) -> "ObjectReader":
        blob = self._file(name)
        if blob is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return ObjectReader(self, blob)

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:  # noqa: ARG002
        self.put(name, data)

    def link(self, source: str, name: str) -> None:  # noqa: ARG002
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)

    def make_directory(self, directory: str) -> None:
        """There are none."""

    def remove(self, name: str) -> None:
        """Removes an object and all below its name, several at once."""
        self.release(name)
        names = [blob.name for blob in self.objects(_below(name))]
        self.together(self.delete, [*names, *([] if names else [name])])

    def remove_empty(self, directory: str) -> None:
        """There are no directories."""

    def flush(self, directory: str) -> None:
        """What was written is durable."""

    def lock(self, name: str) -> Any:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), name)

    def space(self, name: str) -> Space | None:  # noqa: ARG002
        return None

    def limits(self, name: str) -> Limits:  # noqa: ARG002
        return Limits(name=LONGEST_NAME, blob=LONGEST_NAME, path=LONGEST_NAME)

    def prepare(self, destination: str, work_area: str) -> None:
        """Nothing can stand in the way that was not seen before."""

    def publish(self, publication: Publication) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), publication.destination)

    def is_published(self, publication: Publication) -> bool:  # noqa: ARG002
        return False

    def take_back(self, publication: Publication) -> None:
        """Nothing was moved."""

    def location(self, name: str) -> str:  # noqa: ARG002
        return ""

    def together(self, work: Callable[[Any], Any], items: "list[Any]") -> "list[Any]":
        """Results of requests that are sent at once, in order."""
        if len(items) < 2:
            return [work(item) for item in items]
        with self._threads(len(items)) as pool:
            return list(pool.map(work, items))

    def _threads(self, most: int = CONCURRENCY) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(most, self.concurrency), "ax2mt-store")

    def _first_page(self, prefix: str, start: str, stop: str) -> Page:
        """The first page of a range of names that shows any; a store may send empty ones before it."""
        for page in self.pages(prefix, start=start, stop=stop):
            if page.blobs or not page.more:
                return page
        return Page(blobs=(), more=False)

    def _snapshot(self, name: str) -> Snapshot | None:
        return next((one for one in list(self._snapshots.values()) if one.covers(name)), None)

    def _known(self, name: str) -> Snapshot | Listings | None:
        """The listings that a name is looked up in."""
        return self._snapshot(name) or next((one for one in list(self._listings) if one.covers(name)), None)

    def _file(self, name: str) -> Blob | None:
        if known := self._known(name):
            return known.get(name)
        return self._find(name)

    def _find(self, name: str) -> Blob | None:
        try:
            return self.head(name)
        except FileNotFoundError:
            return None


def needs_extra(extra: str, url_scheme: str, error: ImportError) -> UsageError:
    """What to install for a kind of URL."""
    package = (error.name or "a package").partition(".")[0]
    return UsageError(f"{url_scheme}:// URLs need {package}: pip install 'axlearn2maxtext[{extra}]'")


def split_url(name: str) -> tuple[str, str]:
    """Bucket and object name of a URL."""
    bucket, _, rest = name.partition("://")[2].partition("/")
    return bucket, rest


def _below(directory: str) -> str:
    return directory.removesuffix("/.").rstrip("/") + "/"


def _inside(prefix: str, blobs: Iterable[Blob]) -> Iterator[Blob]:
    """Blobs under their names below a prefix; without the empty objects that stand for directories in some tools."""
    for blob in blobs:
        name = blob.name.removeprefix(prefix)
        if name and not (blob.kind == FILE and name.endswith("/")):
            yield Blob(
                name=name, kind=blob.kind, size=blob.size, version=blob.version, checksum=blob.checksum,
                storage_class=blob.storage_class, tags=blob.tags,
            )  # fmt: skip
