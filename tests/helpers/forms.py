"""The forms that AXLearn saves a checkpoint in and MaxText loads one in, made of plain arrays; no code of ax2mt."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorstore as ts

from tests.helpers.axlearn_checkpoint import write_index

SCANNED = "transformer/repeat/layer/"

Tensors = Mapping[str, np.ndarray]


def unrolled(tensors: Tensors) -> dict[str, np.ndarray]:
    """The same model trained without a scan: each layer, or cycle of layers, under a name of its own."""
    result: dict[str, np.ndarray] = {}
    for path, values in tensors.items():
        if SCANNED not in path:
            result[path] = values
            continue
        for number, layer in enumerate(values):
            result[path.replace(SCANNED, f"transformer/layer{number}/")] = layer
    return result


def unscanned(leaves: Tensors) -> dict[str, np.ndarray]:
    """MaxText's leaves with one place for each layer; the layer axis of scanned leaves is 1."""
    result: dict[str, np.ndarray] = {}
    cycle = len({path.split("/")[4] for path in leaves if "/decoder/layers/layers_" in path}) or 1
    for path, values in leaves.items():
        if "/decoder/layers/" not in path:
            result[path] = values
            continue
        before, _, rest = path.partition("decoder/layers/")
        block, inner = 0, rest
        if rest.startswith("layers_"):
            name, _, inner = rest.partition("/")
            block = int(name.removeprefix("layers_"))
        for repeat in range(values.shape[1]):
            place = f"{before}decoder/layers_{repeat * cycle + block}/{inner}"
            result[place] = np.ascontiguousarray(values[:, repeat])
    return result


def write_orbax_checkpoint(
    directory: Path, tensors: Tensors, *, chunks: Mapping[str, tuple[int, ...]] | None = None, database: bool = True
) -> Path:
    """Writes a step as AXLearn's OrbaxCheckpointer does: zarr v2 in an OCDBT database, or in directories."""
    state = directory / "state"
    state.mkdir(parents=True)
    tree = {
        "('learner', 'optimizer', '0')": _entry(("learner", "optimizer", "0"), "None"),
        "('model', 'decoder', 'emb', 'dropout')": _entry(("model", "decoder", "emb", "dropout"), "Dict"),
    }
    for path, values in tensors.items():
        parts = tuple(path.split("/"))
        tree[str(parts)] = _entry(parts, "jax.Array")
        chunk = list((chunks or {}).get(path, values.shape))
        key = ".".join(parts) + "/"
        base = f"file://{state}/"
        place = {"driver": "ocdbt", "base": base, "path": key} if database else f"{base}{key}"
        metadata = {"chunks": chunk, "compressor": {"id": "zstd", "level": 1}}
        spec = {"driver": "zarr", "kvstore": place, "metadata": metadata, "store_data_equal_to_fill_value": True}
        dtype = {"dtype": str(values.dtype)}
        ts.open({**spec, **dtype}, create=True, shape=values.shape).result().write(values).result()
    metadata = {"tree_metadata": tree, "use_ocdbt": database, "use_zarr3": False, "custom_metadata": None}
    (state / "_METADATA").write_text(json.dumps(metadata))
    (directory / "_CHECKPOINT_METADATA").write_text("{}")
    write_index(directory / "index", {path: (str(v.dtype), v.shape) for path, v in tensors.items()})
    return directory


def _entry(parts: tuple[str, ...], value_type: str) -> dict[str, object]:
    return {
        "key_metadata": [{"key": part, "key_type": 2} for part in parts],
        "value_metadata": {"value_type": value_type, "skip_deserialize": value_type != "jax.Array"},
    }
