"""Reads and decodes both sides once and does nothing with it: `python -m benchmarks.read_both [--reuse] STEP ITEMS`.

What any comparison has to do at least, with TensorStore: each chunk once, two at a time, no cache. With `--reuse` the
allocator is set as `verify` sets it, which makes this nearly twice as fast.
"""

import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tensorstore as ts

from converter.work import reuse_freed_memory

THREADS = 2


def main(directories: list[Path]) -> None:
    """Reads all arrays below the directories."""
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    metadata = [path for directory in directories for path in sorted(directory.rglob("*"))]
    stores = [_open(path, context) for path in metadata if path.name in ("zarr.json", ".zarray")]
    parts = itertools.chain.from_iterable(map(_chunks, stores))
    with ThreadPoolExecutor(THREADS) as pool:
        print(sum(pool.map(lambda part: part.read().result().nbytes, parts)))


def _open(metadata: Path, context: Any) -> Any:
    driver = "zarr3" if metadata.name == "zarr.json" else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{metadata.parent}/"}}
    return ts.open(spec, read=True, context=context).result()


def _chunks(store: Any) -> Iterator[Any]:
    lengths = store.chunk_layout.read_chunk.shape
    parts = (
        [slice(low, min(low + length, size)) for low in range(0, size, length)]
        for size, length in zip(store.shape, lengths, strict=True)
    )
    return (store[part] for part in itertools.product(*parts))


if __name__ == "__main__":
    if "--reuse" in sys.argv:
        reuse_freed_memory()
    main([Path(argument) for argument in sys.argv[1:] if argument != "--reuse"])
