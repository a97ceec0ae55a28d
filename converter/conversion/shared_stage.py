"""The work area that processes of several hosts share on one file system; see `stage` for what a stage is.

The journal beside the destination is made once, by a link that fails where there is one, and names the directory in
which its processes work. Chunks are linked into their places under the same condition. No lock is needed, and no
process can harm what it does not know of: once the directory was moved away, all its paths lead nowhere.

Whoever finds all shares done commits, in a directory of its own. The first of these to move its checkpoint to the one
place for it decides which is published; that one is then moved to the destination, entry by entry, by whoever is there.
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from converter.arrays import Array, ChunkRecord, LeafStore, SharedLeafStore
from converter.checkpoints import CONFIG_NAME, ITEMS, RECEIPT_NAME, leaf_key, read_receipt, stored_record
from converter.conversion.shares import (
    DONE,
    MAX_RECORD_BYTES,
    DoneShare,
    check_division,
    decode,
    record_name,
    shares_in,
    still_awaited,
)
from converter.conversion.work_area import (
    MAX_JOURNAL_BYTES,
    SHARED,
    SharedWork,
    conversion_digest,
    copiers,
    differences,
    journal_path,
    leaf_name,
    stage_path,
)
from converter.errors import DestinationError
from converter.planning import Portion, Share
from converter.storage import Publication, SharedFiles, claim, read_json, storage_of, write_error

LEAVES, COMMITS, CHECKPOINT, JOURNAL = "leaves", "commits", "checkpoint", "journal.json"

TIDY_UPS = 3
"""Tries to remove a directory that others remove, too: each meets what is gone since it looked."""


class SharedStage(SharedWork):
    """See the module's docstring."""

    def __init__(self, destination: str, store: str, leaves: Sequence[Array], step: int = 0):
        """Makes nothing; `begin` comes next."""
        self.destination = destination
        self.root = ""
        self.store = store
        self.step = str(step)
        self.resumed = True  # any chunk may be there
        self.replaced = False
        self._local = storage_of(destination)
        self._place = stage_path(destination)
        self._journal = journal_path(destination)
        self._conversion: Mapping[str, Any] = {}
        self._own = secrets.token_hex(8)
        self._files = SharedFiles("")
        self._known: dict[str, dict[tuple[int, ...], ChunkRecord]] = {}
        self._numbers = {leaf.path: number for number, leaf in enumerate(leaves)}
        self._stores: dict[str, SharedLeafStore] = {}

    def begin(
        self,
        conversion: Mapping[str, Any],
        *,
        fresh: bool = False,
        overwrite: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Joins the conversion that is under way or was interrupted, or starts it.

        Raises:
          DestinationError: another conversion holds the destination, or one that shares with nobody.
        """
        assert not fresh
        assert not overwrite
        self._conversion = conversion
        try:
            while not self._join() and not self._start(about or {}):
                pass
            self._learn()
        except OSError as error:
            raise write_error(os.fspath(error.filename or self._place), error) from None

    def _join(self) -> bool:
        """Enters the work area that the journal names; False where there is no journal."""
        content = read_journal(self._journal)
        if content is None:
            return False
        if SHARED not in content:
            raise DestinationError(
                f"{self._place}: a conversion without --process was begun here, interrupted or under way; finish it by "
                "the same command without --process, or give another destination"
            )
        if content["conversion"] != self._conversion:
            raise DestinationError(
                f"{self._place}: holds another conversion, interrupted or under way; give another destination, or "
                "start over with --fresh and without --process",
                differences(content["conversion"], self._conversion),
            )
        self.enter(content[SHARED])
        if not self._local.is_directory(self.root):
            if self.is_finished():
                raise DestinationError(f"{self.destination}: the conversion is finished")
            # Somebody removed it by hand; the journal alone holds no work.
            self.root = ""
            self._remove_journal(content[SHARED])
            return False
        return True

    def _start(self, about: Mapping[str, Any]) -> bool:
        """Begins the conversion; False where another process did meanwhile."""
        self.enter(self._own)
        try:
            self._make(about)
            is_first = claim(self._at(JOURNAL), self._journal)
        except BaseException:
            self._discard()
            raise
        if not is_first:
            self._discard()
            return False
        if self.is_finished():
            # All was done between our looking and our beginning.
            self.remove()
            raise DestinationError(f"{self.destination}: the conversion is finished")
        return True

    def _make(self, about: Mapping[str, Any]) -> None:
        """Makes an empty work area, which nobody knows of yet."""
        self._local.make_directory(self.root)
        if not self._files.has_links():
            raise DestinationError(
                f"{self._place}: the file system has no hard links, which processes need to share the work; convert "
                "with one process"
            )
        self._local.prepare(self.destination, self.root)
        for name in (LEAVES, COMMITS, DONE):
            self._files.make_directory(self._at(name))
        content = {"conversion": dict(self._conversion), SHARED: self._own, "about": dict(about)}
        self._files.write(self._at(JOURNAL), json.dumps(content).encode(), durable=True)

    def enter(self, name: str) -> None:
        """Takes the directory of that name in the work area for its own."""
        self.root = os.path.join(self._place, os.path.basename(str(name)))
        self._files = SharedFiles(self.root)

    def _discard(self) -> None:
        with suppress(OSError):
            self._local.remove(self.root)
        with suppress(OSError):
            self._local.remove_empty(self._place)
        self.root = ""

    def _learn(self) -> None:
        """Takes in what other processes have recorded."""
        self._known = {}
        for done in self.records():
            for path, chunks in done.written.items():
                self._known.setdefault(path, {}).update(chunks)

    def _at(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    @property
    def output(self) -> str:
        """Where the checkpoint takes shape that this process commits."""
        return self._at(COMMITS, self._own, CHECKPOINT)

    def leaf_directory(self, leaf: Array) -> str:
        return self._at(LEAVES, leaf_name(self.store, leaf, self._numbers[leaf.path]))

    def open_leaf(self, leaf: Array) -> LeafStore:
        return self._open(leaf)

    def _open(self, leaf: Array) -> SharedLeafStore:
        store = SharedLeafStore(
            leaf,
            self.leaf_directory(leaf),
            database_key=leaf_key(leaf.path) if self.store == "ocdbt" else None,
            storage=self._files,
            known=self._known.get(leaf.path, {}),
        )
        self._stores[leaf.path] = store
        return store

    def copiers(self, transfer: str) -> int:
        return copiers(transfer)

    def check_share(self, portion: Portion) -> None:
        check_division(portion, self.records())

    def record(self, portion: Portion, digests: Mapping[str, Mapping[tuple[int, ...], int | None]]) -> None:
        """Makes what was written durable, and says so.

        Raises:
          DestinationError: the work area is gone, or cannot be written.
        """
        chunks: dict[str, dict[tuple[int, ...], ChunkRecord]] = {}
        for path, of_leaf in digests.items():
            sizes = {index: self._stores[path].size(index) for index in of_leaf}
            lost = [index for index, size in sizes.items() if size is None]
            if lost:
                raise DestinationError(
                    f"{self.root}: {len(lost)} chunks of {path} were removed while the conversion ran; run the same "
                    "command again to resume"
                )
            chunks[path] = {index: ChunkRecord(of_leaf[index], size) for index, size in sizes.items() if size}
        name = self._at(DONE, record_name(portion.share))
        try:
            self._files.flush(self.root)
            self._files.write(name, DoneShare.of(portion, chunks).encode(), durable=True)
        except OSError as error:
            raise write_error(name, error) from None

    def records(self) -> list[DoneShare]:
        """The records of all shares that are done.

        Raises:
          DestinationError: one is damaged.
        """
        names = [self._at(DONE, record_name(share)) for share in self.done()]
        return [decode(name, self._files.read(name, MAX_RECORD_BYTES)) for name in names]

    def done(self) -> list[Share]:
        return shares_in(self._files.names(self._at(DONE)))

    def awaited(self, share: Share) -> list[Share]:
        try:
            done = self.done()
        except OSError as error:
            raise write_error(self._at(DONE), error) from None
        return still_awaited(done, share.count)

    def is_finished(self) -> bool:
        return is_published(self.destination, self.step, self._conversion)

    def finish_leaves(
        self,
        leaves: Sequence[Array],
        digests: Mapping[str, Mapping[tuple[int, ...], int | None]],  # noqa: ARG002
    ) -> dict[str, dict[str, Any]]:
        """Looks for all chunks that were recorded, by any process, and ends the leaves."""
        try:
            self._learn()
        except OSError as error:
            raise write_error(self._at(DONE), error) from None
        sealed = {leaf.path: self._open(leaf).seal(self._known.get(leaf.path, {})) for leaf in leaves}
        return {leaf_key(path): stored_record(chunks) for path, chunks in sealed.items()}

    def holds_work(self) -> bool:
        """See `Work`; what Orbax made again of it after others had finished is none."""
        return bool(self.root) and self._local.is_directory(self.root) and not self.is_finished()

    def staged_bytes(self) -> int:
        """None that count: what is needed is counted for one share at a time."""
        return 0

    def prepare(self) -> None:
        """Whoever started the conversion has tried it."""

    @property
    def _publication(self) -> Publication:
        return Publication(
            finished=self._at(CHECKPOINT),
            destination=self.destination,
            replaced="",
            is_marker=str.isdigit,
            others=(CONFIG_NAME, RECEIPT_NAME),
        )

    def publish(self) -> None:
        content = read_journal(self._journal)
        if content is None or content.get(SHARED) != os.path.basename(self.root):
            raise DestinationError(f"{self._place}: was removed, or taken by another conversion, while this one ran")
        try:
            self._files.rename_once(self.output, self._at(CHECKPOINT))
        except OSError as error:
            raise write_error(self._at(CHECKPOINT), error) from None
        self.help_publish()

    def help_publish(self) -> None:
        """Moves the checkpoint that was decided on to the destination.

        Raises:
          DestinationError: something else is there.
        """
        self._files.publish(self._publication)
        if not self.is_finished():
            raise DestinationError(f"{self.destination}: something else was put there while the conversion ran")

    def is_decided(self) -> bool:
        """Whether a checkpoint is waiting to be moved to the destination."""
        return self._local.is_directory(self._at(CHECKPOINT))

    def mark_source_fault(self) -> None:
        """The other processes may read what this one cannot."""

    def remove(self) -> str:
        """Moves the work area away from all processes, and removes it; the journal goes last."""
        if not self.root:
            return ""
        name, gone = os.path.basename(self.root), os.path.join(self._place, f"gone-{self._own}")
        with suppress(OSError):
            self._files.rename_once(self.root, gone)
        content = read_journal(self._journal)
        # The place may be that of the next conversion by now: then only what is ours goes.
        is_anothers = content is not None and content.get(SHARED) != name
        problem = self._clear(gone if is_anothers else self._place)
        self._remove_journal(name)
        return problem

    def _clear(self, directory: str) -> str:
        """Removes a directory, beside others that do so as well; returns why not all of it is gone."""
        problem = ""
        for _ in range(TIDY_UPS):
            if not self._local.exists(directory):
                return ""
            try:
                self._local.remove(directory)
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}"
        return problem if self._local.exists(directory) else ""

    def _remove_journal(self, name: str) -> None:
        content = read_journal(self._journal)
        if content is not None and content.get(SHARED) == name:
            with suppress(OSError):
                self._local.remove(self._journal)

    def close(self) -> None:
        """Nothing is held."""


def read_journal(path: str) -> dict[str, Any] | None:
    """What a local journal says; None where there is none.

    Raises:
      DestinationError: it is damaged.
    """
    if storage_of(path).missing((path,)):
        return None
    try:
        content = read_json(path, MAX_JOURNAL_BYTES, DestinationError)
    except DestinationError:
        if storage_of(path).missing((path,)):
            return None
        raise
    if not isinstance(content.get("conversion"), dict):
        raise DestinationError(f"{path}: is damaged; remove it, and {path.removesuffix('.json')}")
    return content


def is_shared(destination: str) -> bool:
    """Whether processes of several hosts have begun a conversion at a local destination."""
    try:
        return SHARED in (read_journal(journal_path(destination)) or {})
    except DestinationError:
        return False


def is_published(destination: str, step: str, conversion: Mapping[str, Any]) -> bool:
    """Whether the checkpoint of a conversion is in its place on a local file system."""
    storage = storage_of(destination)
    if not storage.is_directory(os.path.join(destination, step, ITEMS)):
        return False
    receipt, _ = read_receipt(destination)
    return receipt is not None and receipt.get("conversion") == conversion_digest(conversion)


def finish_published_shares(destination: str, conversion: Mapping[str, Any], step: int = 0) -> bool:
    """Finishes the publication at which processes were killed; returns whether the checkpoint is in its place."""
    stage = SharedStage(destination, "", (), step)
    stage._conversion = conversion
    content = read_journal(stage._journal)
    ours = content is not None and SHARED in content and content["conversion"] == conversion
    if ours and content is not None:
        stage.enter(content[SHARED])
        if stage.is_decided() and not stage.is_finished():
            stage.help_publish()
    if not stage.is_finished():
        return False
    if ours:
        stage.remove()
    return True
