"""zarr v2 arrays on a file system, as AXLearn writes them: metadata, the audit of chunk files, and how to open one.

TensorStore reads a missing chunk as zeros without a word, and a directory or a dangling link in a chunk's place just
so. So the files are held against the chunk grid before any work, and arrays are opened with
`fill_missing_data_reads: false`.
"""

import itertools
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from converter.errors import SourceError
from converter.litter import is_litter

MAX_METADATA_BYTES = 1 << 20
MAX_DIMENSIONS = 32
LEVELS: Mapping[str, tuple[int, int]] = {
    "zstd": (-(1 << 17), 22), "zlib": (-1, 9), "gzip": (-1, 9), "bz2": (1, 9), "blosc": (0, 9),
}  # fmt: skip
"""The compressors that can be decoded, each with its lowest and highest level; zlib's own default is -1."""

MAX_FINDINGS = 20

ITEM_SIZES: Mapping[str, int] = {
    "bool": 1, "int4": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4,
    "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3b11fnuz": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes an element; the dtypes that TensorStore stores in zarr and JAX computes with."""

_ZARR_DTYPES = {
    "|b1": "bool", "|i1": "int8", "|u1": "uint8", "<i2": "int16", "<u2": "uint16", "<i4": "int32", "<u4": "uint32",
    "<i8": "int64", "<u8": "uint64", "<f2": "float16", "<f4": "float32", "<f8": "float64", "<c8": "complex64",
}  # fmt: skip

_CHUNK_NAME = re.compile(r"\d+(\.\d+)*$")


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a checkpoint.

    Attributes:
      path: the tensor's path in the checkpoint.
      directory: where its files are.
      dtype: numpy's name of the element type.
      shape: elements along each dimension.
      chunks: elements of a chunk along each dimension; edge chunks are stored padded to this size.
      compressor: the compressor's JSON, or None for raw bytes.
      order: "C" or "F", the element order inside a chunk.
    """

    path: str
    directory: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    compressor: Mapping[str, Any] | None
    order: str

    @property
    def item_size(self) -> int:
        return ITEM_SIZES[self.dtype]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.item_size

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of one chunk."""
        return math.prod(self.chunks) * self.item_size

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))

    def clipped_bytes(self, index: tuple[int, ...]) -> int:
        """Decoded bytes of a chunk without an edge chunk's padding."""
        lengths = (min(c, n - i * c) for i, c, n in zip(index, self.chunks, self.shape, strict=True))
        return math.prod(lengths) * self.item_size

    def chunk_indices(self) -> Iterator[tuple[int, ...]]:
        """Places of all chunks in the grid, one by one however many there are."""
        # itertools.product would lay out all numbers of each dimension first.
        return (self._unravel(number) for number in _count(math.prod(self.grid)))

    def _unravel(self, number: int) -> tuple[int, ...]:
        index: list[int] = []
        for count in reversed(self.grid):
            number, place = divmod(number, count)
            index.append(place)
        return tuple(reversed(index))


def _count(stop: int) -> Iterator[int]:
    """Like range, which has no more than 2^63 numbers."""
    return itertools.takewhile(lambda number: number < stop, itertools.count())


def chunk_key(index: tuple[int, ...]) -> str:
    """Name of a chunk's file; a scalar's only chunk is called 0."""
    return ".".join(map(str, index)) or "0"


def unknown_dtype(value: object) -> str:
    """What is wrong with the name of a dtype that cannot be converted."""
    return f"unknown dtype {_text(value)}; expected one of {', '.join(ITEM_SIZES)}"


def read_array(path: str, directory: str) -> ArraySpec:
    """Reads the `.zarray` of a tensor.

    Raises:
      SourceError: it is missing, damaged, or describes something that AXLearn does not write.
    """
    file = os.path.join(directory, ".zarray")
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise SourceError(f"{path}: {file} is no regular file")
        with open(file, "rb") as stream:
            data = stream.read(MAX_METADATA_BYTES + 1)
    except FileNotFoundError:
        raise SourceError(f"{path}: {file} is missing") from None
    except OSError as error:
        raise SourceError(f"{path}: {file} cannot be read: {error.strerror}") from None
    if len(data) > MAX_METADATA_BYTES:
        raise SourceError(f"{path}: {file} is larger than {MAX_METADATA_BYTES >> 20} MiB, no array metadata")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: {file} is no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{path}: {file}: expected a JSON object")
    return _array(path, directory, content)


def open_spec(array: ArraySpec) -> dict[str, Any]:
    """TensorStore's specification to read an array; a missing chunk raises.

    TensorStore does not read the `.zarray` again: it refuses what does not matter here, such as numcodecs' `checksum`
    of zstd, other settings for the writer of a compressor, or a fill value. All that decoding needs is in the chunks.
    """
    return {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": array.directory.rstrip("/") + "/"},
        "metadata": {
            "zarr_format": 2,
            "shape": list(array.shape),
            "chunks": list(array.chunks),
            "dtype": next((name for name, known in _ZARR_DTYPES.items() if known == array.dtype), array.dtype),
            "compressor": None if array.compressor is None else {"id": array.compressor["id"]},
            "order": array.order,
            "fill_value": None,
            "filters": None,
            "dimension_separator": ".",
        },
        "assume_metadata": True,
        "fill_missing_data_reads": False,
        "recheck_cached_data": False,
    }


@dataclass(frozen=True, slots=True)
class Audit:
    """What an array's chunk files look like from outside.

    Attributes:
      findings: one line for each chunk that is missing, empty, larger than its content can be, no regular file, or
        outside the grid. Long lists are cut.
      stored_bytes: size of all chunk files together.
    """

    findings: tuple[str, ...]
    stored_bytes: int


def audit_chunks(array: ArraySpec) -> Audit:
    """Holds an array's files against its chunk grid, without reading them."""
    findings = _Findings(array.path)
    stored = 0
    present: set[str] = set()
    largest = _largest_file(array)
    try:
        entries = list(os.scandir(array.directory))
    except OSError as error:
        return Audit((f"{array.path}: {array.directory} cannot be listed: {error.strerror}",), 0)
    for entry in entries:
        if not _CHUNK_NAME.match(entry.name):
            continue
        if not _in_grid(entry.name, array.grid):
            findings.add(f"chunk {entry.name}: outside the grid {list(array.grid)}")
            continue
        present.add(entry.name)
        size, problem = _look_at_file(entry, largest, array)
        stored += size
        if problem:
            findings.add(f"chunk {entry.name}: {problem}")
    missing = math.prod(array.grid) - len(present)
    if missing:
        names = itertools.islice(
            (key for key in map(chunk_key, array.chunk_indices()) if key not in present), MAX_FINDINGS
        )
        for name in names:
            findings.add(f"chunk {name}: missing")
        findings.more(missing - MAX_FINDINGS)
    return Audit(tuple(findings.lines()), stored)


def file_states(array: ArraySpec) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each of an array's files: what shows that a source is not the same any more.

    Litter comes and goes without that.
    """
    with os.scandir(array.directory) as entries:
        files = [entry for entry in entries if not is_litter(entry.name) and entry.is_file()]
        return [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in files]


class _Findings:
    def __init__(self, path: str):
        self.path = path
        self.found: list[str] = []
        self.count = 0

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.found) < MAX_FINDINGS:
            self.found.append(text)

    def more(self, count: int) -> None:
        self.count += max(count, 0)

    def lines(self) -> list[str]:
        rest = self.count - len(self.found)
        return [f"{self.path}: {text}" for text in self.found] + (
            [f"{self.path}: and {rest} more chunks"] if rest > 0 else []
        )


def _in_grid(name: str, grid: tuple[int, ...]) -> bool:
    parts = name.split(".")
    if not grid:
        return name == "0"
    return len(parts) == len(grid) and all(
        str(int(part)) == part and int(part) < count for part, count in zip(parts, grid, strict=True)
    )


def _look_at_file(entry: "os.DirEntry[str]", largest: int, array: ArraySpec) -> tuple[int, str]:
    """Size of a chunk file, and what is wrong with it."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return 0, f"a dangling link to {os.readlink(entry.path)}" if entry.is_symlink() else "missing"
    except OSError as error:
        return 0, f"unreadable: {error.strerror}"
    size = status.st_size
    if stat.S_ISDIR(status.st_mode):
        return 0, "a directory in the place of a file"
    if not stat.S_ISREG(status.st_mode):
        return 0, "not a regular file"
    if size == 0:
        return 0, "empty (0 bytes)"
    if array.compressor is None and size != array.chunk_bytes:
        return size, f"{size} bytes, expected {array.chunk_bytes}"
    if size > largest:
        return size, f"{size} bytes, more than {array.chunk_bytes} bytes can take when compressed"
    return size, ""


def _largest_file(array: ArraySpec) -> int:
    """No compressor makes its input larger than this (zstd: n + n/256 + 64; blosc: n + 16; zlib, bz2 about 1 %)."""
    return array.chunk_bytes + array.chunk_bytes // 64 + 1024


def _array(path: str, directory: str, content: Mapping[str, Any]) -> ArraySpec:
    where = f"{path}: {os.path.join(directory, '.zarray')}"
    if content.get("zarr_format") != 2:
        raise SourceError(f"{where}: zarr_format is {_text(content.get('zarr_format'))}, expected 2")
    shape: Any = content.get("shape")
    chunks: Any = content.get("chunks")
    if not _lengths(shape) or not _lengths(chunks):
        found = f"shape {_text(shape)} and chunks {_text(chunks)}"
        raise SourceError(f"{where}: {found}, expected lists of positive numbers")
    if len(shape) != len(chunks):
        raise SourceError(f"{where}: {len(shape)} dimensions, but chunks of {len(chunks)}")
    raw = content.get("dtype")
    dtype = _ZARR_DTYPES.get(raw, raw) if isinstance(raw, str) else None
    if dtype is None or dtype not in ITEM_SIZES:
        raise SourceError(f"{where}: unknown dtype {_text(raw)}")
    if len(shape) > MAX_DIMENSIONS:
        raise SourceError(f"{where}: {len(shape)} dimensions, expected {MAX_DIMENSIONS} at most")
    if any(chunk > length for chunk, length in zip(chunks, shape, strict=True)):
        raise SourceError(f"{where}: chunks {chunks} are larger than the array, {shape}")
    if math.prod(shape) * ITEM_SIZES[dtype] >= 2**62 or math.prod(chunks) * ITEM_SIZES[dtype] >= 2**62:
        raise SourceError(f"{where}: shape {shape} with chunks {chunks} is larger than any storage")
    compressor = content.get("compressor")
    _check_compressor(compressor, where)
    _check_filters(content, where)
    if content.get("order") not in ("C", "F"):
        raise SourceError(f"{where}: order is {_text(content.get('order'))}, expected 'C' or 'F'")
    return ArraySpec(path, directory, dtype, tuple(shape), tuple(chunks), compressor, content["order"])


def _check_compressor(compressor: Any, where: str) -> None:
    if compressor is None:
        return
    if not isinstance(compressor, dict) or not isinstance(compressor.get("id"), str):
        raise SourceError(f"{where}: compressor is {_text(compressor)}, expected null or an object with an id")
    name = compressor["id"]
    if name not in LEVELS:
        raise SourceError(
            f"{where}: compressor {_text(name)} is not supported; supported are {', '.join(LEVELS)} and null (none)"
        )
    settings = [value for key, value in compressor.items() if key != "id"]
    if not all(value is None or isinstance(value, str | int | float) for value in settings):
        raise SourceError(f"{where}: compressor is {_text(compressor)}, expected plain settings")
    key = "clevel" if name == "blosc" else "level"
    low, high = LEVELS[name]
    level = compressor.get(key, high)
    if type(level) is not int or not low <= level <= high:
        raise SourceError(f"{where}: {name}'s {key} is {_text(level)}, expected a number from {low} to {high}")


def _check_filters(content: Mapping[str, Any], where: str) -> None:
    filters, separator = content.get("filters"), content.get("dimension_separator", ".")
    if filters not in (None, []):
        raise SourceError(f"{where}: filters {_text(filters)} are not supported; expected null")
    if separator != ".":
        raise SourceError(f"{where}: the dimension separator {_text(separator)} is not supported; expected '.'")


def _text(value: object) -> str:
    """A value of somebody else's JSON for a message."""
    try:
        return repr(value)[:80]
    except RecursionError:
        return "a deeply nested value"


def _lengths(value: object) -> bool:
    return isinstance(value, list) and all(type(length) is int and 0 < length < 2**62 for length in value)
