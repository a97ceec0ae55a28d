"""The work area of a conversion into a store of objects, where nothing can be renamed.

Chunks go straight to their places. What makes them a checkpoint comes last: `_METADATA`, and then the two commit
markers that Orbax looks for in object stores. Beside the destination is a prefix with the journal, which says what is
being made there, and with what is only needed meanwhile.

There is no lock, and no process that others wait for. Names and contents of a conversion are the same for every run of
it, each object is only written where nothing is, and carries the conversion's digest: equal runs help each other, a
killed one is resumed after one listing, and another conversion is refused by the journal. The small files, which
differ from run to run (times, random keys), are put into one object first: whichever run does so decides for all.
"""

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from converter.arrays import CHUNKS, Array, ObjectLeafStore
from converter.checkpoints import ITEMS, MARKER, leaf_key, sum_record
from converter.conversion.object_checks import check_ours, check_removable
from converter.conversion.object_records import ObjectRecords
from converter.conversion.object_upload import Upload, small_files
from converter.conversion.shares import DONE, DoneShare, check_division, still_awaited
from converter.conversion.work_area import (
    MAX_JOURNAL_BYTES,
    STREAMS,
    SharedWork,
    conversion_digest,
    differences,
    is_repaired,
    leaf_name,
    stage_path,
)
from converter.errors import DestinationError
from converter.planning import IN_STORE, Portion, Share
from converter.storage import Blob, Mark, has_litter_in, object_storage, parse_json, write_error

RECORDS = "records"
"""The entry of the journal that names the directory of the records of shares."""

MOVERS = 32
"""Threads that only wait for the store, which passes chunks on by itself."""


