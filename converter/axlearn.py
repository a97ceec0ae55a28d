"""AXLearn's native checkpoints on disk: trainer directories, steps, the commit marker and the index.

    <trainer dir>/checkpoints/step_00000100/{index, gda/<path>/<zarr v2 array>}

A step is committed when `index` is a file; it is written last (axlearn/common/checkpointer.py). `index` is a JSON list
of pairs; a pair whose value is a dictionary is a tensor, with its shape as a text that holds a Python tuple.
"""

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from converter.errors import SourceError
from converter.zarr2 import MAX_DIMENSIONS, ArraySpec, dtype_name, read_array

MAX_INDEX_BYTES = 16 << 20
"""An index of 100,000 tensors takes 13 MB; a larger file is not an index."""

MAX_PATH = 1024
"""Characters of a tensor's path; AXLearn's have about 100."""

MAX_SHAPE_TEXT = 1024

_STEP = re.compile(r"step_(\d{8,})$")
_SHAPE = re.compile(r"\(\s*(\d{1,19}\s*,\s*)*(\d{1,19}\s*,?\s*)?\)$")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A tensor as the index lists it: the dtype's name and the shape in elements."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed AXLearn step.

    Attributes:
      directory: the step directory.
      step: the training step, from the index.
      tensors: every tensor of the index, by path.
      others: paths of index entries that are no tensors (iterator states).
    """

    directory: str
    step: int | None
    tensors: Mapping[str, IndexEntry]
    others: tuple[str, ...]

    def array_directory(self, path: str) -> str:
        """Where a tensor's zarr array lives."""
        return os.path.join(self.directory, "gda", path)


def find_step(path: str, step: int | None = None) -> str:
    """Finds the step directory that a user's path means.

    Args:
      path: a step directory, a `checkpoints` directory, or the trainer directory above it; local, see `location`.
      step: the wanted step; None for the latest committed one.

    Returns:
      The directory of a committed step.

    Raises:
      SourceError: nothing is there, or no such step is committed; the message names the steps there are.
    """
    if not os.path.isdir(path):
        found = "is no directory" if os.path.lexists(path) else "does not exist"
        raise SourceError(f"{path} {found}; expected an AXLearn step or trainer directory")
    if is_step(path):
        _check_committed(path)
        named = step_number(path)
        if step is not None and named != step:
            found = "has no step in its name" if named is None else f"is step {named}, not step {step}"
            raise SourceError(f"{path} {found}; pass the directory above it, or drop --step")
        return path
    steps = list_steps(path)
    if not steps:
        raise SourceError(f"{path}: no AXLearn checkpoint here; expected step_* directories, or index and gda/")
    if step is not None:
        if step not in steps:
            raise SourceError(f"{path}: no step {step}; there are {_list(sorted(steps))}")
        _check_committed(steps[step])
        return steps[step]
    committed = [number for number, place in steps.items() if is_committed(place)]
    foreign = [number for number, place in steps.items() if os.path.isdir(os.path.join(place, "index"))]
    if foreign and max(foreign) > max(committed, default=-1):
        _check_committed(steps[max(foreign)])
    if not committed:
        raise SourceError(
            f"{path}: none of the steps {_list(sorted(steps))} is committed (none has an index file); "
            "the training was stopped before a save finished"
        )
    return steps[max(committed)]


def is_step(path: str) -> bool:
    """Whether a directory is a step, committed or not, rather than one above steps."""
    return os.path.lexists(os.path.join(path, "index")) or os.path.isdir(os.path.join(path, "gda"))


def list_steps(path: str) -> dict[int, str]:
    """The step directories below a trainer or `checkpoints` directory, committed or not."""
    for place in (path, os.path.join(path, "checkpoints")):
        try:
            names = os.listdir(place)
        except OSError:
            continue
        steps = {int(match[1]): os.path.join(place, name) for name in names if (match := _STEP.match(name))}
        if steps:
            return dict(sorted((number, place) for number, place in steps.items() if os.path.isdir(place)))
    return {}


def step_number(directory: str) -> int | None:
    """The step in a step directory's name."""
    match = _STEP.match(os.path.basename(os.path.realpath(directory)))
    return int(match[1]) if match else None


def is_committed(directory: str) -> bool:
    """Whether a step directory has its commit marker."""
    return os.path.isfile(os.path.join(directory, "index"))


