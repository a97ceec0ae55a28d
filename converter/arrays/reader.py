"""Reads arrays: blocks, slabs of large chunks, parts of single chunks, whole small arrays.

Our own decoder reads what it can, and TensorStore anything else. Blocks and slabs are whole chunks, each decoded once.
"""

import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from converter.arrays.array import Array
from converter.arrays.chunk_codec import can_decode, decode_chunk, decode_part, slabs
from converter.arrays.opened import OpenArray, open_array
from converter.axes import AxisMap, Blocking, Box, Span, slab_shape, slab_spans, source_box
from converter.dtypes import storage_dtype

STREAMED_CHUNK = 16 << 20
"""Of chunks with more decoded bytes than this, no more is decoded than the wanted part."""

TENSORSTORE_COPIES = 3
"""What TensorStore holds for each byte of a chunk that it decodes: measured."""


class ArrayReader:
    """Reads one array; safe to use from several threads."""

    def __init__(self, array: Array, opened: OpenArray | None = None):
        """Takes the array.

        Args:
          array: the array.
          opened: TensorStore's view of it; None to open it where our own decoder cannot be used.

        Raises:
          SourceError: it cannot be opened.
        """
        self.array = array
        self._opened = opened if opened is not None or can_decode(array) else open_array(array)

    @property
    def part_memory(self) -> int:
        """Bytes that decoding takes while a part is read, beside those that are kept of it."""
        if self._opened is not None:
            return math.prod(self.array.read_chunks) * self.array.item_size * TENSORSTORE_COPIES
        return 0 if self._is_streamed else self.array.chunk_bytes

    def read(self, box: Box) -> np.ndarray:
        """Reads a block.

        Args:
          box: start and stop for each dimension, on chunk boundaries or at the array's end.

        Raises:
          SourceError: a chunk is missing or cannot be decoded.
        """
        if self._opened is not None:
            return self._opened.read(box)
        array = self.array
        chunks = array.chunks_in(box)
        shape = _shape(box)
        if len(chunks) == 1:
            return decode_chunk(array, chunks[0])[_front(shape)]
        block = np.empty(shape, storage_dtype(array.dtype))
        scratch = np.empty(array.chunks, block.dtype)
        for chunk in chunks:
            _place(block, _start(array, chunk, box), decode_chunk(array, chunk, scratch))
        return block

    def read_whole(self) -> np.ndarray:
        """Reads all of a small array.

        Raises:
          SourceError: it cannot be read.
        """
        return self.read(self.array.whole)

    def read_part(self, index: tuple[int, ...], wanted: Sequence[Sequence[int]]) -> np.ndarray:
        """Reads some elements of one part of the array; parts have the shape `array.read_chunks`.

        Args:
          index: the part's place in the grid of parts.
          wanted: positions in the array along each dimension, ascending, all inside the part.

        Raises:
          SourceError: the chunk cannot be read or decoded.
        """
        if self._opened is not None:
            box = tuple((span[0], span[-1] + 1) for span in wanted)
            return _pick(self._opened.read(box), [[at - span[0] for at in span] for span in wanted])
        starts = [number * length for number, length in zip(index, self.array.read_chunks, strict=True)]
        inside = [[at - start for at in span] for span, start in zip(wanted, starts, strict=True)]
        if self._is_streamed:
            return decode_part(self.array, index, inside)
        return _pick(decode_chunk(self.array, index), inside)

    def slabs(self, box: Box, slab: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Decodes the chunks of a block side by side, as slabs along their slowest axes; see `chunk_codec.slabs`.

        Args:
          box: start and stop for each dimension; one chunk along each dimension that slabs cut.
          slab: shape of a slab of one chunk.

        Yields:
          One slab of the block after the other, without the padding of edge chunks; the next one takes its memory. The
          chunks are read to their ends, behind the last slab too: that is where trailing garbage shows.

        Raises:
          SourceError: a chunk is missing or cannot be decoded.
        """
        array = self.array
        chunks = array.chunks_in(box)
        buffers = [np.empty(slab, storage_dtype(array.dtype)) for _ in chunks]
        streams = [slabs(array, chunk, slab, buffer) for chunk, buffer in zip(chunks, buffers, strict=True)]
        cut = [part < length for part, length in zip(slab, array.chunks, strict=True)]
        for parts in zip(*streams, strict=True):
            offset = parts[0][0]
            shape = tuple(
                min(part, length - at) if is_cut else length
                for part, length, at, is_cut in zip(slab, _shape(box), offset, cut, strict=True)
            )
            if min(shape, default=1) <= 0:
                continue  # in the padding of an edge chunk
            if len(parts) == 1:
                yield parts[0][1][_front(shape)]
                continue
            block = np.empty(shape, buffers[0].dtype)
            for chunk, (_, values) in zip(chunks, parts, strict=True):
                start = _start(array, chunk, box)
                _place(block, [0 if is_cut else at for at, is_cut in zip(start, cut, strict=True)], values)
            yield block

    @property
    def _is_streamed(self) -> bool:
        return self.array.chunk_bytes > STREAMED_CHUNK


class BlockReader:
    """Reads the blocks of arrays that are moved together; safe to use from several threads."""

    def __init__(self, sources: Sequence[Array], axis_map: AxisMap, cut: Blocking):
        """Takes the arrays; they are opened when the first block is read.

        Args:
          sources: the arrays.
          axis_map: how their elements move.
          cut: how they are cut into blocks.
        """
        self._sources = sources
        self._axis_map = axis_map
        self._cut = cut
        self._readers: list[ArrayReader] = []
        self._lock = threading.Lock()

    def read(self, span: Span) -> list[np.ndarray]:
        """Reads a block of each array.

        Raises:
          SourceError: a chunk is missing or cannot be decoded.
        """
        boxes = (source_box(self._axis_map, span, number) for number in range(len(self._sources)))
        return [reader.read(box) for reader, box in zip(self._open(), boxes, strict=True)]

    def slabs(self, group: Span) -> Iterator[tuple[Span, np.ndarray]]:
        """Reads a group of blocks of the only array as slabs; see `ArrayReader.slabs`.

        Yields:
          Where each slab lies, and its elements; the next one takes their memory.

        Raises:
          SourceError: a chunk is missing or cannot be decoded.
        """
        (reader,) = self._open()
        slab = slab_shape(self._axis_map, self._cut, reader.array.chunks)
        parts = reader.slabs(source_box(self._axis_map, group, 0), slab)
        yield from zip(slab_spans(group, self._cut), parts, strict=True)

    def _open(self) -> list[ArrayReader]:
        with self._lock:
            if not self._readers:
                self._readers = [ArrayReader(array) for array in self._sources]
            return self._readers


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def _start(array: Array, chunk: tuple[int, ...], box: Box) -> list[int]:
    """Where a chunk begins in a box that it is part of."""
    return [number * length - low for number, length, (low, _) in zip(chunk, array.chunks, box, strict=True)]


def _front(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)


def _place(block: np.ndarray, start: Sequence[int], values: np.ndarray) -> None:
    """Copies values into a block at a position; what goes beyond the block is an edge chunk's padding."""
    size = [min(length, total - at) for length, total, at in zip(values.shape, block.shape, start, strict=True)]
    target = tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
    block[target] = values[_front(size)]


def _pick(values: np.ndarray, wanted: Sequence[Sequence[int]]) -> np.ndarray:
    """The elements at ascending positions; a view where they are runs."""
    values = values[tuple(slice(span[0], span[-1] + 1) for span in wanted)]
    for dim, span in enumerate(wanted):
        if len(span) < values.shape[dim]:
            values = values.take([at - span[0] for at in span], axis=dim)
    return values
