"""Writes objects of Cloud Storage: in one request, in pieces, or by letting the store join what it has.

Nothing is visible under the name before `commit`: an upload appears when its last byte is there. Pieces are kept until
the store has them, so that a request that fails is sent again without reading the source again.
"""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xxhash

from converter.storage.base import CONTENT_SUM, CONVERSION, RESIDUE, Blob, Mark, Reader, ReadError, write_through
from converter.storage.object_reader import ObjectReader, copy_bytes
from converter.storage.remote import split_url
from converter.storage.retries import Transient, retried

if TYPE_CHECKING:
    from converter.storage.gcs import GcsStorage

GRAIN = 256 << 10
"""Pieces of an upload are multiples of this, but for the last."""

PIECE = 4 << 20
"""Bytes that are held and sent at once. At 100 ms a request, one upload moves 40 MB/s."""

SUM_BYTES = 4


class GcsWriter:
    """See `base.Writer`."""

    def __init__(self, storage: "GcsStorage", name: str, size: int, mark: Mark | None):
        self.storage = storage
        self.name = name
        self.mark = mark
        self._capacity = min(-(-(size + SUM_BYTES) // GRAIN) * GRAIN, PIECE)
        self._buffer: bytearray | None = None
        self._held = 0
        self._sent = 0
        self._upload = ""
        self._whole: Blob | None = None
        self._is_there = False

    def write(self, data: Any) -> None:
        write_through(self, data)

    def room(self) -> memoryview:
        if self._buffer is None:
            self._buffer = bytearray(self._capacity)
        if self._held == len(self._buffer):
            self._send_piece()
        return memoryview(self._buffer)[self._held :]

    def added(self, count: int) -> None:
        self._held += count

    def copy_from(self, source: Reader, look: Callable[[memoryview], None]) -> int | None:
        """Leaves the bytes where they are if the store knows their checksum; what comes next is put behind them."""
        if self.mark and isinstance(source, ObjectReader) and self.storage.moves(source):
            self._whole = source.blob
            return int.from_bytes(source.blob.checksum or b"", "big")
        copy_bytes(source, look, self.write)
        return None

    def commit(self) -> None:
        try:
            if self._whole:
                self._compose(self._whole)
            elif self._upload:
                self._send(final=True)
            elif not self._is_there:
                self.storage.insert(self.name, self._held_bytes(), self._tags(known=True), 0 if self.mark else None)
        except FileExistsError:
            self._check_same()
        self._buffer = None

    def abort(self) -> None:
        self._buffer = None
        if self._upload:
            try:
                self.storage.client.send("DELETE", self._upload, self.name, accepted=(404, 410, 499))
            except (OSError, Transient):
                pass  # the store forgets it after a week

    def _held_bytes(self) -> memoryview:
        return memoryview(self._buffer or b"")[: self._held]

    def _tags(self, *, known: bool) -> dict[str, str]:
        """Whose the object is; and its content's checksum, where all or the last bytes of it are here."""
        if self.mark is None:
            return {}
        tail = bytes(self._held_bytes()[-SUM_BYTES:])
        content = {CONTENT_SUM: f"{int.from_bytes(tail, 'little'):08x}"} if known and len(tail) == SUM_BYTES else {}
        return {CONVERSION: self.mark.conversion, **content}

    def _check_same(self) -> None:
        """Accepts what another run of the same conversion, or a request whose answer was lost, has made.

        Raises:
          FileExistsError: the object is another one.
        """
        there = self.storage.find(self.name)
        is_ours = self.mark is not None and self.mark.is_on(there)
        if there is None or not is_ours or there.checksum != RESIDUE:
            raise FileExistsError(errno.EEXIST, "something else was written there while the conversion ran", self.name)

    def _compose(self, whole: Blob) -> None:
        """Joins the source's object with its checksum; from another bucket or class it is copied there first."""
        assert self.mark is not None
        bucket, _ = split_url(self.name)
        short = xxhash.xxh3_128_hexdigest(self.name.encode())
        tail = self.storage.put(f"{self.mark.work_area}/tails/{short}", bytes(self._held_bytes()))
        near = split_url(whole.name)[0] == bucket and whole.storage_class == tail.storage_class
        try:
            part = whole if near else self.storage.rewrite(whole, f"{self.mark.work_area}/chunks/{short}")
            made = self.storage.compose(self.name, [part, tail], self._tags(known=True), delete_parts=not near)
        except (FileNotFoundError, FileExistsError):
            there = self.storage.find(self.name)
            if there is None:
                raise ReadError("was removed or written again while it was read") from None
            self._check_same()
            made = there
        if made.checksum != RESIDUE:
            raise OSError(errno.EIO, "the store joined other bytes than it had listed", self.name)
        if near:
            self.storage.delete(tail.name)

    def _send_piece(self) -> None:
        if not self._upload and not self._is_there:
            self._upload = self._begin_upload()
        if self._upload:
            self._send(final=False)
        self._sent += self._held
        self._held = 0

    def _begin_upload(self) -> str:
        bucket, key = split_url(self.name)
        resource = {"name": key, "contentType": "application/octet-stream", "metadata": self._tags(known=False)}
        params = {"uploadType": "resumable", "ifGenerationMatch": 0 if self.mark else None}

        def attempt() -> str:
            path = f"/upload/storage/v1/b/{bucket}/o"
            return self.storage.client.send("POST", path, self.name, params=params, body=resource).headers["Location"]

        try:
            return retried(self.name, attempt)
        except FileExistsError:
            self._check_same()
            self._is_there = True
            return ""

    def _send(self, *, final: bool) -> None:
        """Sends what is held; after a failure, what the store does not have of it."""
        total = str(self._sent + self._held) if final else "*"
        is_first = True

        def attempt() -> None:
            nonlocal is_first
            start = self._sent if is_first else self._received(total)
            is_first = False
            if start is None or (start == self._sent + self._held and not final):
                return
            data = self._held_bytes()[start - self._sent :]
            place = f"bytes {start}-{start + len(data) - 1}/{total}" if len(data) else f"bytes */{total}"
            self.storage.client.send(
                "PUT", self._upload, self.name, body=bytes(data), headers={"Content-Range": place}, accepted=(308,)
            )

        retried(self.name, attempt)

    def _received(self, total: str) -> int | None:
        """How many bytes the store has; None where the object is finished."""
        answer = self.storage.client.send(
            "PUT", self._upload, self.name, body=b"", headers={"Content-Range": f"bytes */{total}"}, accepted=(308,)
        )
        if answer.status_code != 308:
            return None
        return int(answer.headers.get("Range", "bytes=0--1").rpartition("-")[2]) + 1 if "Range" in answer.headers else 0
