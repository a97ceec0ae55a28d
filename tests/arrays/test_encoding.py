"""Array metadata and chunk keys that we write, held against TensorStore: it must read them, and write the same."""

import dataclasses
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays.array import Array
from converter.arrays.chunk_codec import encode_chunk
from converter.arrays.encoding import Encoding
from converter.arrays.opened import new_context, open_stored_array
from converter.arrays.zarr import array_metadata, read_array
from converter.dtypes import ITEM_SIZES, storage_dtype
from converter.errors import SourceError

KEYS = {
    "zarr2": Encoding.rewritten("zarr2"),
    "zarr3": Encoding.rewritten("files"),
    "zarr3 database": Encoding.rewritten("ocdbt"),
    "zarr3 passed": Encoding.passed("files", (), 1, checksum=True),
}


def metadata(encoding: Encoding, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str) -> dict[str, Any]:
    return array_metadata(Array(path="w", dtype=dtype, shape=shape, chunks=chunks, encoding=encoding))


def put(directory: Path, encoding: Encoding, index: tuple[int, ...], data: bytes) -> None:
    file = directory / encoding.chunk_key(index)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data + (crc32c(data).to_bytes(4, "little") if encoding.crc32c else b""))


def chunk_bytes(values: np.ndarray, encoding: Encoding) -> bytes:
    room = bytearray(2 * values.nbytes + 100)
    read = encode_chunk(values, encoding.level, checksum=encoding.zarr_format == 2)
    count = read(memoryview(room))
    assert not read(memoryview(room))
    return bytes(room[:count])


def opened(directory: Path, encoding: Encoding, **more: bool) -> ts.TensorStore:
    driver = {2: "zarr", 3: "zarr3"}[encoding.zarr_format]
    kvstore = {"driver": "file", "path": f"{directory}/"}
    return ts.open({"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": False, **more}).result()


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("dtype", ITEM_SIZES)
@pytest.mark.parametrize("name", KEYS)
def test_tensorstore_reads_what_we_write(name: str, dtype: str, tmp_path: Path) -> None:
    encoding = KEYS[name]
    values = np.resize(np.array([0, 1, 1, 0, 1], np.int8), (3, 4)).astype(storage_dtype(dtype))
    (tmp_path / encoding.metadata_name).write_text(json.dumps(metadata(encoding, (3, 4), (3, 2), dtype)))
    for column in range(2):
        part = np.ascontiguousarray(values[:, 2 * column : 2 * column + 2])
        put(tmp_path, encoding, (0, column), chunk_bytes(part, encoding))
    store = opened(tmp_path, encoding)
    assert (store.dtype.name, store.shape, store.chunk_layout.write_chunk.shape) == (dtype, (3, 4), (3, 2))
    assert store.read().result().tobytes() == values.tobytes()


