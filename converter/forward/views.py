"""Reads parts of stored arrays, block by block, in the axis order that a computation wants.

A chunk of a large checkpoint holds all layers of some experts; decoding it for one layer costs memory that the layer
does not need. Where the format allows, such a chunk is decoded as a stream: only the wanted runs are kept, and decoding
stops after the last of them.
"""

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorstore as ts

from converter.arrays import ArraySpec, chunk_key, open_spec
from converter.errors import SourceError, reason

STREAMED_CHUNK = 16 << 20
"""Chunks of more decoded bytes than this are decoded as a stream, where they can be."""

IN_FLIGHT = 2
"""Chunks decoded at the same time."""

TENSORSTORE_COPIES = 3
"""What TensorStore holds for each byte of a chunk that it decodes: measured."""


@dataclass(frozen=True)
class StoredArray:
    """An array in a checkpoint, opened for reading.

    Attributes:
      name: the tensor's path, for messages.
      shape: elements along each dimension.
      chunks: elements of a chunk along each dimension.
      store: TensorStore's handle.
      streamed: the array's files, where chunks can be decoded as streams; None where TensorStore has to decode.
    """

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    store: Any
    streamed: ArraySpec | None

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunks) * self.store.dtype.numpy_dtype.itemsize


def open_axlearn(array: ArraySpec) -> StoredArray:
    """Opens an array of an AXLearn checkpoint.

    Raises:
      SourceError: it cannot be opened.
    """
    can_stream = array.order == "C" and (array.compressor is None or array.compressor.get("id") == "zstd")
    streamed = array if can_stream and array.chunk_bytes > STREAMED_CHUNK else None
    return StoredArray(array.path, array.shape, array.chunks, open_store(array.path, open_spec(array)), streamed)


def open_store(name: str, spec: Mapping[str, Any]) -> Any:
    """Opens an array with TensorStore.

    Raises:
      SourceError: it cannot be opened.
    """
    try:
        return ts.open(dict(spec), read=True, context=open_context()).result()
    except ValueError as error:
        raise SourceError(f"{name}: cannot be opened: {reason(error)}") from None


def open_context() -> Any:
    """TensorStore's context for arrays that are read once: nothing is kept."""
    return ts.Context({"cache_pool": {"total_bytes_limit": 0}})


@dataclass(frozen=True)
class Block:
    """A part of a view.

    Attributes:
      rows: positions along the view's first axis.
      start: where the block begins along each further axis.
      values: the elements, float32, in the view's axis order.
    """

    rows: Sequence[int]
    start: tuple[int, ...]
    values: np.ndarray


