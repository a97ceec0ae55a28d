"""Times a sharded restore of our output against one of what Orbax writes itself: `python -m benchmarks.restore`.

Each restore is a process of its own with four host devices. Orbax's copy is saved from the arrays as they are sharded
in the restore, so that its chunks are the shards: the best case for Orbax.
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

from benchmarks.machine import describe
from benchmarks.source import CACHE, random_source
from converter.memory import parse_size

DEVICES = 4


def restore(items: Path, save_to: Path | None) -> float:
    """Restores an item sharded over all devices; returns the seconds, and saves the arrays again where asked."""
    import jax
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(jax.devices(), ("fsdp",))
    checkpointer = ocp.PyTreeCheckpointer()
    metadata: Any = checkpointer.metadata(items)

    def sharded(leaf: Any) -> ocp.ArrayRestoreArgs:
        # The largest dimension that divides; a leaf with none is replicated.
        dims = [dim for dim, size in enumerate(leaf.shape) if size % DEVICES == 0]
        widest = max(dims, key=lambda dim: leaf.shape[dim], default=None)
        spec = PartitionSpec(*("fsdp" if dim == widest else None for dim in range(len(leaf.shape))))
        return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=NamedSharding(mesh, spec))

    arguments = jax.tree.map(sharded, metadata.item_metadata.tree, is_leaf=lambda node: hasattr(node, "shape"))
    started = time.perf_counter()
    tree = jax.block_until_ready(checkpointer.restore(items, restore_args=arguments))
    seconds = time.perf_counter() - started
    if save_to is not None:
        checkpointer.save(save_to.absolute(), tree)
    return seconds


def _in_process(items: Path, save_to: Path | None = None) -> float:
    command = [sys.executable, "-m", "benchmarks.restore", "--child", str(items.absolute())]
    command += ["--save-to", str(save_to)] if save_to else []
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"restore of {items} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Entry point; with `--child`, one restore that prints its seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save-to", type=Path, help=argparse.SUPPRESS)
    options, flags = parser.parse_known_args()  # Unknown flags go to `ax2mt convert`.
    if options.child:
        print(restore(options.child, options.save_to))
        return
    size = parse_size(options.size)
    source = random_source(CACHE / f"random-{size}", size)
    ours, reference = CACHE / "restore-ours", CACHE / "restore-orbax"
    for path in (ours, reference):
        shutil.rmtree(path, ignore_errors=True)
    program = str(Path(sys.executable).with_name("ax2mt"))
    subprocess.run([program, "convert", "-q", str(source), str(ours), *flags], check=True, stdout=subprocess.DEVNULL)
    items = ours / "0" / "items"
    _in_process(items, save_to=reference)
    pairs = [(_in_process(items), _in_process(reference)) for _ in range(options.rounds)]
    ours_seconds, orbax_seconds = (median(side) for side in zip(*pairs, strict=True))
    print(f"ours {ours_seconds:.2f} s, Orbax {orbax_seconds:.2f} s, ratio {ours_seconds / orbax_seconds:.2f}")
    document = {"machine": describe(CACHE), "size": size, "flags": flags, "pairs": pairs}
    (CACHE / "restore.json").write_text(json.dumps(document, indent=2) + "\n")
    for path in (ours, reference):
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
