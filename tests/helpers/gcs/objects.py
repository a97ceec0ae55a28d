"""What the JSON API does with objects that are there: get, list, compose, rewrite, copy, patch, delete."""

import base64
import bisect
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any

from tests.helpers.gcs.model import Refused, Store, Stored, check, check_metadata, check_name, denied, invalid
from tests.helpers.gcs.protocol import Reply, Request, answer, byte_range

PAGE, MAX_COMPOSED = 1000, 32
WRITABLE = ("contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "metadata")
UNSUPPORTED = ("versions", "softDeleted", "matchGlob", "includeTrailingDelimiter", "filter")


@dataclass
class Clock:
    """The store's time: that of the machine, and `skew` seconds more."""

    skew: float = 0

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.skew


class Objects:
    """The operations, on one store.

    Attributes:
      rewrite_limit: bytes that one call moves between locations or storage classes.
      md5: whether new objects have an MD5; benchmarks save its time.
    """

    def __init__(self, store: Store, clock: Clock):
        self.store, self.clock = store, clock
        self.rewrite_limit = 1 << 20
        self.md5 = True
        self._tokens: dict[str, tuple[object, int]] = {}
        self._numbers = itertools.count(1)

    def put(self, bucket: str, name: str, data: bytes, conditions: Mapping[str, Any], **more: Any) -> Stored:
        """Makes a new generation if the conditions hold; `more` are fields of `Stored`."""
        check_name(name)
        check_metadata(more.get("settings", {}))
        with self.store.lock:
            holder = self.store.bucket(bucket)
            old = self.store.live(bucket, name)
            check(conditions, old)
            if old and "storage.objects.delete" in holder.denied:
                raise denied("storage.objects.delete")
            now = self.clock.now()
            hashed = self.md5 and not more.get("components")
            fields = {"storage_class": holder.storage_class, "created": now, "updated": now, "has_md5": hashed, **more}
            made = Stored(bucket=bucket, name=name, data=data, generation=self.store.generation(), **fields)
            self.store.objects[bucket][name] = made
            return made

    def get(self, bucket: str, name: str, request: Request) -> Reply:
        """The metadata, or the content with `alt=media`."""
        found = self.store.wanted(bucket, name, request.params.get("generation"))
        check(request.params, found, reading=True)
        if request.params.get("alt") != "media":
            return answer(found.resource(request.base), request, {"ETag": found.etag})
        headers = {
            "Content-Type": found.settings.get("contentType", "application/octet-stream"), "ETag": found.etag,
            "Last-Modified": formatdate(found.updated, usegmt=True), "X-Goog-Generation": str(found.generation),
            "X-Goog-Metageneration": str(found.metageneration), "X-Goog-Storage-Class": found.storage_class,
            "X-Goog-Stored-Content-Length": str(len(found.data)), "X-Goog-Stored-Content-Encoding": "identity",
            "X-Goog-Hash": f"crc32c={found.crc32c}" + (f",md5={found.md5}" if found.has_md5 else ""),
        }  # fmt: skip
        part = byte_range(request.headers.get("range"), len(found.data))
        if part is None:
            return Reply(body=found.data, headers=headers, content=True)
        headers["Content-Range"] = f"bytes {part[0]}-{part[1] - 1}/{len(found.data)}"
        return Reply(status=206, body=found.data[slice(*part)], headers=headers, content=True)

    def list(self, bucket: str, request: Request) -> Reply:
        """One page of names, and of the prefixes that a delimiter makes."""
        params = request.params
        if unsupported := [name for name in UNSUPPORTED if params.get(name, "false") != "false"]:
            raise Refused(501, "notImplemented", f"The fake does not know {', '.join(unsupported)}.")
        with self.store.lock:
            self.store.bucket(bucket)
            objects = dict(self.store.objects[bucket])
        wanted = params.get("maxResults", str(PAGE))
        if not re.fullmatch(r"\d+", wanted):
            raise invalid(f"Invalid value for maxResults: {wanted}")
        size = min(int(wanted) or PAGE, PAGE)
        last = base64.urlsafe_b64decode(params.get("pageToken", "")).decode()
        page = list(itertools.islice(_entries(sorted(objects), params, last), size + 1))
        document: dict[str, Any] = {"kind": "storage#objects"}
        if items := [objects[name].resource(request.base) for name, is_object in page[:size] if is_object]:
            document["items"] = items
        if prefixes := [name for name, is_object in page[:size] if not is_object]:
            document["prefixes"] = prefixes
        if len(page) > size:
            document["nextPageToken"] = base64.urlsafe_b64encode(page[size - 1][0].encode()).decode()
        return answer(document, request)

    def compose(self, bucket: str, name: str, request: Request) -> Reply:
        """Joins up to 32 objects of one bucket and storage class."""
        order = request.json()
        parts = order.get("sourceObjects", [])
        if not 1 <= len(parts) <= MAX_COMPOSED:
            raise invalid(f"The number of source components provided ({len(parts)}) must be between 1 and 32.")
        with self.store.lock:
            sources: list[Stored] = []
            for part in parts:
                source = self.store.wanted(bucket, part["name"], part.get("generation"))
                check(part.get("objectPreconditions", {}), source)
                sources.append(source)
            storage_class = order.get("destination", {}).get("storageClass", self.store.bucket(bucket).storage_class)
            if {source.storage_class for source in sources} != {storage_class}:
                raise invalid("All source objects must have the storage class of the destination.")
            made = self.put(
                bucket, name, b"".join(source.data for source in sources), request.params,
                components=sum(source.components or 1 for source in sources),
                settings=writable(order.get("destination", {})), storage_class=storage_class,
            )  # fmt: skip
            if order.get("deleteSourceObjects"):
                for source in sources:
                    if source.name != name:
                        self.store.objects[bucket].pop(source.name, None)
        return answer(made.resource(request.base), request)

    def rewrite(self, source: tuple[str, str], target: tuple[str, str], request: Request, *, whole: bool) -> Reply:
        """Copies an object, in several calls between locations or classes; `whole`: `copyTo`, always in one."""
        params = request.params
        with self.store.lock:
            found = self.store.wanted(*source, params.get("sourceGeneration"))
            check(params, found, "ifSource")
            check(params, self.store.live(*target))
            holder = self.store.bucket(target[0])
            wanted = request.json()
            storage_class = wanted.get("storageClass", holder.storage_class)
            near = self.store.bucket(source[0]).location == holder.location and found.storage_class == storage_class
            done = len(found.data) if near or whole else self._moved(found, target, params)
            if done >= len(found.data):
                settings = writable(wanted) if wanted else found.settings
                components = found.components if near else min(found.components, 1)
                more = {"settings": settings, "components": components, "storage_class": storage_class}
                made = self.put(*target, found.data, params, **more)
                if whole:
                    return answer(made.resource(request.base), request)
        document: dict[str, Any] = {
            "kind": "storage#rewriteResponse", "objectSize": str(len(found.data)),
            "totalBytesRewritten": str(min(done, len(found.data))), "done": done >= len(found.data),
        }  # fmt: skip
        if document["done"]:
            return answer(document | {"resource": made.resource(request.base)}, request)  # pyright: ignore
        token = f"token-{next(self._numbers)}"
        self._tokens[token] = ((source, target, found.generation), done)
        return replace(answer(document | {"rewriteToken": token}, request), unfinished=True)

    def _moved(self, found: Stored, target: tuple[str, str], params: Mapping[str, str]) -> int:
        """The bytes that are there after this call. A token may be used again, as after a lost reply."""
        done = 0
        if token := params.get("rewriteToken"):
            key, done = self._tokens.get(token, (None, 0))
            if key != ((found.bucket, found.name), target, found.generation):
                raise invalid("The rewrite token does not belong to this rewrite.")
        limit = int(params.get("maxBytesRewrittenPerCall", self.rewrite_limit))
        return done + min(limit, self.rewrite_limit)

    def patch(self, bucket: str, name: str, request: Request) -> Reply:
        """Changes the metadata; PUT replaces all of it."""
        change = request.json()
        with self.store.lock:
            found = self.store.wanted(bucket, name, request.params.get("generation"))
            check(request.params, found)
            settings = dict(found.settings) if request.method == "PATCH" else {}
            for key in set(WRITABLE) & set(change):
                old = settings.get(key, {}) if key == "metadata" else {}
                settings[key] = {**old, **change[key]} if isinstance(change[key], dict) else change[key]
            if isinstance(settings.get("metadata"), dict):
                settings["metadata"] = {key: value for key, value in settings["metadata"].items() if value is not None}
            settings = {key: value for key, value in settings.items() if value not in (None, {})}
            check_metadata(settings)
            number = found.metageneration + 1
            made = replace(found, settings=settings, metageneration=number, updated=self.clock.now())
            self.store.objects[bucket][name] = made
        return answer(made.resource(request.base), request)

    def delete(self, bucket: str, name: str, request: Request) -> Reply:
        """Removes the object."""
        with self.store.lock:
            found = self.store.wanted(bucket, name, request.params.get("generation"))
            check(request.params, found)
            del self.store.objects[bucket][name]
        return Reply(status=204)


def writable(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a resource that a client may set."""
    return {key: resource[key] for key in WRITABLE if resource.get(key) not in (None, {})}


def _entries(names: "list[str]", params: Mapping[str, str], last: str) -> "Iterator[tuple[str, bool]]":
    """What a listing shows behind an entry, in order: names of objects (True) and prefixes (False).

    Strings of Python have the order of their UTF-8 bytes, which is the store's.
    """
    prefix, delimiter = params.get("prefix", ""), params.get("delimiter", "")
    start, end = params.get("startOffset", ""), params.get("endOffset", "")
    at = bisect.bisect_left(names, max(prefix, start, last))
    while at < len(names) and (name := names[at]).startswith(prefix) and not (end and name >= end):
        head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        shown = prefix + head + found if found else name
        if shown > last:
            yield shown, not found
        # All names with a prefix that is shown are one entry.
        at = bisect.bisect_left(names, shown[:-1] + chr(ord(shown[-1]) + 1), at) if found else at + 1
