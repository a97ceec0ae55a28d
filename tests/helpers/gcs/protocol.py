"""Requests and replies apart from sockets, and the encodings of the JSON API: multipart bodies, `fields`, ranges."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.helpers.gcs.model import Refused, invalid


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request; header names are in lower case, values of a repeated parameter are joined by newlines."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)
    base: str = ""

    @classmethod
    def parse(cls, method: str, url: str, headers: Mapping[str, str], body: bytes, base: str) -> "Request":
        """From the parts of an HTTP message."""
        place = urlsplit(url)
        params: dict[str, str] = {}
        for name, value in parse_qsl(place.query, keep_blank_values=True):
            params[name] = f"{params[name]}\n{value}" if name in params else value
        lower = {name.lower(): value for name, value in headers.items()}
        return cls(method=method, path=place.path, params=params, headers=lower, body=body, base=base)

    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object or empty."""
        return load(self.body)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer. `content`: the body is an object's; `unfinished`: a rewrite needs more calls, all billed as one."""

    status: int = 200
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bool = False
    unfinished: bool = False


def load(text: bytes) -> dict[str, Any]:
    """A JSON object; none is an empty one."""
    try:
        document = json.loads(text or b"{}")
    except ValueError:
        raise invalid("Parse Error") from None
    if not isinstance(document, dict):
        raise invalid("Parse Error")
    return document


def answer(document: object, request: Request, headers: Mapping[str, str] | None = None) -> Reply:
    """200 with a JSON document, of which `fields` shows a part."""
    if fields := request.params.get("fields"):
        document = _partial(document, _parse_fields(fields))
    return Reply(body=json.dumps(document).encode(), headers={"Content-Type": "application/json", **(headers or {})})


def refusal(error: Refused) -> Reply:
    """The answer to a request that is not done."""
    if error.status == HTTPStatus.NOT_MODIFIED:
        return Reply(status=304)
    body = json.dumps(error.document()).encode()
    return Reply(status=error.status, body=body, headers={"Content-Type": "application/json", **error.headers})


def multipart(request: Request) -> Iterator[tuple[dict[str, str], bytes]]:
    """Headers and content of each part of a multipart body."""
    found = re.search(r'boundary=(?:"([^"]+)"|\'([^\']+)\'|([^";,\s]+))', request.headers.get("content-type", ""))
    if not found:
        raise invalid("Missing multipart boundary.")
    border = b"--" + next(filter(None, found.groups())).encode()
    parts = request.body.split(border)
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise invalid("The multipart body has no end.")
    for part in parts[1:-1]:
        whole = re.sub(rb"\r?\n\Z", b"", re.sub(rb"\A[ \t]*\r?\n", b"", part))
        pieces = re.split(rb"\r?\n\r?\n", whole, maxsplit=1)
        yield parse_headers(pieces[0]), pieces[1] if len(pieces) == 2 else b""


def parse_headers(text: bytes) -> dict[str, str]:
    """Header lines, the names in lower case."""
    lines = (line.partition(":") for line in text.decode().splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Start and end (exclusive) that a `Range` header asks for; None for the whole."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not found or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size or start >= end:
        headers = {"Content-Range": f"bytes */{size}"}
        raise Refused(416, "requestedRangeNotSatisfiable", "Request range not satisfiable", headers)
    return start, end


def _parse_fields(text: str) -> dict[str, Any]:
    """`items(name,size),nextPageToken` or `items/name` as nested dictionaries; empty ones mean all."""
    tree: dict[str, Any] = {}
    for part in _split(text):
        found = re.fullmatch(r"([\w*]+)(?:\((.+)\)|/(.+))?", part.strip())
        if not found:
            raise invalid(f"Invalid field selection {text}")
        name, *below = found.groups()
        inner = next(filter(None, below), None)
        tree.setdefault(name, {}).update(_parse_fields(inner) if inner else {})
    return tree


def _split(text: str) -> list[str]:
    """At the commas that are in no parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _partial(document: Any, wanted: dict[str, Any]) -> Any:
    if not wanted or "*" in wanted:
        return document
    if isinstance(document, list):
        return [_partial(one, wanted) for one in document]
    if not isinstance(document, dict):
        return document
    return {key: _partial(value, wanted[key]) for key, value in document.items() if key in wanted}
