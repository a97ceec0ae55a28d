"""Compares the values of a checkpoint's leaves with the source's: block by block, in several threads, bit for bit.

The expected values come from the source's blocks by `AxisMap.pieces`, which is another way through an axis expression
than the one that the conversion takes; the found values come from `maxtext_reader`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from converter.arrays import slices
from converter.axes import AxisMap, Box, Span, block_map, groups, target_box
from converter.checkpoints import TargetArray
from converter.errors import VerificationError
from converter.mapping import Scale
from converter.planning import Plan, Task
from converter.verification.blocking import chunk_cover, cut_task
from converter.verification.compare import LeafComparison
from converter.verification.source_blocks import SourceBlocks
from converter.work import ByteBudget, Progress, run_units


class ValueComparison:
    """Compares the leaves of one checkpoint.

    Attributes:
      comparisons: path of a leaf to what its blocks showed.
      broken: path of a leaf to why some of it could not be read.
    """

    def __init__(
        self, plan: Plan, arrays: Mapping[str, TargetArray], fitted: Mapping[str, np.ndarray], progress: Progress
    ):
        """Takes what is compared.

        Args:
          plan: how the source's arrays become leaves.
          arrays: path to array, for each leaf that is compared.
          fitted: leaves whose expected values are not the source's but these.
          progress: told of each block and each leaf.
        """
        self.comparisons = {path: LeafComparison() for path in arrays}
        self.broken: dict[str, str] = {}
        self._plan = plan
        self._arrays = arrays
        self._fitted = fitted
        self._progress = progress
        self._lock = threading.Lock()

    def run(self, context: Any, *, max_memory: int, jobs: int, sample: float | None) -> None:
        """Compares all leaves.

        Args:
          context: TensorStore's.
          max_memory: bytes that blocks in flight may take together.
          jobs: blocks in flight.
          sample: the fraction of blocks to compare; None for all.

        Raises:
          SourceError: a chunk of the source is missing or damaged.
          UsageError: a chunk does not fit the budget.
        """
        total = sum(array.elements * array.item_size for array in self._arrays.values())
        self._progress.start(len(self._arrays), total)
        run_units(self._units(context, ByteBudget(max_memory), sample), jobs)

    def fail(self, path: str, reason: str) -> None:
        """Notes why a leaf cannot be read; the first reason counts."""
        with self._lock:
            self.broken.setdefault(path, reason)

    def _units(self, context: Any, budget: ByteBudget, sample: float | None) -> Iterator[Callable[[], None]]:
        for task in self._plan.tasks:
            arrays = [self._arrays.get(leaf.path) for leaf in task.leaves]
            if not any(arrays):
                continue
            cut = cut_task(task, arrays, budget.limit)
            reader = SourceBlocks(task.sources, task.axis_map, cut.blocking, context)
            chosen = sampled(list(groups(task.axis_map, cut.blocking)), sample)
            left = _Countdown(len(chosen))
            for group in chosen:
                yield partial(self._group, task, reader, group, left, budget, cut.memory)

    def _group(
        self, task: Task, reader: SourceBlocks, group: Span, left: "_Countdown", budget: ByteBudget, memory: int
    ) -> None:
        with budget.hold(memory):
            windows = {leaf.path: _Window(self._arrays[leaf.path]) for leaf in task.leaves if leaf.path in self._arrays}
            for span, blocks in reader.read(group):
                cut = block_map(task.axis_map, span)
                for number, leaf in enumerate(task.leaves):
                    if leaf.path in windows:
                        box = target_box(task.axis_map, span, number)
                        self._block(task, cut, number, box, blocks, windows[leaf.path])
        if left.down():
            reader.close()
            for path in windows:
                self._progress.leaf_done(path)

    def _block(
        self, task: Task, cut: AxisMap, number: int, box: Box, blocks: list[np.ndarray], window: "_Window"
    ) -> None:
        path = task.leaves[number].path
        try:
            found = window.read(box)
        except VerificationError as error:
            self.fail(path, error.message.removeprefix(f"{path}: "))
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


class _Window:
    """The chunks of a leaf that were read last: blocks that are smaller than a chunk come one after the other."""

    def __init__(self, array: TargetArray):
        self._array = array
        self._cover: Box | None = None
        self._values: Any = None

    def read(self, box: Box) -> np.ndarray:
        cover = chunk_cover(self._array, box)
        if cover != self._cover:
            self._cover = self._values = None
            self._values = self._array.read(slices(cover))
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
