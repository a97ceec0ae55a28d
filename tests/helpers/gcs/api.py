"""From a request to its operation: paths of the JSON API, permissions, faults, counts, batches."""

import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import unquote

from tests.helpers.gcs import uploads
from tests.helpers.gcs.faults import Counters, Fault, Faults
from tests.helpers.gcs.model import Bucket, Refused, Store, check_bucket_name, denied, invalid, not_found
from tests.helpers.gcs.objects import Clock, Objects
from tests.helpers.gcs.protocol import Reply, Request, answer, multipart, parse_headers, refusal
from tests.helpers.gcs.uploads import Uploads

MAX_BATCH = 100

PERMISSIONS = {
    "objects.get": "storage.objects.get", "objects.media": "storage.objects.get",
    "objects.list": "storage.objects.list",
    "objects.insert": "storage.objects.create", "objects.compose": "storage.objects.create",
    "objects.rewrite": "storage.objects.create", "objects.copy": "storage.objects.create",
    "objects.patch": "storage.objects.update", "objects.update": "storage.objects.update",
    "objects.delete": "storage.objects.delete", "uploads.start": "storage.objects.create",
    "uploads.piece": "storage.objects.create", "uploads.finish": "storage.objects.create",
    "buckets.get": "storage.buckets.get", "buckets.delete": "storage.buckets.delete",
    "buckets.patch": "storage.buckets.update",
}  # fmt: skip

