"""Writes MaxText checkpoints of plain arrays, with TensorStore and the tree description that Orbax leaves."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorstore as ts


def write_maxtext(path: Path, leaves: Mapping[str, np.ndarray], config: str = "") -> Path:
    """Writes step 0 of a checkpoint, zarr v3 in directories, and returns its path.

    Args:
      path: the directory above the step.
      leaves: path in the tree, "/"-joined, to values.
      config: text of maxtext.yml; empty for none.
    """
    items, tree = path / "0" / "items", {}
    for leaf, values in leaves.items():
        keys = leaf.split("/")
        tree[str(tuple(keys))] = {
            "key_metadata": [{"key": key, "key_type": 2} for key in keys],
            "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
        }
        kvstore = {"driver": "file", "path": str(items / ".".join(keys)) + "/"}
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore,
            "dtype": str(values.dtype),
            "store_data_equal_to_fill_value": True,
        }
        ts.open(spec, create=True, shape=values.shape).result().write(values).result()
    (items / "_METADATA").write_text(json.dumps({"tree_metadata": tree, "use_ocdbt": False, "use_zarr3": True}))
    if config:
        (path / "maxtext.yml").write_text(config)
    return path


def unscanned(leaves: Mapping[str, np.ndarray], stack: str, place: str) -> dict[str, np.ndarray]:
    """The same leaves with one place for each layer.

    Args:
      leaves: leaves of a scanned checkpoint without cycles, layers on axis 1 (on axis 0 of scalars).
      stack: path of the stacked layers.
      place: path of one layer, with {layer}.
    """
    result: dict[str, np.ndarray] = {}
    for path, values in leaves.items():
        if not path.startswith(f"{stack}/"):
            result[path] = values
            continue
        axis = min(1, values.ndim - 1)
        for layer in range(values.shape[axis]):
            result[path.replace(stack, place.format(layer=layer), 1)] = np.take(values, layer, axis=axis)
    return result
