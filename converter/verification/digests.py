"""Checks a MaxText checkpoint against the digests that it carries; no source is needed.

The digests are of the chunks as they are stored: a chunk with its digest is the chunk that `convert` wrote. Leaves that
have none, or another one, are decoded.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from converter.arrays import Array, OpenArray, chunk_digest, start_chunk, sum_digest
from converter.checkpoints import (
    CONFIG_NAME,
    CUSTOM_METADATA,
    NO_DIGEST,
    SUMS,
    TREE_METADATA,
    Target,
    check_alone,
    check_receipt,
    file_digest,
    is_as_committed,
    is_fitting,
    open_target,
    orbax_problems,
    read_receipt,
    read_records,
)
from converter.choices import DEFAULT_MEMORY
from converter.errors import DestinationError, VerificationError
from converter.location import locate
from converter.storage import find_litter, has_litter_in, storage_of
from converter.verification.metadata import edit_findings, metadata_findings
from converter.verification.result import Finding, FirstFaults, Verification
from converter.verification.sums import CRC_BYTES, chunk_sum, pin
from converter.words import budget_too_small
from converter.work import ByteBudget, Progress, peak_resident, reuse_freed_memory, run_units

if TYPE_CHECKING:
    from converter.planning import Share

CHUNK_COPIES = 4
"""Bytes held for each byte of a chunk: decoded, encoded, and what TensorStore takes for decoding."""

READ_SIZE = 1 << 18
"""Bytes of a chunk's file that are digested at once: they stay in a core's cache."""

MAX_CHUNKS = 1 << 32

MAX_LITTER = 10
"""Names of litter that a note lists."""


def verify_digests(
    destination: str,
    progress: Progress,
    *,
    decode: bool = False,
    max_memory: int = DEFAULT_MEMORY,
    jobs: int = 2,
    share: "Share | None" = None,
) -> Verification:
    """Checks the leaves and files of a checkpoint against the digests written by `convert`.

    Args:
      destination: the checkpoint: the directory above its steps, a step, or its arrays.
      progress: notified of each chunk and each leaf.
      decode: decode every chunk, also those that have their digest.
      max_memory: bytes that chunks in flight may take together.
      jobs: chunks in flight.
      share: which part of the leaves is checked; None for all. The other files, share 0 looks at.

    Raises:
      VerificationError: there is no checkpoint, or it carries no digests.
      DestinationError: the path is not a local one.
      UsageError: it is an AXLearn checkpoint, or a chunk is larger than the memory budget.
    """
    started = time.monotonic()
    reuse_freed_memory()
    check_alone(locate(destination, DestinationError))
    target = open_target(destination)
    pin(target.root)
    records = read_records(target.custom)
    receipt, _ = read_receipt(target.root)
    if records is None and receipt is None:
        raise VerificationError(f"{target.root}: has no ax2mt digests; give the source too: verify SRC DST")
    is_first = share is None or share.index == 0
    edits, notes = _configuration(target.root, receipt) if is_first else ([], [])
    apart = CONFIG_NAME if edits or notes else ""
    files = check_receipt(target.root, apart=apart) if is_first else ()
    receipts = [Finding("receipt", path, text) for path, text in files]
    run = _Run(target, records, progress, max_memory, share)
    try:
        # The digests say what is stored; that it decodes to what it should is in files of which the receipt knows.
        run.check(jobs, decode=decode or bool(receipts))
    finally:
        progress.close()
    findings = [*run.findings(), *receipts, *edits, *(metadata_findings(target, None) if is_first else ())]
    if records is None:
        findings = _lost_digests(target, findings)
    if is_first and not findings and (decode or not is_as_committed(target, files)):
        shapes = {array.path: array.shape for array in run.arrays}
        findings += [Finding("metadata", TREE_METADATA, line) for line in orbax_problems(target, shapes)]
    return Verification(
        method="digests",
        source=str((receipt or {}).get("source", "")),
        step=(receipt or {}).get("step"),
        destination=target.root,
        leaves=len(run.arrays),
        stored_leaves=len(run.arrays) - len(run.decoded),
        elements=sum(array.elements for array in run.arrays),
        compared_bytes=sum(array.bytes for array in run.arrays),
        sample=None,
        findings=tuple(findings),
        notes=(*(run.notes() if is_first else ()), *notes),
        cast=None,
        seconds=time.monotonic() - started,
        peak_memory=peak_resident(),
        paths=tuple(array.path for array in run.arrays),
        share=share,
    )


def _configuration(root: str, receipt: Mapping[str, Any] | None) -> tuple[list[Finding], list[str]]:
    """What was changed in maxtext.yml, key by key; nothing where it was not, or where the receipt has no keys of it."""
    recorded = (receipt or {}).get("config")
    if receipt is None or not isinstance(recorded, dict):
        return [], []
    try:
        same = file_digest(os.path.join(root, CONFIG_NAME)) == receipt["files"].get(CONFIG_NAME)
    except OSError:
        return [], []  # the receipt's findings say so
    return ([], []) if same else edit_findings(root, recorded)


def _lost_digests(target: Target, findings: Sequence[Finding]) -> list[Finding]:
    """The findings of a checkpoint without digests: first that they are gone, which is the cause of others."""
    file = os.path.join(target.step_directory, CUSTOM_METADATA)
    place = os.path.relpath(file, target.root)
    what = "is missing" if not storage_of(file).exists(file) else "is damaged or was replaced: it has no ax2mt digests"
    cause = (
        f"{what}; chunks were decoded, but their values could not be checked: restore the file from a copy, or compare "
        "with the source: verify SRC DST"
    )
    others = [entry for entry in findings if entry.place not in (place, CUSTOM_METADATA)]
    return [Finding("metadata", place, cause), *others]


class _Run:
    def __init__(
        self,
        target: Target,
        records: dict[str, dict[str, Any]] | None,
        progress: Progress,
        max_memory: int,
        share: "Share | None",
    ):
        self.target = target
        self.share = share
        self.is_first = share is None or share.index == 0
        self.has_records = records is not None
        self.records = records or {}
        self.progress = progress
        self.budget = ByteBudget(max_memory)
        self.opened: dict[str, OpenArray] = {}
        self.digests: dict[str, dict[tuple[int, ...], int]] = {}
        self.broken = FirstFaults()
        self.decoded: set[str] = set()

    @property
    def arrays(self) -> list[Array]:
        """The arrays that could be opened."""
        return [opened.array for opened in self.opened.values()]

    def check(self, jobs: int, *, decode: bool) -> None:
        """Opens every leaf, digests its chunks, and decodes those of leaves that have another digest or none."""
        for key, path in self.target.leaves.items():
            try:
                opened = self.target.open(path)
            except VerificationError as error:
                self.broken.add(key, error.message.removeprefix(f"{path}: "))
                continue
            count = math.prod(opened.array.grid)
            if count > MAX_CHUNKS:
                self.broken.add(
                    key, f"has {count} chunks, which is too many for any checkpoint; its metadata is damaged"
                )
                continue
            self.opened[key] = opened
        self._keep_share()
        self.digests = {key: {} for key in self.opened}
        self.progress.start(len(self.opened), sum(array.bytes for array in self.arrays))
        if not decode:
            with_digest = [key for key in self.opened if self._kind(key) not in (None, NO_DIGEST)]
            # Of objects in a store, only what it knows of them is asked for.
            run_units(self._digests(with_digest), max(jobs, storage_of(self.target.root).concurrency))
        self.decoded |= {key for key in self.opened if decode or not self._has_its_digest(key)}
        run_units(self._decodes(), jobs)

    def _keep_share(self) -> None:
        """Forgets the leaves of other shares: a leaf's digest is that of all its chunks. Faults are share 0's."""
        if self.share is None:
            return
        from converter.planning import Load, divide

        loads = [Load(units=1, bytes=array.bytes) for array in self.arrays]
        own = divide(loads, self.share.count)[self.share.index].units
        self.opened = {key: opened for number, (key, opened) in enumerate(self.opened.items()) if number in own}
        if not self.is_first:
            self.broken = FirstFaults()

    def _kind(self, key: str) -> str | None:
        return self.records[key]["kind"] if key in self.records else None

    def _has_its_digest(self, key: str) -> bool:
        complete = len(self.digests[key]) == math.prod(self.opened[key].array.grid)
        return complete and key not in self.broken and is_fitting(self.records.get(key), self.digests[key])

    def notes(self) -> tuple[str, ...]:
        """Leaves that could not be checked, and files that are not part of the checkpoint."""
        notes: list[str] = []
        linked = sum(record["kind"] == NO_DIGEST for record in self.records.values())
        text = "leaves were linked to the source and have no digest; it was only checked that they can be decoded"
        if linked:
            notes.append(f"{linked} {text}")
        litter = find_litter(self.target.root, MAX_LITTER + 1)
        if litter:
            shown = ", ".join(litter[:MAX_LITTER]) + (", and more" if len(litter) > MAX_LITTER else "")
            notes.append(f"ignored, left by a system or a tool: {shown}")
        return tuple(notes)

    def findings(self) -> list[Finding]:
        """What does not fit the digests."""
        names = self.target.leaves
        result = [Finding("chunks", names[key], text) for key, text in self.broken.items()]
        result += [
            Finding("coverage", key.replace(".", "/"), "missing in the checkpoint")
            for key in self.records
            if key not in names and self.is_first
        ]
        for key, chunks in self.digests.items():
            record = self.records.get(key)
            if key in self.broken:
                continue
            if record is None and not self.has_records:
                continue
            if record is None:
                result.append(Finding("coverage", names[key], "extra leaf: no digest was recorded for it"))
            elif record["kind"] != NO_DIGEST and not is_fitting(record, chunks):
                result.append(Finding("digest", names[key], "holds values other than those written by convert"))
        return result + [
            Finding("coverage", names[key], f"{text} is not a chunk of this array") for key, text in self._strays()
        ]

    def _strays(self) -> Iterator[tuple[str, str]]:
        """Files among the chunks of an array that belong to none."""
        for key, opened in self.opened.items():
            if key in self.broken:
                continue
            known = set(map(opened.array.chunk_key, opened.array.chunk_indices()))
            strays = sorted(opened.list_keys() - known - {"zarr.json", ".zarray", ".zattrs"})
            yield from ((key, name) for name in strays if not has_litter_in(name))

    def _digests(self, keys: Sequence[str]) -> Iterator[Callable[[], None]]:
        for key in keys:
            opened = self.opened[key]
            in_files = opened.array.database_key is None or self._kind(key) == SUMS
            memory = READ_SIZE if in_files else opened.array.chunk_bytes
            for index in opened.array.chunk_indices():
                yield partial(self._digest, key, opened, index, min(memory, self.budget.limit))
            self.progress.leaf_done(opened.array.path)

    def _digest(self, key: str, opened: OpenArray, index: tuple[int, ...], memory: int) -> None:
        """Digests a chunk as it is stored; one that cannot be read is decoded later, to say why."""
        with self.budget.hold(memory):
            try:
                self.digests[key][index] = self._stored_digest(key, opened, index)
            except (OSError, VerificationError):
                return
        self.progress.advance(opened.array.clipped_bytes(index))

    def _stored_digest(self, key: str, opened: OpenArray, index: tuple[int, ...]) -> int:
        if self._kind(key) != SUMS:
            return _stored_digest(opened, index)
        place = os.path.join(self.target.items, self.records[key]["place"])
        return chunk_sum(os.path.join(place, opened.array.chunk_key(index)), index)

    def _decodes(self) -> Iterator[Callable[[], None]]:
        for key in (key for key in self.opened if key in self.decoded):
            opened = self.opened[key]
            array = opened.array
            memory = array.chunk_bytes * CHUNK_COPIES
            if memory > self.budget.limit:
                why = f"{array.path} is stored in chunks of {memory // CHUNK_COPIES} bytes"
                raise budget_too_small(self.budget.limit, why, memory)
            for index in array.chunk_indices():
                yield partial(self._decode, key, opened, index, memory)
            self.progress.leaf_done(array.path)

    def _decode(self, key: str, opened: OpenArray, index: tuple[int, ...], memory: int) -> None:
        array = opened.array
        with self.budget.hold(memory):
            try:
                opened.read(array.chunk_box(index))
                if self._kind(key) == SUMS:
                    stored = opened.read_stored(index)
                    self.digests[key][index] = sum_digest(index, len(stored), crc32c(stored[:-CRC_BYTES]))
                elif self._kind(key) != NO_DIGEST:
                    self.digests[key][index] = chunk_digest(index, opened.read_stored(index))
            except VerificationError as error:
                self.broken.add(key, error.message.removeprefix(f"{array.path}: "), index)
        self.progress.advance(array.clipped_bytes(index))


def _stored_digest(opened: OpenArray, index: tuple[int, ...]) -> int:
    """The digest of a chunk's bytes; of a file of its own in little memory.

    Raises:
      OSError: the file cannot be read.
      VerificationError: the database does not have it.
    """
    if opened.array.database_key is not None:
        return chunk_digest(index, opened.read_stored(index))
    state, path = start_chunk(index), opened.array.chunk_file(index)
    with storage_of(path).open(path) as file:
        room = memoryview(bytearray(READ_SIZE))
        while count := file.readinto(room):
            state.update(room[:count])
    return state.intdigest()
