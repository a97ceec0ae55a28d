"""zarr v2 arrays on a file system, as AXLearn writes them: metadata, the audit of chunk files, and how to open one.

TensorStore reads a missing chunk as zeros without a word, and a directory or a dangling link in a chunk's place just
so. So the files are held against the chunk grid before any work, and arrays are opened with
`fill_missing_data_reads: false`.
"""

import json
import math
import os
import stat
from collections.abc import Mapping
from typing import Any

from converter.arrays.array import ArraySpec
from converter.dtypes import ITEM_SIZES
from converter.errors import SourceError

MAX_METADATA_BYTES = 1 << 20
MAX_DIMENSIONS = 32
LEVELS: Mapping[str, tuple[int, int]] = {
    "zstd": (-(1 << 17), 22), "zlib": (-1, 9), "gzip": (-1, 9), "bz2": (1, 9), "blosc": (0, 9),
}  # fmt: skip
"""The compressors that can be decoded, each with its lowest and highest level; zlib's own default is -1."""


_ZARR_DTYPES = {
    "|b1": "bool", "|i1": "int8", "|u1": "uint8", "<i2": "int16", "<u2": "uint16", "<i4": "int32", "<u4": "uint32",
    "<i8": "int64", "<u8": "uint64", "<f2": "float16", "<f4": "float32", "<f8": "float64", "<c8": "complex64",
}  # fmt: skip


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
