"""What a conversion asks of object stores: requests by class, bytes through this machine, bytes inside the store.

Classes are Cloud Storage's (https://cloud.google.com/storage/pricing#operations-by-class); S3's PUT, COPY, POST and
LIST correspond to A, GET to B. Estimates from metadata alone: without retries, and with the source's compression.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from converter.planning.options import DOWNLOAD, IN_STORE, LOCAL, UPLOAD, transfer_between
from converter.planning.plan import Plan, Task
from converter.storage import is_remote, storage_of

PAGE = 1000
"""Objects that a request lists."""

LISTINGS = 2
"""How often each side is listed: before the work and after it."""

FEW = 12
"""Requests beside those that grow with the model: index, journal, configuration, receipt, markers."""

READS = 2
"""Requests that read a streamed chunk: its head, which has to say its size, and all of it."""

SMALL_FILES = {"files": 1, "ocdbt": 4}
"""Small files of a leaf, by the store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The requests and bytes of a conversion, about.

    Attributes:
      source: where the checkpoint is.
      destination: where it goes.
      class_a: requests that write, copy or list.
      class_b: requests that read.
      free: requests that delete.
      read_bytes: bytes that this machine reads from a store.
      sent_bytes: bytes that this machine sends to a store.
      moved_bytes: bytes that the store moves by itself.
      moved_objects: chunks of which it does so.
      leaving: what the bytes leave, in words; empty where that is nothing or not known.
    """

    source: str
    destination: str
    class_a: int
    class_b: int
    free: int
    read_bytes: int
    sent_bytes: int
    moved_bytes: int
    moved_objects: int
    leaving: str


def estimate_traffic(plan: Plan, source: str, destination: str) -> Traffic | None:
    """What `convert` from one place to another will ask of stores; None where both are local.

    Args:
      plan: made for this transfer.
      source: the step directory.
      destination: where the checkpoint goes.
    """
    transfer = transfer_between(source, destination)
    if transfer == LOCAL:
        return None
    reads, writes = is_remote(source), is_remote(destination)
    passed = [task for task in plan.tasks if task.blocking is None]
    rewritten = [task for task in plan.tasks if task.blocking is not None]
    chunks, blocks = _chunks(passed), _chunks(rewritten)
    made = sum(math.prod(leaf.grid) for task in rewritten for leaf in task.leaves)
    tensors = sum(len(task.sources) for task in plan.tasks)
    small = len(plan.leaves) * SMALL_FILES.get(plan.options.store, 1) if writes else 0
    in_store = transfer == IN_STORE
    copies = in_store and _bucket(source) != _bucket(destination)
    stored, other = _stored(passed), _stored(rewritten)
    return Traffic(
        source=source,
        destination=destination,
        class_a=reads * LISTINGS * _pages(chunks + blocks + tensors)
        + writes * (LISTINGS * _pages(chunks + made + small) + made + small + FEW)
        + (chunks * (2 + copies) if in_store else chunks if transfer == UPLOAD else 0),
        class_b=reads * (tensors + blocks + FEW + (READS * chunks if not in_store else 0)),
        free=chunks if in_store and not copies else 0,
        read_bytes=reads * other + (stored if transfer == DOWNLOAD or (transfer == UPLOAD and reads) else 0),
        sent_bytes=writes * other + (stored if transfer == UPLOAD else 4 * chunks if in_store else 0),
        moved_bytes=stored * in_store,
        moved_objects=chunks * in_store,
        leaving=_leaving(source, destination),
    )


def _chunks(tasks: Sequence[Task]) -> int:
    return sum(math.prod(array.grid) for task in tasks for array in task.sources)


def _stored(tasks: Sequence[Task]) -> int:
    """Bytes as they are stored; decoded ones where chunk files were not looked at."""
    return sum(task.stored_bytes or sum(array.bytes for array in task.sources) for task in tasks)


def _pages(objects: int) -> int:
    return objects // PAGE + 1


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _leaving(source: str, destination: str) -> str:
    """What the checkpoint's bytes leave on their way: a provider, or a location of one."""
    if not is_remote(source):
        return ""
    if not is_remote(destination):
        return f"{_bucket(source)} for this machine: free only inside its location"
    if storage_of(source) is not storage_of(destination):
        return f"the provider of {_bucket(source)}"
    if _bucket(source) == _bucket(destination):
        return ""
    places = [storage_of(url).location(url) for url in (source, destination)]
    if "" in places:
        return f"{_bucket(source)}; the locations of the buckets cannot be seen: free only inside one location"
    return f"{places[0]} for {places[1]}" if places[0] != places[1] else ""
