"""Plans and inspects Switch-XXL's 14,000 chunks in stores that answer after 15 ms: `python -m benchmarks.many_chunks`.

True shapes and paths; a chunk has one byte, because neither command reads one. The stores are the tests' fake of Cloud
Storage in a process of its own, and SeaweedFS behind a proxy in this one. What counts is the number of requests; the
stores' own time comes on top of the latency.
"""

import argparse
import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.measure import measure
from benchmarks.source import CACHE, MODEL, STEP, Sizes, envy_arrays, zarray
from tests.helpers.gcs import Fault, ProcessGcs
from tests.helpers.s3 import SeaweedFs
from tests.helpers.s3_proxy import Proxy, Rule

SIZES = Sizes(
    embed=8192, experts=64, repeats=12, heads=64, mlp=20480, moe_mlp=20480, expert_shard=1, embed_shard=118
)  # fmt: skip
"""Switch-XXL in 14,081 chunks, of 116 MB in the experts' arrays."""

LATENCY = 0.015
MOST_SECONDS = 5.0
"""What `plan` may take."""

RUN = "run/checkpoints/step_00000100"


def objects() -> Iterator[tuple[str, bytes]]:
    """Names and contents of the source's objects."""
    entries: list[Any] = [["step", STEP]]
    for array in envy_arrays(SIZES):
        directory = f"{RUN}/gda/{MODEL}/{array.name}"
        yield f"{directory}/.zarray", json.dumps(zarray(array)).encode()
        grid = (range(math.ceil(size / chunk)) for size, chunk in zip(array.shape, array.chunks, strict=True))
        yield from ((f"{directory}/{'.'.join(map(str, place))}", b"x") for place in itertools.product(*grid))
        entries.append([f"{MODEL}/{array.name}", {"dtype": "float32", "shape": str(array.shape)}])
    yield f"{RUN}/index", json.dumps(entries).encode()


def main() -> None:
    """Exit 1 where a command fails or `plan` takes too long."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_chunks", description=__doc__)
    parser.add_argument("--latency", type=float, default=LATENCY, help="seconds that each request takes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    runs = [*_in_gcs(options.latency, options.rounds), *_in_s3(options.latency, options.rounds)]
    holds = all(run["code"] == 0 and (run["command"] != "plan" or run["seconds"] <= MOST_SECONDS) for run in runs)
    document = {"machine": describe(CACHE.parent), "latency": options.latency, "runs": runs, "holds": holds}
    Path("build/bench-many-chunks.json").write_text(json.dumps(document, indent=2))
    sys.exit(not holds)


def _in_gcs(latency: float, rounds: int) -> Iterator[dict[str, Any]]:
    store = ProcessGcs()
    try:
        os.environ.update(store.environment())
        store.set(md5=False)
        store.make_bucket("bucket")
        for name, data in objects():
            store.put("bucket", name, data)
        store.inject(Fault(kind="wait", seconds=latency))
        yield from _measured("gs", rounds, store.reset_counters, lambda: store.counters()["requests"])
    finally:
        store.close()


def _in_s3(latency: float, rounds: int) -> Iterator[dict[str, Any]]:
    directory = Path(tempfile.mkdtemp())
    store = SeaweedFs(directory)
    front = Proxy(store.url)
    try:
        store.make_bucket("bucket")
        with ThreadPoolExecutor(store.at_once) as pool:
            list(pool.map(lambda one: store.put("bucket", *one), objects()))
        os.environ.update({**store.environment(), "AWS_ENDPOINT_URL": front.url})
        front.rules = [Rule(before=lambda: time.sleep(latency))]
        yield from _measured("s3", rounds, front.requests.clear, lambda: _kinds(front))
    finally:
        front.close()
        store.close()


def _kinds(front: Proxy) -> dict[str, int]:
    return dict(Counter("list" if "list-type" in request else request.split()[0] for request in front.requests))


def _measured(
    scheme: str, rounds: int, reset: Callable[[], None], requests: Callable[[], dict[str, int]]
) -> Iterator[dict[str, Any]]:
    for command, _ in itertools.product(("plan", "inspect"), range(rounds)):
        reset()
        run = measure([str(Path(sys.executable).with_name("ax2mt")), command, "-q", f"{scheme}://bucket/run"])
        figures = {"command": command, "store": scheme, "code": run.code, "seconds": run.seconds}
        figures |= {"cpu_seconds": run.cpu_seconds, "peak_bytes": run.peak_bytes, "requests": requests()}
        print(f"{figures} {run.error if run.code else ''}", flush=True)
        yield figures


if __name__ == "__main__":
    main()
