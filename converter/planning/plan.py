"""The plan of a conversion: every array, its route, its blocks, its bytes. Made from metadata alone; plain data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from converter.arrays import FEED_SIZE, Array, can_decode, largest_chunk_bytes, split
from converter.axes import (
    AxisMap,
    Blocking,
    BlockTooLarge,
    count_blocks,
    is_one_chunk,
    plan_blocks,
    slab_moving_elements,
)
from converter.checkpoints import step_directory
from converter.choices import ZSTD
from converter.mapping import PARAMS, Configuration, Fit, MatchedRow, Scale, Tree, ValueRule, stack_parts
from converter.planning.fidelity import TIED_KEY, Remedies
from converter.planning.options import IN_STORE, JOBS, Options
from converter.planning.routes import REWRITE, Route, choose_route
from converter.planning.source import Source, configure_source
from converter.planning.training_state import Scalar, TrainingState, moved, with_learner
from converter.words import budget_too_small

if TYPE_CHECKING:
    from converter.planning.traffic import Traffic

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
      leaves: arrays to write; layers with leaves of their own are a stack.
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
      tree: name of the tree that the leaves belong to.
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
    tree: str = PARAMS

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
      trees: what is converted by the rows of the table; the first becomes MaxText's parameters.
      state: the training state that is written as well; None where only parameters are.
      traffic: what is asked of object stores, where the plan is for a destination.
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
    trees: tuple[Tree, ...]
    state: TrainingState | None = None
    traffic: "Traffic | None" = None
    totals: "Totals" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "totals", _totals(self))

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
    def tree(self) -> str:
        """Name of the tree that becomes MaxText's parameters."""
        return self.trees[0].name

    @property
    def parameter_tasks(self) -> tuple[Task, ...]:
        """The work on the parameters."""
        return tuple(task for task in self.tasks if task.tree == self.tree)

    @property
    def leaves(self) -> tuple[Array, ...]:
        """All leaves that are written; a task's stack of layers is one leaf for each layer."""
        return (
            *(part for task in self.tasks for leaf in task.leaves for part in leaf.each),
            *(leaf for leaf, _ in self.scalars),
        )

    @property
    def scalars(self) -> tuple[tuple[Array, Scalar], ...]:
        """Leaves of one number each, with what it is."""
        scalars = self.state.scalars if self.state is not None else ()
        return tuple((scalar.leaf(self.options.store), scalar) for scalar in scalars)

    @property
    def step_directory(self) -> int:
        """The number of the directory that MaxText gets the checkpoint in."""
        return step_directory(self.state.step) if self.state is not None else 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a plan. Parameters count once, however many trees have their shape.

    Attributes:
      source_parameters: elements of the source tensors that become parameters.
      target_parameters: elements of all leaves of parameters.
      added_parameters: those of them that are copies made on request.
      state_elements: elements of the training state's leaves.
      state_bytes: their decoded bytes.
      read_bytes: decoded bytes to read.
      write_bytes: decoded bytes to write.
      stored_bytes: size of the source's files; 0 where only metadata is there.
      memory: bytes of blocks in flight, at most.
    """

    source_parameters: int
    target_parameters: int
    added_parameters: int
    state_elements: int
    state_bytes: int
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
    state = None
    if source.state is not None:
        state = with_learner(source.state, configuration.learner, force=options.force)
    trees = (source.tree, *(state.trees if state is not None else ()))
    for tree in trees:
        for parameters in match.rows:
            row = moved(match, parameters, tree)
            try:
                tasks.append(_make_task(row, tree.name, source, options))
            except BudgetTooSmall as error:
                too_small.append((error.smallest, row.sources[0]))
    if too_small:
        smallest, path = max(too_small)
        raise budget_too_small(options.max_memory, f"{path} needs blocks of {smallest} bytes", smallest)
    dropped: dict[str, list[tuple[str, int | None]]] = {}
    for path, reason in source.dropped.items():
        for part in match.parts(path):
            shape = source.checkpoint.tensors[part].shape
            dropped.setdefault(reason, []).append((part, None if shape is None else math.prod(shape)))
    return Plan(
        source=source.shown,
        step=source.checkpoint.step,
        table=match.table.name,
        table_digest=match.table.digest,
        options=options,
        tasks=tuple(tasks),
        dropped={reason: tuple(entries) for reason, entries in dropped.items()},
        notes=(
            *source.notes,
            *configuration.assumptions,
            *configuration.notes,
            *(state.notes if state is not None else ()),
        ),
        others=source.checkpoint.others,
        sizes=match.sizes,
        configuration=configuration,
        jobs=jobs,
        remedies=Remedies.of(match.table),
        trees=trees,
        state=state,
    )


def _make_task(row: MatchedRow, tree: str, source: Source, options: Options) -> Task:
    axis_map = AxisMap(row.expression, {name: source.match.sizes[name] for name in row.expression.names()})
    arrays = tuple(source.arrays[name] for name in row.sources)
    parts = [stack_parts(path) for path in row.targets]
    route = choose_route(
        axis_map, arrays, store=options.store, rewrite=options.rewrite, link=options.link,
        in_store=options.transfer == IN_STORE, value=row.value, dtype=options.dtype, stacked=any(parts),
        compress=options.compressor == ZSTD,
    )  # fmt: skip
    blocking, chunks, memory = _cut(axis_map, arrays, route, options, row.value, stacked=any(parts))
    whole = (
        Array(path=path, dtype=options.dtype or arrays[0].dtype, shape=shape, chunks=chunk, encoding=route.encoding)
        for path, shape, chunk in zip(row.targets, axis_map.target_shapes, chunks, strict=True)
    )
    leaves = tuple(split(leaf, names) if names else leaf for leaf, names in zip(whole, parts, strict=True))
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
        note=row.note,
        source_place=row.source_place,
        target_place=row.target_place,
        tree=tree,
    )


class BudgetTooSmall(ValueError):
    """A task needs more memory than there is; `smallest` is what it needs at least, in bytes."""

    def __init__(self, smallest: int):
        super().__init__(f"at least {smallest} bytes are needed")
        self.smallest = smallest


def _cut(
    axis_map: AxisMap, arrays: tuple[Array, ...], route: Route, options: Options, value: ValueRule, *, stacked: bool
) -> tuple[Blocking | None, tuple[tuple[int, ...], ...], int]:
    """The blocks of a task, the chunk shape of each leaf, and the memory that one unit takes."""
    permutation = axis_map.axis_permutation()
    if route.name != REWRITE and permutation is not None:
        (array,) = arrays
        # A database hands out whole chunks.
        memory = PASS_MEMORY + (array.database_key is not None) * largest_chunk_bytes(array)
        if options.max_memory < memory:
            raise BudgetTooSmall(memory)
        return None, (tuple(array.chunks[dim] for dim in permutation),), memory
    streamable = len(arrays) == 1 and can_decode(arrays[0])
    is_joined = len(arrays) == 1 and not is_one_chunk(axis_map, arrays[0].chunks)
    copies = (
        2
        + (permutation is None)
        + is_joined
        + (isinstance(value, Scale) or options.dtype is not None)
        + (0 if all(map(can_decode, arrays)) else 2)
    )
    limit = (options.max_memory - REWRITE_MEMORY) // copies
    source_chunks = [array.chunks for array in arrays]
    try:
        blocking = plan_blocks(axis_map, source_chunks, arrays[0].item_size, limit, streamable=streamable)
    except BlockTooLarge as error:
        raise BudgetTooSmall(error.smallest * copies + REWRITE_MEMORY) from None
    if stacked:
        # A leaf for each layer: as many chunks of a block as it has layers.
        blocking = replace(blocking, target_chunks=tuple((1, *chunk[1:]) for chunk in blocking.target_chunks))
    held = blocking.block_bytes * copies
    if blocking.slab is not None and not blocking.streamed:
        by_slabs = slab_moving_elements(axis_map, blocking, copies) * arrays[0].item_size
        if by_slabs + REWRITE_MEMORY <= options.max_memory:
            held = by_slabs
        else:  # the limit was made for whole blocks
            blocking = replace(blocking, slab=None)
    return blocking, blocking.target_chunks, held + REWRITE_MEMORY


def _totals(plan: Plan) -> Totals:
    tasks, jobs, budget = plan.tasks, plan.jobs, plan.options.max_memory
    own = [task for task in tasks if not task.extra]
    parameters = plan.parameter_tasks
    counted = {part.path for task in parameters for leaf in task.leaves for part in leaf.each}
    state = [leaf for leaf in plan.leaves if leaf.path not in counted]
    in_flight = sorted(task.memory for task in tasks for _ in range(min(task.units, jobs)))[-jobs:]
    in_flight += [task.memory for task in tasks if task.blocking is None for _ in range(min(task.units, COPIERS))][
        :COPIERS
    ]
    return Totals(
        source_parameters=sum(array.elements for task in parameters if not task.extra for array in task.sources),
        target_parameters=sum(leaf.elements for task in parameters for leaf in task.leaves),
        added_parameters=sum(leaf.elements for task in parameters if task.extra for leaf in task.leaves),
        state_elements=sum(leaf.elements for leaf in state),
        state_bytes=sum(leaf.bytes for leaf in state),
        read_bytes=sum(array.bytes for task in tasks for array in task.sources),
        write_bytes=sum(leaf.bytes for leaf in plan.leaves),
        stored_bytes=sum(task.stored_bytes for task in own),
        memory=min(budget, sum(in_flight)),
    )
