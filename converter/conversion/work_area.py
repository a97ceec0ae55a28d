"""What a conversion asks of its work area, and what the work areas of all storages have in common.

A work area belongs to a destination. Its journal says what is being made of what, so that only the same conversion
resumes in it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from converter.arrays import Array, LeafStore, StackStore
from converter.checkpoints import leaf_key
from converter.conversion.destination import JOURNAL_SUFFIX, SUFFIX
from converter.planning import COPIERS, LOCAL, Portion, Share
from converter.storage import storage_of

STREAMS = 8
"""Threads that pass chunks on through this machine from or to an object store: one stream is no faster than a disk."""

MAX_JOURNAL_BYTES = 256 << 20

JOIN = "run the same command again to join them"

SHARED = "shared"
"""The entry of a journal that names the directory in which processes of several hosts work, see `shared_stage`."""

SOURCE_FILES = "source files"
"""The part of a conversion that distinguishes one state of the source from another."""


class Work(Protocol):
    """What a conversion asks of the place where a checkpoint takes shape.

    Attributes:
      root: the work area.
      resumed: whether it holds work of an interrupted run of the same conversion.
      replaced: whether a checkpoint was removed before the new one is complete.
    """

    root: str
    resumed: bool
    replaced: bool

    def begin(
        self,
        conversion: Mapping[str, Any],
        *,
        fresh: bool,
        overwrite: bool,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Resumes, joins or starts a conversion; `about` is what the journal says of it to people."""
        ...

    @property
    def output(self) -> str:
        """The directory in which Orbax commits."""
        ...

    def leaf_directory(self, leaf: Array) -> str:
        """The directory that holds a leaf for Orbax, and nothing else."""
        ...

    def open_leaf(self, leaf: Array) -> LeafStore:
        """Opens a leaf for writing."""
        ...

    def copiers(self, transfer: str) -> int:
        """How many threads pass chunks on."""
        ...

    def finish_leaves(
        self, leaves: Sequence[Array], digests: Mapping[str, Mapping[tuple[int, ...], int | None]]
    ) -> dict[str, dict[str, Any]]:
        """Looks once more for every chunk; returns the leaves' records by their keys."""
        ...

    def holds_work(self) -> bool:
        """Whether some leaf was begun, by this run or an earlier one."""
        ...

    def staged_bytes(self) -> int:
        """Bytes that an earlier run has already written."""
        ...

    def prepare(self) -> None:
        """Tries before any work whether the checkpoint will be let in."""
        ...

    def publish(self) -> None:
        """Puts the committed checkpoint in its place."""
        ...

    def mark_source_fault(self) -> None:
        """Notes that the source stopped this run."""
        ...

    def remove(self) -> str:
        """Removes the work area; returns what could not be removed."""
        ...

    def close(self) -> None:
        """Leaves the work area for a later run."""
        ...


class SharedWork(Work, Protocol):
    """What processes that each do a share ask beside it."""

    def check_share(self, portion: Portion) -> None:
        """Refuses a share that does not complete those that are done, or that nobody needs any more."""
        ...

    def record(self, portion: Portion, digests: Mapping[str, Mapping[tuple[int, ...], int | None]]) -> None:
        """Says that all units of a share are in their places."""
        ...

    def awaited(self, share: Share) -> list[Share]:
        """The shares that are not done yet, of as many as there are of this one; empty where all work is done."""
        ...

    def is_finished(self) -> bool:
        """Whether the conversion's checkpoint is in its place."""
        ...


def open_stack(stage: Work, leaf: Array) -> LeafStore | StackStore:
    """Opens a leaf of a task for writing: one leaf, or one for each layer.

    Raises:
      DestinationError: it cannot be created.
    """
    return StackStore(leaf, [stage.open_leaf(part) for part in leaf.parts]) if leaf.parts else stage.open_leaf(leaf)


def copiers(transfer: str) -> int:
    """How many threads pass chunks on into files."""
    return COPIERS if transfer == LOCAL else STREAMS


def conversion_digest(conversion: Mapping[str, Any]) -> str:
    """What objects and the receipt carry of a conversion."""
    return hashlib.sha256(json.dumps(conversion, sort_keys=True).encode()).hexdigest()[:32]


def differences(found: Mapping[str, Any], conversion: Mapping[str, Any]) -> list[str]:
    """What differs between two conversions, one line each."""
    keys = sorted(set(found) | set(conversion))
    return [f"{k}: then {found.get(k)!r}, now {conversion.get(k)!r}" for k in keys if found.get(k) != conversion.get(k)]


def is_repaired(journal: Mapping[str, Any], conversion: Mapping[str, Any]) -> bool:
    """Whether a journal's run was stopped by the source, and differs in the state of its files and in nothing else."""
    found = journal.get("conversion")
    if journal.get("source_fault") is not True or not isinstance(found, dict) or found == conversion:
        return False
    return {**found, SOURCE_FILES: None} == {**conversion, SOURCE_FILES: None}


def leaf_name(store: str, leaf: Array, number: int) -> str:
    """The name of a leaf's directory among the arrays; of a database to merge, by the leaf's number."""
    return f"ocdbt.process_{number}" if store == "ocdbt" else leaf_key(leaf.path)


def stage_path(destination: str) -> str:
    """The work area that belongs to a destination."""
    return destination.rstrip("/") + SUFFIX


def journal_path(destination: str) -> str:
    """The journal that belongs to a destination's work area."""
    return destination.rstrip("/") + JOURNAL_SUFFIX


def tree_bytes(path: str) -> int:
    """Size of all files below a directory."""
    return sum(blob.size for blob in storage_of(path).walk(path))
