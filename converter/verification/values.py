"""Compares the values of a checkpoint's leaves with the source's: in several threads, bit for bit.

Chunks that were passed through are compared as they are stored, see `stored`. All others, and all of a leaf that has
other bytes, are decoded block by block: the expected values come from the source's blocks by `AxisMap.pieces`, which is
another way through an axis expression than the one that the conversion takes; the found values come from TensorStore.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from converter.arrays import Array, BlockReader, OpenArray, slices
from converter.axes import AxisMap, Blocking, Box, Span, block_map, groups, target_box
from converter.errors import VerificationError
from converter.mapping import Scale
from converter.planning import Load, Plan, Portion, Share, Task, divide
from converter.verification.blocking import Cut, cut_task
from converter.verification.compare import LeafComparison
from converter.verification.result import FirstFaults
from converter.verification.stored import StoredLeaf, stored_leaves
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

    def run(self, *, max_memory: int, jobs: int, sample: float | None, decode: bool, share: Share) -> None:
        """Compares all leaves, or a share of their chunks and blocks.

        Args:
          max_memory: bytes that blocks in flight may take together.
          jobs: blocks in flight.
          sample: the fraction of blocks to compare, all of them decoded; None for all.
          decode: decode every chunk, also where the stored bytes decide.
          share: which part is compared. A leaf with a chunk whose stored bytes differ is decoded whole, to say what of
            it differs.

        Raises:
          SourceError: a chunk of the source is missing or damaged.
          UsageError: a chunk does not fit the budget.
        """
        budget = ByteBudget(max_memory)
        stored = self._stored_leaves(budget) if sample is None and not decode else []
        passed = {one.task for one in stored}
        blocks = [
            self._blocks(number, budget, sample) for number in range(len(self._plan.tasks)) if number not in passed
        ]
        portion = self._portion(stored, blocks, share)
        if share.index == 0:
            for leaf, scalar in self._plan.scalars:
                self._scalar(leaf.path, np.array(scalar.value, leaf.dtype))
        self._progress.start(len(self._arrays), portion.bytes)
        run_units(self._stored_units(stored, portion, budget), STORE_JOBS if self._places else jobs)
        chosen = [
            dataclasses.replace(one, groups=tuple(portion.chosen(number, one.groups)))
            for number, one in enumerate(blocks, len(stored))
        ]
        chosen += [self._blocks(task, budget, None) for task in self._unequal(stored)]
        self.stored &= {one.path for number, one in enumerate(stored) if portion.count(number)}
        run_units(self._units(chosen, budget), jobs)

    def _stored_leaves(self, budget: ByteBudget) -> list["_Stored"]:
        """The leaves that are compared as they are stored: of a task all that are there, or none."""
        found: list[_Stored] = []
        for number, task in enumerate(self._plan.tasks):
            if task.leaves[0].path in self._fitted:
                continue
            there = {part.path for leaf in task.leaves for part in leaf.each if part.path in self._arrays}
            leaves = dict(stored_leaves(task, self._arrays, self._places))
            if leaves.keys() == there and all(leaf.memory <= budget.limit for leaf in leaves.values()):
                found += [_Stored(number, path, leaf) for path, leaf in leaves.items()]
                self.stored |= there
        return found

    def _unequal(self, stored: Sequence["_Stored"]) -> list[int]:
        """The tasks in which some stored bytes differ; what was found of them is forgotten, as they are decoded."""
        tasks = sorted({one.task for one in stored if one.path not in self.stored})
        for one in stored:
            if one.task in tasks and one.path in self.stored:  # a layer of a stack, which is decoded as a whole
                self.stored.discard(one.path)
                self.comparisons[one.path] = LeafComparison()
        return tasks

    def _blocks(self, number: int, budget: ByteBudget, sample: float | None) -> "_Blocks":
        """The blocks of a task that are decoded and compared."""
        task = self._plan.tasks[number]
        arrays = [self._found(leaf) for leaf in task.leaves]
        if not any(arrays):
            return _Blocks(number, None, ())
        cut = cut_task(task, arrays, budget.limit)
        return _Blocks(number, cut, tuple(sampled(list(groups(task.axis_map, cut.blocking)), sample)))

    def _portion(self, stored: Sequence["_Stored"], blocks: Sequence["_Blocks"], share: Share) -> Portion:
        """What of it is this share's: the stored leaves are numbered first, then what is decoded."""
        loads = [
            Load(units=len(one.leaf.chunks), bytes=self._arrays[one.path].array.bytes, decoded=False) for one in stored
        ]
        loads += [
            Load(
                units=len(one.groups),
                bytes=sum(leaf.bytes for leaf in self._plan.tasks[one.task].leaves),
                decoded=True,
            )
            for one in blocks
        ]
        return divide(loads, share.count)[share.index]

    def _stored_units(
        self, stored: Sequence["_Stored"], portion: Portion, budget: ByteBudget
    ) -> Iterator[Callable[[], None]]:
        for number, one in enumerate(stored):
            left = _Countdown(portion.count(number))
            for index in portion.chosen(number, one.leaf.chunks):
                yield partial(self._stored_chunk, one.path, one.leaf, index, left, budget)

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

    def _units(self, chosen: Sequence["_Blocks"], budget: ByteBudget) -> Iterator[Callable[[], None]]:
        for one in chosen:
            task, cut = self._plan.tasks[one.task], one.cut
            if cut is None:
                continue
            reader = BlockReader(task.sources, task.axis_map, cut.blocking)
            left = _Countdown(len(one.groups))
            for group in one.groups:
                yield partial(self._group, task, _read(reader, cut.blocking, group), left, budget, cut.memory)

    def _found(self, leaf: Array) -> Array | None:
        """A leaf as the checkpoint has it; layers with leaves of their own are a stack. None if none is there."""
        found = [self._arrays[part.path].array for part in leaf.each if part.path in self._arrays]
        if not found or not leaf.parts:
            return found[0] if found else None
        chunks = (1, *map(max, *(array.chunks for array in found), found[0].chunks)) if leaf.shape[1:] else (1,)
        return dataclasses.replace(leaf, chunks=chunks, dtype=found[0].dtype)

    def _group(self, task: Task, source: Iterator[_Block], left: "_Countdown", budget: ByteBudget, memory: int) -> None:
        with budget.hold(memory):
            windows = {
                part.path: _Window(self._arrays[part.path])
                for leaf in task.leaves
                for part in leaf.each
                if part.path in self._arrays
            }
            for span, blocks in source:
                cut = block_map(task.axis_map, span)
                for number in range(len(task.leaves)):
                    box = target_box(task.axis_map, span, number)
                    self._block(task, cut, number, box, blocks, windows)
        if left.down():
            for path in windows:
                self._progress.leaf_done(path)

    def _block(
        self,
        task: Task,
        cut: AxisMap,
        number: int,
        box: Box,
        blocks: list[np.ndarray],
        windows: Mapping[str, "_Window"],
    ) -> None:
        """Compares a block of a leaf, or that of each layer where they have leaves of their own."""
        leaf = task.leaves[number]
        inside = tuple((0, high - low) for low, high in box)
        if not leaf.parts:
            if leaf.path in windows:
                self._part(task, cut, number, leaf.path, box, inside, blocks, windows[leaf.path])
            return
        for layer in range(*box[0]):
            path, at = leaf.parts[layer].path, layer - box[0][0]
            if path in windows:
                own, within = ((layer, layer + 1), *box[1:]), ((at, at + 1), *inside[1:])
                self._part(task, cut, number, path, own, within, blocks, windows[path])

    def _part(
        self,
        task: Task,
        cut: AxisMap,
        number: int,
        path: str,
        box: Box,
        inside: Box,
        blocks: list[np.ndarray],
        window: "_Window",
    ) -> None:
        """Compares a block of one leaf of the checkpoint.

        Args:
          task: the task.
          cut: the map of the block.
          number: of the target.
          path: the checkpoint's leaf.
          box: where the block lies in the target.
          inside: where it lies in what the map makes.
          blocks: the source's elements.
          window: reads the leaf.
        """
        whole = task.leaves[number]
        layers = 1 if whole.parts else 0
        try:
            found = window.read(box[layers:])
        except VerificationError as error:
            where = tuple(low for low, _ in box[layers:])
            self.broken.add(path, error.message.removeprefix(f"{path}: "), where)
            return
        comparison, lows = self.comparisons[path], [low for low, _ in box]
        values = found[None] if layers else found
        if whole.path in self._fitted:
            expected = self._fitted[whole.path][slices(box)]
            comparison.add(lows[layers:], [1] * (len(box) - layers), expected[0] if layers else expected, found)
        else:
            corner = [low for low, _ in inside]
            for piece in cut.pieces(number, inside):
                spots = [
                    slice(part.start - at, None if part.stop is None else part.stop - at, part.step)
                    for part, at in zip(piece.target_slices, corner, strict=True)
                ]
                starts = [low + part.start for low, part in zip(lows, spots, strict=True)]
                steps = [part.step for part in spots]
                expected = piece.rearrange(blocks[piece.source][piece.source_slices])
                if isinstance(task.value, Scale):
                    expected = task.value.apply(expected, task.axis_map.sizes)
                there = values[tuple(spots)]
                if layers:
                    expected, there = expected[0], there[0]
                comparison.add(starts[layers:], steps[layers:], expected, there)
        self._progress.advance(found.nbytes)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A leaf that is compared as it is stored.

    Attributes:
      task: the number of its task.
      path: of the leaf.
      leaf: compares its chunks.
    """

    task: int
    path: str
    leaf: StoredLeaf


@dataclass(frozen=True, slots=True)
class _Blocks:
    """What is decoded of a task.

    Attributes:
      task: its number.
      cut: how the task is cut; None where none of its leaves is there.
      groups: what is read in one go, in order.
    """

    task: int
    cut: Cut | None
    groups: tuple[Span, ...]


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
