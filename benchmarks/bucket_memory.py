"""The peak memory of conversions from S3 to S3, against one between local files: `python -m benchmarks.bucket_memory`.

The store is SeaweedFS. 0.95 GiB of random float32; chunks of 108 MiB are copied by the store, unless `--rewrite`
decodes and encodes them on this machine.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.measure import Measurement, measure
from benchmarks.source import CACHE, random_source
from tests.helpers.s3 import SeaweedFs

BYTES = 1_000_000_000
ALLOWED = 100 << 20
"""Bytes that the peak with a store may be above that of local files."""


def main() -> None:
    """Exit 1 where a conversion fails or takes more memory than is allowed."""
    source = random_source(CACHE / "memory-source", BYTES)
    store = SeaweedFs(Path(tempfile.mkdtemp()))
    runs: dict[str, Measurement] = {}
    try:
        os.environ.update(store.environment())
        store.make_bucket("bucket")
        for path in sorted(source.rglob("*")):
            if path.is_file():
                name = f"run/{source.name}/{path.relative_to(source)}"
                store.client.upload_file(str(path), "bucket", name)
        for name, options in {"default": (), "rewrite": ("--rewrite",)}.items():
            target = CACHE / "memory-target"
            shutil.rmtree(target, ignore_errors=True)
            runs[f"{name}, local"] = _convert(str(source), str(target), *options)
            runs[f"{name}, s3 to s3"] = _convert(f"s3://bucket/run/{source.name}", f"s3://bucket/{name}", *options)
    finally:
        store.close()
    above = {
        name: runs[f"{name}, s3 to s3"].peak_bytes - runs[f"{name}, local"].peak_bytes
        for name in ("default", "rewrite")
    }
    holds = all(run.code == 0 for run in runs.values()) and max(above.values()) <= ALLOWED
    for name, run in runs.items():
        print(f"{name}: exit code {run.code}, {run.seconds:.1f} s, {run.peak_bytes >> 20} MiB {run.error[-200:]}")
    figures = {name: vars(run) for name, run in runs.items()}
    document = {"machine": describe(CACHE), "runs": figures, "above_local": above, "holds": holds}
    Path("build/bench-bucket-memory.json").write_text(json.dumps(document, indent=2))
    sys.exit(not holds)


def _convert(*arguments: str) -> Measurement:
    return measure([str(Path(sys.executable).with_name("ax2mt")), "convert", "-q", *arguments])


if __name__ == "__main__":
    main()
