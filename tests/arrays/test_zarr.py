"""Array metadata and chunk files of zarr v2, held against what TensorStore itself writes and reads."""

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays.array import Array
from converter.arrays.audit import MAX_FINDINGS, Audit, audit_chunks, file_states
from converter.arrays.opened import open_array
from converter.arrays.zarr import read_array
from converter.dtypes import ITEM_SIZES, storage_dtype
from converter.errors import SourceError
from tests.helpers.arrays import zarr2_array
from tests.helpers.axlearn_checkpoint import write_array


def tensorstore(directory: Path, values: np.ndarray, dtype: str, **metadata: Any) -> None:
    """An array as TensorStore writes it, with all of its chunks."""
    ts.open(
        {
            "driver": "zarr", "kvstore": {"driver": "file", "path": f"{directory}/"}, "create": True, "dtype": dtype,
            "metadata": {"shape": list(values.shape), **metadata}, "store_data_equal_to_fill_value": True,
        }
    ).result().write(values).result()  # fmt: skip


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_every_dtype_is_one_that_tensorstore_stores(dtype: str, tmp_path: Path) -> None:
    tensorstore(tmp_path, np.zeros((3, 2), storage_dtype(dtype)), dtype, chunks=[2, 2], compressor=None)
    array = read_array("w", str(tmp_path))
    assert array == zarr2_array((3, 2), (2, 2), dtype=dtype, directory=tmp_path)
    assert array.item_size == ITEM_SIZES[dtype]
    assert audit_chunks(array) == Audit((), 2 * 4 * ITEM_SIZES[dtype])


@given(data=st.data())
def test_keys_are_the_names_of_tensorstores_files(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 13), max_size=3)))
    chunks = tuple(data.draw(st.integers(max(1, n // 4), n)) for n in shape)
    place = tmp_path_factory.mktemp("array")
    tensorstore(place, np.zeros(shape, np.int16), "int16", chunks=list(chunks))
    array = read_array("w", str(place))
    indices = list(array.chunk_indices())
    assert indices == list(np.ndindex(*array.grid))
    assert {array.chunk_key(index) for index in indices} == set(os.listdir(place)) - {".zarray"}
    assert audit_chunks(array).findings == ()
    assert sum(array.clipped_bytes(index) for index in indices) == array.bytes == 2 * math.prod(shape)
    assert array.chunk_bytes == 2 * math.prod(chunks)


def test_settings_are_read_as_they_are_written(tmp_path: Path) -> None:
    blosc = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
    tensorstore(tmp_path, np.zeros((4, 6), np.float32), "float32", chunks=[3, 6], compressor=blosc, order="F")
    array = read_array("a/b", str(tmp_path))
    assert (array.path, array.compressor, array.encoding.order, array.grid) == ("a/b", blosc, (1, 0), (2, 1))


def test_a_grid_of_any_size_is_walked_chunk_by_chunk() -> None:
    array = zarr2_array((1 << 50, 1 << 10), (1, 1), dtype="int8")
    assert list(itertools.islice(array.chunk_indices(), 3)) == [(0, 0), (0, 1), (0, 2)]
    assert next(itertools.islice(array.chunk_indices(), 1 << 10, None)) == (1, 0)


def test_the_last_chunk_is_clipped_along_every_dimension() -> None:
    array = zarr2_array((5, 7, 4), (2, 3, 4), dtype="float64")
    assert [array.clipped_bytes(index) // 8 for index in ((0, 0, 0), (2, 0, 0), (0, 2, 0), (2, 2, 0))] == [24, 12, 8, 4]


@pytest.mark.parametrize("rank", [32, 33])
def test_as_many_dimensions_as_tensorstore_has(rank: int, tmp_path: Path) -> None:
    write_array(tmp_path / "w", np.zeros((1,) * 32, np.float32), (1,) * 32)
    file = tmp_path / "w" / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), "shape": [1] * rank, "chunks": [1] * rank}))
    if rank == 32:
        array = read_array("w", str(tmp_path / "w"))
        assert open_array(array).read(array.whole).shape == array.shape
        return
    with pytest.raises(SourceError) as caught:
        read_array("w", str(tmp_path / "w"))
    assert caught.value.message == f"w: {file}: 33 dimensions, expected 32 at most"


def test_a_missing_chunk_is_no_zeros(tmp_path: Path) -> None:
    write_array(tmp_path / "w", np.ones((4, 2), np.float32), (2, 2))
    (tmp_path / "w" / "1.0").unlink()
    opened = open_array(read_array("w", str(tmp_path / "w")))
    assert opened.read(((0, 2), (0, 2))).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(SourceError, match=r"w: a chunk cannot be read: .*missing"):
        opened.read(((2, 4), (0, 2)))


@pytest.fixture
def array(tmp_path: Path) -> Array:
    """Three by two chunks of 16 bytes, uncompressed."""
    write_array(tmp_path / "w", np.arange(24, dtype=np.float32).reshape(6, 4), (2, 2), compressor=None)
    return read_array("model/w", str(tmp_path / "w"))


def test_files_that_are_no_chunks_are_not_looked_at(array: Array) -> None:
    for name in (".zattrs", "README", "0.0.part", "a.0", "0.", "-1.0", "0_0"):
        (Path(array.directory) / name).write_text("anything")
    assert audit_chunks(array) == Audit((), 6 * 16)


@pytest.mark.parametrize("name", ["3.0", "0.2", "0", "0.0.0", "00.1", "1.01", "9" * 200, "٠.٠"])
def test_chunks_outside_of_the_grid(name: str, array: Array) -> None:
    (Path(array.directory) / name).write_bytes(bytes(16))
    assert audit_chunks(array) == Audit((f"model/w: chunk {name}: outside the grid [3, 2]",), 6 * 16)


@pytest.mark.parametrize("size", [15, 17])
def test_a_raw_chunk_of_another_size(size: int, array: Array) -> None:
    (Path(array.directory) / "1.1").write_bytes(bytes(size))
    assert audit_chunks(array) == Audit((f"model/w: chunk 1.1: {size} bytes, expected 16",), 5 * 16 + size)


def test_a_compressed_chunk_may_be_a_little_larger_than_its_content(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8).view(np.uint32)
    write_array(tmp_path / "w", noise, noise.shape)
    array = read_array("w", str(tmp_path / "w"))
    size = (tmp_path / "w" / "0").stat().st_size
    assert size > array.chunk_bytes
    assert audit_chunks(array) == Audit((), size)


def test_a_scalar_has_one_chunk(tmp_path: Path) -> None:
    write_array(tmp_path / "w", np.array(7, np.int32), ())
    array = read_array("w", str(tmp_path / "w"))
    assert (array.grid, array.elements, list(array.chunk_indices())) == ((), 1, [()])
    assert audit_chunks(array).findings == ()
    (tmp_path / "w" / "0").rename(tmp_path / "w" / "1")
    assert audit_chunks(array).findings == ("w: chunk 1: outside the grid []", "w: chunk 0: missing")


def test_long_lists_of_findings_are_cut_and_counted(tmp_path: Path) -> None:
    write_array(tmp_path / "w", np.zeros((50, 1), np.float32), (1, 1))
    for row in range(50):
        (tmp_path / "w" / f"{row}.0").rename(tmp_path / "w" / f"{row}.1")
    findings = audit_chunks(read_array("w", str(tmp_path / "w"))).findings
    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1] == f"w: and {50 + 50 - MAX_FINDINGS} more chunks"


