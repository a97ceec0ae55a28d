"""Cuts the work on one array into blocks that fit a memory budget.

A block covers whole source chunks, so that each is decoded once, and whole target chunks, so that each is encoded once.
Only free axes are cut (see `axis_map`); every other dimension is whole in each block. A large chunk is decoded as a
stream of slabs, cut along its slowest axes: each goes to its place in the block's targets, or where the chunk is larger
than a block may be, each is a block.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from converter.axes.axis_map import AxisMap, Box
from converter.axes.expression import Factor

MAX_TARGET_CHUNK = 128 << 20
"""Decoded bytes of the largest chunk we make: whoever restores a part of a leaf reads whole chunks."""

GROUPED_BLOCK = 8 << 20
"""Chunks smaller than this are handled several at a time."""

SLAB = 2 << 20
"""Decoded bytes to aim at for a slab: they are put into their places while they are still in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """How an array is cut.

    Attributes:
      step: elements of a block along each free axis.
      group: elements along each free axis of what is read in one go: the block itself, or where blocks are slabs of a
        streamed chunk, the chunk.
      slab: elements along each free axis of what is decoded in one piece, one run of a source chunk; None where whole
        blocks are.
      target_chunks: chunk shape of each target.
      block_bytes: decoded bytes of the largest block.
    """

    step: Mapping[str, int]
    group: Mapping[str, int]
    slab: Mapping[str, int] | None
    target_chunks: tuple[tuple[int, ...], ...]
    block_bytes: int

    @property
    def streamed(self) -> bool:
        """Whether blocks are slabs, parts of larger source chunks."""
        return any(self.step[axis] < self.group[axis] for axis in self.step)


class BlockTooLarge(ValueError):
    """No block fits the limit; `smallest` is the size of the smallest possible one in bytes."""

    def __init__(self, smallest: int):
        super().__init__(f"the smallest block has {smallest} bytes")
        self.smallest = smallest


Span = dict[str, tuple[int, int]]
"""Start and stop along each free axis."""


def plan_blocks(
    axis_map: AxisMap, source_chunks: Sequence[tuple[int, ...]], item_size: int, limit: int, *, streamable: bool
) -> Blocking:
    """Chooses the blocks of one array.

    Args:
      axis_map: the whole array's map.
      source_chunks: chunk shape of each source.
      item_size: bytes of an element.
      limit: decoded bytes that a block may have.
      streamable: whether a source chunk can be decoded piece by piece.

    Raises:
      BlockTooLarge: even the smallest block is over the limit.
    """
    chunk = _chunk_lengths(axis_map, source_chunks)

    def size(step: Mapping[str, int]) -> int:
        cut = axis_map.cut(step)
        return item_size * max(
            sum(math.prod(shape) for shape in shapes) for shapes in (cut.source_shapes, cut.target_shapes)
        )

    if size(chunk) <= min(limit, MAX_TARGET_CHUNK) or (size(chunk) <= limit and not streamable):
        step = _grow(axis_map, chunk, size, min(limit, GROUPED_BLOCK))
        slab = None
        if streamable and step == chunk and size(step) > SLAB and is_one_chunk(axis_map, source_chunks[0]):
            slab = _shrink(axis_map, source_chunks, chunk, size, SLAB)
        return Blocking(
            step, step, slab if slab != step else None, _target_chunks(axis_map, source_chunks, chunk), size(step)
        )
    if not streamable:
        raise BlockTooLarge(size(chunk))
    step = _shrink(axis_map, source_chunks, chunk, size, min(limit, MAX_TARGET_CHUNK))
    if size(step) > limit:
        raise BlockTooLarge(size(step))
    return Blocking(
        step, chunk, step if step != chunk else None, _target_chunks(axis_map, source_chunks, step), size(step)
    )


def slab_moving_elements(axis_map: AxisMap, blocking: Blocking, copies: int) -> int:
    """Elements in memory while a block's targets are filled slab by slab and then encoded.

    Args:
      axis_map: the whole array's map.
      blocking: one with slabs that are parts of blocks.
      copies: how often a slab is in memory while it is moved.
    """
    assert blocking.slab is not None
    shapes = axis_map.cut(blocking.step).target_shapes
    at_edge = any(axis_map.sizes[axis.name] % blocking.step[axis.name] for axis in axis_map.free_axes)
    # A chunk that is not the whole of its block is cut out of it before it is encoded.
    cut = [math.prod(c) for c, shape in zip(blocking.target_chunks, shapes, strict=True) if at_edge or c != shape]
    slab = math.prod(axis_map.cut(blocking.slab).source_shapes[0])
    return sum(map(math.prod, shapes)) + slab * copies + max(cut, default=0)


def is_one_chunk(axis_map: AxisMap, chunk: tuple[int, ...]) -> bool:
    """Whether a source chunk is whole along each dimension that is not a free axis."""
    free = {axis.source_dims[0] for axis in axis_map.free_axes}
    return all(
        n >= m for dim, (n, m) in enumerate(zip(chunk, axis_map.source_shapes[0], strict=True)) if dim not in free
    )


def groups(axis_map: AxisMap, blocking: Blocking) -> Iterator[Span]:
    """The parts of an array that are read in one go, in the source's element order."""
    whole = {axis.name: (0, axis_map.sizes[axis.name]) for axis in axis_map.free_axes}
    return _cut(whole, blocking.group)


