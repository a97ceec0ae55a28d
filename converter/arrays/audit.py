import itertools
import math
import re
from dataclasses import dataclass

from converter.arrays.array import Array
from converter.arrays.database import database_files, list_keys
from converter.storage import DANGLING, DIRECTORY, FILE, UNREADABLE, Blob, has_litter_in, is_litter, storage_of

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
    if array.database_key is not None:
        return _audit_database(array, array.database_key)
    findings = _Findings(array.path)
    stored = 0
    present: set[str] = set()
    largest = largest_chunk_bytes(array)
    try:
        blobs = list(storage_of(array.directory).list(array.directory))
    except OSError as error:
        return Audit((f"{array.path}: {array.directory} cannot be listed: {error.strerror}",), 0)
    for blob in blobs:
        if not _CHUNK_NAME.match(blob.name):
            continue
        if not _in_grid(blob.name, array.grid):
            findings.add(f"chunk {blob.name}: outside the grid {list(array.grid)}")
            continue
        present.add(blob.name)
        stored += blob.size
        problem = _problem(blob, largest, array)
        if problem:
            findings.add(f"chunk {blob.name}: {problem}")
    _find_missing(array, present, findings)
    return Audit(tuple(findings.lines()), stored)


def _audit_database(array: Array, key: str) -> Audit:
    """The same for an array in a database, which does not tell how large its values are: weights hardly compress."""
    findings = _Findings(array.path)
    try:
        keys = list_keys(array.directory, key)
    except OSError as error:
        return Audit((f"{array.path}: the database {array.directory} cannot be listed: {error.strerror}",), 0)
    names = {name for name in keys if _CHUNK_NAME.match(name)}
    present = {name for name in names if _in_grid(name, array.grid)}
    for name in sorted(names - present):
        findings.add(f"chunk {name}: outside the grid {list(array.grid)}")
    _find_missing(array, present, findings)
    return Audit(tuple(findings.lines()), array.bytes)


def _find_missing(array: Array, present: set[str], findings: "_Findings") -> None:
    missing = math.prod(array.grid) - len(present)
    if missing:
        names = itertools.islice(
            (key for key in map(array.chunk_key, array.chunk_indices()) if key not in present), MAX_FINDINGS
        )
        for name in names:
            findings.add(f"chunk {name}: missing")
        findings.more(missing - MAX_FINDINGS)


def file_states(array: Array) -> list[tuple[str, int, int | str]]:
    """Name, size and version of each of an array's files: what shows that a source is not the same any more.

    Litter comes and goes without that. An array in a database has all of the database's files.
    """
    if array.database_key is not None:
        return [state for state in database_files(array.directory) if not has_litter_in(state[0])]
    blobs = storage_of(array.directory).list(array.directory)
    return [(blob.name, blob.size, blob.version) for blob in blobs if blob.kind == FILE and not is_litter(blob.name)]


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


def _problem(blob: Blob, largest: int, array: Array) -> str:
    """What is wrong with a chunk, as far as that shows without reading it."""
    if blob.kind == DANGLING:
        return f"a dangling link to {blob.problem}"
    if blob.kind == UNREADABLE:
        return f"unreadable: {blob.problem}"
    if blob.kind == DIRECTORY:
        return "a directory in the place of a file"
    if blob.kind != FILE:
        return "not a regular file"
    if blob.size == 0:
        return "empty (0 bytes)"
    if array.compressor is None and blob.size != array.chunk_bytes:
        return f"{blob.size} bytes, expected {array.chunk_bytes}"
    if blob.size > largest:
        return f"{blob.size} bytes, more than {array.chunk_bytes} bytes can take when compressed"
    return ""


def largest_chunk_bytes(array: Array) -> int:
    """Bytes that a chunk can have as it is stored, at most.

    No compressor makes its input larger than this (zstd: n + n/256 + 64; blosc: n + 16; zlib, bz2 about 1 %).
    """
    return array.chunk_bytes + array.chunk_bytes // 64 + 1024