@pytest.mark.parametrize("name", KEYS)
@given(data=st.data())
def test_chunk_keys_are_those_that_tensorstore_writes(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    encoding = KEYS[name]
    shape = tuple(data.draw(st.lists(st.integers(1, 13), max_size=3)))
    chunks = tuple(data.draw(st.integers(max(1, n // 4), n)) for n in shape)
    place = tmp_path_factory.mktemp("array")
    (place / encoding.metadata_name).write_text(json.dumps(metadata(encoding, shape, chunks, "int16")))
    values = np.arange(np.prod(shape, dtype=int), dtype=np.int16).reshape(shape)
    opened(place, encoding, store_data_equal_to_fill_value=True).write(values).result()
    grid = [range(-(-n // c)) for n, c in zip(shape, chunks, strict=True)]
    expected = {encoding.chunk_key(index) for index in itertools.product(*grid)}
    assert tree(place) == expected | {encoding.metadata_name}


@given(data=st.data())
def test_passed_chunks_are_read_with_their_axes_moved(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    order = tuple(data.draw(st.permutations(range(data.draw(st.integers(0, 4))))))
    shape = tuple(data.draw(st.integers(1, 5)) for _ in order)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    level = data.draw(st.sampled_from([None, 1, -131072, 22]))
    encoding = Encoding.passed("files", order, level, checksum=data.draw(st.booleans()))
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    # The source's dimension i is the target's dimension order[i].
    target_dims = tuple(order.index(dim) for dim in range(len(order)))
    moved_shape, moved_chunks = (tuple(lengths[dim] for dim in target_dims) for lengths in (shape, chunks))
    place = tmp_path_factory.mktemp("array")
    (place / "zarr.json").write_text(json.dumps(metadata(encoding, moved_shape, moved_chunks, "float32")))
    for index in itertools.product(*(range(-(-n // c)) for n, c in zip(shape, chunks, strict=True))):
        chunk = np.zeros(chunks, np.float32)
        part = values[tuple(slice(n * c, (n + 1) * c) for n, c in zip(index, chunks, strict=True))]
        chunk[tuple(slice(0, n) for n in part.shape)] = part
        put(place, encoding, tuple(index[dim] for dim in target_dims), chunk_bytes(chunk, encoding))
    assert opened(place, encoding).read().result().tolist() == values.transpose(target_dims).tolist()


def codecs(encoding: Encoding) -> list[str]:
    return [codec["name"] for codec in metadata(encoding, (2,), (2,), "int8")["codecs"]]


def test_every_store_has_checksums_and_no_codec_too_many() -> None:
    assert codecs(Encoding.rewritten("files")) == codecs(Encoding.rewritten("ocdbt")) == ["bytes", "zstd", "crc32c"]
    assert codecs(Encoding.passed("files", (0,), None, checksum=True)) == ["bytes", "crc32c"]
    assert codecs(Encoding.passed("ocdbt", (1, 0), 3, checksum=True)) == ["transpose", "bytes", "zstd", "crc32c"]
    assert codecs(Encoding.passed("files", (0, 1), 3, checksum=False)) == ["bytes", "zstd"]
    zarr2 = Encoding.rewritten("zarr2")
    assert zarr2.checksum
    assert not zarr2.crc32c


def test_a_zarr3_document_by_the_letter() -> None:
    assert metadata(Encoding.passed("files", (1, 0), 7, checksum=True), (6, 4), (3, 4), "bfloat16") == {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [6, 4],
        "data_type": "bfloat16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 4]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
        "fill_value": 0,
        "codecs": [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": 7}},
            {"name": "crc32c"},
        ],
        "attributes": {},
    }


@pytest.mark.parametrize(("name", "missing"), [("zarr2", "0.1"), ("zarr3", "c/0/1"), ("zarr3 passed", "0.1")])
def test_a_chunk_that_is_not_there_is_missed(name: str, missing: str, tmp_path: Path) -> None:
    encoding = KEYS[name]
    (tmp_path / encoding.metadata_name).write_text(json.dumps(metadata(encoding, (2, 4), (2, 2), "int8")))
    for column in range(2):
        put(tmp_path, encoding, (0, column), chunk_bytes(np.ones((2, 2), np.int8), encoding))
    os.unlink(tmp_path / missing)
    with pytest.raises(ValueError, match="missing"):
        opened(tmp_path, encoding).read().result()


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("shape", [(), (5,), (6, 4)])
def test_what_is_written_is_parsed_as_it_was(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    encoding = KEYS[name]
    chunks = tuple(-(-length // 2) for length in shape)
    array = Array(path="w", dtype="bfloat16", shape=shape, chunks=chunks, encoding=encoding, directory=str(tmp_path))
    (tmp_path / encoding.metadata_name).write_text(json.dumps(array_metadata(array)))
    found = read_array("w", str(tmp_path), encoding.zarr_format)
    # zarr v2's checksum is in the chunks; its metadata does not say so.
    assert found == dataclasses.replace(array, encoding=dataclasses.replace(encoding, checksum=encoding.crc32c))
    place = {"directory": str(tmp_path), "database_key": None, "zarr_format": encoding.zarr_format}
    assert open_stored_array("w", **place, context=new_context(), error=SourceError).array == found


@pytest.mark.parametrize(
    "content", ["{}", "[]", "{", '{"data_type": "int8", "shape": 3}', '{"data_type": 1, "codecs": 1}']
)
def test_a_damaged_zarr3_document_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text(content)
    with pytest.raises(SourceError) as caught:
        read_array("a/b", str(tmp_path), 3)
    assert caught.value.message.startswith(f"a/b: {tmp_path / 'zarr.json'}")
