"""Runs a plan: reads, rearranges and writes block after block, several in flight, under a memory budget."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import tensorstore as ts

from converter.axis_map import Box
from converter.blocking import Span, block_map, blocks, groups, source_box, target_box
from converter.chunk_stream import slabs
from converter.errors import Ax2mtError, DestinationError, SourceError
from converter.memory import ByteBudget
from converter.plan import Plan, Task
from converter.progress import Progress
from converter.stage import Stage
from converter.zarr2 import ArraySpec, open_spec
from converter.zarr3 import write_spec


def run(
    plan: Plan, stage: Stage, progress: Progress, *, jobs: int, computed: Mapping[str, np.ndarray] | None = None
) -> None:
    """Writes all leaves of a plan into a stage.

    Args:
      plan: the work.
      stage: an empty stage for the plan's leaves.
      progress: told of each block and each finished leaf.
      jobs: how many blocks may be in flight, as far as the plan's memory budget lets them.
      computed: leaf path to a whole value that is written in place of the moved one.

    Raises:
      SourceError: something cannot be read or decoded.
      DestinationError: something cannot be written.
    """
    engine = _Engine(plan, stage, progress, computed or {})
    progress.start(len(plan.leaves), plan.totals.write_bytes)
    engine.run(jobs)


class _Engine:
    def __init__(self, plan: Plan, stage: Stage, progress: Progress, computed: Mapping[str, np.ndarray]):
        self.plan = plan
        self.computed = computed
        self.stage = stage
        self.progress = progress
        self.budget = ByteBudget(plan.options.max_memory)
        self.context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.work = self._units()

    def run(self, jobs: int) -> None:
        with ThreadPoolExecutor(jobs, "ax2mt") as pool:
            futures = [pool.submit(self._worker) for _ in range(jobs)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self.stop.set()
        for future in futures:
            future.result()

    def _worker(self) -> None:
        try:
            while not self.stop.is_set():
                with self.lock:
                    unit = next(self.work, None)
                if unit is None:
                    return
                unit()
        except BaseException:
            self.stop.set()
            raise

    def _units(self) -> Iterator[Callable[[], None]]:
        """All work in order, made only as it is asked for."""
        for task in self.plan.tasks:
            mover = _Mover(task, self)
            for group in groups(task.axis_map, task.blocking):
                yield lambda mover=mover, group=group: mover.move_group(group)


class _Mover:
    """Moves the blocks of one task; its arrays are opened when the first block comes."""

    def __init__(self, task: Task, engine: _Engine):
        self.task = task
        self.engine = engine
        self.lock = threading.Lock()
        self.open_units = sum(1 for _ in groups(task.axis_map, task.blocking))
        self._readers: list[Any] = []
        self._writers: list[Any] = []

    def move_group(self, group: Span) -> None:
        with self.engine.budget.hold(self.task.memory):
            self._open()
            if self.task.blocking.streamed:
                self._move_streamed(group)
            else:
                boxes = [source_box(self.task.axis_map, group, i) for i in range(len(self.task.sources))]
                arrays = [
                    _read(reader, array, box)
                    for reader, array, box in zip(self._readers, self.task.sources, boxes, strict=True)
                ]
                self._write(group, arrays)
        with self.lock:
            self.open_units -= 1
            finished = self.open_units == 0
        if finished:
            self._readers, self._writers = [], []
            for leaf in self.task.leaves:
                self.engine.progress.leaf_done(leaf.path)

    def _open(self) -> None:
        with self.lock:
            if self._writers:
                return
            context = self.engine.context
            if not self.task.blocking.streamed:
                self._readers = [_open_reader(array, context) for array in self.task.sources]
            for leaf in self.task.leaves:
                spec = write_spec(leaf, self.engine.stage.kvstore(leaf))
                try:
                    self._writers.append(ts.open(spec, create=True, context=context).result())
                except ValueError as error:
                    raise _write_error(leaf.path, error) from None

    def _move_streamed(self, group: Span) -> None:
        (array,) = self.task.sources
        parts = _chunks_of(array, source_box(self.task.axis_map, group, 0))
        step = {axis.source_dims[0]: self.task.blocking.step[axis.name] for axis in self.task.axis_map.free_axes}
        slab = tuple(min(step.get(dim, length), length) for dim, length in enumerate(array.chunks))
        streams = [slabs(array, chunk, slab) for chunk in parts]
        todo = blocks(group, self.task.blocking)
        span = next(todo, None)
        for pieces in zip(*streams, strict=True):
            box = source_box(self.task.axis_map, span, 0) if span else ()
            offset = pieces[0][0]
            at = tuple(n * length + o for n, length, o in zip(parts[0], array.chunks, offset, strict=True))
            if span is None or any(at[dim] != box[dim][0] for dim in step):
                continue
            block = _assemble(array, box, parts, pieces)
            self._write(span, [block])
            span = next(todo, None)
            if self.engine.stop.is_set():
                return

    def _write(self, span: Span, arrays: Sequence[np.ndarray]) -> None:
        targets = block_map(self.task.axis_map, span).forward(arrays)
        pending = []
        for number, (writer, values) in enumerate(zip(self._writers, targets, strict=True)):
            region = _slices(target_box(self.task.axis_map, span, number))
            whole = self.engine.computed.get(self.task.leaves[number].path)
            written = values if whole is None else whole[region]
            pending.append(writer[region].write(written, can_reference_source_data_indefinitely=True))
        for leaf, future in zip(self.task.leaves, pending, strict=True):
            try:
                future.result()
            except ValueError as error:
                raise _write_error(leaf.path, error) from None
        self.engine.progress.advance(sum(values.nbytes for values in targets))


def _open_reader(array: ArraySpec, context: ts.Context) -> Any:
    try:
        return ts.open(open_spec(array), read=True, context=context).result()
    except ValueError as error:
        raise SourceError(f"{array.path}: cannot be opened: {_reason(error)}") from None


def _read(reader: Any, array: ArraySpec, box: Box) -> np.ndarray:
    try:
        return reader[_slices(box)].read().result()
    except ValueError as error:
        raise SourceError(f"{array.path}: a chunk cannot be read: {_reason(error)}") from None


def _chunks_of(array: ArraySpec, box: Box) -> list[tuple[int, ...]]:
    """Grid indices of the chunks that a chunk-aligned box covers."""
    ranges = [range(low // n, -(-high // n)) for (low, high), n in zip(box, array.chunks, strict=True)]
    return list(itertools.product(*ranges))


def _assemble(
    array: ArraySpec,
    box: Box,
    parts: Sequence[tuple[int, ...]],
    pieces: Sequence[tuple[tuple[int, ...], np.ndarray]],
) -> np.ndarray:
    """Puts the slabs of neighbouring chunks together and cuts off the padding of edge chunks."""
    shape = tuple(high - low for low, high in box)
    if len(pieces) == 1:
        return pieces[0][1][tuple(slice(0, length) for length in shape)]
    block = np.empty(shape, pieces[0][1].dtype)
    for chunk, (offset, values) in zip(parts, pieces, strict=True):
        start = [n * c + o - low for n, c, o, (low, _) in zip(chunk, array.chunks, offset, box, strict=True)]
        size = [min(length, total - at) for length, total, at in zip(values.shape, shape, start, strict=True)]
        place = tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))
        block[place] = values[tuple(slice(0, length) for length in size)]
    return block


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


def _reason(error: Exception) -> str:
    """TensorStore's message without its source locations."""
    return str(error).split(" [source locations")[0].split("\n")[0]


def _write_error(path: str, error: Exception) -> Ax2mtError:
    return DestinationError(f"{path}: cannot be written: {_reason(error)}")
