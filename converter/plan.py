"""The plan of a conversion: every array, its route, its blocks, its bytes. Made from metadata alone; plain data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.axis_map import AxisMap
from converter.blocking import Blocking, BlockTooLarge, count_blocks, plan_blocks
from converter.errors import UsageError
from converter.matching import MatchedRow
from converter.maxtext import model_config
from converter.source import Source
from converter.zarr2 import ArraySpec

DEFAULT_MEMORY = 1 << 30

COPIES = 4
"""Bytes held for each byte of a block on its way: the decoded source, the encoded source or target, the rearranged
target and the chunk that is being encoded."""

BASE_MEMORY = 350 << 20
"""The process itself once jax and orbax are loaded for the commit; not part of the budget."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, as far as it shapes the result.

    Attributes:
      untie: write the output projection as a tensor of its own.
      max_memory: bytes that blocks in flight may take together.
      qk_norm: "plain" copies the q/k norm scales, "fit" fits them to stock MaxText's order of norm and RoPE.
    """

    untie: bool = False
    max_memory: int = DEFAULT_MEMORY
    qk_norm: str = "plain"

    @property
    def mapping_options(self) -> frozenset[str]:
        return frozenset({"untie"} if self.untie else ())


@dataclass(frozen=True, slots=True)
class Leaf:
    """One target array.

    Attributes:
      path: its place in MaxText's tree, "/"-joined.
      dtype: numpy's name.
      shape: elements along each dimension.
      chunks: elements of a chunk along each dimension.
      item_size: bytes of an element.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    item_size: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.item_size


@dataclass(frozen=True)
class Task:
    """The work on one row of the mapping in one place: some source arrays become some leaves.

    Attributes:
      sources: arrays to read.
      leaves: arrays to write.
      axis_map: how elements move.
      route: how bytes move; "rewrite" decodes, rearranges and encodes.
      reason: why not a cheaper route.
      blocking: how the array is cut.
      extra: the leaves add parameters that the source does not have (a copy made on request).
      stored_bytes: size of the source's chunk files; 0 where unknown.
      group: heading in reports.
      note: the row's explanation in reports.
      source_place: the layer's path in the source; empty for tensors that belong to no layer.
      target_place: the same in the target.
    """

    sources: tuple[ArraySpec, ...]
    leaves: tuple[Leaf, ...]
    axis_map: AxisMap
    route: str
    reason: str
    blocking: Blocking
    extra: bool
    stored_bytes: int
    group: str
    note: str
    source_place: str
    target_place: str

    @property
    def memory(self) -> int:
        """Bytes that one block in flight takes."""
        return self.blocking.block_bytes * COPIES

    @property
    def blocks(self) -> int:
        return count_blocks(self.axis_map, self.blocking.step)


@dataclass(frozen=True)
class Plan:
    """A whole conversion.

    Attributes:
      source: the source step directory.
      step: its training step.
      table: name of the mapping table.
      table_digest: hash of the table's text.
      options: what was asked for.
      tasks: the work, in the order of the model.
      dropped: reason to the tensors left behind for it, as (path, elements).
      others: index entries that are no tensors.
      sizes: the solved axis sizes.
      config: MaxText's model configuration.
    """

    source: str
    step: int | None
    table: str
    table_digest: str
    options: Options
    tasks: tuple[Task, ...]
    dropped: Mapping[str, tuple[tuple[str, int], ...]]
    others: tuple[str, ...]
    sizes: Mapping[str, int]
    config: Mapping[str, Any]
    totals: "Totals" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "totals", _totals(self.tasks, self.options.max_memory))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(leaf for task in self.tasks for leaf in task.leaves)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a plan.

    Attributes:
      source_parameters: elements of the source tensors that are converted.
      target_parameters: elements of all leaves.
      added_parameters: those of them that are copies made on request.
      read_bytes: decoded bytes to read.
      write_bytes: decoded bytes to write.
      stored_bytes: size of the source's files; 0 where only metadata is there.
      memory: bytes of blocks in flight, at most.
    """

    source_parameters: int
    target_parameters: int
    added_parameters: int
    read_bytes: int
    write_bytes: int
    stored_bytes: int
    memory: int

    @property
    def difference(self) -> int:
        """Parameters that the target lacks or has too many; 0 in a correct plan."""
        return self.target_parameters - self.added_parameters - self.source_parameters


def make_plan(source: Source, options: Options) -> Plan:
    """Plans a conversion.

    Raises:
      UsageError: the memory budget is too small for some block; the message names the smallest one that works.
    """
    match = source.match
    tasks: list[Task] = []
    too_small: list[tuple[int, str]] = []
    for row in match.rows:
        try:
            tasks.append(_make_task(row, source, options))
        except BlockTooLarge as error:
            too_small.append((error.smallest * COPIES, row.sources[0]))
    if too_small:
        smallest, path = max(too_small)
        raise UsageError(
            f"--max-memory {options.max_memory} bytes is too small: {path} needs blocks of {smallest} bytes; "
            f"give --max-memory {-(-smallest >> 20)}MiB or more"
        )
    dropped: dict[str, list[tuple[str, int]]] = {}
    for path, reason in match.dropped.items():
        dropped.setdefault(reason, []).append((path, math.prod(source.checkpoint.tensors[path].shape)))
    return Plan(
        source=source.checkpoint.directory,
        step=source.checkpoint.step,
        table=match.table.name,
        table_digest=match.table.digest,
        options=options,
        tasks=tuple(tasks),
        dropped={reason: tuple(entries) for reason, entries in dropped.items()},
        others=source.checkpoint.others,
        sizes=match.sizes,
        config=model_config(match),
    )


def _make_task(row: MatchedRow, source: Source, options: Options) -> Task:
    axis_map = AxisMap(row.expression, {name: source.match.sizes[name] for name in row.expression.names()})
    arrays = tuple(source.arrays[name] for name in row.sources)
    blocking = plan_blocks(
        axis_map,
        [array.chunks for array in arrays],
        arrays[0].item_size,
        options.max_memory // COPIES,
        streamable=len(arrays) == 1 and _streamable(arrays[0]),
    )
    leaves = tuple(
        Leaf(path, arrays[0].dtype, shape, chunks, arrays[0].item_size)
        for path, shape, chunks in zip(row.targets, axis_map.target_shapes, blocking.target_chunks, strict=True)
    )
    return Task(
        sources=arrays,
        leaves=leaves,
        axis_map=axis_map,
        route="rewrite",
        reason="",
        blocking=blocking,
        extra=bool(row.row.option),
        stored_bytes=sum(source.stored_bytes.get(name, 0) for name in row.sources),
        group=row.row.group,
        note=row.row.note,
        source_place=row.source_place,
        target_place=row.target_place,
    )


def _streamable(array: ArraySpec) -> bool:
    return array.order == "C" and (array.compressor is None or array.compressor.get("id") == "zstd")


def _totals(tasks: tuple[Task, ...], budget: int) -> Totals:
    own = [task for task in tasks if not task.extra]
    return Totals(
        source_parameters=sum(array.elements for task in own for array in task.sources),
        target_parameters=sum(leaf.elements for task in tasks for leaf in task.leaves),
        added_parameters=sum(leaf.elements for task in tasks if task.extra for leaf in task.leaves),
        read_bytes=sum(array.bytes for task in tasks for array in task.sources),
        write_bytes=sum(leaf.bytes for task in tasks for leaf in task.leaves),
        stored_bytes=sum(task.stored_bytes for task in own),
        memory=min(budget, sum(sorted(task.memory for task in tasks for _ in range(min(task.blocks, 4)))[-4:])),
    )
