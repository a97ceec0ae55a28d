"""Compares a MaxText checkpoint with its AXLearn source: coverage, shapes, dtypes, values, metadata, configuration.

All findings are collected; the first one does not stop the run.
"""

import dataclasses
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from converter.arrays import OpenArray
from converter.checkpoints import (
    CONFIG_NAME,
    STATE_PATH,
    SUMS,
    TREE_METADATA,
    Made,
    Target,
    check_pair,
    check_receipt,
    is_as_committed,
    open_target,
    orbax_problems,
    read_records,
    recorded_dtype,
)
from converter.choices import DEFAULT_MEMORY
from converter.errors import DestinationError, SourceError, VerificationError
from converter.location import locate
from converter.mapping import PARAMS
from converter.planning import EvidentPlan, Plan, Share, Source, evident_plan
from converter.storage import storage_of
from converter.verification.diagnosis import Diagnostician
from converter.verification.metadata import config_findings, metadata_findings
from converter.verification.result import CastReport, Finding, Verification
from converter.verification.sums import pin
from converter.verification.values import ValueComparison
from converter.work import Progress, peak_resident, reuse_freed_memory


def verify(
    source: str,
    destination: str,
    progress: Progress,
    *,
    step: int | None = None,
    mapping: str | None = None,
    tree: str | None = None,
    dtype: str | None = None,
    sample: float | None = None,
    decode: bool = False,
    max_memory: int = DEFAULT_MEMORY,
    jobs: int = 2,
    share: Share | None = None,
) -> Verification:
    """Compares a checkpoint with its source.

    Args:
      source: a step or trainer directory.
      destination: the checkpoint: the directory above its steps, a step, or its arrays.
      progress: notified of each block and each leaf.
      step: the wanted step of the source; None for the latest.
      mapping: path of a user's own table, or None.
      tree: the tree that became the parameters; None for the one that the checkpoint names.
      dtype: the dtype that leaves were cast to; None for the one that the receipt names, or else the source's.
      sample: the fraction of blocks to compare; None for all.
      decode: decode every chunk, also those that were passed through.
      max_memory: bytes that blocks in flight may take together.
      jobs: blocks in flight.
      share: which part of the chunks and blocks is compared; None for all. Share 0 also checks all that is not a value.

    Raises:
      SourceError: the source cannot be read.
      DestinationError: the destination is not a local path, or an AXLearn checkpoint.
      MappingError: no table fits the source.
      VerificationError: there is no checkpoint at the destination, or its metadata cannot be read.
      UsageError: source and destination are swapped, or the memory budget is too small.
    """
    started = time.monotonic()
    reuse_freed_memory()
    check_pair(locate(source, SourceError), locate(destination, DestinationError))
    target = open_target(destination)
    evident = evident_plan(source, target, step=step, mapping=mapping, tree=tree, max_memory=max_memory, jobs=jobs)
    result = verify_plan(
        evident,
        target,
        progress,
        dtype=dtype,
        sample=sample,
        decode=decode,
        max_memory=max_memory,
        jobs=jobs,
        share=share,
    )
    return dataclasses.replace(result, seconds=time.monotonic() - started)


def verify_plan(
    evident: EvidentPlan,
    target: Target,
    progress: Progress,
    *,
    dtype: str | None,
    sample: float | None,
    decode: bool,
    max_memory: int,
    jobs: int,
    share: Share | None = None,
) -> Verification:
    """Compares a checkpoint with the plan that it was evidently made by; see `verify` for the arguments.

    Raises:
      SourceError: a chunk of the source is missing or damaged.
      VerificationError: the checkpoint cannot be listed.
      UsageError: the memory budget is too small.
    """
    started = time.monotonic()
    pin(target.root)
    opened, plan, fitted = evident.source, evident.plan, evident.fitted
    recorded = recorded_dtype(target.root) if dtype is None else None
    dtype = dtype or recorded
    coverage = _open_leaves(plan, target, dtype)
    values = ValueComparison(plan, coverage.arrays, fitted, progress, _object_places(opened, target))
    is_first = share is None or share.index == 0
    if is_first:
        _find_missing_chunks(coverage.arrays, values)
    try:
        values.run(max_memory=max_memory, jobs=jobs, sample=sample, decode=decode, share=share or Share(0, 1))
    finally:
        progress.close()
    doctor = Diagnostician(plan, coverage.arrays, max_memory)
    findings = _value_findings(values, doctor)
    notes = [*_tree_notes(plan, evident.made), *_fit_notes(fitted), *_cast_notes(recorded)]
    if is_first:
        config, config_notes = config_findings(target, plan.config, opened.match.table, plan.options.table)
        findings = [*coverage.findings, *findings, *_metadata_findings(plan, target), *config]
        notes += [*coverage.notes, *config_notes]
        findings += _orbax_findings(target, coverage, findings, decode=decode)
    compared = {
        path: comparison.compared
        for path, comparison in values.comparisons.items()
        if share is None or comparison.compared
    }
    return Verification(
        method="source",
        source=plan.source,
        step=plan.step,
        destination=target.root,
        leaves=len(compared),
        stored_leaves=len(values.stored),
        elements=sum(compared.values()),
        compared_bytes=sum(count * coverage.arrays[path].array.item_size for path, count in compared.items()),
        sample=sample,
        findings=tuple(findings),
        notes=(*opened.notes, *notes),
        cast=_cast_report(dtype, plan, values),
        seconds=time.monotonic() - started,
        peak_memory=peak_resident(),
        paths=tuple(compared),
        share=share,
    )


