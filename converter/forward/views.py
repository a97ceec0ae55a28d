"""Reads parts of stored arrays, block by block, in the axis order that a computation wants.

A chunk of a large checkpoint holds all layers of some experts; decoding it for one layer costs memory that the layer
does not need. Where the format allows, such a chunk is decoded as a stream: only the wanted runs are kept, and decoding
stops after the last of them.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from converter.arrays import Array, ArrayReader

IN_FLIGHT = 2
"""Chunks decoded at the same time."""


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
      reader: reads the array.
      box: start and stop along each stored dimension.
      order: the stored dimension of each axis of the view; dimensions that are left out have one element in the box.
    """

    reader: ArrayReader
    box: tuple[tuple[int, int], ...]
    order: tuple[int, ...]

    @property
    def array(self) -> Array:
        return self.reader.array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.box[dim][1] - self.box[dim][0] for dim in self.order)

    @property
    def row_groups(self) -> list[range]:
        """The positions along the first axis, those of one chunk together."""
        low, high = self.box[self.order[0]]
        length = self.array.read_chunks[self.order[0]]
        edges = [low, *range((low // length + 1) * length, high, length), high]
        return [range(a - low, b - low) for a, b in itertools.pairwise(edges)]

    @property
    def memory(self) -> int:
        """Bytes that reading this view block by block takes."""
        decoded = math.prod(
            min(length, high - low) for length, (low, high) in zip(self.array.read_chunks, self.box, strict=True)
        )
        return (decoded * 8 + self.reader.part_memory) * IN_FLIGHT

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
            for (start, stop), length in zip(self.box, self.array.read_chunks, strict=True)
        ]
        for chunk in itertools.product(*grids):
            length = self.array.read_chunks[first]
            here = [row for row in wanted if chunk[first] * length <= row < (chunk[first] + 1) * length]
            if here:
                yield chunk, here

    def _load(self, chunk: tuple[int, ...], rows: list[int]) -> Block:
        first = self.order[0]
        inside: list[Sequence[int]] = []
        for dim, (index, length, (low, high)) in enumerate(zip(chunk, self.array.read_chunks, self.box, strict=True)):
            inside.append(rows if dim == first else range(max(low, index * length), min(high, (index + 1) * length)))
        values = self.reader.read_part(chunk, inside)
        kept = values.squeeze(tuple(dim for dim in range(values.ndim) if dim not in self.order))
        ranks = sorted(self.order)
        moved = kept.transpose([ranks.index(dim) for dim in self.order])
        start = tuple(inside[dim][0] - self.box[dim][0] for dim in self.order[1:])
        base = self.box[first][0]
        return Block([row - base for row in rows], start, np.asarray(moved, np.float32))


def _ranges(start: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
