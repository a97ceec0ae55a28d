"""How `verify` cuts a leaf: into blocks that both sides can be read in, each chunk once, within the memory budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from converter.arrays import Array, can_decode
from converter.axes import Blocking, BlockTooLarge, plan_blocks
from converter.errors import UsageError
from converter.planning import Task
from converter.words import budget_too_small

READ_COPIES = 3
"""Bytes that TensorStore takes for each byte of a chunk that it reads whole: encoded, decoded, copied out."""

STREAM_COPIES = 3
"""Bytes that a streamed source takes for each byte of a slab: decoded, put together, and the one before it."""

SMALLEST_SLAB = 64 << 10
"""Slabs are not made smaller than this to make room for the checkpoint's chunks."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work on one task is cut.

    Attributes:
      blocking: the blocks, and the groups of blocks that are handled together.
      memory: bytes that one group takes.
    """

    blocking: Blocking
    memory: int


def cut_task(task: Task, arrays: Sequence[Array | None], max_memory: int) -> Cut:
    """Chooses the blocks of a task.

    Args:
      task: the task.
      arrays: the checkpoint's array of each leaf; None for those that are not compared.
      max_memory: bytes that one group may take.

    Raises:
      UsageError: the chunks do not fit the budget.
    """
    item = max(array.item_size for array in (*task.sources, *filter(None, arrays)))
    try:
        blocking = plan_blocks(
            task.axis_map, _common_chunks(task, arrays), item, max_memory // (1 + READ_COPIES), streamable=False
        )
        return Cut(blocking, blocking.block_bytes * (1 + READ_COPIES))
    except BlockTooLarge:
        pass
    # Blocks of source chunks or slabs of them, and beside each the whole chunks of the checkpoint that it lies in.
    streamable = len(task.sources) == 1 and can_decode(task.sources[0])
    chunks = [array.chunks for array in task.sources]
    limit, smallest = max_memory // (1 + READ_COPIES), 0
    while True:
        try:
            blocking = plan_blocks(task.axis_map, chunks, item, limit, streamable=streamable)
        except BlockTooLarge as error:
            raise _too_small(task, max_memory, smallest or error.smallest * (1 + READ_COPIES)) from None
        smallest = _memory(task, arrays, blocking)
        if smallest <= max_memory:
            return Cut(blocking, smallest)
        if limit <= SMALLEST_SLAB:
            raise _too_small(task, max_memory, smallest)
        limit //= 2


def _memory(task: Task, arrays: Sequence[Array | None], blocking: Blocking) -> int:
    """What a group takes when the checkpoint's chunks are larger than a block: they are read whole, and held."""
    covers = [_cover_bytes(task, array, number, blocking) for number, array in enumerate(arrays) if array is not None]
    held = sum(covers) + (READ_COPIES - 1) * max(covers)
    if blocking.streamed:
        return STREAM_COPIES * blocking.block_bytes + held
    return blocking.block_bytes + max((READ_COPIES - 1) * blocking.block_bytes, held)


def _cover_bytes(task: Task, array: Array, number: int, blocking: Blocking) -> int:
    """Bytes of the chunks that a block lies in, at most."""
    lengths = list(array.shape)
    for axis in task.axis_map.free_axes:
        dim, step = axis.target_dims[number], blocking.step[axis.name]
        chunk = array.chunks[dim]
        nested = chunk % step == 0 or step % chunk == 0
        lengths[dim] = min((-(-step // chunk) + (not nested)) * chunk, lengths[dim])
    return math.prod(lengths) * array.item_size


def _common_chunks(task: Task, arrays: Sequence[Array | None]) -> list[tuple[int, ...]]:
    """Source chunks, made long enough along each free axis to cover whole chunks of the checkpoint."""
    chunks: list[list[int]] = [list(array.chunks) for array in task.sources]
    for axis in task.axis_map.free_axes:
        stored = [array.chunks[dim] for array, dim in zip(arrays, axis.target_dims, strict=True) if array is not None]
        for source, dim in enumerate(axis.source_dims):
            whole = task.axis_map.sizes[axis.name]
            chunks[source][dim] = min(math.lcm(chunks[source][dim], *stored), whole)
    return [tuple(lengths) for lengths in chunks]


def _too_small(task: Task, max_memory: int, needed: int) -> UsageError:
    return budget_too_small(max_memory, f"the chunks of {task.leaves[0].path} need {needed} bytes", needed)
