"""Times a sharded restore of our output against one of what Orbax writes itself: `python -m benchmarks.restore`.

Each restore is a process of its own with four host devices, sharded as MaxText does with fsdp: along the embedding
axis. Orbax's copies are saved by the stock `CheckpointManager` in MaxText's format (OCDBT, zarr3): once from the arrays
as they are sharded in the restore, so that its chunks are the shards, the best case; and once from whole arrays, as a
script has them that loads a checkpoint and saves it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.measure import warm
from benchmarks.source import CACHE, Sizes, sized_source

DEVICES = 4
SIZES = Sizes(embed=768, experts=16, repeats=2)
"""1.9 GB; the embedding axis is 16-way sharded in the source, so that its chunks lie within the four shards."""

STORES = {
    "files": [],
    "ocdbt": ["--store", "ocdbt"],
    "zarr2": ["--store", "zarr2"],
    "rewrite": ["--rewrite"],
    "rewrite, ocdbt": ["--rewrite", "--store", "ocdbt"],
}
REFERENCE = "Orbax, shards"
WHOLE = "Orbax, whole arrays"


def restore(items: Path, save_to: Path | None, *, whole: bool = False) -> float:
    """Restores an item sharded over all devices; returns the seconds.

    Args:
      items: the item.
      save_to: where the arrays are saved again, if at all.
      whole: restore and save whole arrays instead.
    """
    import jax
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(jax.devices(), ("fsdp",))
    checkpointer = ocp.PyTreeCheckpointer()
    metadata: Any = checkpointer.metadata(items)

    def wanted(leaf: Any) -> ocp.RestoreArgs:
        # MaxText's logical axis rules send `embed` to fsdp; what has no such axis is replicated.
        spec = PartitionSpec(*("fsdp" if size == SIZES.embed else None for size in leaf.shape))
        if whole:
            return ocp.RestoreArgs(restore_type=np.ndarray)
        return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=NamedSharding(mesh, spec))

    arguments = jax.tree.map(wanted, metadata.item_metadata.tree, is_leaf=lambda node: hasattr(node, "shape"))
    started = time.perf_counter()
    tree = jax.block_until_ready(checkpointer.restore(items, restore_args=arguments))
    seconds = time.perf_counter() - started
    if save_to is not None:
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
        with ocp.CheckpointManager(
            save_to.absolute(), item_names=("items",), item_handlers={"items": handler}
        ) as manager:
            save: Any = ocp.args.PyTreeSave
            manager.save(0, args=ocp.args.Composite(items=save(tree)))
    return seconds


def in_process(items: Path, save_to: Path | None = None, *, whole: bool = False) -> float:
    """The seconds of one restore in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.restore", "--child", str(items.absolute())]
    command += ["--save-to", str(save_to)] if save_to else []
    command += ["--whole"] if whole else []
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    warm(items)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"restore of {items} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Entry point; with `--child`, one restore that prints its seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save-to", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(restore(options.child, options.save_to, whole=options.whole))
        return
    source = sized_source(CACHE / "random-restore", SIZES)
    work = CACHE / "restore"
    shutil.rmtree(work, ignore_errors=True)
    program = str(Path(sys.executable).with_name("ax2mt"))
    items: dict[str, Path] = {}
    for name in options.stores:
        target = work / name.replace(", ", "-")
        command = [program, "convert", "-q", str(source), str(target), *STORES[name]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        items[name] = target / "0" / "items"
    ours = next(iter(items.values()))
    for name, folder in ((REFERENCE, "shards"), (WHOLE, "whole")):
        in_process(ours, save_to=work / folder, whole=name == WHOLE)
        items[name] = work / folder / "0" / "items"
    seconds: dict[str, list[float]] = {name: [] for name in items}
    for _ in range(options.rounds):
        for name, path in items.items():
            seconds[name].append(in_process(path))
    reference = median(seconds[REFERENCE])
    print("| written by | seconds | to Orbax's shards |\n| --- | --- | --- |")
    for name, taken in seconds.items():
        print(f"| {name} | {median(taken):.2f} | {median(taken) / reference:.2f} |")
    document = {"machine": describe(CACHE), "sizes": SIZES.__dict__, "seconds": seconds}
    (CACHE / "restore.json").write_text(json.dumps(document, indent=2) + "\n")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
