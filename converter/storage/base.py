"""What a storage can do: the one interface between checkpoints and the place where their bytes live.

Names are absolute paths, or URLs where a storage has its own scheme. Nothing here assumes that names form directories,
that a blob can be renamed, or that a blob can be written twice: an object store has none of these.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

FILE, DIRECTORY, OTHER, DANGLING, UNREADABLE = "file", "directory", "other", "dangling link", "unreadable"
"""Kinds of blobs. An object store has files, and prefixes for directories."""


class ReadError(Exception):
    """The source of a copy cannot be read, or changed meanwhile; its message says what happened, without the name.

    Errors of the target of a copy are `OSError`, as those of all other operations are.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """One entry of a storage.

    Attributes:
      name: its name below the place that was listed; the whole name from `stat`.
      kind: FILE, DIRECTORY, OTHER (a pipe, a device; in a walk, a link), DANGLING or UNREADABLE.
      size: bytes; 0 for a directory.
      version: differs where the content was written again: the time of change in nanoseconds, a generation, an ETag.
      checksum: the CRC-32C of the content, where the storage knows it without reading.
      problem: what a dangling link points to, why nothing can be said about an unreadable entry, or what another is.
      storage_class: what the store calls the class of an object; empty where there are none.
      tags: custom metadata of an object, where a listing shows it; see `Mark`.
    """

    name: str
    kind: str
    size: int = 0
    version: int | str = 0
    checksum: bytes | None = None
    problem: str = ""
    storage_class: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Whose an object is: what a conversion writes into a store carries this, and is only written if nothing is there.

    Attributes:
      conversion: the conversion's digest; the tag `CONVERSION` of the object.
      work_area: the URL below which objects go that are only needed meanwhile.
    """

    conversion: str
    work_area: str

    def is_on(self, blob: Blob | None) -> bool:
        """Whether an object is there and carries it."""
        return blob is not None and blob.tags.get(CONVERSION) == self.conversion


RESIDUE = bytes.fromhex("48674bc7")
"""The CRC-32C, as a store has it (big-endian), of any bytes with their own CRC-32C, little-endian, behind them."""

CONVERSION, CONTENT_SUM = "ax2mt-conversion", "ax2mt-crc32c"
"""Tags of the objects that we write: the conversion's digest; the CRC-32C, in hexadecimal digits, of what comes before
the four bytes of checksum at a chunk's end. The latter is missing where it was not known when the upload began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """The room that is left.

    Attributes:
      free: bytes that may still be written.
      place: what they are free on, for messages.
    """

    free: int
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bytes that names may have.

    Attributes:
      name: one part of a path.
      blob: the last part of a blob's path, which may be longer while it is written.
      path: a whole path.
    """

    name: int
    blob: int
    path: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """A finished tree and the place that it takes.

    Attributes:
      finished: the tree, in the work area.
      destination: its place; an empty directory there is filled and stays the one it is.
      replaced: where what was at the destination goes, if it cannot be exchanged in one step.
      is_marker: whether a top-level entry makes readers take the tree for complete; such entries come last.
      others: the names of all other top-level entries.
    """

    finished: str
    destination: str
    replaced: str
    is_marker: Callable[[str], bool]
    others: tuple[str, ...]


class Reader(Protocol):
    """An open blob: read from front to back, or by ranges. A context, which closes it."""

    def __enter__(self) -> "Reader": ...

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> None: ...

    def read(self, size: int = -1, /) -> bytes | None:
        """The next bytes, `size` at most; empty at the end."""
        ...

    def readinto(self, room: Any, /) -> int | None:
        """Puts the next bytes into memory; returns how many, 0 at the end."""
        ...

    def read_range(self, start: int, count: int) -> bytes:
        """Bytes at a position, fewer at the end; the next `read` is not affected."""
        ...

    def size(self) -> int:
        """The blob's bytes now."""
        ...


class Writer(Protocol):
    """A blob in the making: nothing is visible under its name before `commit`."""

    def write(self, data: Any) -> None:
        """Takes the next bytes."""
        ...

    def room(self) -> memoryview:
        """Memory of the writer's own, at least one byte, to put the next bytes into; `added` then takes them."""
        ...

    def added(self, count: int) -> None:
        """Takes bytes that were put at the start of `room`."""
        ...

    def copy_from(self, source: Reader, look: Callable[[memoryview], None]) -> int | None:
        """Takes all bytes of a blob in the cheapest way that the storage has; before any other write.

        A storage that knows the source's checksum may copy without reading, so that no byte passes this machine.

        Args:
          source: a blob from which nothing was read yet.
          look: is shown all bytes, in order; or none of them.

        Returns:
          None where `look` was shown all bytes, else their CRC-32C.

        Raises:
          ReadError: the source cannot be read, or changed its size meanwhile.
          OSError: the bytes cannot be written.
        """
        ...

    def commit(self) -> None:
        """Makes the blob appear, whole, in place of what had its name before."""
        ...

    def abort(self) -> None:
        """Gives the blob up; what had its name stays."""
        ...


def write_through(writer: Writer, data: Any) -> None:
    """Puts bytes into the memory that a writer offers, piece by piece."""
    view = memoryview(data).cast("B")
    while len(view):
        room = writer.room()[: len(view)]
        room[:] = view[: len(room)]
        writer.added(len(room))
        view = view[len(room) :]


