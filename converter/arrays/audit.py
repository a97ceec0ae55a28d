import itertools
import math
import os
import re
import stat
from dataclasses import dataclass

from converter.arrays.array import Array
from converter.storage import is_litter

MAX_FINDINGS = 20


_CHUNK_NAME = re.compile(r"\d+(\.\d+)*$")


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


def audit_chunks(array: Array) -> Audit:
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
            (key for key in map(array.chunk_key, array.chunk_indices()) if key not in present), MAX_FINDINGS
        )
        for name in names:
            findings.add(f"chunk {name}: missing")
        findings.more(missing - MAX_FINDINGS)
    return Audit(tuple(findings.lines()), stored)


def file_states(array: Array) -> list[tuple[str, int, int]]:
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


def _look_at_file(entry: "os.DirEntry[str]", largest: int, array: Array) -> tuple[int, str]:
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


def _largest_file(array: Array) -> int:
    """No compressor makes its input larger than this (zstd: n + n/256 + 64; blosc: n + 16; zlib, bz2 about 1 %)."""
    return array.chunk_bytes + array.chunk_bytes // 64 + 1024
