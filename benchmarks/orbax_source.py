"""A step in the format of AXLearn's OrbaxCheckpointer, made of a native one."""

import json
import shutil
from pathlib import Path
from typing import Any

import tensorstore as ts


def orbax_source(path: Path, native: Path) -> Path:
    """Writes, or finds, the same step as AXLearn's OrbaxCheckpointer saves it; returns its directory.

    Every chunk is a value of one OCDBT database: zarr v2, with the chunk shapes of the native step.

    Args:
      path: where it goes, as a trainer directory.
      native: the step, in AXLearn's native format.
    """
    step = path / "checkpoints" / native.name
    index = (native / "index").read_text()
    if (step / "index" / "index").is_file() and (step / "index" / "index").read_text() == index:
        return step
    shutil.rmtree(path, ignore_errors=True)
    (step / "index").mkdir(parents=True)
    state = step / "state"
    tree: dict[str, Any] = {}
    for name, _ in json.loads(index)[1:]:
        parts = name.split("/")
        tree[str(tuple(parts))] = {
            "key_metadata": [{"key": part, "key_type": 2} for part in parts],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
        }
        _copy(native / "gda" / name, state, ".".join(parts))
    metadata = {"tree_metadata": tree, "use_ocdbt": True, "use_zarr3": False, "custom_metadata": None}
    (state / "_METADATA").write_text(json.dumps(metadata))
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    (step / "index" / "index").write_text(index)
    return step


def _copy(array: Path, state: Path, key: str) -> None:
    """Copies an array into the database, some chunks at a time."""
    source: Any = ts.open({"driver": "zarr", "kvstore": f"file://{array.resolve()}/"}).result()
    metadata = {"chunks": list(source.chunk_layout.read_chunk.shape), "compressor": {"id": "zstd", "level": 1}}
    place = {"driver": "ocdbt", "base": f"file://{state.resolve()}/", "path": f"{key}/"}
    target: Any = ts.open(
        {"driver": "zarr", "kvstore": place, "metadata": metadata}, create=True, dtype=source.dtype, shape=source.shape
    ).result()
    if not source.rank:
        target.write(source.read().result()).result()
        return
    length = source.chunk_layout.read_chunk.shape[0]
    for start in range(0, source.shape[0], length):
        part = source[start : start + length].read().result()
        target[start : start + length].write(part).result()
