"""The work area of a conversion: leaves are written here, and become a checkpoint in one step at the end.

The stage is a directory beside the destination, on the same file system, so that finished leaves can be linked into
place and the finished checkpoint renamed. Nothing in it can be taken for a checkpoint. It outlives an interrupted run:
its journal, a file beside it, says what was being made of what, and the next run of the same conversion resumes in it.
The journal goes last, so that a run can be killed at any moment, while it tidies up too.
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from converter.arrays import Array, LeafStore
from converter.checkpoints import CONFIG_NAME, RECEIPT_NAME, leaf_key, stored_record
from converter.conversion.work_area import (
    JOIN,
    MAX_JOURNAL_BYTES,
    SHARED,
    Work,
    copiers,
    differences,
    is_repaired,
    journal_path,
    leaf_name,
    stage_path,
    tree_bytes,
)
from converter.errors import DestinationError
from converter.storage import Publication, SharedFiles, claim, read_json, storage_of, write_error

LOCK = "lock"


class Stage(Work):
    """A locked work area; see the module's docstring.

    Attributes:
      root: its directory.
      store: how leaves are stored.
      resumed: whether it holds work of an interrupted run of the same conversion.
    """

    def __init__(self, destination: str, store: str, leaves: Sequence[Array], step: int = 0):  # noqa: ARG002
        """Creates and locks the work area, or takes over the one of a dead process; `begin` comes next.

        Raises:
          DestinationError: it cannot be created, or another process works in it.
        """
        self.storage = storage_of(destination)
        self.destination = destination
        self.root = stage_path(destination)
        self.journal = journal_path(destination)
        self.store = store
        self.resumed = False
        self.replaced = False
        self._about: dict[str, Any] = {}
        self._numbers = {leaf.path: number for number, leaf in enumerate(leaves)}
        self._stores: dict[str, LeafStore] = {}
        try:
            self.storage.make_directory(self.root)
            self._lock = self.storage.lock(os.path.join(self.root, LOCK))
        except BlockingIOError:
            raise self._is_taken() from None
        except OSError as error:
            # The destination itself may be writable: one that its parent's owner made for us.
            below = self.storage.is_directory(destination) and self.storage.is_writable(destination)
            advice = (
                f"; the work area is created beside the destination: give a directory below {destination}"
                if below
                else ""
            )
            raise DestinationError(f"{self.root}: cannot be created: {error.strerror}{advice}") from None
        if not self._lock.is_in_place():
            self._lock.close()
            raise self._is_taken()

    def begin(
        self,
        conversion: Mapping[str, Any],
        *,
        fresh: bool,
        overwrite: bool = False,  # noqa: ARG002
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Resumes an interrupted run of the same conversion, or starts a new one.

        Args:
          conversion: all that decides over the result, as JSON values.
          fresh: throw away what an earlier run left.
          overwrite: a checkpoint that is there is replaced at the end.
          about: what the journal says of it to people.

        Raises:
          DestinationError: the work area holds another conversion; the message says what differs.
        """
        self._about = dict(about or {})
        journal = self._read()
        if SHARED in journal and not fresh:
            raise DestinationError(f"{self.root}: several processes began to work here meanwhile; {JOIN}")
        found = None if fresh else journal.get("conversion")
        if is_repaired(journal, conversion):
            found = None
        if found is not None and found != conversion:
            raise DestinationError(
                f"{self.root}: holds an interrupted conversion that differs from this one; --fresh starts over",
                differences(found, conversion),
            )
        try:
            self.resumed = found is not None
            if self.resumed:
                # What comes now is another publication: nothing of it may pass for the end of the last one.
                self._write_journal(conversion, published=False)
                self._tidy()
            else:
                self._clear()
                self._start_journal(conversion, is_there=bool(journal))
        except OSError as error:
            raise write_error(self.root, error) from None

    @property
    def output(self) -> str:
        """Where the whole checkpoint takes shape before it is renamed to the destination."""
        return os.path.join(self.root, "checkpoint")

    @property
    def publication(self) -> Publication:
        """How the checkpoint takes its place: Orbax and MaxText look for the step's directory."""
        return Publication(
            finished=self.output,
            destination=self.destination,
            replaced=os.path.join(self.root, "replaced"),
            is_marker=str.isdigit,
            others=(CONFIG_NAME, RECEIPT_NAME),
        )

    def leaf_directory(self, leaf: Array) -> str:
        """The directory that holds a leaf, and nothing else."""
        return os.path.join(self.root, "leaves", leaf_name(self.store, leaf, self._numbers[leaf.path]))

    def open_leaf(self, leaf: Array) -> LeafStore:
        """Opens a leaf for writing.

        Raises:
          DestinationError: it cannot be created.
        """
        database_key = leaf_key(leaf.path) if self.store == "ocdbt" else None
        store = LeafStore(leaf, self.leaf_directory(leaf), database_key=database_key)
        self._stores[leaf.path] = store
        return store

    def copiers(self, transfer: str) -> int:
        return copiers(transfer)

    def prepare(self) -> None:
        self.storage.prepare(self.destination, self.root)

    def publish(self) -> None:
        self.mark_published()
        self.storage.publish(self.publication)

    def finish_leaves(
        self, leaves: Sequence[Array], digests: Mapping[str, Mapping[tuple[int, ...], int | None]]
    ) -> dict[str, dict[str, Any]]:
        self.check_whole(leaves)
        return {leaf_key(path): stored_record(chunks) for path, chunks in digests.items()}

    def check_whole(self, leaves: Sequence[Array]) -> None:
        """Looks once more for every file before a checkpoint is made of them: a reader takes a missing one as zeros.

        Raises:
          DestinationError: something else removed files of the work area while we worked.
        """
        if not self._lock.is_in_place():
            raise DestinationError(f"{self.root}: was removed while the conversion ran; run the same command again")
        for leaf in leaves:
            missing = (self._stores.get(leaf.path) or self.open_leaf(leaf)).missing_files()
            if missing:
                raise DestinationError(
                    f"{self.leaf_directory(leaf)}: {missing} files of {leaf.path} were removed while the conversion "
                    "ran; run the same command again to resume"
                )

    def _is_taken(self) -> DestinationError:
        return DestinationError(f"{self.root}: another ax2mt works on this destination; wait for it to end")

    def holds_work(self) -> bool:
        """Whether some leaf was begun, by this run or an earlier one; or the work is not ours alone."""
        return self.storage.is_directory(os.path.join(self.root, "leaves")) or SHARED in self._read()

    def staged_bytes(self) -> int:
        """Bytes that an earlier run has already written."""
        return tree_bytes(os.path.join(self.root, "leaves"))

    def mark_published(self) -> None:
        """Notes that the rename to the destination comes next; see `finish_published`.

        Raises:
          DestinationError: the journal cannot be written.
        """
        conversion, _ = self.read_journal()
        try:
            self._write_journal(conversion, published=True)
        except OSError as error:
            raise write_error(self.journal, error) from None

    def mark_source_fault(self) -> None:
        """Notes that the source stopped this run: the next one may meet a repaired source, and starts over then."""
        with suppress(OSError):
            self._write_journal(self.read_journal()[0], published=False, source_fault=True)

    def remove(self) -> str:
        """Removes the work area with all that is in it, and the journal last.

        Returns:
          What could not be removed; empty where nothing is left.
        """
        problem = ""
        try:
            self.storage.remove(self.root)
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
        with suppress(OSError):
            self.storage.remove(self.journal)
        self.close()
        with suppress(OSError):
            # NFS keeps a file that is still open, such as our lock until now.
            self.storage.remove_empty(self.root)
        return problem if self.storage.exists(self.root) else ""

    def close(self) -> None:
        """Unlocks the work area and leaves it for a later run."""
        self._lock.close()

    def read_journal(self) -> tuple[Any, bool]:
        """What the work area was begun for, None where nothing says so; and whether it was published."""
        content = self._read()
        conversion = content.get("conversion")
        return conversion if isinstance(conversion, dict) else None, content.get("published") is True

    def _read(self) -> dict[str, Any]:
        """The journal; empty where it is missing or damaged."""
        try:
            content = read_json(self.journal, MAX_JOURNAL_BYTES, DestinationError)
        except DestinationError:
            return {}
        known = "published" in content or SHARED in content
        return content if isinstance(content.get("conversion"), dict) and known else {}

    def _write_journal(
        self, conversion: Any, *, published: bool, source_fault: bool = False, name: str | None = None
    ) -> None:
        content = {"conversion": conversion, "published": published, "source_fault": source_fault, "about": self._about}
        self.storage.write(name or self.journal, json.dumps(content).encode(), durable=True)

    def _start_journal(self, conversion: Any, *, is_there: bool) -> None:
        """Writes the first journal, where no process with a share has written one since we looked."""
        self._write_journal(conversion, published=False, name=None if is_there else self._first)
        if not is_there and not claim(self._first, self.journal):
            if SHARED in self._read():
                raise DestinationError(f"{self.root}: several processes began to work here meanwhile; {JOIN}")
            self._write_journal(conversion, published=False)

    @property
    def _first(self) -> str:
        return os.path.join(self.root, "journal.json")

    def _tidy(self) -> None:
        """Removes what an interrupted run left unfinished: the checkpoint, half chunks, locks of its database.

        A stale `*.__lock` of TensorStore would be reused without being truncated: a shorter value would keep its tail.
        """
        with suppress(OSError):
            self.storage.remove(self.output)
        leaves = os.path.join(self.root, "leaves")
        for blob in list(self.storage.walk(leaves)):
            if self.storage.is_unfinished(blob.name) or blob.name.endswith(".__lock"):
                self.storage.remove(os.path.join(leaves, blob.name))

    def _clear(self) -> None:
        shared = self._read().get(SHARED)
        if shared is not None:
            # In one step, so that no process that works there can make anything in it any more.
            with suppress(OSError):
                gone = os.path.join(self.root, f"gone-{secrets.token_hex(8)}")
                SharedFiles(self.root).rename_once(os.path.join(self.root, os.path.basename(shared)), gone)
        for name in self.storage.names(self.root):
            if name != LOCK:
                self.storage.remove(os.path.join(self.root, name))


def finish_published(destination: str, conversion: Mapping[str, Any], step: int = 0) -> bool:  # noqa: ARG001
    """Tidies up after a run that was killed while its checkpoint took its place, or just afterwards.

    Where it was killed before, what was at the destination is brought back.

    Returns:
      Whether the checkpoint of the same conversion is in its place: then nothing is left to do.

    Raises:
      DestinationError: another process works on this destination, or it cannot be brought back.
    """
    if storage_of(destination).missing((journal_path(destination),)):
        return False
    stage = Stage(destination, "", ())
    stage._about = stage._read().get("about") or {}
    found, published = stage.read_journal()
    if published and found == conversion and stage.storage.is_published(stage.publication):
        stage.remove()
        return True
    try:
        if published:
            stage.storage.take_back(stage.publication)
    finally:
        stage.close()
    return False
