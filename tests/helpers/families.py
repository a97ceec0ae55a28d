"""Goldens of the families with equal layers, and MaxText's leaves of them by plain numpy; shares no code with ax2mt.

The goldens are checkpoints that AXLearn wrote, with the logits that it computed and its `trainer_config`. The files of
the learner's state are left out of them: no test reads them, and only the index names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorstore as ts

from tests.conftest import AXLEARN
from tests.helpers.axlearn_checkpoint import halves

LAYER = "model/decoder/transformer/repeat/layer"
QKV = f"{LAYER}/self_attention/attention/i_proj/i_proj/qkv_proj/weight"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A golden and what is known of it.

    Attributes:
      table: the mapping table that it belongs to.
      rounding: how far AXLearn's own float32 logits are from exact ones, at most: norms of q and k keep scores small.
      tied: logits come from the embedding.
      fit: exact in stock MaxText with `--qk-norm fit` only.
    """

    table: str
    rounding: float = 1e-5
    tied: bool = True
    fit: bool = False


FAMILIES = {
    "micro-fuji-gqa": Family(table="fuji", rounding=3e-5, tied=False),
    "micro-fuji-mha": Family(table="fuji", rounding=3e-5),
    "micro-honeycrisp-qkproduct": Family(table="honeycrisp", fit=True),
    "micro-gala": Family(table="gala"),
    "micro-qwen": Family(table="qwen", tied=False),
}
"""Goldens that stock MaxText can compute exactly."""


def read_tensors(name: str) -> dict[str, np.ndarray]:
    """The parameters of a golden, by path."""
    gda = next((AXLEARN / name / "checkpoints").iterdir()) / "gda"
    places = sorted(path.parent for path in gda.glob("model/**/.zarray"))
    specs = ({"driver": "zarr", "kvstore": {"driver": "file", "path": f"{place}/"}} for place in places)
    return {
        str(place.relative_to(gda)): ts.open(spec).result().read().result()
        for place, spec in zip(places, specs, strict=True)
    }


def golden(name: str, what: str = "logits") -> np.ndarray:
    """AXLearn's own logits of a golden, or its `input_ids`."""
    with np.load(AXLEARN / name / "logits.npz") as file:
        return file[what]


def separate(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model with a kernel each for q, k and v."""
    query, key, value = split_heads(tensors)
    place = QKV.removesuffix("qkv_proj/weight")
    rest = {path: values for path, values in tensors.items() if path != QKV}
    return rest | {
        f"{place}{name}_proj/weight": values for name, values in zip("qkv", (query, key, value), strict=True)
    }


def split_heads(tensors: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k and v [layers, D, heads, H] of a fused kernel."""
    fused = tensors[QKV]
    if fused.ndim == 5:
        return fused[:, 0], fused[:, 1], fused[:, 2]
    heads = tensors[f"{LAYER}/self_attention/attention/o_proj/weight"].shape[2]
    kv_heads = (fused.shape[2] - heads) // 2
    return fused[:, :, :heads], fused[:, :, heads : heads + kv_heads], fused[:, :, heads + kv_heads :]


SIMPLE = {
    "self_attention/norm/scale": "pre_self_attention_layer_norm/scale",
    "feed_forward/norm/scale": "post_self_attention_layer_norm/scale",
    "feed_forward/linear1_0/weight": "mlp/wi_0/kernel",
    "feed_forward/linear1_1/weight": "mlp/wi_1/kernel",
    "feed_forward/linear2/weight": "mlp/wo/kernel",
    "feed_forward/gate_weight": "moe_block/gate/kernel",
    "feed_forward/wi_0_weight": "moe_block/wi_0",
    "feed_forward/wi_1_weight": "moe_block/wi_1",
    "feed_forward/wo_weight": "moe_block/wo",
}
"""Tensors whose layer axis moves from 0 to 1, and nothing else."""


def expected_leaves(
    tensors: Mapping[str, np.ndarray], *, untie: bool = False, interleaved: bool = False
) -> dict[str, np.ndarray]:
    """MaxText's leaves: each tensor's layout is written out by hand; `interleaved` leaves rotary pairs as they are."""
    turned = np.asarray if interleaved else halves
    embedding = tensors["model/decoder/emb/token_emb/weight"]
    head = tensors.get("model/decoder/lm_head/weight", embedding if untie else None)
    query, key, value = split_heads(tensors)
    layers = {
        "self_attention/query/kernel": turned(query),
        "self_attention/key/kernel": turned(key),
        "self_attention/value/kernel": value,
    }
    layers |= {new: tensors[f"{LAYER}/{old}"] for old, new in SIMPLE.items() if f"{LAYER}/{old}" in tensors}
    for side in ("query", "key"):
        scale = f"{LAYER}/self_attention/attention/scale_{side}/norm/scale"
        if scale in tensors:
            layers[f"self_attention/{side}_norm/scale"] = turned(tensors[scale])
    leaves = {f"decoder/layers/{path}": values.swapaxes(0, 1) for path, values in layers.items()}
    out = tensors[f"{LAYER}/self_attention/attention/o_proj/weight"]
    leaves["decoder/layers/self_attention/out/kernel"] = out.transpose(2, 0, 3, 1)
    leaves["token_embedder/embedding"] = embedding
    leaves["decoder/decoder_norm/scale"] = tensors["model/decoder/output_norm/scale"]
    if head is not None:
        leaves["decoder/logits_dense/kernel"] = head.T
    return {f"params/params/{path}": np.ascontiguousarray(values) for path, values in leaves.items()}
