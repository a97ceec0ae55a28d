"""zarr metadata, versions 2 and 3: what we read of it, and what we write.

TensorStore reads a missing chunk as zeros without a word, and a directory or a dangling link in a chunk's place just
so. So the files are compared with the chunk grid before any work (see `audit`), and arrays are opened with
`fill_missing_data_reads: false` (see `opened`).
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

from converter.arrays.array import Array
from converter.arrays.database import read_value
from converter.arrays.encoding import FLAT_KEYS, LEVEL, NESTED_KEYS, ZSTD, ChunkKeys, Encoding
from converter.dtypes import ITEM_SIZES, NAMES_OF_ZARR2, ZARR2_NAMES
from converter.errors import SourceError
from converter.storage import parse_json, read_json
from converter.storage import short_text as _text

MAX_METADATA_BYTES = 1 << 20
MAX_DIMENSIONS = 32
LEVELS: Mapping[str, tuple[int, int]] = {
    "zstd": (-(1 << 17), 22), "zlib": (-1, 9), "gzip": (-1, 9), "bz2": (1, 9), "blosc": (0, 9),
}  # fmt: skip
"""The compressors that can be decoded, each with its lowest and highest level; zlib's own default is -1."""


def unknown_dtype(value: object) -> str:
    """What is wrong with the name of a dtype that cannot be converted."""
    return f"unknown dtype {_text(value)}; expected one of {', '.join(ITEM_SIZES)}"


def read_array(path: str, directory: str, zarr_format: int = 2) -> Array:
    """Reads the metadata of an array that is a directory of its own.

    Args:
      path: the tensor's path.
      directory: where the array is.
      zarr_format: 2 for what AXLearn writes; 3 is taken as far as shape, chunks and dtype go.

    Raises:
      SourceError: it is missing, damaged, or in version 2 describes something that AXLearn does not write.
    """
    file = os.path.join(directory, ".zarray" if zarr_format == 2 else "zarr.json")
    content = read_json(file, MAX_METADATA_BYTES, SourceError, label=f"{path}: {file}")
    if zarr_format == 2:
        return _array(path, directory, content)
    try:
        return parse_array(content, path=path, dtype=str(content["data_type"]), directory=directory)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SourceError(f"{path}: {file}: no metadata of a zarr v3 array") from None


def read_database_array(path: str, directory: str, key: str) -> Array:
    """Reads the metadata of an array in a database of zarr v2 arrays.

    Args:
      path: the tensor's path.
      directory: the database.
      key: the array's key in it.

    Raises:
      SourceError: as `read_array`.
    """
    label = f"{path}: {key}/.zarray in the database {directory}"
    try:
        data = read_value(directory, f"{key}/.zarray")
    except OSError as error:
        raise SourceError(f"{label}: cannot be read: {error.strerror}") from None
    if data is None:
        raise SourceError(f"{label}: is missing")
    if len(data) > MAX_METADATA_BYTES:
        raise SourceError(f"{label}: larger than {MAX_METADATA_BYTES >> 20} MiB, the most that metadata can have")
    content = parse_json(data, SourceError, label=label)
    return dataclasses.replace(_array(path, directory, content), database_key=key)


def parse_array(
    metadata: Mapping[str, Any], *, path: str, dtype: str, directory: str, database_key: str | None = None
) -> Array:
    """The array that a metadata document of either version describes.

    Codecs that are not known here are left to TensorStore: such an encoding is `foreign`.

    Args:
      metadata: the document, a valid one.
      path: the tensor's path.
      dtype: numpy's name of the element type.
      directory: where the array is, or the database that it is in.
      database_key: its key in that database; None for a directory of its own.

    Raises:
      KeyError, TypeError, ValueError, AttributeError: it is not such a document.
    """
    if "chunks" in metadata:
        encoding, chunks = _parse_zarr2(metadata), metadata["chunks"]
    else:
        encoding, chunks = _parse_zarr3(metadata), metadata["chunk_grid"]["configuration"]["chunk_shape"]
    return Array(
        path=path,
        dtype=dtype,
        shape=tuple(map(int, metadata["shape"])),
        chunks=tuple(map(int, chunks)),
        encoding=encoding,
        directory=directory,
        database_key=database_key,
    )


def array_metadata(array: Array) -> dict[str, Any]:
    """An array's metadata document."""
    encoding = array.encoding
    if encoding.zarr_format == 2:
        return {
            "zarr_format": 2,
            "shape": list(array.shape),
            "chunks": list(array.chunks),
            "dtype": ZARR2_NAMES[array.dtype],
            "compressor": encoding.compressor,
            "fill_value": None,
            "filters": None,
            "order": "F" if encoding.is_transposed else "C",
            "dimension_separator": encoding.keys.separator,
        }
    prefix, separator = encoding.keys
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(array.shape),
        "data_type": array.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(array.chunks)}},
        "chunk_key_encoding": {"name": "default" if prefix else "v2", "configuration": {"separator": separator}},
        "fill_value": {"bool": False, "complex64": [0, 0]}.get(array.dtype, 0),
        "codecs": _codecs(encoding),
        "attributes": {},
    }


def _codecs(encoding: Encoding) -> list[dict[str, Any]]:
    codecs: list[dict[str, Any]] = []
    if encoding.is_transposed:
        codecs.append({"name": "transpose", "configuration": {"order": list(encoding.order)}})
    codecs.append({"name": "bytes", "configuration": {"endian": "little"}})
    if encoding.compressor is not None:
        codecs.append({"name": ZSTD, "configuration": {"level": encoding.level}})
    if encoding.crc32c:
        codecs.append({"name": "crc32c"})
    return codecs


def _parse_zarr2(metadata: Mapping[str, Any]) -> Encoding:
    fortran = metadata.get("order") == "F"
    return Encoding(
        zarr_format=2,
        order=tuple(reversed(range(len(metadata["shape"])))) if fortran else (),
        compressor=metadata.get("compressor"),
        keys=ChunkKeys("", metadata.get("dimension_separator", ".")),
        foreign=bool(metadata.get("filters")),
    )


def _parse_zarr3(metadata: Mapping[str, Any]) -> Encoding:
    keys = metadata["chunk_key_encoding"]
    default = NESTED_KEYS if keys["name"] == "default" else FLAT_KEYS
    codecs = ({"name": codec} if isinstance(codec, str) else codec for codec in metadata["codecs"])
    names: Mapping[str, Any] = {codec["name"]: codec.get("configuration", {}) for codec in codecs}
    shard = names.get("sharding_indexed")
    known = {"transpose", "bytes", ZSTD, "crc32c"}
    return Encoding(
        zarr_format=3,
        order=tuple(names.get("transpose", {}).get("order", ())),
        compressor={"id": ZSTD, "level": names[ZSTD].get("level", LEVEL)} if ZSTD in names else None,
        checksum="crc32c" in names,
        keys=ChunkKeys(default.prefix, keys.get("configuration", {}).get("separator", default.separator)),
        inner_chunks=() if shard is None else tuple(shard["chunk_shape"]),
        foreign=not names.keys() <= known or names.get("bytes", {}).get("endian", "little") != "little",
    )


def _array(path: str, directory: str, content: Mapping[str, Any]) -> Array:
    """The array of a `.zarray` that AXLearn may have written."""
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
    dtype = NAMES_OF_ZARR2.get(raw, raw) if isinstance(raw, str) else None
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
    return parse_array(content, path=path, dtype=dtype, directory=directory)


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


def _lengths(value: object) -> bool:
    return isinstance(value, list) and all(type(length) is int and 0 < length < 2**62 for length in value)
