import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from converter.arrays.encoding import Encoding
from converter.axes import Box
from converter.dtypes import item_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One array of a checkpoint: one that is read, one that is planned, or one that is read back.

    Attributes:
      path: the tensor's path in the checkpoint, "/"-joined.
      dtype: numpy's name of the element type.
      shape: elements along each dimension.
      chunks: elements of a chunk along each dimension; edge chunks are stored padded to this size.
      encoding: how its chunks are stored.
      directory: where its chunks are, or the OCDBT database that they are in; empty for a planned leaf.
      database_key: its key inside that database; None for a directory of its own.
      parts: the arrays that a stack consists of, one for each position of its first dimension; empty for all others.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    encoding: Encoding
    directory: str = ""
    database_key: str | None = None
    parts: "tuple[Array, ...]" = ()

    @property
    def each(self) -> "tuple[Array, ...]":
        """The arrays that are stored: the parts of a stack, or this one."""
        return self.parts or (self,)

    @property
    def item_size(self) -> int:
        return item_size(self.dtype)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.item_size

    @property
    def compressor(self) -> Mapping[str, Any] | None:
        return self.encoding.compressor

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of one chunk."""
        return math.prod(self.chunks) * self.item_size

    @property
    def read_chunks(self) -> tuple[int, ...]:
        """Shape of the smallest part that can be decoded by itself."""
        return (1, *self.parts[0].read_chunks) if self.parts else self.encoding.inner_chunks or self.chunks

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def whole(self) -> Box:
        """All of it, as a box."""
        return tuple((0, length) for length in self.shape)

    def chunk_key(self, index: tuple[int, ...]) -> str:
        """Name of a chunk by its place in the grid; of a stack's, below the part that has it."""
        return self.parts[index[0]].chunk_key(index[1:]) if self.parts else self.encoding.chunk_key(index)

    def chunk_file(self, index: tuple[int, ...]) -> str:
        """Path of a chunk's file; only for chunks that are files of their own."""
        if self.parts:
            return self.parts[index[0]].chunk_file(index[1:])
        return os.path.join(self.directory, self.chunk_key(index))

    def chunk_label(self, index: tuple[int, ...]) -> str:
        """A chunk in messages."""
        if self.parts:
            return self.parts[index[0]].chunk_label(index[1:])
        return f"{self.path}: chunk {self.chunk_key(index)}"

    def chunk_box(self, index: tuple[int, ...]) -> Box:
        """Where a chunk lies, without an edge chunk's padding."""
        places = zip(index, self.chunks, self.shape, strict=True)
        return tuple((number * chunk, min((number + 1) * chunk, length)) for number, chunk, length in places)

    def clipped_bytes(self, index: tuple[int, ...]) -> int:
        """Decoded bytes of a chunk without an edge chunk's padding."""
        return math.prod(high - low for low, high in self.chunk_box(index)) * self.item_size

    def chunks_in(self, box: Box) -> list[tuple[int, ...]]:
        """Places of the chunks that a box touches."""
        ranges = (range(low // chunk, -(-high // chunk)) for (low, high), chunk in zip(box, self.chunks, strict=True))
        return list(itertools.product(*ranges))

    def cover(self, box: Box) -> Box:
        """The whole chunks that a box lies in, cut off at the array's end."""
        places = zip(box, self.chunks, self.shape, strict=True)
        return tuple(
            (low // chunk * chunk, min(-(-high // chunk) * chunk, length)) for (low, high), chunk, length in places
        )

    def chunk_indices(self) -> Iterator[tuple[int, ...]]:
        """Places of all chunks in the grid, one by one however many there are."""
        # itertools.product would lay out all numbers of each dimension first.
        return (self.chunk_at(number) for number in _count(math.prod(self.grid)))

    def chunk_at(self, number: int) -> tuple[int, ...]:
        """Place of the chunk that `chunk_indices` has at a position."""
        index: list[int] = []
        for count in reversed(self.grid):
            number, place = divmod(number, count)
            index.append(place)
        return tuple(reversed(index))


def _count(stop: int) -> Iterator[int]:
    """Like range, which has no more than 2^63 numbers."""
    return itertools.takewhile(lambda number: number < stop, itertools.count())


def slices(box: Box) -> tuple[slice, ...]:
    """A box as an index."""
    return tuple(slice(low, high) for low, high in box)
