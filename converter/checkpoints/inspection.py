"""Identifies a checkpoint and lists its contents.

Never fails on what it finds: what cannot be read is reported as such, and work is bounded.
"""

import itertools
import os
from dataclasses import dataclass, field
from typing import Any

from converter.arrays import read_array
from converter.checkpoints.axlearn import Checkpoint, read_checkpoint
from converter.checkpoints.axlearn_orbax import is_orbax_step, read_orbax_checkpoint
from converter.checkpoints.axlearn_steps import find_step, list_steps, step_number, step_state
from converter.checkpoints.maxtext import Target, find_items, read_target
from converter.checkpoints.names import CONFIG_NAME, CUSTOM_METADATA, METADATA_KEY, RECEIPT_NAME, items_path
from converter.errors import Ax2mtError, SourceError
from converter.location import locate, unreadable_name
from converter.storage import DANGLING, DIRECTORY, FILE, in_parallel, is_file, litter_in, storage_of, without_litter

MAX_ENTRIES = 20_000
"""Entries below a directory whose sizes are added up; figures that would need more are marked as incomplete."""

MAX_ARRAYS = 2_000
"""Arrays whose metadata is read."""

WIP_SUFFIX = ".ax2mt-wip"
ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"


@dataclass(frozen=True)
class LeafInfo:
    """An array as its metadata describes it; shape and chunks in elements, empty where they cannot be read."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    problem: str = ""


@dataclass
class Inspection:
    """What a path is.

    Attributes:
      path: as it was given.
      kind: one of KINDS.
      title: the kind in words.
      facts: name to value, in the order of the report.
      leaves: the arrays, where there are any.
      missing: what a whole checkpoint would have, and what is wrong.
    """

    path: str
    kind: str
    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    leaves: list[LeafInfo] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


KINDS = (
    "axlearn-trainer", "axlearn-step", "axlearn-step-uncommitted", "axlearn-orbax-step", "maxtext-checkpoint",
    "half-written", "directory", "no-directory", "unreadable", "absent",
)  # fmt: skip


def inspect(path: str) -> Inspection:
    """Looks at a path; the kinds are KINDS. Nothing that can be on a file system is an error.

    Raises:
      SourceError: the path is not local.
    """
    place = locate(path, SourceError).path
    storage = storage_of(place)
    try:
        storage.release(place)
        with storage.browsing(place):
            result = _inspect(path, place)
    except OSError as error:
        return Inspection(path, "unreadable", f"cannot be read: {error.strerror}")
    except ValueError as error:
        return Inspection(path, "unreadable", f"no path: {error}")
    except Ax2mtError as error:
        return Inspection(path, "unreadable", "cannot be read", missing=[error.message])
    finally:
        storage.release(place)
    problem = unreadable_name(place)
    if problem:
        result.missing.append(f"a name that can be read: {problem}")
    return result


def _inspect(path: str, place: str) -> Inspection:
    storage = storage_of(place)
    try:
        found = storage.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return Inspection(path, "absent", "nothing is there")
    if found.kind == DANGLING:
        return Inspection(path, "no-directory", "a link that leads nowhere")
    if found.kind != DIRECTORY:
        return Inspection(path, "no-directory", f"a {found.problem or found.kind}, no directory")
    names = without_litter(storage.names(place))
    if storage.is_directory(os.path.join(place, "index")):
        return _orbax_step(path, place)
    if "index" in names and ("gda" in names or step_number(place) is not None):
        return _axlearn_step(path, place)
    if "gda" in names:
        return _uncommitted_step(path, place)
    if WIP_SUFFIX in os.path.basename(place) or ORBAX_TEMPORARY in os.path.basename(place):
        return _half_written(path, place, names)
    steps = list_steps(place)
    if steps:
        return _trainer(path, steps)
    target = _maxtext(path, place)
    if target is not None:
        return target
    if any(ORBAX_TEMPORARY in name for name in names) or storage.is_directory(os.path.join(place, items_path())):
        return _half_written(path, place, names)
    result = Inspection(path, "directory", "a directory, but no checkpoint")
    result.facts["entries"] = len(names)
    result.missing.append("step_* directories, index and gda/ (AXLearn) or <step>/items/_METADATA (MaxText)")
    if storage.exists(place + WIP_SUFFIX):
        result.facts["unfinished_conversion"] = place + WIP_SUFFIX
    return result


def _trainer(path: str, steps: dict[int, str]) -> Inspection:
    result = Inspection(path, "axlearn-trainer", "an AXLearn trainer directory")
    places = list(steps.values())
    states = dict(zip(steps, in_parallel(step_state, places, places[0]), strict=True))
    for state in ("committed", "uncommitted", "unreadable"):
        found = [number for number in steps if states[number] == state]
        if found or state in ("committed", "uncommitted"):
            result.facts[f"{state}_steps"] = found
    if "committed" not in states.values():
        result.missing.append("a committed step")
        return result
    try:
        newest = find_step(path)
    except Ax2mtError as error:
        result.missing.append(error.message)
        return result
    latest = (_orbax_step if is_orbax_step(newest.directory) else _axlearn_step)(path, newest.directory)
    result.facts.update({"latest": newest.directory, **latest.facts})
    if newest.notes:
        result.facts["passed_over"] = list(newest.notes)
    result.leaves, result.missing = latest.leaves, latest.missing
    return result


def _axlearn_step(path: str, place: str) -> Inspection:
    result = Inspection(path, "axlearn-step", "a committed AXLearn step")
    try:
        checkpoint = read_checkpoint(place)
    except Ax2mtError as error:
        result.title = "an AXLearn step whose index cannot be read"
        result.missing.append(error.message)
        return result
    _describe(result, checkpoint, place)
    return result


def _describe(result: Inspection, checkpoint: Checkpoint, place: str) -> None:
    """Lists a step's tensors."""
    storage_of(place).pin(place, parts=checkpoint.array_directories)
    tensors = checkpoint.tensors
    elements = sum(_product(entry.shape or ()) for name, entry in tensors.items() if name.startswith("model/"))
    names = list(tensors)[:MAX_ARRAYS]
    for name, array in zip(names, checkpoint.each_array(names), strict=True):
        if isinstance(array, SourceError):
            result.leaves.append(LeafInfo(name, tensors[name].dtype, tensors[name].shape or (), (), array.message))
            result.missing.append(array.message)
        else:
            result.leaves.append(LeafInfo(name, array.dtype, array.shape, array.chunks))
    result.facts.update({"step": checkpoint.step, "tensors": len(checkpoint.tensors), "model_parameters": elements})
    result.facts["dtypes"] = _dtypes(result.leaves)
    result.facts["sharded"] = any(leaf.chunks and leaf.chunks != leaf.shape for leaf in result.leaves)
    if checkpoint.others:
        result.facts["other_entries"] = list(checkpoint.others[:20])
    result.facts.update(_size(place))