@dataclass(frozen=True)
class View:
    """A box of a stored array, seen with its axes in another order and without those that the box fixes.

    Attributes:
      array: the array.
      box: start and stop along each stored dimension.
      order: the stored dimension of each axis of the view; dimensions that are left out have one element in the box.
    """

    array: StoredArray
    box: tuple[tuple[int, int], ...]
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.box[dim][1] - self.box[dim][0] for dim in self.order)

    @property
    def row_groups(self) -> list[range]:
        """The positions along the first axis, those of one chunk together."""
        low, high = self.box[self.order[0]]
        length = self.array.chunks[self.order[0]]
        edges = [low, *range((low // length + 1) * length, high, length), high]
        return [range(a - low, b - low) for a, b in itertools.pairwise(edges)]

    @property
    def memory(self) -> int:
        """Bytes that reading this view block by block takes."""
        decoded = math.prod(
            min(length, high - low) for length, (low, high) in zip(self.array.chunks, self.box, strict=True)
        )
        decoding = 0 if self.array.streamed else self.array.chunk_bytes * TENSORSTORE_COPIES
        return (decoded * 8 + decoding) * IN_FLIGHT

    def read(self) -> np.ndarray:
        """Reads the whole view, as float32.

        Raises:
          SourceError: it cannot be read.
        """
        result = np.empty(self.shape, np.float32)
        for block in self.blocks():
            size = block.values.shape[1:]
            result[(slice(block.rows[0], block.rows[-1] + 1), *_ranges(block.start, size))] = block.values
        return result

    def blocks(self, rows: Sequence[int] | None = None) -> Iterator[Block]:
        """Reads the view chunk by chunk, the next one while the last is worked with.

        Args:
          rows: the wanted positions along the first axis, ascending; None for all.

        Raises:
          SourceError: a chunk cannot be read or decoded.
        """
        work = iter(list(self._work(rows)))
        with ThreadPoolExecutor(IN_FLIGHT, "ax2mt-read") as pool:
            pending = [pool.submit(self._load, *item) for item in itertools.islice(work, IN_FLIGHT)]
            while pending:
                block = pending.pop(0).result()
                pending += [pool.submit(self._load, *item) for item in itertools.islice(work, 1)]
                yield block

    def _work(self, rows: Sequence[int] | None) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Grid indices of the chunks to read, and the stored positions wanted from each along the first axis."""
        first = self.order[0]
        low, high = self.box[first]
        wanted = [low + row for row in (range(high - low) if rows is None else rows)]
        grids = [
            range(start // length, -(-stop // length))
            for (start, stop), length in zip(self.box, self.array.chunks, strict=True)
        ]
        for chunk in itertools.product(*grids):
            length = self.array.chunks[first]
            here = [row for row in wanted if chunk[first] * length <= row < (chunk[first] + 1) * length]
            if here:
                yield chunk, here

    def _load(self, chunk: tuple[int, ...], rows: list[int]) -> Block:
        first = self.order[0]
        inside: list[Sequence[int]] = []
        for dim, (index, length, (low, high)) in enumerate(zip(chunk, self.array.chunks, self.box, strict=True)):
            inside.append(rows if dim == first else range(max(low, index * length), min(high, (index + 1) * length)))
        values = _stream(self.array.streamed, chunk, inside) if self.array.streamed else self._read(inside, first)
        kept = values.squeeze(tuple(dim for dim in range(values.ndim) if dim not in self.order))
        ranks = sorted(self.order)
        moved = kept.transpose([ranks.index(dim) for dim in self.order])
        start = tuple(inside[dim][0] - self.box[dim][0] for dim in self.order[1:])
        base = self.box[first][0]
        return Block([row - base for row in rows], start, np.asarray(moved, np.float32))

    def _read(self, inside: Sequence[Sequence[int]], first: int) -> np.ndarray:
        region = tuple(slice(positions[0], positions[-1] + 1) for positions in inside)
        try:
            values = self.array.store[region].read().result()
        except ValueError as error:
            raise SourceError(f"{self.array.name}: a chunk cannot be read: {reason(error)}") from None
        rows = inside[first]
        return values if len(rows) == values.shape[first] else values.take([r - rows[0] for r in rows], axis=first)


def _stream(array: ArraySpec, chunk: tuple[int, ...], inside: Sequence[Sequence[int]]) -> np.ndarray:
    """Decodes a chunk from its front to the last wanted element.

    Args:
      array: the array; its chunks are C-ordered, raw or zstd.
      chunk: the chunk's index in the grid.
      inside: the wanted positions along each dimension, ascending, all inside the chunk.
    """
    local = [
        [at - index * length for at in span] for span, index, length in zip(inside, chunk, array.chunks, strict=True)
    ]
    whole = next((d for d in reversed(range(len(local))) if len(local[d]) != array.chunks[d]), 0)
    strides = [math.prod(array.chunks[dim + 1 :]) * array.item_size for dim in range(len(local))]
    contiguous = local[whole][-1] - local[whole][0] + 1 == len(local[whole])
    depth = whole if contiguous else whole + 1
    values = np.empty([len(span) for span in local], _numpy_dtype(array.dtype))
    runs = values.reshape(math.prod(values.shape[:depth]), -1)
    tail = local[depth][0] * strides[depth] if depth < len(local) else 0
    where = f"{array.path}: chunk {chunk_key(chunk)}"
    file = os.path.join(array.directory, chunk_key(chunk))
    try:
        with open(file, "rb") as raw:
            reader = _Forward(array, raw, where)
            for run, index in zip(runs, itertools.product(*local[:depth]), strict=True):
                offset = sum(at * stride for at, stride in zip(index, strides[:depth], strict=True)) + tail
                reader.read_at(offset, run)
    except OSError as error:
        raise SourceError(f"{where}: {file} cannot be read: {error.strerror or error}") from None
    return values


class _Forward:
    """Reads runs of a decoded chunk, each behind the last."""

    SKIP = 1 << 20

    def __init__(self, array: ArraySpec, raw: Any, where: str):
        import zstandard

        self.where = where
        self.error = zstandard.ZstdError
        self.at = 0
        self.scratch = memoryview(bytearray(self.SKIP))
        self.stream = raw
        if array.compressor is not None:
            self.stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)

    def read_at(self, offset: int, run: np.ndarray) -> None:
        while self.at < offset:
            self._fill(self.scratch[: min(self.SKIP, offset - self.at)])
        self._fill(memoryview(run.view(np.uint8).data))  # pyright: ignore[reportArgumentType]

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                count = self.stream.readinto(view[done:])
            except self.error as error:
                raise SourceError(f"{self.where}: cannot be decoded: {error}") from None
            if not count:
                raise SourceError(f"{self.where}: ends too early; the file is truncated or is not this array's chunk")
            done += count
        self.at += done


def _numpy_dtype(name: str) -> np.dtype:
    return ts.dtype(name).numpy_dtype


def _ranges(start: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
