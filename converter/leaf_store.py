"""Writes the chunks of one staged leaf: as files of a zarr directory, or as values of an OCDBT database.

A chunk appears under its key only when it is whole. Its checksum is computed on the way, and so is the digest of the
bytes as they are stored.
"""

import errno
import itertools
import json
import os
from collections.abc import Callable
from typing import Any, Protocol

from crc32c import crc32c

from converter.chunk_file import open_chunk_file
from converter.digest import start_chunk
from converter.errors import DestinationError
from converter.memory import format_size
from converter.plan import Leaf

READ_SIZE = 4 << 20
CRC_BYTES = 4


class Sink(Protocol):
    """Takes the bytes of one chunk in order; `commit` makes it appear."""

    takes_pages: bool

    def clone(self, source: int) -> bool: ...

    def write(self, data: Any) -> None: ...

    def write_pages(self, pages: memoryview) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class LeafStore:
    """The place of one leaf; safe to use from several threads."""

    def __init__(self, leaf: Leaf, directory: str, *, database_key: str | None):
        """Creates the leaf's directory and metadata, or takes over what an earlier run left.

        Args:
          leaf: the leaf.
          directory: its own directory.
          database_key: the leaf's key inside an OCDBT database; None for plain files.

        Raises:
          DestinationError: the directory or the metadata cannot be written.
        """
        self.leaf = leaf
        self.directory = directory
        self.digests: dict[tuple[int, ...], int] = {}
        self._database: Any = None
        metadata = leaf.encoding.metadata(leaf.shape, leaf.chunks, leaf.dtype)
        data = json.dumps(metadata, separators=(",", ":")).encode()
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise write_error(directory, error) from None
        if database_key is not None:
            self._database = _open_database(directory, database_key)
        self._put(leaf.encoding.metadata_name, data)

    @property
    def needs_whole_chunks(self) -> bool:
        """Whether a chunk is held in memory until it is committed, so that it had best come in one piece."""
        return self._database is not None

    def store_chunk(self, index: tuple[int, ...], size: int, fill: "Callable[[ChunkWriter], None]") -> None:
        """Stores one chunk.

        Args:
          index: the chunk's place in the leaf's grid.
          size: its bytes, about.
          fill: is called with a writer that takes the encoded bytes, in order.

        Raises:
          DestinationError: it cannot be written.
        """
        sink = self._sink(self.leaf.encoding.chunk_key(index), size)
        writer = ChunkWriter(sink, index, with_crc=self.leaf.encoding.crc32c)
        try:
            fill(writer)
            writer.commit()
        except OSError as error:
            sink.abort()
            raise write_error(self._name(index), error) from None
        except BaseException:
            sink.abort()
            raise
        self.digests[index] = writer.digest()

    def link_chunk(self, index: tuple[int, ...], source: str) -> None:
        """Makes a chunk a hard link to a file of the source.

        Raises:
          DestinationError: the file systems do not allow it.
        """
        target = self._name(index)
        try:
            if not (os.path.lexists(target) and os.path.samefile(source, target)):
                os.link(os.path.realpath(source), target)
        except OSError as error:
            raise DestinationError(
                f"{target}: cannot be linked to {source}: {error.strerror}; --link needs source and destination on one "
                "file system that has hard links, drop it to copy"
            ) from None

    def has_chunk(self, index: tuple[int, ...]) -> bool:
        """Whether an earlier run stored this chunk whole: it is there and its checksum is right."""
        encoding = self.leaf.encoding
        if not encoding.crc32c:
            return False
        checked = _Checksums(index, with_crc=True)
        if not checked.matches(self._stored(encoding.chunk_key(index))):
            return False
        self.digests[index] = checked.digest()
        return True

    def missing_chunks(self) -> int:
        """How many chunks are not there, by their names alone."""
        keys = map(self.leaf.encoding.chunk_key, itertools.product(*map(range, self.leaf.grid)))
        if self._database is not None:
            found = {key.decode() for key in self._database.list().result()}
            return sum(key not in found for key in keys)
        return sum(not os.path.isfile(os.path.join(self.directory, key)) for key in keys)

    def _stored(self, key: str) -> Any:
        """The pieces of a stored chunk, or nothing where there is none."""
        if self._database is not None:
            result = self._database.read(key).result()
            if result.state == "value":
                yield result.value
            return
        try:
            with open(os.path.join(self.directory, key), "rb", buffering=0) as file:
                while piece := file.read(READ_SIZE):
                    yield piece
        except OSError:
            return

    def _sink(self, key: str, size: int) -> Sink:
        if self._database is not None:
            return _DatabaseSink(self._database, key, self.leaf.path, self.directory)
        path = os.path.join(self.directory, key)
        try:
            # Nested keys have directories of their own. The leaf's own is never made anew: had it vanished, then so
            # had the chunks that were in it.
            if os.sep in key and os.path.isdir(self.directory):
                os.makedirs(os.path.dirname(path), exist_ok=True)
            return open_chunk_file(path, size)
        except OSError as error:
            raise write_error(path, error) from None

    def _put(self, key: str, data: bytes) -> None:
        sink = self._sink(key, len(data))
        try:
            sink.write(data)
            sink.commit()
        except OSError as error:
            sink.abort()
            raise write_error(os.path.join(self.directory, key), error) from None

    def _name(self, index: tuple[int, ...]) -> str:
        return os.path.join(self.directory, self.leaf.encoding.chunk_key(index))


