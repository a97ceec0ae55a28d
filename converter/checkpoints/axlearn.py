"""An AXLearn step on disk: the commit marker, the index, the arrays' metadata.

    step_00000100/{index, gda/<path>/<zarr v2 array>}

In Orbax's format, see `axlearn_orbax`, the index is the same and the arrays are elsewhere.

A step is committed when `index` is a file; it is written last (axlearn/common/checkpointer.py). `index` is a JSON list
of pairs; a pair whose value is a dictionary is a tensor, with its shape as a text that holds a Python tuple.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from converter.arrays import MAX_DIMENSIONS, Array, read_array, read_database_array, stack, unknown_dtype
from converter.dtypes import ITEM_SIZES
from converter.errors import SourceError
from converter.storage import DIRECTORY, FILE, Blob, in_parallel, is_file, read_json, storage_of
from converter.storage import short_text as _short

MAX_INDEX_BYTES = 16 << 20
"""An index of 100,000 tensors takes 13 MB; a larger file is not an index."""

MAX_PATH = 1024
"""Characters of a tensor's path; AXLearn's have about 100."""

MAX_SHAPE_TEXT = 1024

_SHAPE = re.compile(r"\(\s*(\d{1,19}\s*,\s*)*(\d{1,19}\s*,?\s*)?\)$")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A tensor as the index lists it.

    Attributes:
      dtype: the name of its dtype; empty where the index has no text there.
      shape: in elements; None where the index has no shape that can be read.
      problem: why the tensor could not be converted, with the index's path; empty for a sound entry. What is left
        behind anyway may have one.
    """

    dtype: str
    shape: tuple[int, ...] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed AXLearn step.

    Attributes:
      directory: the step directory.
      step: the training step, from the index.
      tensors: every tensor of the index, by path.
      others: paths of index entries that are not tensors (iterator states).
      notes: what is worth knowing about the choice of this step, one line each.
      state: where AXLearn's OrbaxCheckpointer put the arrays; empty for the native format.
      is_database: the arrays there are in an OCDBT database.
    """

    directory: str
    step: int | None
    tensors: Mapping[str, IndexEntry]
    others: tuple[str, ...]
    notes: tuple[str, ...] = ()
    state: str = ""
    is_database: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Path to shape of every tensor; the empty shape where the index has none that can be read."""
        return {path: entry.shape or () for path, entry in self.tensors.items()}

    @property
    def array_directories(self) -> list[str]:
        """Where all tensors' zarr arrays live; none where they share a database."""
        return [] if self.is_database else [self.array_directory(path) for path in self.tensors]

    def array_directory(self, path: str) -> str:
        """Where a tensor's zarr array lives, if it has a directory of its own."""
        if self.state:
            return os.path.join(self.state, orbax_key(path))
        return os.path.join(self.directory, "gda", path)

    def read_array(self, path: str) -> Array:
        """Reads the array metadata of a tensor.

        Raises:
          SourceError: its index entry or its metadata is missing or damaged.
        """
        if self.tensors[path].problem:
            raise SourceError(self.tensors[path].problem)
        if self.is_database:
            return read_database_array(path, self.state, orbax_key(path))
        return read_array(path, self.array_directory(path))

    def read_arrays(
        self, paths: Sequence[str], stacks: Mapping[str, tuple[str, ...]] | None = None
    ) -> dict[str, Array]:
        """Reads the array metadata of tensors and compares it with the index.

        Args:
          paths: of tensors, or of stacks.
          stacks: path of a stack to the tensors that are its parts.

        Raises:
          SourceError: metadata is missing or damaged, the index says another shape or dtype, or the parts of a stack
            differ; lists all findings.
        """
        parts = {path: (stacks or {}).get(path, (path,)) for path in paths}
        found = self._read_parts([part for one in parts.values() for part in one])
        result: dict[str, Array] = {}
        problems: list[str] = []
        for path, names in parts.items():
            try:
                result[path] = found[path] if names == (path,) else stack(path, [found[name] for name in names])
            except SourceError as error:
                problems.append(error.message)
        if problems:
            raise SourceError(f"{self.directory}: {problems[0]}", problems[1:])
        return result

    def each_array(self, paths: Sequence[str]) -> Iterator[Array | SourceError]:
        """The array metadata of tensors, or what is wrong with it, in order; read at once where that is quicker."""
        return in_parallel(self._try_to_read, paths, self.directory)

    def _read_parts(self, paths: Sequence[str]) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        problems: list[str] = []
        for path, array in zip(paths, self.each_array(paths), strict=True):
            if isinstance(array, SourceError):
                problems.append(array.message)
                continue
            arrays[path] = array
            entry, found = self.tensors[path], f"{array.dtype}{list(array.shape)}"
            if entry.shape is not None and (array.shape, array.dtype) != (entry.shape, entry.dtype):
                problems.append(f"{path}: index says {entry.dtype}{list(entry.shape)}, .zarray says {found}")
        if problems:
            tensors = f"{len(problems)} tensor{'s' * (len(problems) > 1)}"
            raise SourceError(f"{self.directory}: array metadata of {tensors} is wrong", problems)
        return arrays

    def _try_to_read(self, path: str) -> Array | SourceError:
        try:
            return self.read_array(path)
        except SourceError as error:
            return error


