"""Copying chunks as they are, on file systems where they take different ways to the disk."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from converter.arrays.array import Array
from converter.arrays.encoding import Encoding
from converter.arrays.writer import LeafStore
from converter.arrays.zarr import read_array
from converter.conversion.copy import copy_chunk, link_chunk
from converter.errors import DestinationError, SourceError
from converter.storage.chunk_file import WRITE_SIZE

SIZE = 2 * WRITE_SIZE + 4096 + 5
BYTES = random.Random(4).randbytes(SIZE)
KINDS = ["tmp", "ext4", "xfs", "btrfs"]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, mounted: Callable[[str, int], Path]) -> Path:
    kind = request.param
    return tmp_path if kind == "tmp" else mounted(kind, 320 << 20)


def source(directory: Path, *, shape: tuple[int, int] = (2, SIZE)) -> Array:
    """An uncompressed array of two chunks."""
    directory.mkdir()
    metadata = {
        "zarr_format": 2, "shape": list(shape), "chunks": [1, SIZE], "dtype": "|u1", "compressor": None,
        "fill_value": None, "filters": None, "order": "C", "dimension_separator": ".",
    }  # fmt: skip
    (directory / ".zarray").write_text(json.dumps(metadata))
    (directory / "0.0").write_bytes(BYTES)
    (directory / "1.0").write_bytes(BYTES[::-1])
    return read_array("model/w", str(directory))


def store(directory: Path, *, key: str | None = None) -> LeafStore:
    encoding = Encoding.passed("files", (1, 0), None, checksum=True)
    leaf = Array(path="params/w", dtype="uint8", shape=(SIZE, 2), chunks=(SIZE, 1), encoding=encoding)
    return LeafStore(leaf, str(directory), database_key=key)


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_the_bytes_and_their_checksum_in_the_other_place_of_the_grid(place: Path) -> None:
    array, leaf = source(place / "source"), store(place / "leaf")
    for index in array.chunk_indices():
        assert copy_chunk(array, index, leaf) == SIZE
    for name, data in (("0.0", BYTES), ("0.1", BYTES[::-1])):
        assert (place / "leaf" / name).read_bytes() == data + crc32c(data).to_bytes(4, "little")
    assert set(leaf.digests) == {(0, 0), (0, 1)}
    assert leaf.missing_files() == 0
    again = store(place / "leaf")
    assert again.has_chunk((0, 0))
    assert again.has_chunk((0, 1))
    assert again.digests == leaf.digests


@pytest.mark.parametrize("position", [0, SIZE // 2, SIZE + 3])
@pytest.mark.parametrize("place", ["tmp"], indirect=True)
def test_a_chunk_that_is_not_whole_is_not_there(position: int, place: Path) -> None:
    array, leaf = source(place / "source"), store(place / "leaf")
    copy_chunk(array, (0, 0), leaf)
    path = place / "leaf" / "0.0"
    good = path.read_bytes()
    path.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
    assert not leaf.has_chunk((0, 0))
    path.write_bytes(good[:position])
    assert not leaf.has_chunk((0, 0))


def test_a_full_disk_is_the_destinations_fault(tmp_path: Path, mounted: Callable[[str, int], Path]) -> None:
    disk = mounted("ext4", 16 << 20)
    array, leaf = source(tmp_path / "source"), store(disk / "leaf")
    message = r"leaf/0\.1: cannot be written: No space left on device \(.* free\)"
    copy_chunk(array, (0, 0), leaf)
    with pytest.raises(DestinationError, match=message):
        copy_chunk(array, (1, 0), leaf)
    assert not [path for path in (disk / "leaf").iterdir() if path.suffix == ".part"]


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_chunk_of_another_length_is_the_sources_fault(place: Path) -> None:
    array, leaf = source(place / "source"), store(place / "leaf")
    with (place / "source" / "1.0").open("ab") as file:
        file.write(b"x")
    for move in (copy_chunk, link_chunk):
        with pytest.raises(SourceError, match=rf"model/w: chunk 1\.0: {SIZE + 1} bytes, the chunk has {SIZE}"):
            move(array, (1, 0), leaf)
    os.unlink(place / "source" / "0.0")
    for move in (copy_chunk, link_chunk):
        with pytest.raises(SourceError, match=r"model/w: chunk 0\.0: .* cannot be read: No such file"):
            move(array, (0, 0), leaf)
    assert [path.name for path in (place / "leaf").iterdir()] == ["zarr.json"]


@pytest.mark.parametrize("place", ["tmp"], indirect=True)
def test_a_link_is_the_source_itself(place: Path) -> None:
    array, leaf = source(place / "source"), store(place / "leaf", key="params.w")
    for _ in range(2):
        assert link_chunk(array, (1, 0), leaf) == SIZE
    assert (place / "leaf" / "chunks" / "0.1").samefile(place / "source" / "1.0")
    assert leaf.missing_files() == 3  # the other chunk, and the database's node and manifest
    assert leaf.digests == {(0, 1): None}
    link_chunk(array, (0, 0), leaf)
    leaf.finish()
    assert leaf.missing_files() == 0


def test_metadata_that_finds_no_room_leaves_no_open_file(mounted: Callable[[str, int], Path]) -> None:
    disk = mounted("ext4", 8 << 20)
    store(disk / "leaf")
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DestinationError, match="No space left on device"):
        store(disk / "leaf")
    assert len(os.listdir("/proc/self/fd")) == before
    assert [path.name for path in (disk / "leaf").iterdir()] == ["zarr.json"]
