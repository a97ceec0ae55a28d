"""Compares the values of a checkpoint's leaves with the source's: in several threads, bit for bit.

Chunks that were passed through are compared as they are stored, see `stored`. All others, and all of a leaf that has
other bytes, are decoded block by block: the expected values come from the source's blocks by `AxisMap.pieces`, which is
another way through an axis expression than the one that the conversion takes; the found values come from TensorStore.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from converter.arrays import BlockReader, OpenArray, slices
from converter.axes import AxisMap, Blocking, Box, Span, block_map, groups, target_box
from converter.errors import VerificationError
from converter.mapping import Scale
from converter.planning import Plan, Task
from converter.verification.blocking import cut_task
from converter.verification.compare import LeafComparison
from converter.verification.result import FirstFaults
from converter.verification.stored import StoredLeaf, stored_leaf
from converter.work import ByteBudget, Progress, run_units

STORE_JOBS = 32
"""Chunks that are compared at once where stores are only asked for sizes and checksums."""

_Block = tuple[Span, list[np.ndarray]]
"""Where a block lies, and its elements of each source."""


class ValueComparison:
    """Compares the leaves of one checkpoint.

    Attributes:
      comparisons: path of a leaf to what its blocks showed.
      broken: leaves of which some could not be read, and why.
      stored: paths of the leaves that were compared as they are stored.
    """

    def __init__(
        self,
        plan: Plan,
        arrays: Mapping[str, OpenArray],
        fitted: Mapping[str, np.ndarray],
        progress: Progress,
        places: Mapping[str, str] | None = None,
    ):
        """Takes what is compared.

        Args:
          plan: how the source's arrays become leaves.
          arrays: path to array, for each leaf that is compared.
          fitted: leaves whose expected values are not the source's but these.
          progress: notified of each block and each leaf.
          places: path of a leaf to the URL below which its chunks are, where both sides are stores of objects.
        """
        self.comparisons = {path: LeafComparison() for path in arrays}
        self.broken = FirstFaults()
        self.stored: set[str] = set()
        self._plan = plan
        self._arrays = arrays
        self._fitted = fitted
        self._progress = progress
        self._places = places or {}
        self._lock = threading.Lock()

    def run(self, *, max_memory: int, jobs: int, sample: float | None, decode: bool) -> None:
        """Compares all leaves.

        Args:
          max_memory: bytes that blocks in flight may take together.
          jobs: blocks in flight.
          sample: the fraction of blocks to compare, all of them decoded; None for all.
          decode: decode every chunk, also where the stored bytes decide.

        Raises:
          SourceError: a chunk of the source is missing or damaged.
          UsageError: a chunk does not fit the budget.
        """
        for leaf, scalar in self._plan.scalars:
            self._scalar(leaf.path, np.array(scalar.value, leaf.dtype))
        total = sum(opened.array.bytes for opened in self._arrays.values())
        self._progress.start(len(self._arrays), total)
        budget = ByteBudget(max_memory)
        if sample is None and not decode:
            run_units(self._stored_units(budget), STORE_JOBS if self._places else jobs)
        run_units(self._units(budget, sample), jobs)

    def _stored_units(self, budget: ByteBudget) -> Iterator[Callable[[], None]]:
        for task in self._plan.tasks:
            path = task.leaves[0].path
            place = self._places.get(path, "")
            leaf = None if path in self._fitted else stored_leaf(task, self._arrays.get(path), place)
            if leaf is None or leaf.memory > budget.limit:
                continue
            self.stored.add(path)
            left = _Countdown(math.prod(leaf.source.grid))
            for index in leaf.source.chunk_indices():
                yield partial(self._stored_chunk, path, leaf, index, left, budget)

    def _stored_chunk(
        self, path: str, leaf: StoredLeaf, index: tuple[int, ...], left: "_Countdown", budget: ByteBudget
    ) -> None:
        """Compares a chunk; where its bytes differ, the whole leaf is decoded later to say what of it differs."""
        if path in self.stored:
            with budget.hold(leaf.memory):
                same = leaf.same_chunk(index)
            with self._lock:
                if not same:
                    self.stored.discard(path)
                    self.comparisons[path] = LeafComparison()
                elif path in self.stored:
                    self.comparisons[path].add_equal(leaf.source.clipped_bytes(index) // leaf.source.item_size)
            self._progress.advance(leaf.source.clipped_bytes(index))
        if left.down() and path in self.stored:
            self._progress.leaf_done(path)

    def _scalar(self, path: str, expected: np.ndarray) -> None:
        """Compares a leaf of one number."""
        if path not in self._arrays:
            return
        try:
            self.comparisons[path].add([], [], expected, self._arrays[path].read(()))
        except VerificationError as error:
            self.broken.add(path, error.message.removeprefix(f"{path}: "))

    def _units(self, budget: ByteBudget, sample: float | None) -> Iterator[Callable[[], None]]:
        for task in self._plan.tasks:
            opened = [self._arrays.get(leaf.path) for leaf in task.leaves]
            if not any(opened) or task.leaves[0].path in self.stored:
                continue
            cut = cut_task(task, [entry and entry.array for entry in opened], budget.limit)
            reader = BlockReader(task.sources, task.axis_map, cut.blocking)
            chosen = sampled(list(groups(task.axis_map, cut.blocking)), sample)
            left = _Countdown(len(chosen))
            for group in chosen:
                yield partial(self._group, task, _read(reader, cut.blocking, group), left, budget, cut.memory)

    def _group(self, task: Task, source: Iterator[_Block], left: "_Countdown", budget: ByteBudget, memory: int) -> None:
        with budget.hold(memory):
            windows = {leaf.path: _Window(self._arrays[leaf.path]) for leaf in task.leaves if leaf.path in self._arrays}
            for span, blocks in source:
                cut = block_map(task.axis_map, span)
                for number, leaf in enumerate(task.leaves):
                    if leaf.path in windows:
                        box = target_box(task.axis_map, span, number)
                        self._block(task, cut, number, box, blocks, windows[leaf.path])
        if left.down():
            for path in windows:
                self._progress.leaf_done(path)

    def _block(
        self, task: Task, cut: AxisMap, number: int, box: Box, blocks: list[np.ndarray], window: "_Window"
    ) -> None:
        path = task.leaves[number].path
        try:
            found = window.read(box)
        except VerificationError as error:
            self.broken.add(path, error.message.removeprefix(f"{path}: "), tuple(low for low, _ in box))
            return
        comparison, lows = self.comparisons[path], [low for low, _ in box]
        if path in self._fitted:
            comparison.add(lows, [1] * len(box), self._fitted[path][slices(box)], found)
        else:
            for piece in cut.pieces(number, tuple((0, high - low) for low, high in box)):
                starts = [low + part.start for low, part in zip(lows, piece.target_slices, strict=True)]
                steps = [part.step for part in piece.target_slices]
                expected = piece.rearrange(blocks[piece.source][piece.source_slices])
                if isinstance(task.value, Scale):
                    expected = task.value.apply(expected, task.axis_map.sizes)
                comparison.add(starts, steps, expected, found[piece.target_slices])
        self._progress.advance(found.nbytes)


def _read(reader: BlockReader, blocking: Blocking, group: Span) -> Iterator[_Block]:
    """The source's blocks of a group, read as they are asked for; the next one may take the memory of the last."""
    if blocking.streamed:
        yield from ((span, [slab]) for span, slab in reader.slabs(group))
    else:
        yield group, reader.read(group)


class _Window:
    """The chunks of a leaf that were read last: blocks that are smaller than a chunk come one after the other."""

    def __init__(self, opened: OpenArray):
        self._opened = opened
        self._cover: Box | None = None
        self._values: Any = None

    def read(self, box: Box) -> np.ndarray:
        cover = self._opened.array.cover(box)
        if cover != self._cover:
            self._cover = self._values = None
            self._values = self._opened.read(cover)
            self._cover = cover
        return self._values[tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(box, cover, strict=True))]


class _Countdown:
    def __init__(self, count: int):
        self._count = count
        self._lock = threading.Lock()

    def down(self) -> bool:
        """Counts one; whether it was the last."""
        with self._lock:
            self._count -= 1
            return self._count == 0


def sampled(all_groups: list[Span], fraction: float | None) -> list[Span]:
    """A deterministic subset, evenly spread and never empty; everything where no fraction is given."""
    if fraction is None:
        return all_groups
    count = max(1, round(len(all_groups) * fraction))
    return [all_groups[number * len(all_groups) // count] for number in range(count)]
