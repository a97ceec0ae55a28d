"""Holds a MaxText checkpoint against its AXLearn source, every element bit for bit, in bounded memory.

The expected values come from the source's blocks by `AxisMap.pieces`, which is another way through an axis expression
than the one that the conversion takes; the found values come from `maxtext_reader`. Everything that is wrong is
collected, nothing stops at the first finding.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorstore as ts

from converter.axis_map import AxisMap, Box
from converter.blocking import Blocking, BlockTooLarge, Span, block_map, groups, plan_blocks, target_box
from converter.compare import LeafComparison
from converter.diagnosis import Diagnostician
from converter.digest import METADATA_KEY
from converter.errors import UsageError, VerificationError
from converter.matching import match_table
from converter.maxtext_reader import Target, TargetArray, evident_options, open_target, orbax_problems
from converter.memory import ByteBudget, peak_resident, reuse_freed_memory
from converter.plan import DEFAULT_MEMORY, Options, Plan, Task, make_plan
from converter.progress import Progress
from converter.qk_norm import fitted_scales
from converter.source import Source, open_source
from converter.source_blocks import SourceBlocks
from converter.verification import CastReport, Finding, Verification, run_units
from converter.verify_metadata import config_findings, metadata_findings

CHUNK_COPIES = 3
"""Bytes that TensorStore holds for each byte of a chunk that it decodes."""
COPIES = 4
"""Bytes held for each byte of a block: TensorStore's two copies of either side."""


@dataclass(frozen=True)
class VerifyRequest:
    """What `verify SRC DST` was asked for.

    Attributes:
      source: a step or trainer directory.
      destination: the checkpoint: the directory above its steps, a step, or its arrays.
      step: the wanted step of the source; None for the latest.
      mapping: path of a user's own table, or None.
      dtype: the dtype that leaves were cast to; None where they must have the source's.
      sample: the fraction of blocks to compare; None for all.
      max_memory: bytes that blocks in flight may take together.
      jobs: blocks in flight.
    """

    source: str
    destination: str
    step: int | None = None
    mapping: str | None = None
    dtype: str | None = None
    sample: float | None = None
    max_memory: int = DEFAULT_MEMORY
    jobs: int = 2


def verify(request: VerifyRequest, progress: Progress) -> Verification:
    """Compares a checkpoint with its source.

    Raises:
      SourceError: the source cannot be read.
      MappingError: no table fits the source.
      VerificationError: there is no checkpoint at the destination, or its metadata is beyond reading.
      UsageError: the memory budget is too small.
    """
    started = time.monotonic()
    reuse_freed_memory()
    if request.sample is not None and not 0 < request.sample <= 1:
        raise UsageError(f"--sample {request.sample}: expected a fraction above 0 and up to 1")
    target = open_target(request.destination)
    source, untie = _open_source(request, target)
    plan = make_plan(source, Options(untie=untie, max_memory=request.max_memory, rewrite=True))
    fitted, fit_notes = _fitted(source, target)
    run = _Run(plan, target, request, progress, fitted)
    notes = [*fit_notes, *run.coverage()]
    run.find_missing_chunks()
    try:
        run.compare()
    finally:
        progress.close()
    findings = [*run.findings, *run.value_findings(), *metadata_findings(target, bool(plan.config["scan_layers"]))]
    config, config_notes = config_findings(target, plan.config)
    findings += config
    if not any(finding.check == "metadata" for finding in findings):
        shapes = {array.path: array.shape for array in run.arrays.values()}
        findings += [Finding("metadata", "_METADATA", line) for line in orbax_problems(target, shapes)]
    comparisons = list(run.comparisons.values())
    return Verification(
        method="source",
        source=plan.source,
        step=plan.step,
        destination=target.root,
        leaves=len(comparisons),
        elements=sum(c.compared for c in comparisons),
        compared_bytes=sum(c.compared * run.arrays[path].item_size for path, c in run.comparisons.items()),
        sample=request.sample,
        findings=tuple(findings),
        notes=(*notes, *config_notes),
        cast=run.cast_report(),
        seconds=time.monotonic() - started,
        peak_memory=peak_resident(),
    )


def _open_source(request: VerifyRequest, target: Target) -> tuple[Source, bool]:
    """The source, matched with the options that the checkpoint was evidently made with."""
    source = open_source(request.source, step=request.step, mapping=request.mapping)
    table = source.match.table
    options = evident_options(table, target)
    if options:
        shapes = {name: entry.shape for name, entry in source.checkpoint.tensors.items()}
        source = dataclasses.replace(source, match=match_table(table, shapes, options=options))
    return source, "untie" in options


