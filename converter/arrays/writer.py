"""Writes the chunks of one staged leaf, as files of a zarr directory or of an OCDBT database.

A chunk appears under its key only when it is whole. Its checksum is computed on the way, and so is the digest of the
bytes as they are stored.
"""

import errno
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from crc32c import crc32c

from converter.arrays.array import Array
from converter.arrays.digest import start_chunk
from converter.arrays.ocdbt import CHUNKS, MANIFEST_NAME, NODES, write_index
from converter.arrays.zarr import array_metadata
from converter.errors import DestinationError, SourceError
from converter.storage import Reader, Storage, Writer, storage_of, write_error
from converter.words import first_names

READ_SIZE = 4 << 20
TAKE_SIZE = 1 << 20
"""Small enough that what was encoded is still in the processor's cache when it is summed."""

MAX_NAMED = 3
"""Chunks that a message names."""

CRC_BYTES = 4
ROOT = os.path.join(NODES, "root")
"""The node of a leaf's OCDBT database."""


class LeafStore:
    """The place of one leaf; safe to use from several threads.

    Attributes:
      leaf: the leaf.
      directory: its own directory.
      digests: the digests of the chunks that are there, by their place; None for those that were never read.
      moved: bytes of the chunks that the storage copied by itself.
    """

    def __init__(self, leaf: Array, directory: str, *, database_key: str | None, storage: Storage | None = None):
        """Creates the leaf's directory and metadata, or takes over what an earlier run left.

        Args:
          leaf: the leaf.
          directory: its own directory.
          database_key: the leaf's key inside an OCDBT database; None for plain files.
          storage: writes its files; the directory's own by default.

        Raises:
          DestinationError: the directory or the metadata cannot be written.
        """
        self.leaf = leaf
        self.directory = directory
        self._storage = storage or storage_of(directory)
        self.digests: dict[tuple[int, ...], int | None] = {}
        self.moved: dict[tuple[int, ...], int] = {}
        self._database_key = database_key
        self._chunk_directory = directory if database_key is None else os.path.join(directory, CHUNKS)
        path = self._metadata_path()
        try:
            self._storage.make_directory(self._chunk_directory)
            self._storage.make_directory(os.path.dirname(path))
            self._storage.write(path, json.dumps(array_metadata(leaf), separators=(",", ":")).encode())
        except OSError as error:
            raise write_error(path, error) from None

    def finish(self) -> None:
        """Ends a leaf whose chunks are all there; a database gets its index.

        Raises:
          DestinationError: a chunk is not there any more, or the index cannot be written.
        """
        self._write_index({})

    def _write_index(self, sizes: Mapping[str, int]) -> None:
        """The same; `sizes` has those of chunks that are not in the directory, by their keys."""
        if self._database_key is None:
            return
        values = {key: os.path.join(CHUNKS, key) for key in self._chunk_keys()}
        values[self.leaf.encoding.metadata_name] = os.path.relpath(self._metadata_path(), self.directory)
        try:
            write_index(
                self.directory,
                ROOT,
                {f"{self._database_key}/{key}": path for key, path in values.items()},
                {os.path.join(CHUNKS, key): size for key, size in sizes.items()},
            )
        except OSError as error:
            raise write_error(os.fspath(error.filename or self.directory), error) from None

    @property
    def each(self) -> "tuple[LeafStore, ...]":
        """The places that this one consists of: itself alone."""
        return (self,)

    def store_chunk(self, index: tuple[int, ...], size: int, fill: "ChunkFill") -> None:
        """Stores one chunk.

        Args:
          index: the chunk's place in the leaf's grid.
          size: its bytes, about.
          fill: is called with a writer that takes the encoded bytes, in order.

        Raises:
          DestinationError: it cannot be written.
        """
        name = self._name(index)
        try:
            file = self._create(name, size)
        except OSError as error:
            raise write_error(name, error) from None
        writer = ChunkWriter(file, index, with_crc=self.leaf.encoding.crc32c)
        try:
            fill(writer)
            writer.commit()
        except OSError as error:
            file.abort()
            if isinstance(error, FileExistsError) and self.has_chunk(index):
                return  # another process of the same conversion was first
            raise write_error(name, error) from None
        except BaseException:
            file.abort()
            raise
        self.digests[index] = writer.digest()
        if not writer.is_seen:
            self.moved[index] = size

    def moved_bytes(self, index: tuple[int, ...]) -> int | None:
        """Bytes of a chunk that the storage copied by itself; None for others."""
        return self.moved.get(index)

    def moves(self, source: Reader) -> bool:  # noqa: ARG002
        """Whether the storage can copy an open chunk by itself, so that nothing of it needs to be read."""
        return False

    def link_chunk(self, index: tuple[int, ...], source: str) -> None:
        """Makes a chunk a hard link to a file of the source.

        Raises:
          SourceError: the source's file is not there any more.
          DestinationError: the file systems do not allow it.
        """
        target = self._name(index)
        try:
            if storage_of(source) is not storage_of(target):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            self._make_parents(target)
            self._storage.link(source, target)
        except OSError as error:
            if storage_of(source).missing((source,)):
                raise SourceError(f"{source}: was removed while the source was read") from None
            raise DestinationError(
                f"{target}: cannot be linked to {source}: {error.strerror}; --link needs source and destination on one "
                "file system that has hard links; to copy, run the command without --link and with --fresh"
            ) from None
        self.digests[index] = None

    def has_chunk(self, index: tuple[int, ...]) -> bool:
        """Whether an earlier run stored this chunk whole: it is there and its checksum is right."""
        if not self.leaf.encoding.crc32c:
            return False
        sums = _Checksums(index, with_crc=True)
        if not sums.matches(self._pieces(self._name(index))):
            return False
        self.digests[index] = sums.digest()
        return True

    def missing_files(self) -> int:
        """How many files of the finished leaf are not there, by their names alone."""
        chunks = (os.path.join(self._chunk_directory, key) for key in self._chunk_keys())
        others = [self._metadata_path()]
        if self._database_key is not None:
            others += [os.path.join(self.directory, name) for name in (MANIFEST_NAME, ROOT)]
        return len(self._storage.missing(itertools.chain(others, chunks)))

    def _chunk_keys(self) -> Iterator[str]:
        return map(self.leaf.encoding.chunk_key, itertools.product(*map(range, self.leaf.grid)))

    def _lost(self, place: str, keys: Sequence[str]) -> DestinationError:
        """Chunks that were there when they were written, and are not, or are others."""
        return DestinationError(
            f"{place}: chunks of {self.leaf.path} were removed or replaced while the conversion ran: "
            f"{first_names(keys, MAX_NAMED)}; run the same command again to resume"
        )

    def _metadata_path(self) -> str:
        if self._database_key is not None:
            return os.path.join(self.directory, NODES, "metadata")
        return os.path.join(self.directory, self.leaf.encoding.metadata_name)

    def _name(self, index: tuple[int, ...]) -> str:
        return os.path.join(self._chunk_directory, self.leaf.encoding.chunk_key(index))

    def _create(self, name: str, size: int) -> Writer:
        self._make_parents(name)
        return self._storage.create(name, size)

    def _make_parents(self, path: str) -> None:
        """Nested keys have directories of their own.

        The leaf's own is never created again: had it been removed, then so had the chunks that were in it.
        """
        parent = os.path.dirname(path)
        if parent != self._chunk_directory and self._storage.is_directory(self._chunk_directory):
            self._storage.make_directory(parent)

    def _pieces(self, name: str) -> Iterator[bytes]:
        """The content of a chunk, or nothing where it cannot be read."""
        try:
            with self._storage.open(name) as file:
                while piece := file.read(READ_SIZE):
                    yield piece
        except OSError:
            return