def read_checkpoint(directory: str) -> Checkpoint:
    """Reads the index of a committed step.

    Raises:
      SourceError: the index is missing, damaged, or names paths that would leave the checkpoint.
    """
    _check_committed(directory)
    file = os.path.join(directory, "index")
    tensors: dict[str, IndexEntry] = {}
    others: dict[str, None] = {}
    step: int | None = None
    for entry in _read_index(file):
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise SourceError(f"{file}: expected pairs of a path and a value, found {_short(entry)}")
        path, value = entry
        if path in tensors or path in others:
            raise SourceError(f"{file}: {_short(path)} is listed twice")
        if isinstance(value, dict):
            _check_path(file, path)
            tensors[path] = _index_entry(file, path, value)
        else:
            others[path] = None
            if path == "step" and type(value) is int:
                step = value
    _check_prefixes(file, tensors)
    return Checkpoint(directory, step, tensors, tuple(other for other in others if other != "step"))


def read_arrays(checkpoint: Checkpoint, paths: list[str]) -> dict[str, ArraySpec]:
    """Reads the array metadata of tensors and holds it against the index.

    Raises:
      SourceError: metadata is missing or damaged, or the index says another shape or dtype. All findings are listed.
    """
    arrays: dict[str, ArraySpec] = {}
    problems: list[str] = []
    for path in paths:
        entry = checkpoint.tensors[path]
        try:
            array = read_array(path, checkpoint.array_directory(path))
        except SourceError as error:
            problems.append(error.message)
            continue
        if (array.shape, array.dtype) != (entry.shape, entry.dtype):
            problems.append(
                f"{path}: index says {entry.dtype}{list(entry.shape)}, .zarray says {array.dtype}{list(array.shape)}"
            )
        arrays[path] = array
    if problems:
        count = len(problems)
        raise SourceError(
            f"{checkpoint.directory}: array metadata of {count} tensor{'s' * (count > 1)} is wrong", problems
        )
    return arrays


def _check_committed(directory: str) -> None:
    index = os.path.join(directory, "index")
    if os.path.isdir(index):
        raise SourceError(
            f"{directory}: this step was saved by AXLearn's OrbaxCheckpointer (index is a directory); "
            "only the native format is supported, re-save it with the default Checkpointer"
        )
    if not os.path.isfile(index):
        raise SourceError(f"{directory}: not committed, it has no index file; the save was interrupted or is under way")


def _read_index(file: str) -> list[object]:
    try:
        with open(file, "rb") as stream:
            data = stream.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_INDEX_BYTES:
        raise SourceError(f"{file}: larger than {MAX_INDEX_BYTES >> 20} MiB; expected a list of tensors")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file}: no valid JSON: {error}") from None
    if not isinstance(content, list):
        raise SourceError(f"{file}: expected a JSON list, found {_short(content)}")
    return content


def _check_path(file: str, path: str) -> None:
    if len(path) > MAX_PATH or not path.isprintable():
        raise SourceError(f"{file}: {_short(path)} is no tensor's path: too long, or has unprintable characters")
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise SourceError(f"{file}: the path {_short(path)} would leave the checkpoint's gda/ directory; refused")


def _check_prefixes(file: str, tensors: Mapping[str, IndexEntry]) -> None:
    """A tensor inside another tensor's directory would mix with its chunks."""
    # Sorted part by part, what lies inside a tensor follows it at once.
    for outer, inner in itertools.pairwise(sorted(path.split("/") for path in tensors)):
        if inner[: len(outer)] == outer:
            raise SourceError(f"{file}: {'/'.join(inner)} lies inside the tensor {'/'.join(outer)}")


def _index_entry(file: str, path: str, value: Mapping[str, object]) -> IndexEntry:
    text, dtype = value.get("shape"), value.get("dtype")
    if not isinstance(text, str) or len(text) > MAX_SHAPE_TEXT or not _SHAPE.match(text.strip()):
        raise SourceError(f"{file}: {path}: expected a shape like '(6, 1536)', found {_short(text)}")
    shape = tuple(int(part) for part in re.findall(r"\d+", text))
    if len(shape) > MAX_DIMENSIONS or any(not 0 < length < 2**62 for length in shape):
        raise SourceError(f"{file}: {path}: no tensor has the shape {_short(text)}")
    return IndexEntry(dtype_name(dtype, f"{file}: {path}"), shape)


def _list(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers[-8:]]
    return ("... " if len(numbers) > 8 else "") + ", ".join(shown)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 80 else text[:77] + "..."
