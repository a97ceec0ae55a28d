"""How objects come in: media, multipart and resumable uploads."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.gcs.model import Refused, Stored, check, check_name, invalid
from tests.helpers.gcs.objects import Objects, writable
from tests.helpers.gcs.protocol import Reply, Request, answer, load, multipart

PIECE = 256 << 10
"""Sizes of the pieces of a resumable upload are multiples of this, except the last one's."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What one request sends: a name, the resource with the client's wishes, the bytes."""

    name: str
    resource: Mapping[str, Any]
    data: bytes = field(default=b"", repr=False)


@dataclass
class _Session:
    bucket: str
    upload: Upload
    conditions: Mapping[str, str]
    received: bytearray
    made: Stored | None = None


def read(request: Request) -> Upload:
    """Takes an upload request apart."""
    kind = request.params.get("uploadType")
    if kind == "media":
        resource: dict[str, Any] = {"contentType": request.headers.get("content-type", "application/octet-stream")}
        data = request.body
    elif kind == "multipart":
        parts = list(multipart(request))
        if len(parts) != 2:
            raise invalid(f"A multipart upload has two parts, not {len(parts)}.")
        resource, data = load(parts[0][1]), parts[1][1]
        resource.setdefault("contentType", parts[1][0].get("content-type", "application/octet-stream"))
    elif kind == "resumable":
        resource, data = load(request.body), b""
        resource.setdefault("contentType", request.headers.get("x-upload-content-type", "application/octet-stream"))
    else:
        raise invalid(f"Invalid upload type: {kind}")
    resource |= _hashes(request)
    name = resource.get("name") or request.params.get("name") or ""
    check_name(name)
    return Upload(name=name, resource=resource, data=data)


class Uploads:
    """The operations, and the sessions of resumable uploads."""

    def __init__(self, objects: Objects):
        self.objects = objects
        self._sessions: dict[str, _Session] = {}
        self._numbers = itertools.count(1)

    def insert(self, bucket: str, upload: Upload, request: Request) -> Reply:
        """Does a media or multipart upload at once."""
        return answer(self._store(bucket, upload, request.params).resource(request.base), request)

    def start(self, bucket: str, upload: Upload, request: Request) -> Reply:
        """Begins a resumable upload; its place is in the header `Location`."""
        with self.objects.store.lock:
            check(request.params, self.objects.store.live(bucket, upload.name))
        number = f"upload-{next(self._numbers)}"
        self._sessions[number] = _Session(bucket, upload, request.params, bytearray())
        place = f"{request.base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
        return Reply(headers={"Location": place, "X-GUploader-UploadID": number})

    def find(self, number: str) -> tuple[str, str]:
        """Bucket and name of a session."""
        if number not in self._sessions:
            raise Refused(404, "notFound", "No such upload session.")
        return self._sessions[number].bucket, self._sessions[number].upload.name

    def cancel(self, number: str) -> Reply:
        """Ends a session."""
        del self._sessions[number]
        return Reply(status=499)

    def resume(self, number: str, request: Request) -> Reply:
        """Takes a piece, or says how far the upload came."""
        session = self._sessions[number]
        given = request.headers.get("content-range", "")
        found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", given)
        if not found and given:
            raise invalid(f"Invalid Content-Range: {given}")
        first, last, total = found.groups() if found else ("0", None, str(len(request.body)))
        with self.objects.store.lock:
            if session.made is None:
                self._take(session, request, first, last, total)
            if session.made is None:
                received = len(session.received)
                return Reply(status=308, headers={"Range": f"bytes=0-{received - 1}"} if received else {})
        return answer(session.made.resource(request.base), request)

    def _take(self, session: _Session, request: Request, first: str | None, last: str | None, total: str) -> None:
        data, received = request.body, session.received
        if last is not None and int(last) - int(first or 0) + 1 != len(data):
            raise invalid("The Content-Range does not fit the body.")
        if first is not None and data:
            if int(first) > len(received):
                raise Refused(503, "backendError", "A piece before this one is missing.")
            ends = total != "*" and int(first) + len(data) == int(total)
            if len(data) % PIECE and not ends:
                raise invalid(f"Pieces must be multiples of {PIECE} bytes.")
            received += data[len(received) - int(first) :]
        if total != "*" and len(received) == int(total):
            resource = {**session.upload.resource, **_hashes(request)}
            upload = Upload(name=session.upload.name, resource=resource, data=bytes(received))
            session.made = self._store(session.bucket, upload, session.conditions)

    def _store(self, bucket: str, upload: Upload, conditions: Mapping[str, str]) -> Stored:
        trial = Stored(bucket=bucket, name=upload.name, data=upload.data, generation=0)
        for key, value in (("crc32c", lambda: trial.crc32c), ("md5Hash", lambda: trial.md5)):
            if upload.resource.get(key) not in (None, "") and upload.resource[key] != value():
                raise invalid(f"Provided {key} {upload.resource[key]!r} doesn't match calculated {value()!r}.")
        more: dict[str, Any] = {"settings": writable(upload.resource)}
        if wanted := upload.resource.get("storageClass"):
            more["storage_class"] = wanted
        return self.objects.put(bucket, upload.name, upload.data, conditions, **more)


def _hashes(request: Request) -> dict[str, str]:
    """What `X-Goog-Hash` says, in the words of the resource."""
    words = {"crc32c": "crc32c", "md5": "md5Hash"}
    pairs = (pair.strip().partition("=") for pair in request.headers.get("x-goog-hash", "").split(","))
    return {words[name]: value for name, _, value in pairs if name in words}