MESSAGES = {401: ("required", "Login Required"), 403: ("forbidden", "Forbidden"), 404: ("notFound", "Not Found")}
MESSAGES |= {429: ("rateLimitExceeded", "The rate of requests is too high."), 503: ("backendError", "Backend Error")}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request that was understood. `received` counts bytes of an object in its body."""

    operation: str
    run: Callable[[], Reply]
    bucket: str = ""
    name: str = ""
    received: int = 0

    @property
    def place(self) -> str:
        """What patterns of faults and counters see."""
        return f"{self.bucket}/{self.name}"


class Api:
    """The whole store: state, operations, faults and counters."""

    def __init__(self) -> None:
        self.store, self.clock, self.faults, self.counters = Store(), Clock(), Faults(), Counters()
        self.objects = Objects(self.store, self.clock)
        self.uploads = Uploads(self.objects)
        self._numbers = itertools.count(1)

    def make_bucket(self, bucket: Bucket) -> Bucket:
        """Adds a bucket."""
        check_bucket_name(bucket.name)
        with self.store.lock:
            if bucket.name in self.store.buckets:
                raise Refused(409, "conflict", "Your previous request to create the named bucket succeeded.")
            self.store.buckets[bucket.name] = replace(bucket, created=self.clock.now())
            self.store.objects[bucket.name] = {}
        return self.store.buckets[bucket.name]

    def handle(self, request: Request) -> tuple[Reply, Call | None, Fault | None]:
        """Answers a request; the fault is how the connection is to end, if otherwise than usually."""
        call, ending = None, None
        try:
            call = self.resolve(request)
            self.counters.bytes(self.counters.received, call.place, call.received)
            for fault in self.faults.met(call.operation, call.place):
                if fault.kind == "wait":
                    time.sleep(fault.seconds)
                elif fault.kind == "status":
                    raise _injected(fault, call)
                else:
                    ending = fault
            self._admit(call, request)
            reply = call.run()
        except Refused as error:
            reply = refusal(error)
        if call:
            done = (reply.status < 300 and not reply.unfinished) or reply.status == 308
            self.counters.request(call.operation, done=done)
        return reply, call, ending

    def resolve(self, request: Request) -> Call:
        """Finds the operation; raises 404 where there is none."""
        path = request.path
        if path.startswith("/batch/storage/v1"):
            return Call(operation="batch", run=lambda: self._batch(request))
        if found := re.fullmatch(r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o", path):
            return self._upload(unquote(found[1]), request)
        if found := re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", path):
            return self._object(unquote(found[1]), unquote(found[2]), request)
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o", path):
            bucket = unquote(found[1])
            return Call(operation="objects.list", bucket=bucket, run=lambda: self.objects.list(bucket, request))
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose", path):
            bucket, name = unquote(found[1]), unquote(found[2])
            run = lambda: self.objects.compose(bucket, name, request)  # noqa: E731
            return Call(operation="objects.compose", bucket=bucket, name=name, run=run)
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)/(rewrite|copy)To/b/([^/]+)/o/([^/]+)", path):
            source, target = (unquote(found[1]), unquote(found[2])), (unquote(found[4]), unquote(found[5]))
            run = lambda: self.objects.rewrite(source, target, request, whole=found[3] == "copy")  # noqa: E731
            return Call(operation=f"objects.{found[3]}", bucket=target[0], name=target[1], run=run)
        return self._bucket(request)

    def _object(self, bucket: str, name: str, request: Request) -> Call:
        objects, method = self.objects, request.method
        if request.path.startswith("/download"):
            request = replace(request, params={**request.params, "alt": "media"})
        operation, run = {
            "GET": ("media" if request.params.get("alt") == "media" else "get", objects.get),
            "PATCH": ("patch", objects.patch), "PUT": ("update", objects.patch), "DELETE": ("delete", objects.delete),
        }.get(method, ("", None))  # fmt: skip
        if run is None:
            raise Refused(405, "methodNotAllowed", f"{method} {request.path}")
        return Call(operation=f"objects.{operation}", bucket=bucket, name=name, run=lambda: run(bucket, name, request))

    def _upload(self, bucket: str, request: Request) -> Call:
        if number := request.params.get("upload_id"):
            place = dict(zip(("bucket", "name"), self.uploads.find(number), strict=True))
            if request.method == "DELETE":
                return Call(operation="uploads.cancel", run=lambda: self.uploads.cancel(number), **place)
            given = request.headers.get("content-range", "bytes 0-*/1")
            kind = "status" if given.startswith("bytes */") else "piece" if given.endswith("/*") else "finish"
            found = re.fullmatch(r"bytes \d+-(\d+)/(\d+)", given)
            if found and int(found[1]) + 1 < int(found[2]):
                kind = "piece"
            run = lambda: self.uploads.resume(number, request)  # noqa: E731
            return Call(operation=f"uploads.{kind}", run=run, received=len(request.body), **place)
        upload = uploads.read(request)
        if request.params.get("uploadType") == "resumable":
            run = lambda: self.uploads.start(bucket, upload, request)  # noqa: E731
            return Call(operation="uploads.start", bucket=bucket, name=upload.name, run=run)
        run = lambda: self.uploads.insert(bucket, upload, request)  # noqa: E731
        return Call(operation="objects.insert", bucket=bucket, name=upload.name, run=run, received=len(upload.data))

    def _bucket(self, request: Request) -> Call:
        found = re.fullmatch(r"/storage/v1/b(?:/([^/]+))?(/iam/testPermissions)?", request.path)
        if not found:
            raise not_found(f"The fake does not know {request.method} {request.path}")
        name = unquote(found[1] or "")
        operation, run = {
            ("POST", False): ("insert", self._insert_bucket), ("GET", False): ("list", self._list_buckets),
            ("GET", True): ("permissions" if found[2] else "get", self._get_bucket),
            ("PATCH", True): ("patch", self._patch_bucket), ("DELETE", True): ("delete", self._delete_bucket),
        }.get((request.method, bool(name)), ("", None))  # fmt: skip
        if run is None:
            raise Refused(405, "methodNotAllowed", f"{request.method} {request.path}")
        return Call(operation=f"buckets.{operation}", bucket=name, run=lambda: run(name, request))

    def _insert_bucket(self, _: str, request: Request) -> Reply:
        wanted = request.json()
        made = Bucket(
            name=wanted.get("name", ""), location=wanted.get("location", "US").upper(),
            storage_class=wanted.get("storageClass", "STANDARD"),
            requester_pays=wanted.get("billing", {}).get("requesterPays", False),
        )  # fmt: skip
        return answer(self.make_bucket(made).resource(), request)

    def _list_buckets(self, _: str, request: Request) -> Reply:
        items = [bucket.resource() for _, bucket in sorted(self.store.buckets.items())]
        return answer({"kind": "storage#buckets", "items": items}, request)

    def _get_bucket(self, name: str, request: Request) -> Reply:
        bucket = self.store.bucket(name)
        if request.path.endswith("testPermissions"):
            held = set(PERMISSIONS.values()) - bucket.denied
            wanted = [one for one in request.params.get("permissions", "").split("\n") if one in held]
            return answer({"kind": "storage#testIamPermissionsResponse", "permissions": wanted}, request)
        return answer(bucket.resource(), request)

    def _patch_bucket(self, name: str, request: Request) -> Reply:
        with self.store.lock:
            bucket, change = self.store.bucket(name), request.json()
            pays = change.get("billing", {}).get("requesterPays", bucket.requester_pays)
            storage_class = change.get("storageClass", bucket.storage_class)
            changes = {"requester_pays": pays, "storage_class": storage_class}
            bucket = replace(bucket, metageneration=bucket.metageneration + 1, **changes)
            self.store.buckets[name] = bucket
        return answer(bucket.resource(), request)

    def _delete_bucket(self, name: str, _: Request) -> Reply:
        with self.store.lock:
            self.store.bucket(name)
            if self.store.objects[name]:
                raise Refused(409, "conflict", "The bucket you tried to delete is not empty.")
            del self.store.buckets[name], self.store.objects[name]
        return Reply(status=204)

    def _admit(self, call: Call, request: Request) -> None:
        """Raises 400 or 403 for a bucket that the requester may not use so."""
        bucket = self.store.buckets.get(call.bucket)
        if bucket is None:
            return
        if bucket.requester_pays and not (
            request.params.get("userProject") or request.headers.get("x-goog-user-project")
        ):
            raise Refused(400, "required", "Bucket is a requester pays bucket but no user project provided.")
        if (permission := PERMISSIONS.get(call.operation)) in bucket.denied:
            raise denied(str(permission))

    def _batch(self, request: Request) -> Reply:
        """Does up to 100 requests one after the other; each has its own answer."""
        parts = list(multipart(request))
        if len(parts) > MAX_BATCH:
            raise invalid(f"A batch has at most {MAX_BATCH} requests, not {len(parts)}.")
        border, out = f"batch_{next(self._numbers)}", []
        for headers, content in parts:
            reply, _, _ = self.handle(_inner(content, request.base))
            number = headers.get("content-id", "<1>").strip("<>")
            lines = [f"--{border}", "Content-Type: application/http", f"Content-ID: <response-{number}>", ""]
            lines += [f"HTTP/1.1 {reply.status} -", *(f"{key}: {value}" for key, value in reply.headers.items())]
            out.append("\r\n".join([*lines, f"Content-Length: {len(reply.body)}", "", reply.body.decode(), ""]))
        body = "".join([*out, f"--{border}--\r\n"]).encode()
        return Reply(body=body, headers={"Content-Type": f"multipart/mixed; boundary={border}"})


def _inner(content: bytes, base: str) -> Request:
    head, _, body = content.replace(b"\r\n", b"\n").partition(b"\n\n")
    first, _, lines = head.partition(b"\n")
    method, url, *_ = first.decode().split(" ")
    if url.startswith("/batch") or "alt=media" in url or "/upload/" in url:
        raise invalid("Batches cannot hold uploads, downloads or batches.")
    return Request.parse(method, url, parse_headers(lines), body.strip(), base)


def _injected(fault: Fault, call: Call) -> Refused:
    if fault.status == 403 and call.operation in PERMISSIONS:
        return denied(PERMISSIONS[call.operation])
    reason, message = MESSAGES.get(fault.status, ("backendError", f"Injected {fault.status}"))
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return Refused(fault.status, reason, message, headers)
