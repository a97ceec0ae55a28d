"""Runs a plan: block after block and chunk after chunk, several in flight, under a memory budget."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from converter.arrays import LeafStore, StackStore, check_chunk, target_index
from converter.conversion.conversion import Conversion
from converter.conversion.copy import copy_chunk, link_chunk
from converter.conversion.rewrite import Rewriter, store_chunk
from converter.conversion.work_area import Work, open_stack
from converter.planning import IN_STORE, LINK, Portion, Task
from converter.storage import storage_of
from converter.work import ByteBudget, Progress

Unit = Callable[[], int]
"""Does a piece of work; returns the decoded bytes of the leaves that it finished."""

MOVE_MEMORY = 256 << 10
"""Bytes that asking a store to move a chunk takes."""

WATCH_SECONDS = 0.2
"""How often a run looks whether it still makes sense."""


@dataclass
class Counts:
    """What an engine has done.

    Attributes:
      decoded: source chunks that were decoded.
      encoded: target chunks that were encoded.
      passed: chunks that were copied or linked as they are.
      moved: those of them that an object store moved by itself.
      moved_bytes: their bytes as they are stored.
      kept: units of work that an interrupted run had already done.
    """

    decoded: int = 0
    encoded: int = 0
    passed: int = 0
    moved: int = 0
    moved_bytes: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Written:
    """The outcome of a run.

    Attributes:
      digests: leaf path to chunk index to the digest of the chunk as stored; None for chunks that were never read:
        those that were linked, or that the storage copied by itself.
      counts: what was done.
      peak_in_flight: bytes of the budget that were in use at most.
    """

    digests: dict[str, dict[tuple[int, ...], int | None]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    peak_in_flight: int = 0


def run(
    conversion: Conversion,
    stage: Work,
    progress: Progress,
    *,
    portion: Portion | None = None,
    watch: Callable[[], None] = lambda: None,
) -> Written:
    """Writes the leaves of a conversion into a stage.

    Args:
      conversion: the work, and how it is done.
      stage: a stage that was begun for it; what it holds already is checked and kept.
      progress: notified of each unit of work and each finished leaf.
      portion: what this process does of it; None for all.
      watch: is called a few times a second; what it raises ends the run.

    Raises:
      SourceError: something cannot be read or decoded.
      DestinationError: something cannot be written.
    """
    engine = _Engine(conversion, stage, progress, portion)
    progress.start(engine.leaf_count, engine.write_bytes)
    return engine.run(watch)


class _Engine:
    def __init__(self, conversion: Conversion, stage: Work, progress: Progress, portion: Portion | None):
        self.conversion = conversion
        self.plan = conversion.plan
        self.portion = portion
        self.stage = stage
        self.progress = progress
        self.budget = ByteBudget(self.plan.options.max_memory)
        self.counts = Counts()
        self.digests: dict[str, dict[tuple[int, ...], int | None]] = {}
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.lock = threading.Lock()
        self.rewrites = self._units(rewrite=True)
        self.copies = self._units(rewrite=False)

    @property
    def leaf_count(self) -> int:
        """Leaves that something is written of."""
        if self.portion is None:
            return len(self.plan.leaves)
        tasks = (self.plan.tasks[number] for number in self.portion.units)
        return sum(len(leaf.each) for task in tasks for leaf in task.leaves) + len(self.plan.scalars)

    @property
    def write_bytes(self) -> int:
        """Decoded bytes that are written."""
        if self.portion is None:
            return self.plan.totals.write_bytes
        return self.portion.bytes + sum(leaf.bytes for leaf, _ in self.plan.scalars)

    def run(self, watch: Callable[[], None]) -> Written:
        self._write_scalars()
        jobs = self.plan.jobs
        futures: list[Future[None]] = []
        copiers = self.stage.copiers(self.plan.options.transfer)
        with ThreadPoolExecutor(jobs + copiers, "ax2mt") as pool:
            try:
                futures = [pool.submit(self._worker, self.rewrites, self.copies) for _ in range(jobs)]
                futures += [pool.submit(self._worker, self.copies) for _ in range(copiers)]
                while not _settled(futures):
                    watch()
            finally:
                self.stop.set()
        if self.failure is not None:
            raise self.failure
        return Written(self.digests, self.counts, self.budget.peak)

    def _write_scalars(self) -> None:
        """Writes the leaves that hold one number each; they are small enough to be written by every run."""
        for leaf, scalar in self.plan.scalars:
            store = self.stage.open_leaf(leaf)
            store_chunk(store, (), np.array(scalar.value, leaf.dtype))
            store.finish()
            self.digests[leaf.path] = store.digests
            self.progress.advance(leaf.bytes)
            self.progress.leaf_done(leaf.path)

    def _worker(self, *queues: "Iterator[tuple[_TaskWork, int, Unit]]") -> None:
        try:
            while not self.stop.is_set():
                with self.lock:
                    job = next(itertools.chain(*queues), None)
                if job is None:
                    return
                self._do(*job)
        except BaseException as error:
            with self.lock:
                self.failure = self.failure or error
            self.stop.set()
            raise

    def _do(self, work: "_TaskWork", memory: int, unit: Unit) -> None:
        with self.budget.hold(memory):
            work.open(self.stage)
            done = unit()
        if self.stop.is_set():
            return  # the unit may have stopped half way, and nothing is made of this run any more
        self.progress.advance(done)
        with self.lock:
            work.open_units -= 1
            if work.open_units:
                return
            for part in (part for store in work.stores for part in store.each):
                self.digests[part.leaf.path] = part.digests
        for store in work.stores:
            store.finish()
        for part in (part for leaf in work.task.leaves for part in leaf.each):
            self.progress.leaf_done(part.path)

    def _units(self, *, rewrite: bool) -> "Iterator[tuple[_TaskWork, int, Unit]]":
        """All work of a kind in the order of the model; made only as it is asked for."""
        for number, task in enumerate(self.plan.tasks):
            count = task.units if self.portion is None else self.portion.count(number)
            if not count or (task.blocking is not None) != rewrite:
                continue
            work = _TaskWork(task, count)
            units = self._rewrite_units(work, number) if task.blocking else self._pass_units(work, number)
            for memory, unit in units:
                yield work, memory, unit

    def _pass_units(self, work: "_TaskWork", number: int) -> Iterator[tuple[int, Unit]]:
        (array,) = work.task.sources
        (leaf,) = work.task.leaves
        move = link_chunk if work.task.route == LINK else copy_chunk

        def unit(index: tuple[int, ...]) -> int:
            (store,) = work.stores
            kept = self.stage.resumed and store.has_chunk(target_index(index, leaf.encoding.order))
            if self.conversion.check:
                check_chunk(array, index)
            if not kept:
                move(array, index, store)
            self._count(kept=kept, passed=not kept)
            if (size := store.moved_bytes(target_index(index, leaf.encoding.order))) is not None:
                self._count(moved=1, moved_bytes=size)
                self.progress.moved(1, size)
            return array.clipped_bytes(index)

        indices = (
            array.chunk_indices()
            if self.portion is None
            else map(array.chunk_at, itertools.chain.from_iterable(self.portion.units[number]))
        )
        for index in indices:
            yield self._pass_memory(work.task, index), lambda index=index: unit(index)

    def _rewrite_units(self, work: "_TaskWork", number: int) -> Iterator[tuple[int, Unit]]:
        rewriter = Rewriter(work.task, self.stop, self.conversion.computed)

        def unit(group: dict[str, tuple[int, int]]) -> int:
            kept = self.stage.resumed and rewriter.is_done(group, work.stores)
            decoded, encoded = (0, 0) if kept else rewriter.rewrite(group, work.stores, keep=self.stage.resumed)
            self._count(kept=kept, decoded=decoded, encoded=encoded)
            return rewriter.target_bytes(group)

        every = rewriter.groups()
        for group in every if self.portion is None else self.portion.chosen(number, every):
            yield work.task.memory, lambda group=group: unit(group)

    def _pass_memory(self, task: Task, index: tuple[int, ...]) -> int:
        """Bytes that passing a chunk takes: next to none where an object store moves it."""
        if self.plan.options.transfer != IN_STORE or self.conversion.check:
            return task.memory
        path = task.sources[0].chunk_file(index)
        return MOVE_MEMORY if storage_of(path).stat(path).checksum is not None else task.memory

    def _count(self, **more: int) -> None:
        with self.lock:
            for name, count in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)


def _settled(futures: Sequence[Future[None]]) -> bool:
    """Waits a little; returns whether all futures are done, or one of them failed."""
    done, waiting = wait(futures, timeout=WATCH_SECONDS, return_when=FIRST_EXCEPTION)
    return not waiting or any(future.exception() for future in done)


class _TaskWork:
    """A task that is under way; its leaves are opened when its first unit begins."""

    def __init__(self, task: Task, units: int):
        self.task = task
        self.open_units = units
        self.stores: list[LeafStore | StackStore] = []
        self._lock = threading.Lock()

    def open(self, stage: Work) -> None:
        with self._lock:
            if not self.stores:
                self.stores = [open_stack(stage, leaf) for leaf in self.task.leaves]
