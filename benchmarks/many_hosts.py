"""Counts what 256 processes ask of a bucket for Switch-XXL with moments: `python -m benchmarks.many_hosts`.

Metadata alone, with true shapes and paths: 42,243 chunks of one byte in the tests' fake of Cloud Storage. What a
process sends before its first write is counted there. What follows is computed from the plan, share by share, as if
one process ran after another; the constants of that come from a small conversion by four processes that is really
made, and the computation is compared with what another one, by seven, really sends. Requests that fail are not counted,
as they are not billed by their class.
"""

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from benchmarks.machine import describe
from benchmarks.many_chunks import RUN, SIZES
from benchmarks.measure import measure
from benchmarks.source import CACHE, COUNTS, STEP, Array, envy_arrays, with_moments, zarray
from converter import convert
from converter.axes import groups, source_box, target_box
from converter.conversion.conversion import Conversion, Request
from converter.conversion.run import prepare
from converter.errors import DestinationError
from converter.planning import Options, Plan, Portion, Share, divide
from converter.planning.share import plan_loads
from tests.helpers.gcs import Fault, ProcessGcs

PROCESSES = 256
MOST_UNEVEN = 1.05
MOST_SECONDS = 60.0
"""What a process may take until it knows its share."""

OUT = "gs://bucket/out"

PAGE = 1000
"""Objects that a request lists."""

DATA = Path("tests/data")
SMALL = (DATA / "axlearn/micro-hybrid-sharded", {}, 4)
CHECK = (DATA / "training/micro-envy/axlearn", {"state": True}, 7)
"""Source, options, and how many processes convert it."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by Cloud Storage's classes: A writes and lists, B reads, deletions are free."""

    a: int = 0
    b: int = 0
    free: int = 0

    def __add__(self, other: "Requests") -> "Requests":
        return Requests(self.a + other.a, self.b + other.b, self.free + other.free)

    def __sub__(self, other: "Requests") -> "Requests":
        return Requests(self.a - other.a, self.b - other.b, self.free - other.free)


class Store:
    """A fake of Cloud Storage that counts."""

    def __init__(self) -> None:
        self.server = ProcessGcs()
        os.environ.update(self.server.environment())
        self.server.set(md5=False)
        self.server.make_bucket("bucket")

    def counted(self) -> Requests:
        """The requests since the last time."""
        classes = self.server.counters()["classes"]
        self.server.reset_counters()
        return Requests(classes["A"], classes["B"], classes["free"])

    def conversion(self, source: str, options: Mapping[str, Any], count: int) -> Conversion:
        """What each of so many processes works on."""
        return prepare(Request(source, OUT, Options(**options), share=Share(0, count)))

    def start(self, source: str, options: Mapping[str, Any], count: int) -> Requests:
        """What a process sends before its first write."""
        self.server.inject(Fault(operation="objects.insert", name="journal", status=403))
        self.counted()
        try:
            convert(source, OUT, process=f"0/{count}", **options)
        except DestinationError:
            return self.counted()
        finally:
            self.server.clear_faults()
        raise SystemExit("the first write was not refused")

    def listed_again(self, conversion: Conversion) -> Requests:
        """What it takes to see that the source is unchanged."""
        self.counted()
        if conversion.source_has_changed():
            raise SystemExit("the source has changed")
        return self.counted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a process sends beside its start and its work, whatever the model.

    Attributes:
      first: the process that begins the conversion.
      others: those that join it.
      commit: what the commit adds.
    """

    first: Requests
    others: Requests
    commit: Requests


def work(plan: Plan, portion: Portion) -> Requests:
    """What a share's units take in one bucket: a passed chunk is written, composed, and its tail is deleted."""
    total = Requests()
    for number, task in enumerate(plan.tasks):
        if task.blocking is None:
            passed = portion.count(number)
            total += Requests(a=2 * passed, free=passed)
            continue
        for group in portion.chosen(number, groups(task.axis_map, task.blocking)):
            boxes = (source_box(task.axis_map, group, place) for place in range(len(task.sources)))
            read = sum(len(list(array.chunks_in(box))) for array, box in zip(task.sources, boxes, strict=True))
            boxes = (target_box(task.axis_map, group, place) for place in range(len(task.leaves)))
            made = sum(len(list(leaf.chunks_in(box))) for leaf, box in zip(task.leaves, boxes, strict=True))
            total += Requests(a=made, b=read)
    return total


def commit(plan: Plan, again: Requests, count: int) -> Requests:
    """What the commit takes that depends on the model and the number of processes."""
    chunks = sum(math.prod(leaf.grid) for leaf in plan.leaves)
    objects = chunks + len(plan.leaves)
    listings = math.ceil(chunks / PAGE) + math.ceil(objects / PAGE)
    return again + Requests(a=listings + len(plan.leaves), free=count)


def computed(conversion: Conversion, start: Requests, again: Requests, count: int, constants: Constants) -> Requests:
    """What so many processes send, one after another."""
    plan = conversion.plan
    scalars = len(plan.scalars)
    total = constants.first + Requests(a=scalars) + constants.commit + commit(plan, again, count)
    for index, portion in enumerate(divide(plan_loads(plan), count)):
        total += start + work(plan, portion)
        total += constants.others + Requests(b=scalars) if index else Requests()
    return total


