"""The rewrite route: blocks are decoded, rearranged and encoded; each source chunk once, each target chunk once."""

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from converter.arrays import BlockReader, Leaf, LeafStore, chunks_in, encode_chunk, place, slabs, slices, storage_dtype
from converter.axes import AxisMap, Box, Span, block_map, block_slabs, groups, source_box, target_box
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
        self._readers: list[BlockReader] = []
        self._maps: dict[tuple[int, ...], AxisMap] = {}
        self._lock = threading.Lock()

    def groups(self) -> Iterator[Span]:
        """The units of work."""
        return groups(self.task.axis_map, self.blocking)

    def target_bytes(self, group: Span) -> int:
        """Decoded bytes of the leaves that a group fills."""
        boxes = (target_box(self.task.axis_map, group, number) for number in range(len(self.task.leaves)))
        elements = sum(math.prod(high - low for low, high in box) for box in boxes)
        return elements * self.task.leaves[0].item_size

    def is_done(self, group: Span, stores: Sequence[LeafStore]) -> bool:
        """Whether an earlier run stored all chunks of a group whole."""
        for number, store in enumerate(stores):
            box = target_box(self.task.axis_map, group, number)
            if not all(store.has_chunk(index) for index in leaf_chunks(store.leaf, box)):
                return False
        return True

    def rewrite(self, group: Span, stores: Sequence[LeafStore], *, keep: bool) -> tuple[int, int]:
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
        boxes = [source_box(self.task.axis_map, group, number) for number in range(len(self.task.sources))]
        decoded = sum(len(chunks_in(array, box)) for array, box in zip(self.task.sources, boxes, strict=True))
        if not self.blocking.streamed:
            return decoded, self._encode(group, self._move(group, boxes), stores, keep)
        encoded = 0
        for span, slab in self._slabs(group):
            if self.stop.is_set():
                break
            encoded += self._encode(span, self._map(span).forward([slab]), stores, keep)
        return decoded, encoded

    def _move(self, group: Span, boxes: Sequence[Box]) -> list[np.ndarray]:
        """The targets of a block: all at once, or slab by slab as they are decoded."""
        if self.blocking.slab is None:
            arrays = [reader.read(box) for reader, box in zip(self._open_readers(), boxes, strict=True)]
            return self._map(group).forward(arrays)
        axis_map = self.task.axis_map
        dtype = storage_dtype(self.task.sources[0].dtype)
        starts = [[low for low, _ in target_box(axis_map, group, n)] for n in range(len(self.task.leaves))]
        targets = [np.empty(shape, dtype) for shape in self._map(group).target_shapes]
        for span, slab in self._slabs(group):
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

    def _open_readers(self) -> list[BlockReader]:
        with self._lock:
            if not self._readers:
                self._readers = [BlockReader(array) for array in self.task.sources]
            return self._readers

    def _encode(self, span: Span, targets: Sequence[np.ndarray], stores: Sequence[LeafStore], keep: bool) -> int:
        """Encodes all target chunks of a block; returns how many."""
        count = 0
        for number, (store, moved) in enumerate(zip(stores, targets, strict=True)):
            box = target_box(self.task.axis_map, span, number)
            values = self._values(store.leaf, box, moved)
            for index in leaf_chunks(store.leaf, box):
                if keep and store.has_chunk(index):
                    continue
                _store_chunk(store, index, _cut_chunk(store.leaf, index, box, values))
                count += 1
        return count

    def _values(self, leaf: Leaf, box: Box, moved: np.ndarray) -> np.ndarray:
        """What is written of a block that was moved: the value rule is applied here."""
        if isinstance(self.task.value, Scale):
            return self.task.value.apply(moved, self.task.axis_map.sizes)
        return self.computed[leaf.path][slices(box)] if leaf.path in self.computed else moved

    def _slabs(self, group: Span) -> Iterator[tuple[Span, np.ndarray]]:
        """The slabs of chunks that are decoded as streams, with the padding of edge chunks cut off."""
        (array,) = self.task.sources
        axis_map = self.task.axis_map
        chunks = chunks_in(array, source_box(axis_map, group, 0))
        assert self.blocking.slab is not None
        steps = {axis.source_dims[0]: self.blocking.slab[axis.name] for axis in axis_map.free_axes}
        slab = tuple(min(steps.get(dim, length), length) for dim, length in enumerate(array.chunks))
        spans = block_slabs(group, self.blocking)
        span = next(spans, None)
        # One buffer for each chunk: a slab is used up before the next is asked for.
        buffers = [np.empty(slab, storage_dtype(array.dtype)) for _ in chunks]
        streams = [slabs(array, chunk, slab, buffer) for chunk, buffer in zip(chunks, buffers, strict=True)]
        for parts in zip(*streams, strict=True):
            if span is None:
                continue  # padding at the end of an edge chunk; decoded to the end so that nothing can hide there
            box = source_box(axis_map, span, 0)
            starts = [
                [n * length + o - low for n, length, o, (low, _) in zip(chunk, array.chunks, offset, box, strict=True)]
                for chunk, (offset, _) in zip(chunks, parts, strict=True)
            ]
            if any(starts[0][dim] for dim in steps):
                continue
            yield span, _join(box, starts, [values for _, values in parts])
            span = next(spans, None)
        if span is not None:
            raise RuntimeError(f"{array.path}: the slabs of chunk {chunks[0]} do not cover it")


def leaf_chunks(leaf: Leaf, box: Box) -> Iterator[tuple[int, ...]]:
    """Grid indices of a leaf's chunks in a chunk-aligned box."""
    ranges = [range(low // n, -(-high // n)) for (low, high), n in zip(box, leaf.chunks, strict=True)]
    return itertools.product(*ranges)


def _join(box: Box, starts: Sequence[list[int]], parts: Sequence[np.ndarray]) -> np.ndarray:
    shape = tuple(high - low for low, high in box)
    if len(parts) == 1:
        return parts[0][tuple(slice(0, length) for length in shape)]
    block = np.empty(shape, parts[0].dtype)
    for start, values in zip(starts, parts, strict=True):
        place(block, start, values)
    return block


def _cut_chunk(leaf: Leaf, index: tuple[int, ...], box: Box, values: np.ndarray) -> np.ndarray:
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


def _store_chunk(store: LeafStore, index: tuple[int, ...], chunk: np.ndarray) -> None:
    encoding = store.leaf.encoding
    frame_checksum = encoding.checksum and not encoding.crc32c

    reader = encode_chunk(chunk, encoding.level, checksum=frame_checksum)
    store.store_chunk(index, chunk.nbytes, lambda writer: writer.take(reader))
