"""Peak memory of arrays far larger than the budget: `python -m benchmarks.memory`."""

import argparse
import json
import shutil
import sys
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.measure import measure
from benchmarks.source import CACHE, layered_source, memory_source
from converter.words import parse_size

ALLOWANCE = 350 << 20
SOURCES = {
    "many": ("128 MiB chunks", False, False),
    "one": ("one chunk", True, False),
    "random": ("one chunk of random values", True, True),
    "layers": ("108 MiB chunks of 12 layers, unscanned", False, True),
}
"""Name to chunking, whether an array is one chunk, and whether it is as large when compressed."""


def main() -> None:
    """Converts 4 GiB arrays in each of `SOURCES`; exit 1 where a run fails or takes more than it may."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--max-memory", default="512MiB")
    parser.add_argument("--array-gib", type=int, default=4)
    parser.add_argument("--rewrite", action="store_true", help="force the rewrite route")
    options = parser.parse_args()
    limit = parse_size(options.max_memory) + ALLOWANCE
    output = CACHE / "memory-output"
    rows: list[dict[str, object]] = []
    for name, (chunking, one_chunk, random) in SOURCES.items():
        path = CACHE / f"memory-{options.array_gib}-{name}"
        layout = ["--layout", "unscanned"] if name == "layers" else []
        size = options.array_gib << 30
        source = layered_source(path, size) if layout else memory_source(path, size, one_chunk=one_chunk, random=random)
        shutil.rmtree(output, ignore_errors=True)
        program = str(Path(sys.executable).with_name("ax2mt"))
        command = [program, "convert", "-q", "--json", str(source), str(output), "--max-memory", options.max_memory]
        command += layout
        result = measure([*command, "--rewrite"] if options.rewrite else command)
        shutil.rmtree(output, ignore_errors=True)
        if random:
            shutil.rmtree(path)  # as large on disk as in memory
        holds = result.code == 0 and result.peak_bytes <= limit
        rows.append({"chunking": chunking, "code": result.code, "peak_bytes": result.peak_bytes, "holds": holds})
        print(
            f"{options.array_gib} GiB arrays, {chunking}: exit {result.code}, peak {result.peak_bytes >> 20} MiB, "
            f"limit {limit >> 20} MiB, {result.seconds:.1f} s"
        )
        if result.code:
            print((result.output + result.error).strip()[:1000], file=sys.stderr)
    document = {"machine": describe(CACHE), "limit_bytes": limit, "rows": rows}
    (CACHE / "memory.json").write_text(json.dumps(document, indent=2) + "\n")
    if not all(row["holds"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
