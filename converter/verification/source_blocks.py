"""Reads the blocks of a source for verification: each source chunk is decoded once, however large it is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorstore as ts

from converter.arrays import ArraySpec, chunks_in, open_spec, slabs
from converter.axes import AxisMap, Blocking, Box, Span, blocks, source_box
from converter.errors import SourceError, reason


class SourceBlocks:
    """The source side of one task; opened when the first block is read."""

    def __init__(self, sources: tuple[ArraySpec, ...], axis_map: AxisMap, blocking: Blocking, context: ts.Context):
        self.sources = sources
        self.axis_map = axis_map
        self.blocking = blocking
        self.context = context
        self._readers: list[Any] = []

    def read(self, group: Span) -> Iterator[tuple[Span, list[np.ndarray]]]:
        """Yields the blocks of a group: where each lies, and one array for each source.

        Raises:
          SourceError: a chunk is missing or damaged.
        """
        if self.blocking.streamed:
            yield from self._streamed(group)
            return
        if not self._readers:
            self._readers = [self._open(array) for array in self.sources]
        boxes = [source_box(self.axis_map, group, number) for number in range(len(self.sources))]
        yield (
            group,
            [_read(reader, array, box) for reader, array, box in zip(self._readers, self.sources, boxes, strict=True)],
        )

    def close(self) -> None:
        """Lets go of the open arrays."""
        self._readers = []

    def _open(self, array: ArraySpec) -> Any:
        try:
            return ts.open(open_spec(array), read=True, context=self.context).result()
        except ValueError as error:
            raise SourceError(f"{array.path}: cannot be opened: {reason(error)}") from None

    def _streamed(self, group: Span) -> Iterator[tuple[Span, list[np.ndarray]]]:
        """Slabs of chunks that are larger than a block; all chunks of the group are decoded side by side."""
        (array,) = self.sources
        parts = chunks_in(array, source_box(self.axis_map, group, 0))
        step = {axis.source_dims[0]: self.blocking.step[axis.name] for axis in self.axis_map.free_axes}
        slab = tuple(min(step.get(dim, length), length) for dim, length in enumerate(array.chunks))
        todo = blocks(group, self.blocking)
        span = next(todo, None)
        # The streams are read to their ends, also behind the last block: that is where trailing garbage shows.
        for pieces in zip(*(slabs(array, chunk, slab) for chunk in parts), strict=True):
            if span is None:
                continue
            box = source_box(self.axis_map, span, 0)
            offset = pieces[0][0]
            at = tuple(n * length + o for n, length, o in zip(parts[0], array.chunks, offset, strict=True))
            if all(at[dim] == box[dim][0] for dim in step):
                yield span, [_joined(array, box, parts, [values for _, values in pieces], offset)]
                span = next(todo, None)


def _joined(
    array: ArraySpec, box: Box, parts: list[tuple[int, ...]], values: list[np.ndarray], offset: tuple[int, ...]
) -> np.ndarray:
    """Puts slabs of neighbouring chunks together and cuts off the padding of edge chunks."""
    shape = tuple(high - low for low, high in box)
    if len(values) == 1 and values[0].shape == shape:
        return values[0]
    block = np.empty(shape, values[0].dtype)
    for chunk, slab in zip(parts, values, strict=True):
        starts = [n * c + o - low for n, c, o, (low, _) in zip(chunk, array.chunks, offset, box, strict=True)]
        place = tuple(slice(start, start + length) for start, length in zip(starts, slab.shape, strict=True))
        target = block[place]
        target[...] = slab[tuple(slice(0, length) for length in target.shape)]
    return block


def _read(reader: Any, array: ArraySpec, box: Box) -> np.ndarray:
    try:
        return reader[tuple(slice(low, high) for low, high in box)].read().result()
    except ValueError as error:
        raise SourceError(f"{array.path}: a chunk cannot be read: {reason(error)}") from None