def really(store: Store, source: str, options: Mapping[str, Any], count: int) -> list[Requests]:
    """What each of so many processes sends, one after another."""
    sent: list[Requests] = []
    finished: list[bool] = []
    for index in range(count):
        store.counted()
        finished.append(convert(source, OUT, process=f"{index}/{count}", **options).finished)
        sent.append(store.counted())
    assert finished[-1]
    for name in store.server.objects("bucket", "out/"):
        store.server.remove("bucket", name)
    return sent


def measure_constants(store: Store, path: Path, options: Mapping[str, Any], count: int) -> Constants:
    """Takes from what a small conversion sends what is known of it."""
    source = upload(store, path)
    conversion = store.conversion(source, options, count)
    start, again = store.start(source, options, count), store.listed_again(conversion)
    portions = divide(plan_loads(conversion.plan), count)
    sent = really(store, source, options, count)
    rest = [one - start - work(conversion.plan, portion) for one, portion in zip(sent, portions, strict=True)]
    first, *others, last = rest
    if len(set(others)) != 1:
        raise SystemExit(f"processes that join send different requests: {others}")
    return Constants(first=first, others=others[0], commit=last - others[0] - commit(conversion.plan, again, count))


def upload(store: Store, path: Path) -> str:
    """Puts a checkpoint into the bucket; returns its URL."""
    store.server.upload_tree(path, "bucket", path.parent.name)
    return f"gs://bucket/{path.parent.name}"


def check(store: Store, constants: Constants) -> dict[str, Any]:
    """Compares what is computed for a small conversion with what it sends."""
    path, options, count = CHECK
    source = upload(store, path)
    conversion = store.conversion(source, options, count)
    start, again = store.start(source, options, count), store.listed_again(conversion)
    expected = computed(conversion, start, again, count, constants)
    found = sum(really(store, source, options, count), Requests())
    return {"processes": count, "computed": asdict(expected), "sent": asdict(found), "holds": expected == found}


def objects() -> Iterator[tuple[str, bytes]]:
    """Names and contents of the source's objects; the q/k scales and the counts are read, the rest only listed."""
    compressor = zstandard.ZstdCompressor(level=1)
    arrays = with_moments(envy_arrays(SIZES))
    entries: list[Any] = [["step", STEP]]
    for array in arrays:
        directory = f"{RUN}/gda/{array.tree}/{array.name}"
        yield f"{directory}/.zarray", json.dumps(zarray(array)).encode()
        is_read = "scale_query" in array.name or "scale_key" in array.name
        data = compressor.compress(np.ones(array.chunks, np.float32).tobytes()) if is_read else b"x"
        grid = (range(math.ceil(size / chunk)) for size, chunk in zip(array.shape, array.chunks, strict=True))
        yield from ((f"{directory}/{'.'.join(map(str, place))}", data) for place in itertools.product(*grid))
        entries.append([f"{array.tree}/{array.name}", {"dtype": "float32", "shape": str(array.shape)}])
    for name in COUNTS:
        yield f"{RUN}/gda/{name}/.zarray", json.dumps(zarray(Array("", (), ()), "<i4")).encode()
        yield f"{RUN}/gda/{name}/0", compressor.compress(np.int32(STEP).tobytes())
        entries.append([name, {"dtype": "int32", "shape": "()"}])
    yield f"{RUN}/index", json.dumps(entries).encode()


def largest(store: Store, constants: Constants) -> dict[str, Any]:
    """Switch-XXL with moments: how long until a process knows its share, how even the shares are, all requests."""
    for name, data in objects():
        store.server.put("bucket", name, data)
    source, options = "gs://bucket/run", {"state": True, "force": True}
    run = measure([str(Path(sys.executable).with_name("ax2mt")), "plan", "-q", source, "--state", "--force"])
    if run.code:
        raise SystemExit(run.error)
    conversion = store.conversion(source, options, PROCESSES)
    started = time.process_time()
    portions = divide(plan_loads(conversion.plan), PROCESSES)
    seconds = time.process_time() - started
    start, again = store.start(source, options, PROCESSES), store.listed_again(conversion)
    uneven = max(one.bytes for one in portions) * PROCESSES / portions[0].total_bytes
    return {
        "chunks": sum(task.units for task in conversion.plan.tasks),
        "plan_seconds": run.seconds,
        "division_seconds": seconds,
        "largest_to_mean": uneven,
        "start": asdict(start),
        "requests": {
            str(count): asdict(computed(conversion, start, again, count, constants)) for count in (1, 16, PROCESSES)
        },
        "holds": uneven <= MOST_UNEVEN and run.seconds + seconds <= MOST_SECONDS,
    }


def main() -> None:
    """Exit 1 where a figure is not as it should be."""
    argparse.ArgumentParser(prog="python -m benchmarks.many_hosts", description=__doc__).parse_args()
    store = Store()
    try:
        constants = measure_constants(store, *SMALL)
        document = {
            "machine": describe(CACHE.parent),
            "constants": asdict(constants),
            "check": check(store, constants),
            "largest": largest(store, constants),
        }
    finally:
        store.server.close()
    print(json.dumps(document, indent=2))
    Path("build").mkdir(exist_ok=True)
    Path("build/bench-many-hosts.json").write_text(json.dumps(document, indent=2))
    sys.exit(not (document["check"]["holds"] and document["largest"]["holds"]))


if __name__ == "__main__":
    main()