class _Checksums:
    """The running checksum and digest of a chunk's stored bytes."""

    def __init__(self, index: tuple[int, ...], *, with_crc: bool):
        self.with_crc = with_crc
        self.crc = 0
        self.hash = start_chunk(index)

    def add(self, data: Any) -> None:
        if not len(data):
            return
        if self.with_crc:
            self.crc = crc32c(data, self.crc)
        self.hash.update(data)

    def trailer(self) -> bytes:
        """What is stored behind the bytes so far, and counts for the digest."""
        if not self.with_crc:
            return b""
        trailer = self.crc.to_bytes(CRC_BYTES, "little")
        self.hash.update(trailer)
        return trailer

    def matches(self, pieces: Any) -> bool:
        """Whether stored bytes end with the checksum of what comes before."""
        held = b""
        for piece in pieces:
            data = held + piece
            held = data[-CRC_BYTES:]
            self.add(data[:-CRC_BYTES])
        return held == self.trailer()

    def digest(self) -> int:
        return self.hash.intdigest()


class ChunkWriter:
    """Writes the bytes of one chunk, with their checksum at the end."""

    def __init__(self, sink: Sink, index: tuple[int, ...], *, with_crc: bool):
        self._sink = sink
        self._sums = _Checksums(index, with_crc=with_crc)
        self.takes_pages = sink.takes_pages

    def write(self, data: Any) -> None:
        """Takes the next bytes."""
        self._sums.add(data)
        self._sink.write(data)

    def add(self, data: Any) -> None:
        """Counts bytes that reach the chunk on another way: with `clone` or `write_pages`."""
        self._sums.add(data)

    def clone(self, source: int) -> bool:
        """Takes all bytes of an open file without copying them, where the file system can; tells whether it did."""
        return self._sink.clone(source)

    def write_pages(self, pages: memoryview) -> None:
        """Takes whole pages of memory; only where `takes_pages` says so, and before any `write`."""
        self._sink.write_pages(pages)

    def commit(self) -> None:
        """Makes the chunk appear."""
        trailer = self._sums.trailer()
        if trailer:
            self._sink.write(trailer)
        self._sink.commit()

    def digest(self) -> int:
        """The digest of all bytes, the checksum's included."""
        return self._sums.digest()


class _DatabaseSink:
    """A value of an OCDBT database."""

    takes_pages = False

    def __init__(self, database: Any, key: str, path: str, directory: str):
        self.database = database
        self.key = key
        self.path = path
        self.directory = directory
        self.pieces: list[bytes] = []

    def clone(self, source: int) -> bool:  # noqa: ARG002
        return False

    def write_pages(self, pages: memoryview) -> None:
        self.write(pages)

    def write(self, data: Any) -> None:
        self.pieces.append(data if isinstance(data, bytes) else bytes(data))

    def commit(self) -> None:
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        try:
            self.database.write(self.key, data).result()
        except ValueError as error:
            what = f"{self.path}: {self.key} cannot be written: {str(error).splitlines()[0]}"
            raise DestinationError(f"{self.directory}: {what}{free_text(self.directory)}") from None

    def abort(self) -> None:
        self.pieces.clear()


def write_error(path: str, error: OSError) -> DestinationError:
    """What the system says about a failed write, with the room that is left."""
    if error.errno == errno.ENOENT:
        return DestinationError(
            f"{path}: cannot be written: its directory vanished while we worked; run the same command"
        )
    return DestinationError(f"{path}: cannot be written: {error.strerror or error}{free_text(path)}")


def free_text(path: str) -> str:
    """The room that is left at a path, for the end of a message; nothing where it cannot be told."""
    try:
        free = os.statvfs(path if os.path.isdir(path) else os.path.dirname(path))
    except OSError:
        return ""
    return f" ({format_size(free.f_bavail * free.f_frsize)} free)"


def _open_database(directory: str, key: str) -> Any:
    import tensorstore as ts

    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": directory + "/"}, "path": key + "/"}
    try:
        return ts.KvStore.open(spec, context=ts.Context({"cache_pool": {"total_bytes_limit": 0}})).result()
    except ValueError as error:
        raise DestinationError(f"{directory}: cannot be opened: {str(error).splitlines()[0]}") from None