class ObjectStage(SharedWork):
    """See the module's docstring, and `stage.Stage` for what a stage is."""

    def __init__(
        self, destination: str, store: str, leaves: Sequence[Array], step: int = 0, *, one_of_many: bool = False
    ):
        """Makes the local directory for metadata; `begin` comes next.

        Args:
          destination: the checkpoint.
          store: how leaves are stored.
          leaves: all leaves.
          step: the number of the step directory.
          one_of_many: this process writes few of the chunks: where it joins others, it asks for each of these instead
            of listing all that is there.
        """
        self.storage = object_storage(destination)
        self.destination = destination
        self.root = stage_path(destination)
        self.journal = f"{self.root}/journal.json"
        self.store = store
        self.step = str(step)
        self.resumed = False
        self.replaced = False
        self._mark = Mark(conversion="", work_area=self.root)
        self._one_of_many = one_of_many
        self._found: dict[str, Blob] = {}
        self._find: Callable[[str], Blob | None] = self._found.get
        self._numbers = {leaf.path: number for number, leaf in enumerate(leaves)}
        self._stores: dict[str, ObjectLeafStore] = {}
        self._published = False
        self._content: dict[str, Any] = {}
        try:
            self._local = tempfile.TemporaryDirectory(prefix="ax2mt-")
        except OSError as error:
            raise DestinationError(f"no directory can be made for metadata: {error.strerror}; set TMPDIR") from None

    def begin(
        self,
        conversion: Mapping[str, Any],
        *,
        fresh: bool,
        overwrite: bool,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Joins a conversion that is under way or was interrupted, or starts a new one.

        Args:
          conversion: all that decides over the result, as JSON values.
          fresh: throw away what an earlier run left.
          overwrite: remove the checkpoint that is there.
          about: what the journal says of it to people.

        Raises:
          DestinationError: another conversion is under way; or something is there that is not ours to remove.
        """
        try:
            self._mark = Mark(conversion=conversion_digest(conversion), work_area=self.root)
            while not self._join_or_start(conversion, about or {}, fresh=fresh, overwrite=overwrite):
                pass
        except OSError as error:
            raise _refused(error, self.destination) from None

    def _join_or_start(
        self, conversion: Mapping[str, Any], about: Mapping[str, Any], *, fresh: bool, overwrite: bool
    ) -> bool:
        """One try; False where another run started meanwhile."""
        journal, content = self._read()
        same = content.get("conversion") == conversion
        if journal and not fresh and not same and not is_repaired(content, conversion):
            raise DestinationError(
                f"{self.root}: holds another conversion, interrupted or under way; --fresh starts over",
                differences(content.get("conversion") or {}, conversion),
            )
        keep = same and not fresh
        if keep and self._one_of_many and not content["replacing"]:
            self._content, self.resumed, self._find = content, True, self.storage.look
            return True
        there = self._list()
        finished = [name for name in there if name.rpartition("/")[2] == MARKER]
        ours = {name for name, blob in there.items() if keep and self._mark.is_on(blob)}
        others = there.keys() - ours
        if others:
            check_removable(
                self.destination, there, others,
                fresh=fresh or bool(journal), overwrite=overwrite, replacing=content.get("replacing", False),
            )  # fmt: skip
        if journal and not keep:
            self._clear_work_area(journal)
            journal = None
        replacing = bool(finished and others) or content.get("replacing", False)
        if journal is None:
            content = {
                "conversion": dict(conversion),
                "source_fault": False,
                "replacing": replacing,
                "about": dict(about),
                RECORDS: secrets.token_hex(8),
            }
            try:
                self.storage.put(self.journal, json.dumps(content).encode(), version=0)
            except FileExistsError:
                return False
        self._content, self.resumed, self.replaced = content, bool(ours) or keep, bool(finished and others)
        self._remove(there, others)
        self._found = {f"{self.destination}/{name}": there[name] for name in ours}
        self._find = self._found.get
        return True

    def _remove(self, there: Mapping[str, Blob], names: set[str]) -> None:
        """Removes objects in the versions that were listed, markers first: from then on there is no checkpoint."""
        markers = sorted((name for name in names if name.endswith(MARKER)), key=lambda name: name.count("/"))
        for name in markers:
            self.storage.delete(there[name].name, there[name].version)

        def remove(name: str) -> None:
            # A run of the same conversion may have removed it already, and written its own.
            with suppress(FileExistsError):
                self.storage.delete(there[name].name, there[name].version)

        self.storage.together(remove, sorted(names - set(markers)))

    @property
    def output(self) -> str:
        """Where the checkpoint's small files take shape, on this machine."""
        return os.path.join(self._local.name, "checkpoint")

    def leaf_directory(self, leaf: Array) -> str:
        return os.path.join(self._local.name, "leaves", self._leaf_name(leaf))

    def _leaf_name(self, leaf: Array) -> str:
        return leaf_name(self.store, leaf, self._numbers[leaf.path])

    def _place(self, leaf: Array) -> str:
        """Where a leaf's chunks are, below the directory of arrays."""
        return self._leaf_name(leaf) + (f"/{CHUNKS}" if self.store == "ocdbt" else "")

    def open_leaf(self, leaf: Array) -> ObjectLeafStore:
        store = ObjectLeafStore(
            leaf,
            self.leaf_directory(leaf),
            database_key=leaf_key(leaf.path) if self.store == "ocdbt" else None,
            chunk_directory=f"{self.destination}/{self.step}/{ITEMS}/{self._place(leaf)}",
            mark=self._mark,
            find=self._find,
        )
        self._stores[leaf.path] = store
        return store

    def finish_leaves(
        self,
        leaves: Sequence[Array],
        digests: Mapping[str, Mapping[tuple[int, ...], int | None]],  # noqa: ARG002
    ) -> dict[str, dict[str, Any]]:
        """Looks at all chunks by one listing, and writes what depends on all of them."""
        try:
            there = self._list()
            check_ours(self.destination, there, self._mark)
            found = {f"{self.destination}/{name}": blob for name, blob in there.items()}
            sealed = {leaf.path: (self._stores.get(leaf.path) or self.open_leaf(leaf)).seal(found) for leaf in leaves}
        except OSError as error:
            raise write_error(os.fspath(error.filename or self.destination), error) from None
        places = {leaf.path: self._place(leaf) for leaf in leaves}
        return {leaf_key(path): sum_record(chunks, places[path]) for path, chunks in sealed.items()}

    def check_share(self, portion: Portion) -> None:
        """Refuses a share that does not complete those that are done; or that nobody needs any more.

        Raises:
          DestinationError: the work was divided otherwise, or all was done before this process began.
        """
        try:
            if self.is_finished():
                raise DestinationError(f"{self.destination}: the conversion is finished")
            # Those that are there agree with each other: each was compared with one of those before it.
            check_division(portion, self._records.read(portion.share.count, most=1))
        except OSError as error:
            raise _refused(error, self.destination) from None

    def record(
        self,
        portion: Portion,
        digests: Mapping[str, Mapping[tuple[int, ...], int | None]],  # noqa: ARG002
    ) -> None:
        """Says that a share is done; what was written, a listing shows."""
        try:
            if not self.is_finished():
                self._records.write(portion)
            if self.is_finished():
                # Whoever tidied up may have done so before the record was written.
                self._records.remove(portion.share)
        except OSError as error:
            raise write_error(os.fspath(error.filename or self.root), error) from None

    def records(self) -> list[DoneShare]:
        """The records of all shares that are done."""
        return self._records.read()

    @property
    def _records(self) -> ObjectRecords:
        return ObjectRecords(self.storage, f"{self.root}/{DONE}/{self._content[RECORDS]}")

    def awaited(self, share: Share) -> list[Share]:
        try:
            done = self._records.shares()
        except OSError as error:
            raise _refused(error, self.destination) from None
        return still_awaited(done, share.count)

    def holds_work(self) -> bool:
        return self.resumed or self.replaced or any(store.digests for store in self._stores.values())

    def staged_bytes(self) -> int:
        return sum(blob.size for blob in self._found.values())

    def copiers(self, transfer: str) -> int:
        return MOVERS if transfer == IN_STORE else STREAMS

    def prepare(self) -> None:
        """Nothing can stand in the way that was not seen before."""

    def publish(self) -> None:
        """Uploads the small files, in an order in which nothing that is there can be taken for more than it is.

        Raises:
          DestinationError: one cannot be written, or something else was written there.
        """
        try:
            if not self.is_finished():
                self._check_in_place()
                upload = Upload(self.storage, self.destination, self.step, self.root, self._mark)
                files = upload.agree(small_files(self.output), self.is_finished)
                if not self.is_finished():
                    upload.put(files, self._check_in_place)
        except OSError as error:
            raise write_error(os.fspath(error.filename or self.destination), error) from None
        self._published = True

    def is_finished(self) -> bool:
        """Whether a run of this conversion has put the last marker in its place."""
        return self._mark.is_on(self._stat(f"{self.destination}/{self.step}/{MARKER}"))

    def _check_in_place(self) -> None:
        """Sees that nobody began something else here; an equal run may have tidied up already."""
        _, content = self._read()
        if content.get("conversion") == self._content["conversion"]:
            return
        if not content:
            self.storage.put(self.journal, json.dumps(self._content).encode(), version=0)
            return
        raise DestinationError(f"{self.root}: another conversion was begun here meanwhile; give another destination")

    def mark_source_fault(self) -> None:
        with suppress(OSError, DestinationError):
            journal, content = self._read()
            if journal and content.get("conversion") == self._content["conversion"]:
                changed = {**content, "source_fault": True}
                self.storage.put(self.journal, json.dumps(changed).encode(), version=journal.version)

    def remove(self) -> str:
        """Removes the work area, the journal last; without a checkpoint in place, our chunks before it."""
        problem = ""
        try:
            if not self._published and self._content:
                there = self._list()
                mine = {name for name, blob in there.items() if self._mark.is_on(blob)}
                if not self.is_finished():
                    self._remove(there, mine)
            if self._content:
                self._clear_work_area(self._stat(self.journal))
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
        self.close()
        return problem

    def close(self) -> None:
        self._local.cleanup()

    def _clear_work_area(self, journal: Blob | None) -> None:
        self.storage.abort_uploads(self.destination)
        names = [name for blob in self.storage.walk(self.root) if (name := f"{self.root}/{blob.name}") != self.journal]
        self.storage.together(self.storage.delete, names)
        if journal:
            with suppress(FileExistsError):
                self.storage.delete(self.journal, journal.version)

    def _read(self) -> tuple[Blob | None, dict[str, Any]]:
        """The journal and what it says."""
        journal = self._stat(self.journal)
        if journal is None:
            return None, {}
        try:
            data = self.storage.read(self.journal, MAX_JOURNAL_BYTES)
        except FileNotFoundError:
            return None, {}
        content = parse_json(data, DestinationError, label=self.journal)
        if not isinstance(content.get("conversion"), dict) or not isinstance(content.get(RECORDS), str):
            raise DestinationError(f"{self.journal}: is damaged; remove it, and all below {self.root}")
        return journal, content

    def read_journal(self) -> dict[str, Any] | None:
        """What the journal says, for one who only looks; None where there is none."""
        _, self._content = self._read()
        return self._content or None

    def _stat(self, name: str) -> Blob | None:
        try:
            return self.storage.head(name)
        except FileNotFoundError:
            return None

    def _list(self) -> dict[str, Blob]:
        """All that is at the destination, by its name below it, under its URL."""
        self.storage.release(self.destination)
        found = (
            replace(blob, name=f"{self.destination}/{blob.name}")
            for blob in self.storage.walk(self.destination)
            if not has_litter_in(blob.name)
        )
        return {blob.name.removeprefix(f"{self.destination}/"): blob for blob in self.storage.described(found)}


def finish_published_objects(
    destination: str, conversion: Mapping[str, Any], step: int = 0, *, shared: bool = False
) -> bool:
    """Tidies up after a run that was killed when its checkpoint was in place; returns whether that was so.

    Args:
      destination: the checkpoint.
      conversion: what was to be done.
      step: the number of the step directory.
      shared: others may have done it all, and tidied up.
    """
    stage = ObjectStage(destination, "", (), step)
    try:
        _, content = stage._read()
        stage._content, stage._published = content, True
        stage._mark = Mark(conversion=conversion_digest(conversion), work_area=stage.root)
        is_ours = content.get("conversion") == conversion or (shared and not content)
        is_done = is_ours and stage.is_finished()
        if is_done:
            stage.remove()
        return is_done
    except OSError as error:
        raise _refused(error, destination) from None
    finally:
        stage.close()


def _refused(error: OSError, destination: str) -> DestinationError:
    return DestinationError(f"{error.filename or destination}: {error.strerror or error}")
