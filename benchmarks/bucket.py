"""Converts Switch-Base's chunks, made small, inside one bucket of a slow store: `python -m benchmarks.bucket`.

The store is the tests' fake of Cloud Storage in a process of its own; each request takes 100 ms. What counts is the
number of requests, how many are in flight, and the bytes that pass this machine.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.measure import Measurement, measure
from benchmarks.source import CACHE, Sizes, sized_source
from tests.helpers.gcs import Fault, ProcessGcs

SIZES = Sizes(embed=96, head_dim=8, mlp=24, moe_mlp=24, vocab=64, embed_shard=6)
"""As many chunks as Switch-Base has under 16-way expert and fsdp sharding."""

LATENCY = 0.1
IN_FLIGHT = 32
"""The store's own concurrency in converter/storage/remote.py."""

STREAMED = CACHE / "streamed"
"""Where the same conversion goes when its bytes pass this machine: down, and from local files up."""

RATIO = 2.0
"""Wall time that a conversion may take, of what its requests take with `IN_FLIGHT` at once, plus `START`."""

START = 15.0
"""Seconds for the start of Python, the plan's requests that depend on each other, and the commit."""


def main() -> None:
    """Exit 1 where a command fails, or a conversion takes longer than its requests explain."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bucket", description=__doc__)
    parser.add_argument("--latency", type=float, default=LATENCY, help="seconds that each request takes")
    options = parser.parse_args()
    source = sized_source(CACHE / "small-switch-base", SIZES)
    store = ProcessGcs()
    try:
        os.environ.update(store.environment())
        store.set(md5=False)
        store.make_bucket("bucket")
        store.upload_tree(source, "bucket", "run/checkpoints/step_00000100")
        store.inject(Fault(kind="wait", seconds=options.latency))
        runs = {
            name: _run(store, name, *places)
            for name, places in {
                "plan": ("gs://bucket/run", "--to", "gs://bucket/out"),
                "convert": ("gs://bucket/run", "gs://bucket/out"),
                "verify": ("gs://bucket/run", "gs://bucket/out"),
            }.items()
        }
        shutil.rmtree(STREAMED, ignore_errors=True)
        runs["download"] = _run(store, "convert", "gs://bucket/run", str(STREAMED))
        runs["upload"] = _run(store, "convert", str(source), "gs://bucket/streamed")
    finally:
        store.close()
    convert = runs["convert"]
    least = sum(convert["requests"].values()) * options.latency / IN_FLIGHT
    holds = all(run["code"] == 0 for run in runs.values()) and convert["seconds"] <= RATIO * least + START
    print(f"convert: {least:.1f} s if {IN_FLIGHT} requests were always in flight")
    document = {"machine": describe(CACHE), "latency": options.latency, "runs": runs, "least_seconds": least}
    Path("build/bench-bucket.json").write_text(json.dumps({**document, "holds": holds}, indent=2))
    sys.exit(not holds)


def _run(store: ProcessGcs, name: str, *arguments: str) -> dict[str, Any]:
    store.reset_counters()
    run: Measurement = measure([str(Path(sys.executable).with_name("ax2mt")), name, "-q", *arguments])
    counters = store.counters()
    figures = {
        "code": run.code, "seconds": run.seconds, "cpu_seconds": run.cpu_seconds, "peak_bytes": run.peak_bytes,
        "requests": counters["requests"], "classes": counters["classes"],
        "bytes_read": counters["sent"]["all"], "bytes_sent": counters["received"]["all"],
    }  # fmt: skip
    print(
        f"{name}: exit code {run.code}, {run.seconds:.1f} s ({run.cpu_seconds:.1f} s of processor), "
        f"{run.peak_bytes >> 20} MiB, {sum(counters['requests'].values())} requests {counters['requests']}, "
        f"{figures['bytes_read']} bytes read and {figures['bytes_sent']} sent by this machine",
        flush=True,
    )
    if run.code:
        print(run.error, file=sys.stderr)
    return figures


if __name__ == "__main__":
    main()
