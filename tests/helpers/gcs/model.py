"""What the store holds, and the rules of Cloud Storage that do not depend on the request's form.

Sources: cloud.google.com/storage/docs, pages `json_api/v1/objects`, `request-preconditions`, `buckets` and `objects`.
"""

import base64
import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote

import crc32c

MAX_METADATA = 8 << 10
"""Bytes of keys and values of custom metadata that an object may have."""


class Refused(Exception):
    """A request is not done.

    Attributes:
      status: HTTP status; 304 has no body.
      reason: the `reason` of the JSON error.
    """

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})

    def document(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        detail = {"domain": "global", "reason": self.reason, "message": str(self)}
        return {"error": {"code": self.status, "message": str(self), "errors": [detail]}}


def invalid(message: str) -> Refused:
    """400 for a request that does not make sense."""
    return Refused(400, "invalid", message)


def not_found(message: str) -> Refused:
    """404, for buckets and objects."""
    return Refused(404, "notFound", message)


def denied(permission: str) -> Refused:
    """403, in the words of the real store."""
    message = f"tester does not have {permission} access. Permission '{permission}' denied on resource"
    return Refused(403, "forbidden", f"{message} (or it may not exist).")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket's settings; `denied` are the permissions that nobody has on it and its objects."""

    name: str
    location: str = "US-CENTRAL1"
    storage_class: str = "STANDARD"
    requester_pays: bool = False
    denied: frozenset[str] = frozenset()
    created: float = 0
    metageneration: int = 1

    def resource(self) -> dict[str, Any]:
        """The bucket as the JSON API shows it."""
        several = self.location in ("US", "EU", "ASIA")
        return {
            "kind": "storage#bucket", "id": self.name, "name": self.name, "location": self.location,
            "locationType": "multi-region" if several else "region", "storageClass": self.storage_class,
            "billing": {"requesterPays": self.requester_pays}, "hierarchicalNamespace": {"enabled": False},
            "timeCreated": stamp(self.created), "updated": stamp(self.created),
            "metageneration": str(self.metageneration), "projectNumber": "1", "etag": f"CAE{self.metageneration}",
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One generation of an object. `components` is 0 unless the object was composed, and then it has no MD5."""

    bucket: str
    name: str
    data: bytes = field(repr=False)
    generation: int
    metageneration: int = 1
    storage_class: str = "STANDARD"
    components: int = 0
    has_md5: bool = True
    created: float = 0
    updated: float = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Writable fields of the resource: `contentType`, `metadata`, `cacheControl` and such."""

    @cached_property
    def crc32c(self) -> str:
        """Base64 of the big-endian CRC-32C."""
        return base64.b64encode(crc32c.crc32c(self.data).to_bytes(4, "big")).decode()

    @cached_property
    def md5(self) -> str:
        """Base64 of the MD5, which composed objects do not have."""
        return base64.b64encode(hashlib.md5(self.data, usedforsecurity=False).digest()).decode()

    @property
    def etag(self) -> str:
        """Differs for each generation and metageneration."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    def resource(self, base: str) -> dict[str, Any]:
        """The object as the JSON API shows it, with links that begin with `base`."""
        place = f"storage/v1/b/{self.bucket}/o/{quote(self.name, safe='')}"
        shown = {
            "kind": "storage#object", "id": f"{self.bucket}/{self.name}/{self.generation}",
            "selfLink": f"{base}/{place}",
            "mediaLink": f"{base}/download/{place}?generation={self.generation}&alt=media",
            "name": self.name, "bucket": self.bucket, "generation": str(self.generation),
            "metageneration": str(self.metageneration), "storageClass": self.storage_class,
            "size": str(len(self.data)), "crc32c": self.crc32c, "etag": self.etag, "timeCreated": stamp(self.created),
            "updated": stamp(self.updated), "timeStorageClassUpdated": stamp(self.created), **self.settings,
        }  # fmt: skip
        return (
            shown
            | ({"componentCount": self.components} if self.components else {})
            | ({"md5Hash": self.md5} if self.has_md5 else {})
        )


class Store:
    """All buckets and objects. Whoever reads and then changes them holds `lock` meanwhile."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, Bucket] = {}
        self.objects: dict[str, dict[str, Stored]] = {}
        self._generation = 1_700_000_000_000_000

    def generation(self) -> int:
        """A number larger than all before."""
        with self.lock:
            self._generation += 1000
            return self._generation

    def bucket(self, name: str) -> Bucket:
        """A bucket that must be there."""
        if name not in self.buckets:
            raise not_found("The specified bucket does not exist.")
        return self.buckets[name]

    def live(self, bucket: str, name: str) -> Stored | None:
        """The object of that name, if there is one."""
        self.bucket(bucket)
        return self.objects[bucket].get(name)

    def wanted(self, bucket: str, name: str, generation: object = None) -> Stored:
        """The object of that name, which must be there, in this generation if one is given."""
        found = self.live(bucket, name)
        if found is None or (generation is not None and str(generation) != str(found.generation)):
            raise not_found(f"No such object: {bucket}/{name}")
        return found


def check(conditions: Mapping[str, Any], found: Stored | None, prefix: str = "if", *, reading: bool = False) -> None:
    """Raises 412 where a precondition does not hold, or 304 where only "not" fails and the request reads."""
    state = {
        "Generation": found.generation if found else 0,
        "Metageneration": found.metageneration if found else None,
    }
    for what, number in state.items():
        for negated, word in ((False, "Match"), (True, "NotMatch")):
            given = conditions.get(f"{prefix}{what}{word}")
            if given is None:
                continue
            if not re.fullmatch(r"\d+", str(given)):
                raise invalid(f"Invalid value for {prefix}{what}{word}: {given}")
            # "Not match" fails, too, where no object is.
            if (int(given) == number) == negated or (negated and found is None):
                status = 304 if negated and reading else 412
                raise Refused(
                    status, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."
                )


def check_name(name: str) -> None:
    """Raises 400 for a name that objects may not have."""
    if not 1 <= len(name.encode()) <= 1024 or set(name) & {"\r", "\n"} or name in (".", ".."):
        raise invalid(f"Invalid object name: {name!r}")


def check_bucket_name(name: str) -> None:
    """Raises 400 for a name that buckets may not have."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name):
        raise invalid(f"Invalid bucket name: {name!r}")


def check_metadata(settings: Mapping[str, Any]) -> None:
    """Raises 400 for custom metadata that is too large or no strings."""
    metadata = settings.get("metadata", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise invalid("Custom metadata must be strings.")
    if sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items()) > MAX_METADATA:
        raise invalid("The custom metadata is too large.")


def stamp(moment: float) -> str:
    """A time as the API shows it."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