def _metadata_findings(plan: Plan, target: Target) -> list[Finding]:
    """What is wrong with the tree, and with the metadata around the arrays."""
    return [*_structure_findings(plan, target), *metadata_findings(target, bool(plan.config["scan_layers"]))]


def _orbax_findings(
    target: Target, coverage: "_Coverage", findings: Sequence[Finding], *, decode: bool
) -> list[Finding]:
    """What Orbax says of the checkpoint, where it may not have seen the metadata as it is: to load it takes longest.

    It reads all leaves at once, and leaves its threads behind where one cannot be opened: that is known already.
    """
    unopened = any(finding.check == "chunks" for finding in coverage.findings)
    if unopened or any(finding.check == "metadata" for finding in findings):
        return []
    if not decode and is_as_committed(target, check_receipt(target.root, apart=CONFIG_NAME)):
        return []
    shapes = {path: opened.array.shape for path, opened in coverage.arrays.items()}
    return [Finding("metadata", TREE_METADATA, line) for line in orbax_problems(target, shapes)]


def _tree_notes(plan: Plan, made: Made) -> tuple[str, ...]:
    """A note where the parameters are not AXLearn's own, and where a training state cannot be looked at."""
    notes = (
        [f"made with --tree {plan.tree}: compared with AXLearn's {plan.trees[0].source}"] if plan.tree != PARAMS else []
    )
    if made.optimizer and plan.state is None:
        notes.append(f"made with a state of {made.optimizer!r}, which this version does not know: it was not compared")
    return tuple(notes)


def _structure_findings(plan: Plan, target: Target) -> list[Finding]:
    """What MaxText restores a state into beside its arrays: lists, and nodes that hold nothing."""
    if plan.state is None:
        return []
    optimizer, findings = plan.state.optimizer, []
    for path in optimizer.lists:
        if path not in target.lists:
            findings.append(Finding("coverage", path, f"expected a list, as the state of {optimizer.name} has"))
    for path in optimizer.empty:
        if path not in target.empty:
            findings.append(Finding("coverage", path, f"expected None, as the state of {optimizer.name} has"))
    expected = plan.step_directory
    if target.step is not None and target.step != expected:
        text = f"is step {target.step}, expected {expected}: MaxText would skip a save, or name it wrongly"
        findings.append(Finding("coverage", os.path.basename(target.step_directory), text))
    return findings


def _object_places(source: Source, target: Target) -> dict[str, str]:
    """Where the leaves' chunks are objects, if source and checkpoint are both in stores that know checksums."""
    if storage_of(source.checkpoint.directory).renames or storage_of(target.items).renames:
        return {}
    records = read_records(target.custom) or {}
    return {
        path: os.path.join(target.items, records[key]["place"])
        for path, key in target.keys.items()
        if key in records and records[key]["kind"] == SUMS
    }


def _fit_notes(fitted: Collection[str]) -> tuple[str, ...]:
    """A note where the checkpoint says that values were fitted; what they should be is computed from the source."""
    text = f"made with --qk-norm fit: {len(fitted)} q/k norm scales are compared with the fit, not with AXLearn's"
    return (text,) if fitted else ()