class _Checksums:
    """The running checksum and digest of a chunk's stored bytes; no digest where the bytes were not seen."""

    def __init__(self, index: tuple[int, ...], *, with_crc: bool):
        self.with_crc = with_crc
        self.crc = 0
        self.hash = start_chunk(index)
        self.is_seen = True

    def add(self, data: Any) -> None:
        if not len(data):
            return
        if self.with_crc:
            self.crc = crc32c(data, self.crc)
        self.hash.update(data)

    def add_unseen(self, crc: int) -> None:
        """Takes bytes of which only the checksum is known; they are the first ones."""
        self.crc, self.is_seen = crc, False

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

    def digest(self) -> int | None:
        return self.hash.intdigest() if self.is_seen else None


class ChunkWriter:
    """Writes the bytes of one chunk, with their checksum at the end."""

    def __init__(self, file: Writer, index: tuple[int, ...], *, with_crc: bool):
        self._file = file
        self._sums = _Checksums(index, with_crc=with_crc)

    def write(self, data: Any) -> None:
        """Takes the next bytes."""
        self._sums.add(data)
        self._file.write(data)

    def take(self, read: Callable[[memoryview], int]) -> None:
        """Takes all bytes of a reader, which fills the memory it is given and returns how many bytes, 0 at its end."""
        while count := read(room := self._file.room()[:TAKE_SIZE]):
            self._sums.add(room[:count])
            self._file.added(count)

    def copy_from(self, source: Reader, look: Callable[[memoryview], None]) -> bool:
        """Takes all bytes of a blob and shows each piece; returns whether it did, see `Writer.copy_from`."""

        def add(piece: memoryview) -> None:
            look(piece)
            self._sums.add(piece)

        checksum = self._file.copy_from(source, add)
        if checksum is not None:
            self._sums.add_unseen(checksum)
        return checksum is None

    def commit(self) -> None:
        """Makes the chunk appear."""
        trailer = self._sums.trailer()
        if trailer:
            self._file.write(trailer)
        self._file.commit()

    @property
    def is_seen(self) -> bool:
        """Whether the bytes went through this process."""
        return self._sums.is_seen

    def digest(self) -> int | None:
        """The digest of all bytes, the checksum's included; None where the storage copied them by itself."""
        return self._sums.digest()


ChunkFill = Callable[[ChunkWriter], None]
"""Gives a writer the encoded bytes of a chunk, in order."""
