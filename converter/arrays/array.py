import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from converter.arrays.encoding import Encoding
from converter.dtypes import ITEM_SIZES


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a checkpoint.

    Attributes:
      path: the tensor's path in the checkpoint.
      directory: where its files are.
      dtype: numpy's name of the element type.
      shape: elements along each dimension.
      chunks: elements of a chunk along each dimension; edge chunks are stored padded to this size.
      compressor: the compressor's JSON, or None for raw bytes.
      order: "C" or "F", the element order inside a chunk.
    """

    path: str
    directory: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    compressor: Mapping[str, Any] | None
    order: str

    @property
    def item_size(self) -> int:
        return ITEM_SIZES[self.dtype]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.item_size

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of one chunk."""
        return math.prod(self.chunks) * self.item_size

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))

    def clipped_bytes(self, index: tuple[int, ...]) -> int:
        """Decoded bytes of a chunk without an edge chunk's padding."""
        lengths = (min(c, n - i * c) for i, c, n in zip(index, self.chunks, self.shape, strict=True))
        return math.prod(lengths) * self.item_size

    def chunk_indices(self) -> Iterator[tuple[int, ...]]:
        """Places of all chunks in the grid, one by one however many there are."""
        # itertools.product would lay out all numbers of each dimension first.
        return (self._unravel(number) for number in _count(math.prod(self.grid)))

    def _unravel(self, number: int) -> tuple[int, ...]:
        index: list[int] = []
        for count in reversed(self.grid):
            number, place = divmod(number, count)
            index.append(place)
        return tuple(reversed(index))


def _count(stop: int) -> Iterator[int]:
    """Like range, which has no more than 2^63 numbers."""
    return itertools.takewhile(lambda number: number < stop, itertools.count())


def chunk_key(index: tuple[int, ...]) -> str:
    """Name of a chunk's file; a scalar's only chunk is called 0."""
    return ".".join(map(str, index)) or "0"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One target array.

    Attributes:
      path: its place in MaxText's tree, "/"-joined.
      dtype: numpy's name.
      shape: elements along each dimension.
      chunks: elements of a chunk along each dimension.
      item_size: bytes of an element.
      encoding: how its chunks are stored.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    item_size: int
    encoding: Encoding

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.item_size

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))
