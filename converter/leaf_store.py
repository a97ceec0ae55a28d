"""Writes the chunks of one staged leaf: as files of a zarr directory, or as values of an OCDBT database.

A chunk appears under its key only when it is whole. Its checksum is computed on the way, and so is the digest of the
bytes as they are stored.
"""

import itertools
import json
import os
from collections.abc import Callable
from typing import Any, Protocol

from crc32c import crc32c

from converter.digest import start_chunk
from converter.errors import DestinationError
from converter.memory import format_size
from converter.plan import Leaf

PART = ".part"
READ_SIZE = 4 << 20
CRC_BYTES = 4


class Sink(Protocol):
    """Takes the bytes of one chunk in order; `commit` makes it appear."""

    def write(self, data: Any) -> None: ...

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

    def store_chunk(self, index: tuple[int, ...], fill: Callable[[Callable[[Any], None]], None]) -> None:
        """Stores one chunk.

        Args:
          index: the chunk's place in the leaf's grid.
          fill: is called with a function that takes the encoded bytes, in order.

        Raises:
          DestinationError: it cannot be written.
        """
        sink = self._sink(self.leaf.encoding.chunk_key(index))
        checked = _Checked(sink, index, with_crc=self.leaf.encoding.crc32c)
        try:
            fill(checked.write)
            checked.commit()
        except OSError as error:
            sink.abort()
            raise write_error(self._name(index), error) from None
        except BaseException:
            sink.abort()
            raise
        self.digests[index] = checked.digest()

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
        checked = _Checked(None, index, with_crc=True)
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

    def _sink(self, key: str) -> Sink:
        if self._database is not None:
            return _DatabaseSink(self._database, key, self.leaf.path, self.directory)
        path = os.path.join(self.directory, key)
        try:
            # Nested keys have directories of their own. The leaf's own is never made anew: had it vanished, then so
            # had the chunks that were in it.
            if os.sep in key and os.path.isdir(self.directory):
                os.makedirs(os.path.dirname(path), exist_ok=True)
            return _FileSink(path)
        except OSError as error:
            raise write_error(path, error) from None

    def _put(self, key: str, data: bytes) -> None:
        sink = self._sink(key)
        try:
            sink.write(data)
            sink.commit()
        except OSError as error:
            sink.abort()
            raise write_error(os.path.join(self.directory, key), error) from None

    def _name(self, index: tuple[int, ...]) -> str:
        return os.path.join(self.directory, self.leaf.encoding.chunk_key(index))


class _Checked:
    """Passes bytes on to a sink, adds the checksum at the end, and digests all that is stored."""

    def __init__(self, sink: Sink | None, index: tuple[int, ...], *, with_crc: bool):
        self.sink = sink
        self.with_crc = with_crc
        self.crc = 0
        self.hash = start_chunk(index)

    def write(self, data: Any) -> None:
        if not len(data):
            return
        if self.with_crc:
            self.crc = crc32c(data, self.crc)
        self.hash.update(data)
        if self.sink is not None:
            self.sink.write(data)

    def commit(self) -> None:
        assert self.sink is not None
        if self.with_crc:
            trailer = self.crc.to_bytes(CRC_BYTES, "little")
            self.hash.update(trailer)
            self.sink.write(trailer)
        self.sink.commit()

    def matches(self, pieces: Any) -> bool:
        """Whether stored bytes end with the checksum of what comes before."""
        held = b""
        for piece in pieces:
            data = held + piece
            held = data[-CRC_BYTES:]
            self.write(data[:-CRC_BYTES])
        self.hash.update(held)
        return len(held) == CRC_BYTES and int.from_bytes(held, "little") == self.crc

    def digest(self) -> int:
        return self.hash.intdigest()


class _FileSink:
    """A chunk file; it has another name until it is whole."""

    def __init__(self, path: str):
        self.path = path
        self.descriptor = os.open(path + PART, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def write(self, data: Any) -> None:
        view = memoryview(data)
        while len(view):
            view = view[os.write(self.descriptor, view) :]

    def commit(self) -> None:
        os.close(self.descriptor)
        os.replace(self.path + PART, self.path)

    def abort(self) -> None:
        try:
            os.close(self.descriptor)
            os.unlink(self.path + PART)
        except OSError:
            pass


class _DatabaseSink:
    """A value of an OCDBT database."""

    def __init__(self, database: Any, key: str, path: str, directory: str):
        self.database = database
        self.key = key
        self.path = path
        self.directory = directory
        self.pieces: list[bytes] = []

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
