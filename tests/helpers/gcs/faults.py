"""What goes wrong on purpose, and what is counted."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLASS_A = (
    "objects.insert", "objects.list", "objects.compose", "objects.rewrite", "objects.copy", "objects.patch",
    "objects.update", "buckets.insert", "buckets.list", "buckets.patch",
)  # fmt: skip
CLASS_B = ("objects.get", "objects.media", "buckets.get", "buckets.permissions")

KINDS = ("status", "drop", "cut", "lost", "wait")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, for the requests that fit all of the conditions.

    Attributes:
      kind: "status": the request is not done, the answer is `status`; "drop": the connection ends after `after` bytes
        of the answer's body; "cut": it ends after `after` bytes of the request's body, nothing is done (`name` then
        sees only what the URL shows); "lost": the request is done, the connection ends before the answer;
        "wait": the request is done `seconds` later.
      operation: a pattern that the operation's name must match as a whole, such as "objects\\.(insert|compose)".
        Names are those of the API; `objects.media` reads content, `uploads.start` and `uploads.piece` are the requests
        of resumable uploads, `uploads.finish` the last of them.
      name: a pattern to be found in "<bucket>/<object>".
      every: of the requests that fit, only each n-th.
      skip: so many of them pass first.
      times: so many faults at most.
      status: the HTTP status of the answer.
      retry_after: seconds for the header `Retry-After`.
      predicate: a further condition on operation and "<bucket>/<object>"; only within one process.
    """

    kind: str = "status"
    operation: str = ".*"
    name: str = ""
    every: int = 1
    skip: int = 0
    times: int | None = None
    status: int = 503
    retry_after: int | None = None
    after: int = 0
    seconds: float = 0
    predicate: Callable[[str, str], bool] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of fault {self.kind!r}: expected one of {', '.join(KINDS)}")

    def fits(self, operation: str, place: str) -> bool:
        """Whether a request is one that this is for."""
        if not re.fullmatch(self.operation, operation) or not re.search(self.name, place):
            return False
        return self.predicate is None or self.predicate(operation, place)


class Faults:
    """All faults, and how often each was met."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[tuple[Fault, Counter[str]]] = []

    def add(self, fault: Fault) -> None:
        """One more; several may meet the same request."""
        with self._lock:
            self._entries.append((fault, Counter()))

    def clear(self) -> None:
        """None any more."""
        with self._lock:
            self._entries.clear()

    def met(self, operation: str, place: str, *, before_body: bool = False) -> list[Fault]:
        """The faults for a request; "cut" ones are met before its body is read."""
        chosen: list[Fault] = []
        with self._lock:
            for fault, count in self._entries:
                if (fault.kind == "cut") != before_body or not fault.fits(operation, place):
                    continue
                count["seen"] += 1
                turn = count["seen"] - fault.skip
                if turn > 0 and turn % fault.every == 0 and (fault.times is None or count["done"] < fault.times):
                    count["done"] += 1
                    chosen.append(fault)
        return chosen


@dataclass
class Counters:
    """Requests and bytes of objects.

    Attributes:
      requests: all requests, by operation.
      done: those that succeeded, as billing counts them: a resumable upload is one insert, a rewrite is one in all.
      received: bytes of objects that came in; by pattern, and as "all".
      sent: bytes of objects that went out.
      patterns: what names ("<bucket>/<object>") belong to a group of bytes.
    """

    requests: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    patterns: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """All zero; the patterns stay."""
        with self.lock:
            for counter in (self.requests, self.done, self.received, self.sent):
                counter.clear()

    def request(self, operation: str, *, done: bool) -> None:
        """Counts a request."""
        with self.lock:
            self.requests[operation] += 1
            if done:
                self.done["objects.insert" if operation == "uploads.finish" else operation] += 1

    def bytes(self, counter: Counter[str], place: str, count: int) -> None:
        """Adds bytes to `received` or `sent`."""
        with self.lock:
            counter["all"] += count
            for name, pattern in self.patterns.items():
                if re.search(pattern, place):
                    counter[name] += count

    def document(self) -> dict[str, Any]:
        """The numbers, and the sums by class of operation."""
        with self.lock:
            names = ("all", *self.patterns)
            classes = {"A": _sum(self.done, CLASS_A), "B": _sum(self.done, CLASS_B)}
            free = {"free": _sum(self.done, ("objects.delete", "buckets.delete"))}
            return {
                "requests": dict(self.requests), "done": dict(self.done), "classes": classes | free,
                "received": {name: self.received[name] for name in names},
                "sent": {name: self.sent[name] for name in names},
            }  # fmt: skip


def _sum(counter: Mapping[str, int], names: tuple[str, ...]) -> int:
    return sum(counter.get(name, 0) for name in names)