def _fitted(source: Source, target: Target) -> tuple[Mapping[str, np.ndarray], tuple[str, ...]]:
    """The leaves that the checkpoint says it has fitted values for, made anew from the source; and a note on it."""
    entry = target.custom.get(METADATA_KEY)
    if not isinstance(entry, dict) or entry.get("qk_norm") != "fit":
        return {}, ()
    fitted = fitted_scales(source)
    note = f"made with --qk-norm fit: {len(fitted)} q/k norm scales are compared with the fit, not with AXLearn's"
    return fitted, (note,)


class _Run:
    def __init__(
        self,
        plan: Plan,
        target: Target,
        request: VerifyRequest,
        progress: Progress,
        fitted: Mapping[str, np.ndarray],
    ):
        self.fitted = fitted
        self.plan = plan
        self.target = target
        self.request = request
        self.progress = progress
        self.context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
        self.budget = ByteBudget(request.max_memory)
        self.findings: list[Finding] = []
        self.arrays: dict[str, TargetArray] = {}
        self.comparisons: dict[str, LeafComparison] = {}
        self.broken: dict[str, str] = {}
        self.lock = threading.Lock()

    def coverage(self) -> list[str]:
        """Opens what is to be compared; missing, extra and misshapen leaves become findings. Returns notes."""
        expected = {leaf.path: leaf for leaf in self.plan.leaves}
        weights = _weights_prefix(self.plan)
        notes: list[str] = []
        for path in self.target.keys:
            if path not in expected:
                if path.startswith(weights):
                    self._found("coverage", path, "extra leaf: nothing in the source leads to it")
                else:
                    notes.append(f"{path}: not compared, it is no weight")
        for path, leaf in expected.items():
            if path not in self.target.keys:
                self._found("coverage", path, "missing in the checkpoint")
                continue
            try:
                array = self.target.open(path, self.context)
            except VerificationError as error:
                self._found("chunks", path, error.message.removeprefix(f"{path}: "))
                continue
            dtype = self.request.dtype or leaf.dtype
            if array.shape != leaf.shape:
                self._found("shape", path, f"has the shape {list(array.shape)}, expected {list(leaf.shape)}")
            elif array.dtype != dtype:
                hint = "" if self.request.dtype else f"; if it was cast, give --dtype {array.dtype}"
                self._found("dtype", path, f"is {array.dtype}, expected {dtype}{hint}")
            else:
                self.arrays[path] = array
                self.comparisons[path] = LeafComparison()
        return notes

    def find_missing_chunks(self) -> None:
        """Looks for chunks that are not there, also outside of a sample."""
        for path, array in self.arrays.items():
            try:
                missing = array.missing_chunks()
            except VerificationError as error:
                self.broken[path] = error.message.removeprefix(f"{path}: ")
                continue
            if missing:
                self.broken[path] = f"{len(missing)} of {math.prod(array.grid)} chunks are missing, first {missing[0]}"

    def compare(self) -> None:
        """Compares the leaves that could be opened."""
        total = sum(array.elements * array.item_size for array in self.arrays.values())
        self.progress.start(len(self.arrays), total)
        run_units(self._units(), self.request.jobs)

    def value_findings(self) -> list[Finding]:
        """What the comparison showed, with a diagnosis for each leaf that differs."""
        doctor = Diagnostician(self.plan, self.arrays, self.request.max_memory, self.context)
        result = [Finding("chunks", path, text) for path, text in self.broken.items()]
        for path, comparison in self.comparisons.items():
            mismatch = comparison.mismatch
            if mismatch is not None:
                diagnosis = doctor.diagnose(path) if path not in self.broken else ""
                result.append(
                    Finding(
                        "values",
                        path,
                        f"{mismatch.elements:,} of {comparison.compared:,} elements differ",
                        mismatch.elements,
                        mismatch.first_index,
                        mismatch.expected,
                        mismatch.found,
                        diagnosis,
                    )
                )
            if comparison.overflows:
                text = f"{comparison.overflows:,} finite elements became infinite by the cast"
                result.append(Finding("cast", path, text, comparison.overflows))
        return result

    def cast_report(self) -> CastReport | None:
        """The errors of the cast; None where no compared leaf was cast."""
        sources = {leaf.path: leaf.dtype for leaf in self.plan.leaves}
        cast = [c for path, c in self.comparisons.items() if self.arrays[path].dtype != sources[path]]
        if not cast or self.request.dtype is None:
            return None
        return CastReport(
            self.request.dtype,
            max(c.max_absolute for c in cast),
            max(c.max_relative for c in cast),
            sum(c.overflows for c in cast),
        )

    def _units(self) -> Iterator[Callable[[], None]]:
        for task in self.plan.tasks:
            if not any(leaf.path in self.arrays for leaf in task.leaves):
                continue
            blocking = self._blocking(task)
            reader = SourceBlocks(task.sources, task.axis_map, blocking, self.context)
            chosen = sampled(list(groups(task.axis_map, blocking)), self.request.sample)
            left = _Countdown(len(chosen))
            memory = min(blocking.block_bytes * COPIES + self._extra_memory(task, blocking), self.budget.limit)
            for group in chosen:
                yield lambda t=task, r=reader, g=group, m=memory, left=left: self._compare_group(t, r, g, m, left)

    def _compare_group(self, task: Task, reader: SourceBlocks, group: Span, memory: int, left: "_Countdown") -> None:
        with self.budget.hold(memory):
            for span, blocks in reader.read(group):
                cut = block_map(task.axis_map, span)
                for number, leaf in enumerate(task.leaves):
                    if leaf.path in self.arrays:
                        self._compare_block(leaf.path, cut, number, target_box(task.axis_map, span, number), blocks)
        if left.down():
            reader.close()
            for leaf in task.leaves:
                if leaf.path in self.arrays:
                    self.progress.leaf_done(leaf.path)

    def _compare_block(self, path: str, cut: AxisMap, number: int, box: Box, blocks: list[np.ndarray]) -> None:
        try:
            found = self.arrays[path].read(tuple(slice(low, high) for low, high in box))
        except VerificationError as error:
            with self.lock:
                self.broken.setdefault(path, error.message.removeprefix(f"{path}: "))
            return
        if path in self.fitted:
            expected = self.fitted[path][tuple(slice(low, high) for low, high in box)]
            self.comparisons[path].add([low for low, _ in box], [1] * len(box), expected, found)
            return
        for piece in cut.pieces(number, tuple((0, high - low) for low, high in box)):
            starts = [low + part.start for (low, _), part in zip(box, piece.target_slices, strict=True)]
            steps = [part.step for part in piece.target_slices]
            expected = piece.rearrange(blocks[piece.source][piece.source_slices])
            self.comparisons[path].add(starts, steps, expected, found[piece.target_slices])
        self.progress.advance(found.nbytes)

    def _blocking(self, task: Task) -> Blocking:
        """Blocks that cover whole chunks on both sides where the budget allows, so that each is decoded once."""
        chunks = _common_chunks(task, self.arrays)
        item = max(array.item_size for array in task.sources)
        try:
            return plan_blocks(task.axis_map, chunks, item, self.request.max_memory // COPIES, streamable=False)
        except BlockTooLarge:
            assert task.blocking is not None, "the plan is made to rewrite everything"
            return task.blocking

    def _extra_memory(self, task: Task, blocking: Blocking) -> int:
        """Memory for chunks of the checkpoint that are larger than a block.

        Raises:
          UsageError: such a chunk does not fit the budget.
        """
        arrays = [self.arrays[leaf.path] for leaf in task.leaves if leaf.path in self.arrays]
        chunk = max(math.prod(array.chunks) * array.item_size for array in arrays)
        if chunk <= blocking.block_bytes:
            return 0
        needed = chunk * CHUNK_COPIES + blocking.block_bytes * 2
        if needed > self.request.max_memory:
            raise UsageError(
                f"--max-memory {self.request.max_memory} bytes is too small: {arrays[0].path} is stored in chunks of "
                f"{chunk} bytes; give --max-memory {-(-needed >> 20)}MiB or more"
            )
        return max(needed - blocking.block_bytes * COPIES, 0)

    def _found(self, check: str, place: str, message: str) -> None:
        self.findings.append(Finding(check, place, message))


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


def _weights_prefix(plan: Plan) -> str:
    """The path below which leaves are weights: what all planned leaves have in common."""
    parts = [leaf.path.split("/")[:-1] for leaf in plan.leaves]
    common: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return "".join(f"{name}/" for name in common)


def _common_chunks(task: Task, arrays: dict[str, TargetArray]) -> list[tuple[int, ...]]:
    """Source chunks, made long enough along each free axis to cover whole chunks of the checkpoint."""
    chunks: list[list[int]] = [list(array.chunks) for array in task.sources]
    for axis in task.axis_map.free_axes:
        stored: list[Any] = [
            arrays[leaf.path].chunks[dim]
            for leaf, dim in zip(task.leaves, axis.target_dims, strict=True)
            if leaf.path in arrays
        ]
        for source, dim in enumerate(axis.source_dims):
            whole = task.axis_map.sizes[axis.name]
            chunks[source][dim] = min(math.lcm(chunks[source][dim], *stored), whole)
    return [tuple(lengths) for lengths in chunks]
