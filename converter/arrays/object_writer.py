"""Writes the chunks of one leaf as objects of a store, where they stay; its metadata takes shape in a local directory.

All chunks end with their CRC-32C, so that a whole one always has the same CRC-32C in the store's listing. What came
before it is known from a tag, or from the four bytes themselves.
"""

import errno
import os
from collections.abc import Callable, Mapping

from converter.arrays.array import Array
from converter.arrays.digest import sum_digest
from converter.arrays.writer import CRC_BYTES, LeafStore
from converter.errors import DestinationError
from converter.storage import (
    CONTENT_SUM,
    RESIDUE,
    Blob,
    Mark,
    Reader,
    Writer,
    foreign_error,
    in_parallel,
    object_storage,
    storage_of,
)


class ObjectLeafStore(LeafStore):
    """The place of one leaf in a store of objects."""

    def __init__(
        self,
        leaf: Array,
        directory: str,
        *,
        database_key: str | None,
        chunk_directory: str,
        mark: Mark,
        find: Callable[[str], Blob | None],
    ):
        """Creates the leaf's local directory with its metadata.

        Args:
          leaf: the leaf; its chunks carry checksums.
          directory: a local directory of its own.
          database_key: the leaf's key inside an OCDBT database; None for plain files.
          chunk_directory: the URL below which its chunks are.
          mark: whose they are.
          find: gives the object of a URL, with tags and checksum; None where none was when the run began.

        Raises:
          DestinationError: the local directory cannot be written.
        """
        super().__init__(leaf, directory, database_key=database_key)
        assert leaf.encoding.crc32c
        self._url = chunk_directory
        self._mark = mark
        self._find = find
        self._objects = object_storage(chunk_directory)

    def finish(self) -> None:
        """Nothing is known of the chunks of other runs before all are there; see `seal`."""

    def seal(self, found: Mapping[str, Blob]) -> dict[tuple[int, ...], int]:
        """Ends a leaf whose chunks are all there.

        Args:
          found: URL to object, of all that is there now.

        Returns:
          The chunks' digests by their places, see `digest.sum_digest`.

        Raises:
          DestinationError: a chunk is missing, damaged, or another conversion's; or metadata cannot be written.
        """
        indices = list(self.leaf.chunk_indices())
        keys = list(map(self.leaf.encoding.chunk_key, indices))
        wrong = [key for key in keys if not self._is_whole(found.get(self._at(key)))]
        if wrong:
            raise self._lost(self._url, wrong)
        blobs = [found[self._at(key)] for key in keys]
        self._write_index({key: blob.size for key, blob in zip(keys, blobs, strict=True)})
        sums = in_parallel(content_sum, blobs, self._url)
        return {
            index: sum_digest(index, blob.size, content)
            for index, blob, content in zip(indices, blobs, sums, strict=True)
        }

    def moves(self, source: Reader) -> bool:
        return self._objects.moves(source)

    def has_chunk(self, index: tuple[int, ...]) -> bool:
        """Whether an earlier run, or another one, stored this chunk whole; nothing of it is read."""
        blob = self._find(self._name(index))
        if blob is None or self._is_whole(blob):
            return blob is not None
        if not self._mark.is_on(blob):
            raise foreign_error(blob.name)
        self._objects.remove(blob.name)
        return False

    def link_chunk(self, index: tuple[int, ...], source: str) -> None:
        raise DestinationError(f"{self._name(index)}: {os.strerror(errno.EXDEV)}: {source}")

    def _is_whole(self, blob: Blob | None) -> bool:
        return blob is not None and self._mark.is_on(blob) and blob.checksum == RESIDUE

    def _at(self, key: str) -> str:
        return f"{self._url}/{key}"

    def _name(self, index: tuple[int, ...]) -> str:
        return self._at(self.leaf.encoding.chunk_key(index))

    def _create(self, name: str, size: int) -> Writer:
        return self._objects.create(name, size, self._mark)


def content_sum(blob: Blob) -> int:
    """The CRC-32C of a whole chunk's content, from its tag or from its last bytes.

    Raises:
      OSError: they cannot be read.
    """
    if tag := blob.tags.get(CONTENT_SUM):
        return int(tag, 16)
    return stored_sum(blob)


def stored_sum(blob: Blob) -> int:
    """The same from its last bytes, whatever its tags say."""
    with storage_of(blob.name).open(blob.name) as file:
        return int.from_bytes(file.read_range(blob.size - CRC_BYTES, CRC_BYTES), "little")