def test_findings_of_a_grid_without_end(tmp_path: Path) -> None:
    write_array(tmp_path / "w", np.zeros((1, 1), np.float32), (1, 1), compressor=None)
    array = zarr2_array((1 << 40, 1 << 20), (1, 1), directory=tmp_path / "w")
    findings = audit_chunks(array).findings
    assert findings[:2] == ("w: chunk 0.1: missing", "w: chunk 0.2: missing")
    assert findings[-1] == f"w: and {(1 << 60) - 1 - MAX_FINDINGS} more chunks"


def test_a_directory_that_cannot_be_listed(tmp_path: Path) -> None:
    array = zarr2_array((1,), directory=tmp_path / "gone")
    assert audit_chunks(array) == Audit((f"w: {tmp_path}/gone cannot be listed: No such file or directory",), 0)


def test_states_show_every_change_of_a_file(array: Array) -> None:
    def states() -> list[tuple[str, int, int | str]]:
        return sorted(file_states(array))

    before = states()
    assert [name for name, _, _ in before] == sorted([".zarray", *(f"{a}.{b}" for a in range(3) for b in range(2))])
    file = Path(array.directory) / "2.1"
    status = file.stat()
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    changed = states()
    assert [old[0] for old, new in zip(before, changed, strict=True) if old != new] == ["2.1"]
    file.unlink()
    assert [name for name, _, _ in states()] == [name for name, _, _ in before if name != "2.1"]


@pytest.mark.parametrize(
    ("level", "accepted"), [(22, True), (23, False), (0, True), (-131072, True), (-131073, False), (True, False)]
)
def test_levels_of_zstd(level: int, accepted: bool, array: Array) -> None:
    file = Path(array.directory) / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), "compressor": {"id": "zstd", "level": level}}))
    if accepted:
        assert read_array("w", array.directory).compressor == {"id": "zstd", "level": level}
        open_array(array)
        return
    with pytest.raises(SourceError) as caught:
        read_array("w", array.directory)
    assert caught.value.message == f"w: {file}: zstd's level is {level}, expected a number from -131072 to 22"
