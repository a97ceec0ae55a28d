"""Writes chunks of one staged leaf beside other processes that write others, or the same ones, into the same directory.

Whoever writes a chunk first decides what it is. What a process has written it also records, so that nobody has to read
a chunk again that a record has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from converter.arrays.array import Array
from converter.arrays.writer import LeafStore
from converter.storage import SharedFiles, write_error


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What a process recorded of a chunk.

    Attributes:
      digest: of its bytes as they are stored; None for one that was linked.
      size: its bytes as they are stored.
    """

    digest: int | None
    size: int


class SharedLeafStore(LeafStore):
    """The place of one leaf that several processes write."""

    def __init__(
        self,
        leaf: Array,
        directory: str,
        *,
        database_key: str | None,
        storage: SharedFiles,
        known: Mapping[tuple[int, ...], ChunkRecord],
    ):
        """Creates what is not there yet of the leaf's directory and metadata.

        Args:
          leaf: the leaf.
          directory: its own directory.
          database_key: the leaf's key inside an OCDBT database; None for plain files.
          storage: writes its files.
          known: what was recorded of its chunks when the run began.

        Raises:
          DestinationError: the directory or the metadata cannot be written; it may be gone with the whole work area.
        """
        super().__init__(leaf, directory, database_key=database_key, storage=storage)
        self._known = known

    def finish(self) -> None:
        """Nothing is known of the chunks of other processes before all are there; see `seal`."""

    def has_chunk(self, index: tuple[int, ...]) -> bool:
        """Whether a chunk is there whole: it has the recorded size, or its checksum is right.

        A chunk whose checksum is wrong, after a loss of power, is removed: nothing would be written in its place.
        """
        record = self._known.get(index)
        size = self.size(index)
        if size is None:
            return False
        if record is not None and record.size == size:
            self.digests[index] = record.digest
            return True
        if not self.leaf.encoding.crc32c:
            return False
        if super().has_chunk(index):
            return True
        name = self._name(index)
        try:
            self._storage.remove(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise write_error(name, error) from None
        return False

    def size(self, index: tuple[int, ...]) -> int | None:
        """Bytes of a chunk that is there; None where none is."""
        try:
            return self._storage.stat(self._name(index)).size
        except OSError:
            return None

    def seal(self, records: Mapping[tuple[int, ...], ChunkRecord]) -> dict[tuple[int, ...], int | None]:
        """Ends a leaf whose chunks are all recorded.

        Args:
          records: what all processes recorded of its chunks.

        Returns:
          The chunks' digests by their places.

        Raises:
          DestinationError: a chunk is not there, or has another size; or metadata cannot be written.
        """
        indices = list(self.leaf.chunk_indices())
        wrong = [index for index in indices if index not in records or self.size(index) != records[index].size]
        if wrong:
            raise self._lost(self.directory, list(map(self.leaf.encoding.chunk_key, wrong)))
        self._write_index({})
        return {index: records[index].digest for index in indices}