def _uncommitted_step(path: str, place: str) -> Inspection:
    result = Inspection(path, "axlearn-step-uncommitted", "an uncommitted AXLearn step; its save did not finish")
    result.facts["step"] = step_number(place)
    result.facts.update(_size(place))
    result.missing.append("index: the commit marker, which is written last")
    return result


def _orbax_step(path: str, place: str) -> Inspection:
    result = Inspection(path, "axlearn-orbax-step", "an AXLearn step in Orbax format (OrbaxCheckpointer)")
    try:
        checkpoint = read_orbax_checkpoint(place)
    except Ax2mtError as error:
        result.facts["step"] = step_number(place)
        result.facts.update(_size(place))
        result.missing.append(error.message)
        return result
    _describe(result, checkpoint, place)
    if not is_file(os.path.join(place, CUSTOM_METADATA)):
        result.missing.append(CUSTOM_METADATA)
    return result


def _maxtext(path: str, place: str) -> Inspection | None:
    try:
        target = read_target(find_items(place))
    except Ax2mtError:
        return None
    result = Inspection(path, "maxtext-checkpoint", "a MaxText/Orbax checkpoint")
    keys = [] if target.use_ocdbt else target.leaves
    storage_of(place).pin(target.step_directory, parts=[os.path.join(target.items, key) for key in keys])
    result.leaves = _target_leaves(target)
    config = os.path.join(target.root, CONFIG_NAME)
    result.facts.update({
        "step": target.step,
        "items": target.items,
        "store": "ocdbt" if target.use_ocdbt else "files",
        "zarr_version": 3 if target.use_zarr3 else 2,
        "leaves": len(target.leaves),
        "parameters": sum(_product(leaf.shape) for leaf in result.leaves if leaf.path.startswith("params/")),
        "dtypes": _dtypes(result.leaves),
        "scan_layers": target.custom.get("scan_layers"),
        "digests": METADATA_KEY in target.custom,
        "receipt": is_file(os.path.join(target.root, RECEIPT_NAME)),
        "config": config if is_file(config) else None,
        "sharding_file": is_file(os.path.join(target.items, "_sharding")),
        **_size(target.step_directory),
    })  # fmt: skip
    result.missing += [*target.problems, *(leaf.problem for leaf in result.leaves if leaf.problem)]
    return result


def _half_written(path: str, place: str, names: list[str]) -> Inspection:
    result = Inspection(path, "half-written", "a checkpoint that was never finished")
    if WIP_SUFFIX in place:
        result.title = "the work area of an unfinished conversion; the same convert command cleans it up"
    result.facts["temporary"] = [name for name in names if ORBAX_TEMPORARY in name][:20]
    result.facts.update(_size(place))
    result.missing.append("items/_METADATA and the commit markers, which are written last")
    return result


def _target_leaves(target: Target) -> list[LeafInfo]:
    """Array metadata of a MaxText checkpoint: from JSON files, or through TensorStore out of an OCDBT database."""
    if target.use_ocdbt and unreadable_name(target.items):
        return []

    def look(leaf: tuple[str, str]) -> LeafInfo:
        key, path = leaf
        try:
            if target.use_ocdbt:
                array = target.open(path).array
            else:
                array = read_array(path, os.path.join(target.items, key), 3 if target.use_zarr3 else 2)
        except Ax2mtError as error:
            return LeafInfo(path, "unknown", (), (), error.message)
        return LeafInfo(path, array.dtype, array.shape, array.chunks)

    return list(in_parallel(look, list(target.leaves.items())[:MAX_ARRAYS], target.items))


def _size(place: str) -> dict[str, Any]:
    """Bytes and files below a directory, without litter, as far as MAX_ENTRIES entries go."""
    total = files = seen = 0
    litter: set[str] = set()
    for blob in itertools.islice(storage_of(place).walk(place), MAX_ENTRIES):
        seen += 1
        if ignored := litter_in(blob.name):
            litter.add(ignored)
        elif blob.kind == FILE:
            files += 1
            total += blob.size
    size = {"files": files, "bytes": total, "size_complete": seen < MAX_ENTRIES}
    return {**size, "litter": len(litter)} if litter else size


def _dtypes(leaves: list[LeafInfo]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for leaf in leaves:
        counts[leaf.dtype] = counts.get(leaf.dtype, 0) + 1
    return counts


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for length in shape:
        result *= length
    return result
