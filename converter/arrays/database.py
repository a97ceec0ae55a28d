"""Arrays in an OCDBT database that TensorStore wrote: their metadata, their keys, and chunks as they are stored.

Only the tree is cached. A chunk is one value of the database, and is read whole.
"""

import functools
import io
import os
from collections.abc import Iterator
from typing import Any

from converter.arrays.array import Array
from converter.arrays.ocdbt import MANIFEST_NAME
from converter.errors import SourceError, reason
from converter.storage import Reader, storage_of

TREE_CACHE = 64 << 20
"""Bytes of the database's tree that are kept: each node has the places of some thousand values."""


class ValueReader(io.BytesIO):
    """A value of a database, read like a blob."""

    def read_range(self, start: int, count: int) -> bytes:
        """Bytes at a position, fewer at the end; the next `read` is not affected."""
        return bytes(self.getbuffer()[start : start + count])

    def size(self) -> int:
        """The value's bytes."""
        return self.getbuffer().nbytes


def open_chunk(array: Array, index: tuple[int, ...]) -> Reader:
    """Opens a chunk as it is stored, be it a file or a value of a database.

    Raises:
      OSError: it is not there, or cannot be read.
    """
    part, place = (array.parts[index[0]], index[1:]) if array.parts else (array, index)
    if part.database_key is None:
        path = part.chunk_file(place)
        return storage_of(path).open(path)
    key = f"{part.database_key}/{part.chunk_key(place)}"
    value = read_value(part.directory, key)
    if value is None:
        raise FileNotFoundError(2, f"the database has no value {key}", part.directory)
    return ValueReader(value)


def read_value(directory: str, key: str) -> bytes | None:
    """A value of a database; None where it has none of that key.

    Raises:
      OSError: the database cannot be read.
    """
    try:
        result = _open(directory, _version(directory)).read(key).result()
    except ValueError as error:
        raise OSError(5, reason(error), directory) from None
    return result.value if result.state == "value" else None


def list_keys(directory: str, below: str) -> list[str]:
    """The keys of a database below one, without it.

    Raises:
      OSError: the database cannot be read.
    """
    import tensorstore as ts

    prefix = below + "/"
    every = ts.KvStore.KeyRange(prefix, below + chr(ord("/") + 1))
    try:
        found = _open(directory, _version(directory)).list(every).result()
    except ValueError as error:
        raise OSError(5, reason(error), directory) from None
    return [key.decode(errors="replace").removeprefix(prefix) for key in found]


def database_files(directory: str) -> Iterator[tuple[str, int, int | str]]:
    """Name, size and version of each file of a database: what shows that it is not the same any more."""
    for blob in storage_of(directory).walk(directory):
        yield blob.name, blob.size, blob.version


def _version(directory: str) -> tuple[int, int | str]:
    """What distinguishes one state of a database from another; not an error where there is none."""
    name = os.path.join(directory, MANIFEST_NAME)
    try:
        blob = storage_of(name).stat(name)
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror or error}; the database lacks its manifest") from None
    return blob.size, blob.version


@functools.lru_cache(maxsize=4)
def _open(directory: str, version: tuple[int, int | str]) -> Any:
    """TensorStore's view of a database, one for each of its states."""
    import tensorstore as ts

    del version
    context = ts.Context({"cache_pool": {"total_bytes_limit": TREE_CACHE}})
    spec = {"driver": "ocdbt", "base": storage_of(directory).kvstore(directory)}
    return ts.KvStore.open(spec, context=context).result()
