"""Chunk files: the same bytes on every way to the disk, and nothing left of what was not finished."""

import errno
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converter.storage import ReadError, chunk_file
from converter.storage.chunk_file import PAGE, PART, WRITE_SIZE, ChunkFile, DirectFile, open_chunk_file
from converter.storage.file_reader import FileReader
from tests.helpers.faulty_storage import FaultyStorage

SIZES = [0, 1, PAGE - 1, PAGE, PAGE + 1, WRITE_SIZE - 1, WRITE_SIZE, WRITE_SIZE + 1, 3 * WRITE_SIZE + 5 * PAGE + 7]
BYTES = random.Random(3).randbytes(max(SIZES))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [1000, PAGE, 1 << 20, 1 << 30])
@pytest.mark.parametrize("kind", [ChunkFile, DirectFile])
def test_what_is_written_is_there_when_it_is_committed(
    kind: type[ChunkFile], piece: int, size: int, tmp_path: Path
) -> None:
    if size // piece > 2000:
        size = 2000 * piece + 3
    path = tmp_path / "chunk"
    file = kind(str(path))
    for start in range(0, size, piece):
        file.write(BYTES[start : min(start + piece, size)])
    assert [entry.name for entry in tmp_path.iterdir()] == ["chunk" + PART]
    file.commit()
    assert path.read_bytes() == BYTES[:size]
    assert [entry.name for entry in tmp_path.iterdir()] == ["chunk"]


@pytest.mark.parametrize("kind", [ChunkFile, DirectFile])
def test_pages_and_then_the_rest(kind: type[ChunkFile], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(BYTES)
    whole = len(BYTES) // PAGE * PAGE
    file = kind(str(tmp_path / "chunk"))
    with source.open("rb") as opened:
        for start in range(0, whole, WRITE_SIZE):
            count = min(WRITE_SIZE, whole - start)
            with mmap.mmap(opened.fileno(), count, prot=mmap.PROT_READ, offset=start) as mapping:
                pages = memoryview(mapping)
                file.write_pages(pages)
                pages.release()
    file.write(BYTES[whole:])
    file.write(b"sum")
    file.commit()
    assert (tmp_path / "chunk").read_bytes() == BYTES + b"sum"


@pytest.mark.parametrize("kind", [ChunkFile, DirectFile])
def test_an_aborted_file_leaves_what_was_there(kind: type[ChunkFile], tmp_path: Path) -> None:
    (tmp_path / "chunk").write_bytes(b"old")
    file = kind(str(tmp_path / "chunk"))
    file.write(BYTES)
    file.abort()
    assert [entry.name for entry in tmp_path.iterdir()] == ["chunk"]
    assert (tmp_path / "chunk").read_bytes() == b"old"


def test_small_chunks_and_file_systems_in_memory_are_written_the_usual_way(mounted: Callable[[str, int], Path]) -> None:
    disk = mounted("ext4", 64 << 20)
    made: dict[Any, type[ChunkFile]] = {}
    for place, size in ((disk, WRITE_SIZE), (disk, WRITE_SIZE - 1), (Path("/dev/shm"), WRITE_SIZE)):
        file = open_chunk_file(str(place / "ax2mt-chunk"), size)
        made[place, size] = type(file)
        file.abort()
    assert list(made.values()) == [DirectFile, ChunkFile, ChunkFile]


def test_a_full_disk_is_told_whoever_writes(mounted: Callable[[str, int], Path]) -> None:
    disk = mounted("ext4", 16 << 20)
    file = open_chunk_file(str(disk / "chunk"), 64 << 20)

    def write() -> None:
        for _ in range(8):
            file.write(BYTES[: 2 * WRITE_SIZE])

    with pytest.raises(OSError, match="No space left on device"):
        write()
    file.abort()
    assert not (disk / ("chunk" + PART)).exists()


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_blocks_on_disk_are_shared_where_the_file_system_can(kind: str, mounted: Callable[[str, int], Path]) -> None:
    disk = mounted(kind, 320 << 20)
    source = disk / "source"
    source.write_bytes(BYTES * 2)
    os.sync()
    free = os.statvfs(disk).f_bfree
    file = open_chunk_file(str(disk / "chunk"), 2 * len(BYTES))
    seen: list[bytes] = []
    with FileReader(source) as opened:
        file.copy_from(opened, lambda piece: seen.append(bytes(piece)))
    assert b"".join(seen) == BYTES * 2
    file.write(b"sum")
    file.commit()
    os.sync()
    assert (disk / "chunk").read_bytes() == BYTES * 2 + b"sum"
    assert (free - os.statvfs(disk).f_bfree) * os.statvfs(disk).f_bsize < len(BYTES)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [ChunkFile, DirectFile])
def test_a_copy_is_looked_at_and_whole(kind: type[ChunkFile], size: int, mounted: Callable[[str, int], Path]) -> None:
    """On a file system where nothing is shared."""
    disk = mounted("ext4", 64 << 20)
    (disk / "source").write_bytes(BYTES[:size])
    file = kind(str(disk / "chunk"))
    seen: list[bytes] = []
    with FileReader(disk / "source") as opened:
        file.copy_from(opened, lambda piece: seen.append(bytes(piece)))
    file.write(b"sum")
    file.commit()
    assert b"".join(seen) == BYTES[:size]
    assert (disk / "chunk").read_bytes() == BYTES[:size] + b"sum"


@pytest.mark.parametrize("change", [-1, -2 * WRITE_SIZE, 1])
@pytest.mark.parametrize("kind", [ChunkFile, DirectFile])
def test_a_source_that_changes_while_it_is_copied(kind: type[ChunkFile], change: int, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(BYTES)

    def look(_: memoryview) -> None:
        os.truncate(source, len(BYTES) + change)

    file = kind(str(tmp_path / "chunk"))
    with FileReader(source) as opened, pytest.raises(ReadError, match=r"became shorter|changed its size"):
        file.copy_from(opened, look)
    file.abort()
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("most", [1, 1000, PAGE, 3 * PAGE + 1])
@pytest.mark.parametrize("size", [0, 5, PAGE + 7, WRITE_SIZE + 5])
def test_a_system_that_writes_less_than_it_is_given(size: int, most: int, tmp_path: Path) -> None:
    size = min(size, 3000 * most)
    faulty = FaultyStorage()
    faulty.most = most
    file = faulty.create(str(tmp_path / "chunk"), size)
    file.write(BYTES[:size])
    file.write(b"sum")
    file.commit()
    assert (tmp_path / "chunk").read_bytes() == BYTES[:size] + b"sum"


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path) -> None:
    faulty = FaultyStorage()
    faulty.room = 1000
    faulty.write(str(tmp_path / "small"), b"old")
    with pytest.raises(OSError, match="No space left on device"):
        faulty.write(str(tmp_path / "small"), bytes(998))
    assert (tmp_path / "small").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["small"]


def test_a_system_without_large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(chunk_file, "_spare_memory", [])
    monkeypatch.setattr(chunk_file.mmap, "mmap", Small)
    file = ChunkFile(str(tmp_path / "chunk"))
    file.room()[:3] = b"abc"
    file.added(3)
    file.commit()
    assert (tmp_path / "chunk").read_bytes() == b"abc"