def orbax_key(path: str) -> str:
    """The key of a tensor in Orbax's format."""
    return path.replace("/", ".")


def index_file(directory: str) -> str:
    """The index of a step: a file in the native format, and in Orbax's one below a directory of that name."""
    index = os.path.join(directory, "index")
    return os.path.join(index, "index") if storage_of(index).is_directory(index) else index


def is_committed(directory: str) -> bool:
    """Whether a step directory has its commit marker."""
    return is_file(index_file(directory))


def status_of(place: str) -> Blob | None:
    """What is at a path, be it a link that leads nowhere; None where nothing is.

    Raises:
      SourceError: it cannot be determined; a missing permission is not absence.
    """
    try:
        return storage_of(place).stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"{place}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def check_committed(directory: str) -> None:
    """Refuses a step without its commit marker.

    Raises:
      SourceError: the marker is missing, or cannot be seen.
    """
    status = status_of(os.path.join(directory, "index"))
    if status is not None and status.kind == DIRECTORY:
        status = status_of(index_file(directory))
    if status is None or status.kind != FILE:
        raise SourceError(f"{directory}: not committed, it has no index file; the save was interrupted or is under way")


def read_checkpoint(directory: str) -> Checkpoint:
    """Reads the index of a committed step.

    Raises:
      SourceError: the index is missing or damaged. Their entries say what is wrong with single tensors.
    """
    check_committed(directory)
    file = index_file(directory)
    tensors: dict[str, IndexEntry] = {}
    others: dict[str, None] = {}
    step: int | None = None
    for pair in read_json(file, MAX_INDEX_BYTES, SourceError, kind=list):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise SourceError(f"{file}: expected pairs of a path and a value, found {_short(pair)}")
        path, value = pair
        if len(path) > MAX_PATH:
            raise SourceError(f"{file}: {_short(path)} is too long for the path of a tensor")
        twice = f"{file}: {_short(path)} is listed twice" if path in tensors or path in others else ""
        if twice and path == "step":
            raise SourceError(twice)
        if isinstance(value, dict):
            entry = _index_entry(file, path, value)
            tensors[path] = dataclasses.replace(entry, problem=twice) if twice else entry
        elif path in tensors:
            tensors[path] = dataclasses.replace(tensors[path], problem=twice)
        else:
            others[path] = None
            if path == "step" and type(value) is int:
                step = value
    for path, problem in _nested(file, tensors):
        tensors[path] = dataclasses.replace(tensors[path], problem=problem)
    return Checkpoint(directory, step, tensors, tuple(other for other in others if other != "step"))


def _index_entry(file: str, path: str, value: Mapping[str, object]) -> IndexEntry:
    dtype, text = value.get("dtype"), value.get("shape")
    shape, problem = _shape(text)
    dtype_problem = "" if isinstance(dtype, str) and dtype in ITEM_SIZES else unknown_dtype(dtype)
    reason = problem or dtype_problem
    return IndexEntry(
        dtype if isinstance(dtype, str) else "",
        shape,
        _path_problem(file, path) or (f"{file}: {path}: {reason}" if reason else ""),
    )


def _shape(text: object) -> tuple[tuple[int, ...] | None, str]:
    """The shape that a text says, as far as it can be read, and why no tensor that is converted can have it."""
    if not isinstance(text, str) or len(text) > MAX_SHAPE_TEXT or not _SHAPE.match(text.strip()):
        return None, f"expected a shape like '(6, 1536)', found {_short(text)}"
    shape = tuple(int(part) for part in re.findall(r"\d+", text))
    if len(shape) > MAX_DIMENSIONS or any(length >= 2**62 for length in shape):
        return None, f"no tensor has the shape {_short(text)}"
    return shape, f"a tensor of the shape {_short(text)} has no elements" if 0 in shape else ""


def _path_problem(file: str, path: str) -> str:
    if not path.isprintable():
        return f"{file}: {_short(path)} has unprintable characters; expected the path of a tensor"
    parts = path.split("/")
    if "\\" in path or any(part in ("", ".", "..") for part in parts):
        return f"{file}: the path {_short(path)} would leave the checkpoint's gda/ directory; refused"
    return ""


def _nested(file: str, tensors: Mapping[str, IndexEntry]) -> Iterator[tuple[str, str]]:
    """Tensors inside another tensor's directory, and those around them: their chunks would mix."""
    outer: list[str] | None = None
    # Sorted part by part, all that lies inside a tensor follows it at once.
    for parts in sorted(path.split("/") for path in tensors):
        if outer is not None and parts[: len(outer)] == outer:
            problem = f"{file}: {'/'.join(parts)} is inside the tensor {'/'.join(outer)}"
            yield "/".join(parts), problem
            yield "/".join(outer), problem
        else:
            outer = parts