class Lock(Protocol):
    """Keeps other processes away from a name, and ends with the process."""

    def is_in_place(self) -> bool:
        """Whether the lock is still the one that others would meet."""
        ...

    def close(self) -> None:
        """Releases the lock."""
        ...


class Storage(Protocol):
    """A place where blobs live. Operations raise `OSError`, with the name in `filename`, unless they say otherwise.

    Attributes:
      concurrency: requests that are worth having in flight at once; 1 where waiting is not what takes the time.
      renames: whether a finished tree can take its place in one step; in an object store, markers that come last do.
    """

    concurrency: int
    renames: bool

    def pin(self, directory: str, *, described: bool = False, parts: Iterable[str] = ()) -> None:
        """Lists all below a directory once, where that takes requests; it is read as it is now, until `release`.

        A blob that was written again since then cannot be read any more.

        Args:
          directory: a directory.
          described: tags and checksums are wanted too, be it for a request for each blob.
          parts: directories below it, such as those of arrays, between which a long listing can be divided.
        """
        ...

    def browsing(self, directory: str) -> AbstractContextManager[None]:
        """While something is looked for at or below a directory: each directory is listed once at most.

        What is asked about names is answered from these listings, where requests would be needed; what is opened is
        read in the version that was listed.
        """
        ...

    def release(self, directory: str) -> None:
        """Forgets what was pinned at, below or above a directory."""
        ...

    def resolve(self, name: str) -> str:
        """The name behind links, where the storage has links."""
        ...

    def stat(self, name: str) -> Blob:
        """What has a name, links followed. Raises `FileNotFoundError` where nothing has."""
        ...

    def exists(self, name: str) -> bool:
        """Whether anything has the name, be it a link that leads nowhere."""
        ...

    def is_directory(self, name: str) -> bool:
        """Whether the name is a directory's."""
        ...

    def is_mount(self, name: str) -> bool:
        """Whether a directory is a mount point, which cannot be replaced."""
        ...

    def is_writable(self, directory: str) -> bool:
        """Whether entries can be made in a directory, as far as that shows."""
        ...

    def names(self, directory: str) -> "list[str]":
        """The names of a directory's entries, in any order; cheaper than `list`."""
        ...

    def list(self, directory: str) -> Iterator[Blob]:
        """The entries of a directory, in any order."""
        ...

    def walk(self, directory: str) -> Iterator[Blob]:
        """All that is below a directory, its directories too; links are not followed. Nothing where it is not there."""
        ...

    def is_unfinished(self, name: str) -> bool:
        """Whether a name is one that writers use before `commit`: a killed process leaves such blobs."""
        ...

    def missing(self, names: Iterable[str]) -> "list[str]":
        """Which of these are not files."""
        ...

    def read(self, name: str, limit: int) -> bytes:
        """The content of a small file, `limit` bytes of it at most; fails for anything else, such as a pipe."""
        ...

    def open(self, name: str) -> Reader:
        """Opens a blob."""
        ...

    def location(self, name: str) -> str:
        """Where the bucket of a name is, such as a region; empty where that is not known, or makes no difference."""
        ...

    def kvstore(self, directory: str) -> dict[str, Any]:
        """TensorStore's specification of a directory."""
        ...

    def create(self, name: str, size: int = 0, mark: Mark | None = None) -> Writer:
        """Begins a blob of about `size` bytes; with a mark, one that nothing is replaced by (object stores only).

        Where something has the name already, `commit` succeeds if it carries the same mark, and leaves it.
        """
        ...

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Writes a small blob at once; `durable`: it survives a loss of power from then on."""
        ...

    def link(self, source: str, name: str) -> None:
        """Makes a name another one of a file; nothing is done where it is one already."""
        ...

    def make_directory(self, directory: str) -> None:
        """Makes a directory and those above it, where the storage has directories and they are not there."""
        ...

    def remove(self, name: str) -> None:
        """Removes a blob, or a directory with all below it; links are not followed."""
        ...

    def remove_empty(self, directory: str) -> None:
        """Removes a directory that is empty."""
        ...

    def flush(self, directory: str) -> None:
        """Makes a tree durable."""
        ...

    def lock(self, name: str) -> Lock:
        """Takes a lock on a name. Raises `BlockingIOError` where another process has it."""
        ...

    def space(self, name: str) -> Space | None:
        """The room that is left for a name that need not be there yet; None where there is no limit."""
        ...

    def limits(self, name: str) -> Limits:
        """How long names may be at the place of one that need not be there yet."""
        ...

    def prepare(self, destination: str, work_area: str) -> None:
        """Tries before any work whether a finished tree will be let in, and readies the work area for it.

        Raises:
          DestinationError: what is there cannot be filled or replaced.
        """
        ...

    def publish(self, publication: Publication) -> None:
        """Puts a finished tree in its place, the markers last.

        Raises:
          DestinationError: that failed; what was there stays.
        """
        ...

    def is_published(self, publication: Publication) -> bool:
        """Whether a tree that was being published has arrived."""
        ...

    def take_back(self, publication: Publication) -> None:
        """Undoes a publication that was killed before its last step.

        Raises:
          DestinationError: that failed.
        """
        ...