def _cast_notes(recorded: str | None) -> tuple[str, ...]:
    """A note where nothing but the receipt says that values were cast."""
    return (f"made with --dtype {recorded}: compared with AXLearn's values, rounded to it",) if recorded else ()


@dataclass(frozen=True)
class _Coverage:
    """What is compared, and what is not.

    Attributes:
      arrays: path to array, for each leaf that is there as it should be.
      findings: leaves that are missing, extra, or of another shape or dtype.
      notes: leaves that are not weights.
    """

    arrays: Mapping[str, OpenArray]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def _open_leaves(plan: Plan, target: Target, dtype: str | None) -> _Coverage:
    expected = {leaf.path: leaf for leaf in plan.leaves}
    scalars = {leaf.path for leaf, _ in plan.scalars}
    owned = (_weights_prefix(plan), *((f"{STATE_PATH}/",) if plan.state is not None else ()))
    arrays: dict[str, OpenArray] = {}
    findings: list[Finding] = []
    notes: list[str] = []
    for path in target.keys:
        if path not in expected and path.startswith(owned):
            findings.append(Finding("coverage", path, "extra leaf: no source tensor maps to it"))
        elif path not in expected:
            notes.append(f"{path}: not compared: not a weight")
    for path, leaf in expected.items():
        if path not in target.keys:
            findings.append(Finding("coverage", path, "missing in the checkpoint"))
            continue
        try:
            opened = target.open(path)
        except VerificationError as error:
            findings.append(Finding("chunks", path, error.message.removeprefix(f"{path}: ")))
            continue
        array = opened.array
        if array.shape != leaf.shape:
            text = f"has the shape {list(array.shape)}, expected {list(leaf.shape)}"
            findings.append(Finding("shape", path, text))
        elif array.dtype != (wanted := leaf.dtype if path in scalars else dtype or leaf.dtype):
            hint = "" if dtype or path in scalars else f"; if it was cast, pass --dtype {array.dtype}"
            findings.append(Finding("dtype", path, f"is {array.dtype}, expected {wanted}{hint}"))
        else:
            arrays[path] = opened
    return _Coverage(arrays, tuple(findings), tuple(notes))


def _find_missing_chunks(arrays: Mapping[str, OpenArray], values: ValueComparison) -> None:
    """Looks for chunks that are not there, also outside of a sample."""
    for path, opened in arrays.items():
        try:
            missing = opened.missing_chunks()
        except VerificationError as error:
            values.broken.add(path, error.message.removeprefix(f"{path}: "))
            continue
        if missing:
            values.broken.add(
                path, f"{len(missing)} of {math.prod(opened.array.grid)} chunks are missing, first {missing[0]}"
            )


def _value_findings(values: ValueComparison, doctor: Diagnostician) -> list[Finding]:
    """What the comparison showed, with a diagnosis for each leaf that differs."""
    result = [Finding("chunks", path, text) for path, text in values.broken.items()]
    for path, comparison in values.comparisons.items():
        mismatch = comparison.mismatch
        if mismatch is not None:
            result.append(
                Finding(
                    "values",
                    path,
                    f"{mismatch.elements:,} of {comparison.compared:,} elements differ",
                    mismatch.elements,
                    mismatch.first_index,
                    mismatch.expected,
                    mismatch.found,
                    doctor.diagnose(path) if path not in values.broken else "",
                )
            )
        if comparison.overflows:
            text = f"{comparison.overflows:,} finite elements became infinite in the cast"
            result.append(Finding("cast", path, text, comparison.overflows))
    return result


def _cast_report(dtype: str | None, plan: Plan, values: ValueComparison) -> CastReport | None:
    """The errors of the cast; None where no compared leaf was cast."""
    sources = {leaf.path: leaf.dtype for leaf in plan.leaves}
    scalars = {leaf.path for leaf, _ in plan.scalars}
    cast = [
        comparison for path, comparison in values.comparisons.items() if path not in scalars and sources[path] != dtype
    ]
    if dtype is None or not cast:
        return None
    return CastReport(
        dtype,
        max(comparison.max_absolute for comparison in cast),
        max(comparison.max_relative for comparison in cast),
        sum(comparison.overflows for comparison in cast),
    )


def _weights_prefix(plan: Plan) -> str:
    """The path below which leaves are weights: what all planned leaves of parameters have in common."""
    parts = [leaf.path.split("/")[:-1] for task in plan.parameter_tasks for leaf in task.leaves]
    common: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return "".join(f"{name}/" for name in common)
