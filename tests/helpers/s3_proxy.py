"""A way to a store with faults: a proxy that answers some requests by itself, and cuts the answers to others."""

import http.client
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

HOP_BY_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"))


@dataclass
class Rule:
    """What happens to the requests that match.

    Attributes:
      method: such as `GET`; empty for all.
      path: is searched for in path and query.
      count: so many requests are hit; None for all.
      status: what is answered in place of the store; 0 to let the store answer.
      code: the code in the body of that answer.
      headers: of that answer.
      body: more elements of the answer's body.
      cut: so many bytes of the store's answer arrive, then the connection breaks; None for all of them.
      before: is called before the request is sent on.
      lose: the store gets the request, and its answer is lost.
      every: only each n-th request that matches is hit.
      met: requests that matched so far.
    """

    method: str = ""
    path: str = ""
    count: int | None = None
    status: int = 0
    code: str = ""
    headers: dict[str, str] | None = None
    body: str = ""
    cut: int | None = None
    before: Callable[[], None] | None = None
    lose: bool = False
    every: int = 1
    met: int = 0

    def hits(self, method: str, path: str) -> bool:
        """Whether it applies to a request, which counts."""
        if self.method not in ("", method) or not re.search(self.path, path) or self.count == 0:
            return False
        self.met += 1
        if self.met % self.every:
            return False
        if self.count is not None:
            self.count -= 1
        return True


class Proxy:
    """A server in front of a store.

    Attributes:
      url: its address.
      rules: the first one that matches applies.
      requests: method and path of all requests, in order.
      sent: bytes of bodies that the store sent.
      received: bytes of bodies that the store got.
    """

    def __init__(self, url: str):
        self.target = urlsplit(url).netloc
        self.rules: list[Rule] = []
        self.requests: list[str] = []
        self.sent = 0
        self.received = 0
        self.lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def rule(self, method: str, path: str) -> Rule | None:
        with self.lock:
            self.requests.append(f"{method} {path}")
            return next((rule for rule in self.rules if rule.hits(method, path)), None)

    def count(self, method: str, path: str = "") -> int:
        """How many requests of a kind there were."""
        found = [request for request in self.requests if request.startswith(f"{method} ") and re.search(path, request)]
        return len(found)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Proxy

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        rule = self.owner.rule(self.command, self.path) or Rule()
        if self.headers.get("Expect"):
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if rule.before:
            rule.before()
        if rule.status:
            self._answer(rule.status, rule.headers or {}, _error(rule))
            return
        connection = http.client.HTTPConnection(self.owner.target, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        with self.owner.lock:
            self.owner.received += len(body)
            self.owner.sent += len(content)
        if rule.lose:
            self._break()
            return
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
        length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(content)
        self._answer(answer.status, headers, content, length=length, cut=rule.cut)

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, length: int | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self._break()

    def _break(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve


def _error(rule: Rule) -> bytes:
    content = f"<Code>{rule.code}</Code><Message>as asked</Message>{rule.body}"
    return f'<?xml version="1.0"?><Error>{content}</Error>'.encode()
