"""Converts all 22,077,958,656 parameters of Switch-Base and verifies each: `python -m benchmarks.switch_base`.

Then the same with Adam's moments, 66,233,875,968 elements. With arguments, only the routes of these names:
`default`, `rewrite`, `state`.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.measure import measure
from benchmarks.naive import PLACES
from benchmarks.source import (
    CACHE,
    MODEL,
    MOMENTS,
    STEP,
    Array,
    Box,
    Sizes,
    envy_arrays,
    formula_source,
    with_moments,
)

PARAMETERS = 22_077_958_656

ROOTS = {MODEL: "params.params", **{tree: f"opt_state.0.{name}.params" for name, tree in MOMENTS.items()}}
"""Where MaxText has the tensors of a tree."""


def targets(array: Array, heads: int) -> list[tuple[str, str, int]]:
    """MaxText's leaves of a source tensor, each with its kind and the first of its heads."""
    if array.name.startswith("decoder/emb"):
        return [("token_embedder/embedding", "same", 0)]
    if array.name == "decoder/output_norm/scale":
        return [("decoder/decoder_norm/scale", "same", 0)]
    layer, _, rest = array.name.removeprefix("decoder/transformer/repeat/layer/layer").partition("/")
    root = f"decoder/layers/layers_{layer}"
    if "qkv_proj" in rest:
        parts = (("query", "halves"), ("key", "halves"), ("value", "swap"))
        return [(f"{root}/self_attention/{n}/kernel", kind, i * heads) for i, (n, kind) in enumerate(parts)]
    if "o_proj" in rest:
        return [(f"{root}/self_attention/out/kernel", "out", 0)]
    return [(f"{root}/{PLACES[rest]}", "halves" if "/scale_" in rest else "swap", 0)]


def expected_target(array: Array, kind: str, first_head: int, box: Box) -> np.ndarray:
    """A block of a MaxText leaf from the formula alone, using none of the converter's code."""
    if kind == "same":
        return array.block(box)
    if kind == "out":
        heads, repeats, head_dim, embed = box
        return array.block((repeats, embed, heads, head_dim)).transpose(2, 0, 3, 1)
    # The layer axis is the source's first and MaxText's second.
    halves = kind == "halves"
    if halves and len(box) == 2:
        whole = array.block((box[1], (0, array.shape[1]))).T
        start, stop = box[0]
        return np.concatenate([whole[0::2], whole[1::2]])[start:stop]
    moved = [box[1], box[0], *box[2:]]
    if "qkv_proj" in array.name:
        moved[2] = (moved[2][0] + first_head, moved[2][1] + first_head)
    if not halves:
        return np.swapaxes(array.block(tuple(moved)), 0, 1)
    start, stop = moved[-1]
    moved[-1] = (0, array.shape[-1])
    whole = np.swapaxes(array.block(tuple(moved)), 0, 1)
    return np.concatenate([whole[..., 0::2], whole[..., 1::2]], axis=-1)[..., start:stop]


def verify(items: Path, arrays: list[Array], heads: int) -> tuple[int, int]:
    """Compares every element; returns how many were compared and how many of them are wrong."""
    jobs = [(items, array, *target) for array in arrays for target in targets(array, heads)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        counts = list(pool.map(_verify_leaf, jobs))
    return sum(count for count, _ in counts), sum(wrong for _, wrong in counts)


def _verify_leaf(job: tuple[Path, Array, str, str, int]) -> tuple[int, int]:
    import tensorstore as ts

    items, array, leaf, kind, first_head = job
    name = f"{ROOTS[array.tree]}.{leaf.replace('/', '.')}"
    store: dict[str, Any] = {"driver": "file", "path": f"{items / name}/"}
    if (items / "manifest.ocdbt").exists():
        store = {"driver": "ocdbt", "base": f"file://{items.absolute()}/", "path": f"{name}/"}
    spec = {"driver": "zarr3", "kvstore": store, "fill_missing_data_reads": False}
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    opened = ts.open(spec, open=True, read=True, context=context).result()
    compared = wrong = 0
    steps = opened.chunk_layout.read_chunk.shape or opened.shape
    chunk = tuple(step or size for step, size in zip(steps, opened.shape, strict=True))
    for box in _boxes(opened.shape, chunk):
        found = opened[tuple(slice(start, stop) for start, stop in box)].read().result()
        expected = expected_target(array, kind, first_head, box)
        wrong += int(np.count_nonzero(found.view(np.uint32) != np.ascontiguousarray(expected).view(np.uint32)))
        compared += found.size
    return compared, wrong


def _boxes(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Box]:
    for corner in product(*(range(0, size, step) for size, step in zip(shape, chunk, strict=True))):
        yield tuple((low, min(low + step, size)) for low, step, size in zip(corner, chunk, shape, strict=True))


def main() -> None:
    """Exit 1 where a conversion fails, or an element is missing or wrong."""
    output = CACHE / "switch-base-output"
    rows: list[dict[str, Any]] = []
    parameters = envy_arrays(Sizes())
    routes = {
        "default": ([], parameters),
        "rewrite": (["--rewrite"], parameters),
        "state": (["--state"], with_moments(parameters)),
    }
    wanted = sys.argv[1:] or list(routes)
    if unknown := set(wanted) - routes.keys():
        raise SystemExit(f"unknown route {', '.join(sorted(unknown))}; known are {', '.join(routes)}")
    for name in wanted:
        flags, arrays = routes[name]
        state = len(arrays) > len(parameters)
        source = formula_source(CACHE / ("switch-base-state" if state else "switch-base"), state=state)
        items = output / str(STEP - 1 if state else 0) / "items"
        shutil.rmtree(output, ignore_errors=True)
        program = str(Path(sys.executable).with_name("ax2mt"))
        result = measure([program, "convert", "-q", "--json", str(source), str(output), *flags])
        compared, wrong = verify(items, arrays, Sizes().heads) if result.code == 0 else (0, 0)
        elements = sum(array.parameters for array in arrays)
        exact = compared == elements == PARAMETERS * (3 if state else 1) and wrong == 0
        rows.append(
            {
                "route": name,
                "code": result.code,
                "seconds": result.seconds,
                "peak_bytes": result.peak_bytes,
                "bytes": json.loads(result.output)["written_bytes"] if result.code == 0 else 0,
                "source_elements": elements,
                "compared": compared,
                "wrong": wrong,
                "exact": exact,
            }
        )
        if result.code:
            print(f"{name}: exit {result.code}: {(result.error + result.output).strip()[:500]}", file=sys.stderr)
            continue
        written = rows[-1]["bytes"] >> 20
        print(
            f"{name}: {result.seconds:.1f} s, peak {result.peak_bytes >> 20} MiB, {written:,} MiB on disk, "
            f"source {elements:,} elements, {compared:,} compared, {wrong:,} wrong",
            flush=True,
        )
    shutil.rmtree(output, ignore_errors=True)
    (CACHE / "switch-base.json").write_text(json.dumps({"machine": describe(CACHE), "rows": rows}, indent=2) + "\n")
    if not all(row["exact"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