def blocks(group: Span, blocking: Blocking) -> Iterator[Span]:
    """The blocks of a group, in the source's element order."""
    return _cut(group, blocking.step)


def slab_spans(group: Span, blocking: Blocking) -> Iterator[Span]:
    """The slabs of a group, in the source's element order."""
    return _cut(group, blocking.step if blocking.slab is None else blocking.slab)


def slab_shape(axis_map: AxisMap, blocking: Blocking, chunk: tuple[int, ...]) -> tuple[int, ...]:
    """Elements of a slab of one source chunk, along each dimension of the source."""
    lengths = blocking.step if blocking.slab is None else blocking.slab
    steps = {axis.source_dims[0]: lengths[axis.name] for axis in axis_map.free_axes}
    return tuple(min(steps.get(dim, length), length) for dim, length in enumerate(chunk))


def count_blocks(axis_map: AxisMap, step: Mapping[str, int]) -> int:
    """How many blocks of that size an array has."""
    return math.prod(-(-axis_map.sizes[axis.name] // step[axis.name]) for axis in axis_map.free_axes)


def block_map(axis_map: AxisMap, span: Span) -> AxisMap:
    """The map of one block."""
    return axis_map.cut({axis: stop - start for axis, (start, stop) in span.items()})


def source_box(axis_map: AxisMap, span: Span, source: int) -> Box:
    """Where a block lies in a source tensor."""
    return _box(axis_map.source_shapes[source], {a.source_dims[source]: span[a.name] for a in axis_map.free_axes})


def target_box(axis_map: AxisMap, span: Span, target: int) -> Box:
    """Where a block lies in a target tensor."""
    return _box(axis_map.target_shapes[target], {a.target_dims[target]: span[a.name] for a in axis_map.free_axes})


def _box(shape: tuple[int, ...], cuts: Mapping[int, tuple[int, int]]) -> Box:
    return tuple(cuts.get(dim, (0, length)) for dim, length in enumerate(shape))


def _cut(span: Span, step: Mapping[str, int]) -> Iterator[Span]:
    parts = [
        [(low, min(low + step[axis], stop)) for low in range(start, stop, step[axis])]
        for axis, (start, stop) in span.items()
    ]
    for choice in itertools.product(*parts):
        yield dict(zip(span, choice, strict=True))


def _chunk_lengths(axis_map: AxisMap, source_chunks: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The source chunks' length along each free axis (their common multiple, where there are several sources)."""
    result: dict[str, int] = {}
    for axis in axis_map.free_axes:
        lengths = [chunks[dim] for chunks, dim in zip(source_chunks, axis.source_dims, strict=True)]
        result[axis.name] = min(math.lcm(*lengths), axis_map.sizes[axis.name])
    return result


def _grow(axis_map: AxisMap, chunk: Mapping[str, int], size, most: int) -> dict[str, int]:
    """Several chunks to a block, as long as it stays small; fastest axes first, so that a block is compact."""
    step = dict(chunk)
    for axis in reversed(axis_map.free_axes):
        length = axis_map.sizes[axis.name]
        while step[axis.name] < length:
            wider = {**step, axis.name: min(step[axis.name] * 2, length)}
            if size(wider) > most:
                return step
            step = wider
    return step


def _shrink(
    axis_map: AxisMap, source_chunks: Sequence[tuple[int, ...]], chunk: Mapping[str, int], size, most: int
) -> dict[str, int]:
    """A slab of a chunk: slowest dimensions are cut first, so that a slab is one run of the decoded chunk."""
    step = dict(chunk)
    for dim in range(len(axis_map.expression.sources[0])):
        if size(step) <= most:
            break
        axis = next((axis for axis in axis_map.free_axes if set(axis.source_dims) == {dim}), None)
        if axis is None:
            break
        length = source_chunks[0][dim]
        # Sizes are proportional to the step: nothing longer than this can fit, however long the chunk is.
        longest = min(length, most // size({**step, axis.name: 1}))
        fitting = (n for n in range(longest, 0, -1) if length % n == 0 and size({**step, axis.name: n}) <= most)
        step[axis.name] = next(fitting, 1)
    return step


def _target_chunks(
    axis_map: AxisMap, source_chunks: Sequence[tuple[int, ...]], step: Mapping[str, int]
) -> tuple[tuple[int, ...], ...]:
    """Chunks of the targets: the source's chunks, moved; never longer than these along any dimension."""
    lengths: dict[Factor, int] = {}
    for tensor, chunks in zip(axis_map.expression.sources, source_chunks, strict=True):
        for dim, length in zip(tensor, chunks, strict=True):
            for term in dim.terms:
                for factor in term:
                    lengths[factor] = max(lengths.get(factor, 0), length)
    result: list[tuple[int, ...]] = []
    for tensor, shape in zip(axis_map.expression.targets, axis_map.target_shapes, strict=True):
        chunks = []
        for dim, length in zip(tensor, shape, strict=True):
            name = dim.terms[0][0]
            is_free = len(dim.terms[0]) == 1 and not dim.is_sum and name in step
            most = step[str(name)] if is_free else lengths.get(name, length)
            chunks.append(min(most, length))
        result.append(tuple(chunks))
    return tuple(result)
