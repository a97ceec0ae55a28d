"""The rewrite route: blocks are decoded, rearranged and encoded; each source chunk once, each target chunk once."""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from converter.arrays import Array, BlockReader, LeafStore, StackStore, encode_chunk, slices
from converter.axes import AxisMap, Box, Span, block_map, groups, source_box, target_box
from converter.conversion.cast import cast
from converter.dtypes import storage_dtype
from converter.mapping import Scale
from converter.planning import Task


class Rewriter:
    """Rewrites the blocks of one task; safe to use from several threads."""

    def __init__(self, task: Task, stop: threading.Event, computed: Mapping[str, np.ndarray]):
        """Prepares a task that the plan has cut into blocks.

        Args:
          task: the task.
          stop: ends a streamed group early; it must not be counted as done then.
          computed: leaf path to a whole value that is written in place of the moved one.
        """
        assert task.blocking is not None
        self.task = task
        self.blocking = task.blocking
        self.stop = stop
        self.computed = computed
        self._reader = BlockReader(task.sources, task.axis_map, self.blocking)
        self._maps: dict[tuple[int, ...], AxisMap] = {}

    def groups(self) -> Iterator[Span]:
        """The units of work."""
        return groups(self.task.axis_map, self.blocking)

    def target_bytes(self, group: Span) -> int:
        """Decoded bytes of the leaves that a group fills."""
        boxes = (target_box(self.task.axis_map, group, number) for number in range(len(self.task.leaves)))
        elements = sum(math.prod(high - low for low, high in box) for box in boxes)
        return elements * self.task.leaves[0].item_size

    def is_done(self, group: Span, stores: Sequence[LeafStore | StackStore]) -> bool:
        """Whether an earlier run stored all chunks of a group whole."""
        for number, store in enumerate(stores):
            box = target_box(self.task.axis_map, group, number)
            if not all(store.has_chunk(index) for index in store.leaf.chunks_in(box)):
                return False
        return True

    def rewrite(self, group: Span, stores: Sequence[LeafStore | StackStore], *, keep: bool) -> tuple[int, int]:
        """Rewrites one group.

        Args:
          group: the unit of work.
          stores: where the leaves go.
          keep: leave chunks alone that are there already and whole.

        Returns:
          How many chunks were decoded, and how many were encoded.

        Raises:
          SourceError: a source chunk cannot be read or decoded.
          DestinationError: a target chunk cannot be written.
        """
        boxes = (source_box(self.task.axis_map, group, number) for number in range(len(self.task.sources)))
        decoded = sum(len(array.chunks_in(box)) for array, box in zip(self.task.sources, boxes, strict=True))
        if not self.blocking.streamed:
            return decoded, self._encode(group, self._move(group), stores, keep)
        encoded = 0
        for span, slab in self._reader.slabs(group):
            if self.stop.is_set():
                break
            encoded += self._encode(span, self._map(span).forward([slab]), stores, keep)
        return decoded, encoded

    def _move(self, group: Span) -> list[np.ndarray]:
        """The targets of a block: all at once, or slab by slab as they are decoded."""
        if self.blocking.slab is None:
            return self._map(group).forward(self._reader.read(group))
        axis_map = self.task.axis_map
        dtype = storage_dtype(self.task.sources[0].dtype)
        starts = [[low for low, _ in target_box(axis_map, group, n)] for n in range(len(self.task.leaves))]
        targets = [np.empty(shape, dtype) for shape in self._map(group).target_shapes]
        for span, slab in self._reader.slabs(group):
            moved = self._map(span).forward([slab])
            for number, (target, start, part) in enumerate(zip(targets, starts, moved, strict=True)):
                box = target_box(axis_map, span, number)
                target[tuple(slice(low - at, high - at) for (low, high), at in zip(box, start, strict=True))] = part
        return targets

    def _map(self, span: Span) -> AxisMap:
        """The map of a part, made once for each size."""
        lengths = tuple(stop - start for start, stop in span.values())
        if lengths not in self._maps:
            self._maps[lengths] = block_map(self.task.axis_map, span)
        return self._maps[lengths]

    def _encode(
        self, span: Span, targets: Sequence[np.ndarray], stores: Sequence[LeafStore | StackStore], keep: bool
    ) -> int:
        """Encodes all target chunks of a block; returns how many."""
        count = 0
        for number, (store, moved) in enumerate(zip(stores, targets, strict=True)):
            box = target_box(self.task.axis_map, span, number)
            values = self._values(store.leaf, box, moved)
            for index in store.leaf.chunks_in(box):
                if keep and store.has_chunk(index):
                    continue
                store_chunk(store, index, _cut_chunk(store.leaf, index, box, values))
                count += 1
        return count

    def _values(self, leaf: Array, box: Box, moved: np.ndarray) -> np.ndarray:
        """What is written of a block that was moved: the value rule is applied here."""
        if isinstance(self.task.value, Scale):
            moved = self.task.value.apply(moved, self.task.axis_map.sizes)
        elif leaf.path in self.computed:
            moved = self.computed[leaf.path][slices(box)]
        if leaf.dtype == self.task.sources[0].dtype:
            return moved
        return cast(moved, leaf.dtype, leaf.path)


def _cut_chunk(leaf: Array, index: tuple[int, ...], box: Box, values: np.ndarray) -> np.ndarray:
    """One chunk of a block, C-contiguous; an edge chunk is filled up with zeros."""
    region = [
        (number * length - low, min((number + 1) * length, high) - low)
        for number, length, (low, high) in zip(index, leaf.chunks, box, strict=True)
    ]
    part = values[slices(tuple(region))]
    if part.shape == leaf.chunks:
        return np.ascontiguousarray(part)
    chunk = np.zeros(leaf.chunks, values.dtype)
    chunk[tuple(slice(0, length) for length in part.shape)] = part
    return chunk


def store_chunk(store: LeafStore | StackStore, index: tuple[int, ...], chunk: np.ndarray) -> None:
    """Encodes and stores one chunk.

    Raises:
      DestinationError: it cannot be written.
    """
    encoding = store.leaf.encoding
    frame_checksum = encoding.checksum and not encoding.crc32c
    reader = encode_chunk(chunk, encoding.level, checksum=frame_checksum)
    store.store_chunk(index, chunk.nbytes, lambda writer: writer.take(reader))
