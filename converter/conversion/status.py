"""How far a conversion is, by what it left beside its destination. Nothing is locked and nothing is changed."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.checkpoints import is_maxtext_checkpoint
from converter.conversion.destination import resolve_destination
from converter.conversion.object_stage import ObjectStage
from converter.conversion.shared_stage import SharedStage, read_journal
from converter.conversion.shares import DoneShare, is_complete, missing
from converter.conversion.work_area import SHARED, journal_path, stage_path
from converter.planning import Share
from converter.storage import storage_of

NOTHING, BEGUN, FINISHED = STATES = ("nothing", "begun", "finished")


@dataclass(frozen=True, kw_only=True)
class Status:
    """How far a conversion is.

    Attributes:
      destination: where the checkpoint goes.
      state: NOTHING where none was begun; BEGUN while it is under way or interrupted, until all is tidied up; FINISHED.
      source: the AXLearn step directory; empty where it is not known.
      step: its training step; None where it is not known.
      version: of the ax2mt that began it.
      leaves: how many leaves there will be; 0 where that is not known.
      total_bytes: their size, decoded.
      stored_bytes: size of what is in place of them, as it is stored.
      idle_seconds: how long ago the last of it was written; None where that is not known.
      done: the shares that are done.
      awaited: those that are not, of as many processes; empty where no share is done, or all are.
      command: finishes the conversion; empty where nothing is left to do, or the journal does not say.
    """

    destination: str
    state: str
    source: str = ""
    step: int | None = None
    version: str = ""
    leaves: int = 0
    total_bytes: int = 0
    stored_bytes: int = 0
    idle_seconds: float | None = None
    done: tuple[DoneShare, ...] = ()
    awaited: tuple[Share, ...] = ()
    command: str = ""

    @property
    def done_bytes(self) -> int:
        """Decoded bytes of the shares that are done, of the number of processes that is furthest."""
        counts = {one.share.count for one in self.done}
        return max((sum(one.size for one in self.done if one.share.count == count) for count in counts), default=0)

    @property
    def is_whole(self) -> bool:
        """Whether all work is done, so that only the commit is left."""
        return is_complete([one.share for one in self.done])


def conversion_status(destination: str) -> Status:
    """Looks at a destination.

    Raises:
      DestinationError: a journal or a record is damaged, or the path means nothing.
    """
    target = resolve_destination(destination)
    storage = storage_of(target)
    content, records = (_local if storage.renames else _remote)(target)
    if content is None:
        # An empty directory is nothing yet.
        is_there = storage.is_directory(target) and is_maxtext_checkpoint(target)
        return Status(destination=target, state=FINISHED if is_there else NOTHING)
    work = target if not storage.renames else os.path.join(stage_path(target), str(content.get(SHARED, "")), "leaves")
    stored, changed = _written(work)
    conversion, about = content["conversion"], content.get("about") or {}
    shares = [one.share for one in records]
    command = str(about.get("command", ""))
    alone = " --process 0/1" if SHARED in content or shares else ""
    return Status(
        destination=target,
        state=BEGUN,
        source=str(conversion.get("source", "")),
        step=conversion.get("step"),
        version=str(conversion.get("version", "")),
        leaves=int(about.get("leaves", 0)),
        total_bytes=int(about.get("bytes", 0)),
        stored_bytes=stored,
        idle_seconds=max(time.time() - changed / 1e9, 0.0) if changed and storage.renames else None,
        done=tuple(records),
        awaited=_awaited(shares),
        command=f"{command}{alone}" if command else "",
    )


def _local(target: str) -> tuple[Mapping[str, Any] | None, Sequence[DoneShare]]:
    """The journal and the records of a work area in a file system."""
    content = read_journal(journal_path(target))
    if content is None or SHARED not in content:
        return content, ()
    stage = SharedStage(target, "", ())
    stage.enter(content[SHARED])
    try:
        return content, stage.records()
    except FileNotFoundError:
        return content, ()  # it is being tidied up


def _remote(target: str) -> tuple[Mapping[str, Any] | None, Sequence[DoneShare]]:
    """The same in a store of objects."""
    stage = ObjectStage(target, "", ())
    try:
        content = stage.read_journal()
        return content, stage.records() if content else ()
    finally:
        stage.close()


def _written(directory: str) -> tuple[int, int]:
    """Bytes of all files below a directory, and when the last of them was written, in nanoseconds."""
    size = changed = 0
    for blob in storage_of(directory).walk(directory):
        size += blob.size
        changed = max(changed, blob.version) if isinstance(blob.version, int) else changed
    return size, changed


def _awaited(done: Sequence[Share]) -> tuple[Share, ...]:
    """What is missing of the number of processes that is furthest."""
    if not done or is_complete(done):
        return ()
    counts = sorted({share.count for share in done})
    return tuple(min((missing(done, count) for count in counts), key=lambda shares: len(shares) / shares[0].count))
