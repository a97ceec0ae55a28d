"""The store behind a port of 127.0.0.1, with a control path beside the API."""

import contextlib
import json
import socket
import sys
import threading
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.helpers.gcs.api import Api
from tests.helpers.gcs.faults import Fault
from tests.helpers.gcs.model import Bucket, Refused
from tests.helpers.gcs.protocol import Reply, Request, refusal

CONTROL = "/_fake/"


class Server(ThreadingHTTPServer):
    """Serves an `Api`, one thread a connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0):
        self.api = Api()
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Keeps the connection in mind, to close it with the server."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection has ended."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is its own affair; anything else is a fault of the fake."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def start(self) -> None:
        """Serves from a thread."""
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True, name="fake gcs").start()

    def stop(self) -> None:
        """Ends the server and all connections."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The store's time."""
        return formatdate(self.server.api.clock.now() if timestamp is None else timestamp, usegmt=True)

    def do_any(self) -> None:
        """Answers one request."""
        api = self.server.api
        body = None if self._is_cut() else self._body()
        if body is None:
            self._hang_up()
            return
        base = f"http://{self.headers.get('Host') or f'127.0.0.1:{self.server.server_port}'}"
        request = Request.parse(self.command, self.path, dict(self.headers.items()), body, base)
        if request.path.startswith(CONTROL):
            self._send(control(api, request))
            return
        reply, call, ending = api.handle(request)
        if ending and ending.kind == "lost":
            self._hang_up()
            return
        limit = ending.after if ending else None
        if call and reply.content:
            # Before they are: whoever has the answer may look at the counters.
            api.counters.bytes(api.counters.sent, call.place, len(self._content(reply, limit)))
        self._send(reply, limit)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_any

    def _content(self, reply: Reply, limit: int | None) -> memoryview:
        """The body as far as it is sent."""
        return memoryview(b"" if self.command == "HEAD" or reply.status in (204, 304) else reply.body)[:limit]

    def _send(self, reply: Reply, limit: int | None = None) -> None:
        """Writes the answer, or only `limit` bytes of its body and no more."""
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(self._content(reply, limit))
        if limit is not None:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _is_cut(self) -> bool:
        """Whether a fault ends the connection within the request's body; reads what may come before."""
        place = urlsplit(self.path)
        if "/upload/" not in place.path:
            return False
        request = Request.parse(self.command, self.path, {}, b"", "")
        bucket, name = place.path.split("/")[-2], request.params.get("name", "")
        operation = "objects.insert" if request.params.get("uploadType") != "resumable" else "uploads.start"
        if number := request.params.get("upload_id"):
            operation = "uploads.piece"
            with contextlib.suppress(Exception):
                bucket, name = self.server.api.uploads.find(number)
        faults = self.server.api.faults.met(operation, f"{bucket}/{name}", before_body=True)
        for fault in faults:
            self.rfile.read(min(fault.after, int(self.headers.get("Content-Length") or 0)))
        return bool(faults)

    def _body(self) -> bytes | None:
        """The body; None if the client went away."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            return body if len(body) == size else None
        pieces: list[bytes] = []
        while line := self.rfile.readline():
            size = int(line.split(b";")[0], 16)
            piece = self.rfile.read(size)
            self.rfile.readline()
            if not size:
                return b"".join(pieces)
            pieces.append(piece)
        return None


def control(api: Api, request: Request) -> Reply:
    """What tests ask for and change; none of it is counted or meets faults."""
    try:
        return _control(api, request)
    except Refused as error:
        return refusal(error)


def _control(api: Api, request: Request) -> Reply:
    what, _, rest = request.path.removeprefix(CONTROL).partition("/")
    bucket, _, name = unquote(rest).partition("/")
    document: object = {}
    match request.method, what:
        case "GET", "counters":
            document = api.counters.document()
        case "DELETE", "counters":
            api.counters.reset()
        case "POST", "faults":
            api.faults.add(Fault(**request.json()))
        case "DELETE", "faults":
            api.faults.clear()
        case "DELETE", "everything":
            _reset(api)
        case "POST", "settings":
            _set(api, request.json())
        case "POST", "buckets":
            made = request.json()
            api.make_bucket(Bucket(**{**made, "denied": frozenset(made.get("denied", ()))}))
        case "POST", "denied":
            api.store.buckets[bucket] = replace(api.store.bucket(bucket), denied=frozenset(request.json()["denied"]))
        case "PUT", "objects":
            settings = {"contentType": request.headers.get("content-type", "application/octet-stream")}
            document = api.objects.put(bucket, name, request.body, {}, settings=settings).resource(request.base)
        case "GET", "objects" if name:
            return Reply(body=api.store.wanted(bucket, name).data)
        case "GET", "objects":
            with api.store.lock:
                objects = api.store.objects[api.store.bucket(bucket).name]
                document = [objects[key].resource(request.base) for key in sorted(objects)]
        case "DELETE", "objects":
            with api.store.lock:
                api.store.objects[bucket].pop(name, None)
        case _:
            return Reply(status=404)
    return Reply(body=json.dumps(document).encode(), headers={"Content-Type": "application/json"})


def _set(api: Api, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        match name:
            case "rewrite_limit":
                api.objects.rewrite_limit = value
            case "md5":
                api.objects.md5 = value
            case "clock_skew":
                api.clock.skew = value
            case "patterns":
                api.counters.patterns = value
            case _:
                raise ValueError(f"unknown setting {name!r}")


def _reset(api: Api) -> None:
    fresh = Api()
    with api.store.lock:
        api.store.buckets.clear()
        api.store.objects.clear()
    api.faults.clear()
    api.counters.reset()
    _set(api, {"rewrite_limit": fresh.objects.rewrite_limit, "md5": True, "clock_skew": 0, "patterns": {}})
