"""The work area of a conversion: leaves are written here, and become a checkpoint in one step at the end.

The stage is a directory beside the destination, on the same file system, so that finished leaves can be linked into
place and the finished checkpoint renamed. Nothing in it can be taken for a checkpoint. It outlives an interrupted run:
its journal says what was being made of what, and the next run of the same conversion goes on in it.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from converter.errors import DestinationError
from converter.leaf_store import PART, LeafStore, write_error
from converter.maxtext import leaf_key
from converter.plan import Leaf

SUFFIX = ".ax2mt-wip"
JOURNAL = "journal.json"
LOCK = "lock"


class Stage:
    """A locked work area; see the module's docstring.

    Attributes:
      root: its directory.
      store: how leaves are stored.
      resumed: whether it holds work of an interrupted run of the same conversion.
    """

    def __init__(self, destination: str, store: str, leaves: Sequence[Leaf]):
        """Creates and locks the work area, or takes over the one of a dead process; `begin` comes next.

        Raises:
          DestinationError: it cannot be created, or another process works in it.
        """
        self.root = stage_path(destination)
        self.store = store
        self.resumed = False
        self._numbers = {leaf.path: number for number, leaf in enumerate(leaves)}
        try:
            os.makedirs(self.root, exist_ok=True)
            self._lock = os.open(os.path.join(self.root, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DestinationError(f"{self.root}: cannot be created: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            what = "another ax2mt works on this destination; wait for it to end"
            raise DestinationError(f"{self.root}: {what}") from None

    def begin(self, conversion: Mapping[str, Any], *, fresh: bool) -> None:
        """Goes on with an interrupted run of the same conversion, or starts a new one.

        Args:
          conversion: all that decides over the result, as JSON values.
          fresh: throw away what an earlier run left.

        Raises:
          DestinationError: the work area holds another conversion; the message says what differs.
        """
        found = None if fresh else self._read_journal()
        if found is not None and found != conversion:
            keys = sorted(set(found) | set(conversion))
            raise DestinationError(
                f"{self.root}: holds an interrupted conversion that differs from this one; --fresh starts over",
                [
                    f"{k}: then {found.get(k)!r}, now {conversion.get(k)!r}"
                    for k in keys
                    if found.get(k) != conversion.get(k)
                ],
            )
        try:
            self.resumed = found is not None
            if self.resumed:
                self._tidy()
            else:
                self._clear()
                self._write_journal(conversion)
        except OSError as error:
            raise write_error(self.root, error) from None

    @property
    def output(self) -> str:
        """Where the whole checkpoint takes shape before it is renamed to the destination."""
        return os.path.join(self.root, "checkpoint")

    def leaf_directory(self, leaf: Leaf) -> str:
        """The directory that holds a leaf, and nothing else."""
        name = f"ocdbt.process_{self._numbers[leaf.path]}" if self.store == "ocdbt" else leaf_key(leaf.path)
        return os.path.join(self.root, "leaves", name)

    def open_leaf(self, leaf: Leaf) -> LeafStore:
        """Opens a leaf for writing.

        Raises:
          DestinationError: it cannot be created.
        """
        database_key = leaf_key(leaf.path) if self.store == "ocdbt" else None
        return LeafStore(leaf, self.leaf_directory(leaf), database_key=database_key)

    def staged_bytes(self) -> int:
        """Bytes that an earlier run has already written."""
        return tree_bytes(os.path.join(self.root, "leaves"))

    def remove(self) -> None:
        """Removes the work area with all that is in it."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Unlocks the work area and leaves it for a later run."""
        os.close(self._lock)

    def _read_journal(self) -> Any:
        try:
            with open(os.path.join(self.root, JOURNAL), "rb") as file:
                return json.loads(file.read())
        except (OSError, ValueError):
            return None

    def _write_journal(self, conversion: Mapping[str, Any]) -> None:
        path = os.path.join(self.root, JOURNAL)
        with open(path + PART, "w", encoding="utf-8") as file:
            json.dump(conversion, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + PART, path)

    def _tidy(self) -> None:
        """Removes what an interrupted run left unfinished: the checkpoint, half chunks, locks of its database.

        A stale `*.__lock` of TensorStore would be reused without being truncated: a shorter value would keep its tail.
        """
        shutil.rmtree(self.output, ignore_errors=True)
        for directory, _, files in os.walk(os.path.join(self.root, "leaves")):
            for name in files:
                if name.endswith((PART, ".__lock")):
                    os.unlink(os.path.join(directory, name))

    def _clear(self) -> None:
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if name == LOCK:
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)


def stage_path(destination: str) -> str:
    """The work area that belongs to a destination."""
    return destination.rstrip("/") + SUFFIX


def tree_bytes(path: str) -> int:
    """Size of all files below a directory."""
    return sum(
        os.lstat(os.path.join(directory, name)).st_size for directory, _, files in os.walk(path) for name in files
    )
