"""The plan of a conversion: every array, its route, its blocks, its bytes. Made from metadata alone; plain data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from converter.arrays import FEED_SIZE, Array, can_decode
from converter.axes import (
    AxisMap,
    Blocking,
    BlockTooLarge,
    count_blocks,
    is_one_chunk,
    plan_blocks,
    slab_moving_elements,
)
from converter.errors import UsageError
from converter.mapping import Configuration, Fit, MatchedRow, Scale, ValueRule
from converter.planning.fidelity import TIED_KEY, Remedies
from converter.planning.options import IN_STORE, JOBS, Options
from converter.planning.routes import REWRITE, Route, choose_route
from converter.planning.source import Source, configure_source

PASS_MEMORY = 2 * FEED_SIZE
"""Bytes that copying one chunk takes."""

COPIERS = 2
"""Threads that only copy chunks, beside those that rewrite first: copying waits for the disk, rewriting for a core."""

REWRITE_MEMORY = 3 * FEED_SIZE
"""Bytes that decoding and encoding a block take beside the block: the decoder's window, and pieces being written."""


@dataclass(frozen=True)
class Task:
    """The work on one row of the mapping in one place: some source arrays become some leaves.

    Attributes:
      sources: arrays to read.
      leaves: arrays to write.
      axis_map: how elements move.
      value: what becomes of their values.
      route: how bytes travel, see `routes`.
      reason: why not by a cheaper route.
      blocking: how the array is cut; None where whole chunks are passed through.
      memory: bytes that one block or chunk takes on its way.
      option: the table's option that adds these leaves, copies made on request; empty for all others.
      stored_bytes: size of the source's chunk files; 0 where unknown.
      group: heading in reports.
      note: the row's explanation in reports.
      source_place: the layer's path in the source; empty for tensors that belong to no layer.
      target_place: the same in the target.
    """

    sources: tuple[Array, ...]
    leaves: tuple[Array, ...]
    axis_map: AxisMap
    value: ValueRule
    route: str
    reason: str
    blocking: Blocking | None
    memory: int
    option: str
    stored_bytes: int
    group: str
    note: str
    source_place: str
    target_place: str

    @property
    def extra(self) -> bool:
        """Whether the leaves add parameters that the source does not have."""
        return bool(self.option)

    @property
    def units(self) -> int:
        """Blocks or chunks that are handled one by one."""
        if self.blocking is None:
            return sum(math.prod(array.grid) for array in self.sources)
        return count_blocks(self.axis_map, self.blocking.group)


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
      dropped: reason to the tensors left behind for it, as (path, elements); None for elements that the index does not
        tell.
      notes: what the user has to know about what is converted, one line each.
      others: index entries that are not tensors.
      sizes: the solved axis sizes.
      configuration: MaxText's, with the learner of the source's training.
      jobs: blocks in flight.
      remedies: options of the table that advice may name.
    """

    source: str
    step: int | None
    table: str
    table_digest: str
    options: Options
    tasks: tuple[Task, ...]
    dropped: Mapping[str, tuple[tuple[str, int | None], ...]]
    notes: tuple[str, ...]
    others: tuple[str, ...]
    sizes: Mapping[str, int]
    configuration: Configuration
    jobs: int
    remedies: Remedies
    totals: "Totals" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "totals", _totals(self.tasks, self.options.max_memory, self.jobs))

    @property
    def config(self) -> Mapping[str, Any]:
        """The keys of MaxText's configuration."""
        return self.configuration.keys

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the user set of it."""
        return self.configuration.settings

    @property
    def fitted(self) -> bool:
        """Whether some values are fitted instead of copied."""
        return any(isinstance(task.value, Fit) for task in self.tasks)

    @property
    def tied(self) -> bool:
        """Whether MaxText takes its logits from the embedding table, which it rounds to bfloat16 for them."""
        return bool(self.config.get(TIED_KEY))

    @property
    def leaves(self) -> tuple[Array, ...]:
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


def make_plan(
    source: Source, options: Options, configuration: Configuration | None = None, *, jobs: int = JOBS
) -> Plan:
    """Plans a conversion.

    Args:
      source: the checkpoint and its table.
      options: what shapes the result.
      configuration: MaxText's; None for the table's own.
      jobs: blocks in flight.

    Raises:
      MappingError: the table makes an impossible model of these tensors.
      UsageError: the memory budget is too small for some block; the message names the smallest one that works.
    """
    options.check()
    match = source.match
    configuration = configuration or configure_source(source)
    tasks: list[Task] = []
    too_small: list[tuple[int, str]] = []
    for row in match.rows:
        try:
            tasks.append(_make_task(row, source, options))
        except BudgetTooSmall as error:
            too_small.append((error.smallest, row.sources[0]))
    if too_small:
        smallest, path = max(too_small)
        raise UsageError(
            f"--max-memory {options.max_memory} bytes is too small: {path} needs blocks of {smallest} bytes; "
            f"give --max-memory {-(-smallest >> 20)}MiB or more"
        )
    dropped: dict[str, list[tuple[str, int | None]]] = {}
    for path, reason in match.dropped.items():
        shape = source.checkpoint.tensors[path].shape
        dropped.setdefault(reason, []).append((path, None if shape is None else math.prod(shape)))
    return Plan(
        source=source.shown,
        step=source.checkpoint.step,
        table=match.table.name,
        table_digest=match.table.digest,
        options=options,
        tasks=tuple(tasks),
        dropped={reason: tuple(entries) for reason, entries in dropped.items()},
        notes=(*source.notes, *configuration.notes),
        others=source.checkpoint.others,
        sizes=match.sizes,
        configuration=configuration,
        jobs=jobs,
        remedies=Remedies.of(match.table),
    )


def _make_task(row: MatchedRow, source: Source, options: Options) -> Task:
    axis_map = AxisMap(row.expression, {name: source.match.sizes[name] for name in row.expression.names()})
    arrays = tuple(source.arrays[name] for name in row.sources)
    route = choose_route(
        axis_map, arrays, store=options.store, rewrite=options.rewrite, link=options.link,
        in_store=options.transfer == IN_STORE, value=row.value,
    )  # fmt: skip
    blocking, chunks, memory = _cut(axis_map, arrays, route, options, row.value)
    leaves = tuple(
        Array(path=path, dtype=arrays[0].dtype, shape=shape, chunks=chunk, encoding=route.encoding)
        for path, shape, chunk in zip(row.targets, axis_map.target_shapes, chunks, strict=True)
    )
    return Task(
        sources=arrays,
        leaves=leaves,
        axis_map=axis_map,
        value=row.value,
        route=route.name,
        reason=route.reason,
        blocking=blocking,
        memory=memory,
        option=row.row.option,
        stored_bytes=sum(source.stored_bytes.get(name, 0) for name in row.sources),
        group=row.row.group,
        note=row.row.note,
        source_place=row.source_place,
        target_place=row.target_place,
    )


class BudgetTooSmall(ValueError):
    """A task needs more memory than there is; `smallest` is what it needs at least, in bytes."""

    def __init__(self, smallest: int):
        super().__init__(f"at least {smallest} bytes are needed")
        self.smallest = smallest


def _cut(
    axis_map: AxisMap, arrays: tuple[Array, ...], route: Route, options: Options, value: ValueRule
) -> tuple[Blocking | None, tuple[tuple[int, ...], ...], int]:
    """The blocks of a task, the chunk shape of each leaf, and the memory that one unit takes."""
    permutation = axis_map.axis_permutation()
    if route.name != REWRITE and permutation is not None:
        (array,) = arrays
        if options.max_memory < PASS_MEMORY:
            raise BudgetTooSmall(PASS_MEMORY)
        return None, (tuple(array.chunks[dim] for dim in permutation),), PASS_MEMORY
    streamable = len(arrays) == 1 and can_decode(arrays[0])
    is_joined = len(arrays) == 1 and not is_one_chunk(axis_map, arrays[0].chunks)
    copies = (
        2 + (permutation is None) + is_joined + isinstance(value, Scale) + (0 if all(map(can_decode, arrays)) else 2)
    )
    limit = (options.max_memory - REWRITE_MEMORY) // copies
    source_chunks = [array.chunks for array in arrays]
    try:
        blocking = plan_blocks(axis_map, source_chunks, arrays[0].item_size, limit, streamable=streamable)
    except BlockTooLarge as error:
        raise BudgetTooSmall(error.smallest * copies + REWRITE_MEMORY) from None
    held = blocking.block_bytes * copies
    if blocking.slab is not None and not blocking.streamed:
        by_slabs = slab_moving_elements(axis_map, blocking, copies) * arrays[0].item_size
        if by_slabs + REWRITE_MEMORY <= options.max_memory:
            held = by_slabs
        else:  # the limit was made for whole blocks
            blocking = replace(blocking, slab=None)
    return blocking, blocking.target_chunks, held + REWRITE_MEMORY


def _totals(tasks: tuple[Task, ...], budget: int, jobs: int) -> Totals:
    own = [task for task in tasks if not task.extra]
    in_flight = sorted(task.memory for task in tasks for _ in range(min(task.units, jobs)))[-jobs:]
    in_flight += [task.memory for task in tasks if task.blocking is None for _ in range(min(task.units, COPIERS))][
        :COPIERS
    ]
    return Totals(
        source_parameters=sum(array.elements for task in own for array in task.sources),
        target_parameters=sum(leaf.elements for task in tasks for leaf in task.leaves),
        added_parameters=sum(leaf.elements for task in tasks if task.extra for leaf in task.leaves),
        read_bytes=sum(array.bytes for task in tasks for array in task.sources),
        write_bytes=sum(leaf.bytes for task in tasks for leaf in task.leaves),
        stored_bytes=sum(task.stored_bytes for task in own),
        memory=min(budget, sum(in_flight)),
    )
