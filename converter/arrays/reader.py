"""Reads chunk-aligned blocks of a source array, each chunk once."""

import itertools
from typing import Any

import numpy as np

from converter.arrays.array import ArraySpec
from converter.arrays.chunk_codec import can_decode, decode_chunk, storage_dtype
from converter.arrays.zarr import open_spec
from converter.axes import Box
from converter.errors import SourceError, reason


class BlockReader:
    """Reads blocks of one array; safe to use from several threads.

    Our own decoder where it can be used, TensorStore for anything else.
    """

    def __init__(self, array: ArraySpec):
        self.array = array
        self._store: Any = None if can_decode(array) else _open(array)

    def read(self, box: Box) -> np.ndarray:
        """Reads a block.

        Args:
          box: start and stop for each dimension, on chunk boundaries or at the array's end.

        Raises:
          SourceError: a chunk is missing or cannot be decoded.
        """
        if self._store is not None:
            try:
                return self._store[slices(box)].read().result()
            except ValueError as error:
                raise SourceError(f"{self.array.path}: a chunk cannot be read: {reason(error)}") from None
        chunks = chunks_in(self.array, box)
        shape = tuple(high - low for low, high in box)
        if len(chunks) == 1:
            values = decode_chunk(self.array, chunks[0])
            return values[tuple(slice(0, length) for length in shape)]
        block = np.empty(shape, storage_dtype(self.array.dtype))
        scratch = np.empty(self.array.chunks, block.dtype)
        for chunk in chunks:
            values = decode_chunk(self.array, chunk, scratch)
            start = [
                number * length - low for number, length, (low, _) in zip(chunk, self.array.chunks, box, strict=True)
            ]
            place(block, start, values)
        return block


def chunks_in(array: ArraySpec, box: Box) -> list[tuple[int, ...]]:
    """Grid indices of the chunks that a chunk-aligned box covers."""
    ranges = [range(low // n, -(-high // n)) for (low, high), n in zip(box, array.chunks, strict=True)]
    return list(itertools.product(*ranges))


def place(block: np.ndarray, start: list[int], values: np.ndarray) -> None:
    """Copies values into a block at a position; what goes beyond the block is an edge chunk's padding."""
    size = [min(length, total - at) for length, total, at in zip(values.shape, block.shape, start, strict=True)]
    target = tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
    block[target] = values[tuple(slice(0, length) for length in size)]


def slices(box: Box) -> tuple[slice, ...]:
    """A box as an index."""
    return tuple(slice(low, high) for low, high in box)


def _open(array: ArraySpec) -> Any:
    import tensorstore as ts

    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    try:
        return ts.open(open_spec(array), read=True, context=context).result()
    except ValueError as error:
        raise SourceError(f"{array.path}: cannot be opened: {reason(error)}") from None
