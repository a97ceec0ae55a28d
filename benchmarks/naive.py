"""What a user would write: load every tensor, transpose, save with Orbax. `python -m benchmarks.naive STEP DST`.

In the style of MaxText's own converters: the whole model in memory, then one `CheckpointManager.save` in MaxText's
format (OCDBT, zarr3).
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(step: Path, destination: Path) -> None:
    """Converts a step directory of a hybridnorm Envy."""
    import jax
    import orbax.checkpoint as ocp

    index = json.loads((step / "index").read_text())
    arrays = {
        name.removeprefix("model/"): _load(step / "gda" / name) for name, entry in index if isinstance(entry, dict)
    }
    tree: dict[str, Any] = {}
    for name, value in arrays.items():
        for path, leaf in _leaves(name, value):
            *parents, last = path.split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = jax.numpy.asarray(leaf)
    with ocp.CheckpointManager(
        destination.absolute(),
        item_names=("items",),
        item_handlers={"items": ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)},
    ) as manager:
        save = ocp.args.PyTreeSave({"params": {"params": tree}})
        manager.save(0, args=ocp.args.Composite(items=save))
        manager.wait_until_finished()


def _load(directory: Path) -> np.ndarray:
    import tensorstore as ts

    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{directory}/"}}
    return ts.open(spec, open=True, read=True).result().read().result()


def _leaves(name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if name.startswith("decoder/emb"):
        return [("token_embedder/embedding", value)]
    if name == "decoder/output_norm/scale":
        return [("decoder/decoder_norm/scale", value)]
    layer, _, rest = name.removeprefix("decoder/transformer/repeat/layer/layer").partition("/")
    root = f"decoder/layers/layers_{layer}"
    if "qkv_proj" in rest:
        heads = value.shape[2] // 3
        query, key, val = (np.swapaxes(part, 0, 1) for part in np.split(value, [heads, 2 * heads], axis=2))
        attention = f"{root}/self_attention"
        return [
            (f"{attention}/query/kernel", _halves(query)),
            (f"{attention}/key/kernel", _halves(key)),
            (f"{attention}/value/kernel", val),
        ]
    if "o_proj" in rest:
        return [(f"{root}/self_attention/out/kernel", value.transpose(2, 0, 3, 1))]
    moved = np.swapaxes(value, 0, 1)
    return [(f"{root}/{PLACES[rest]}", _halves(moved.T).T if "/scale_" in rest else moved)]


def _halves(value: np.ndarray) -> np.ndarray:
    return np.concatenate([value[..., 0::2], value[..., 1::2]], axis=-1)


PLACES = {
    "self_attention/norm/scale": "pre_self_attention_layer_norm/scale",
    "self_attention/attention/scale_query/norm/scale": "self_attention/query_norm/scale",
    "self_attention/attention/scale_key/norm/scale": "self_attention/key_norm/scale",
    "feed_forward/prenorm/scale": "post_self_attention_layer_norm/scale",
    "feed_forward/postnorm/scale": "post_ffw_norm/scale",
    "feed_forward/linear1_0/weight": "mlp/wi_0/kernel",
    "feed_forward/linear1_1/weight": "mlp/wi_1/kernel",
    "feed_forward/linear2/weight": "mlp/wo/kernel",
    "feed_forward/gate_weight": "MoeBlock_0/gate/kernel",
    "feed_forward/wi_0_weight": "MoeBlock_0/wi_0",
    "feed_forward/wi_1_weight": "MoeBlock_0/wi_1",
    "feed_forward/wo_weight": "MoeBlock_0/wo",
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
