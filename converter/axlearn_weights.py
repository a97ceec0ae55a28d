"""The weights of an AXLearn Envy checkpoint, under the names and in the axis orders of `weights`."""

from collections.abc import Mapping

from converter.array_view import StoredArray, View, open_axlearn
from converter.errors import MappingError
from converter.mapping import LAYER_AXIS
from converter.source import Source
from converter.weights import Weights, layer_view

ENVY = "envy"

QKV = "self_attention/attention/i_proj/i_proj/qkv_proj/weight"
AXLEARN_LAYER: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "attention_norm": ("self_attention/norm/scale", (0,)),
    "query_scale": ("self_attention/attention/scale_query/norm/scale", (0,)),
    "key_scale": ("self_attention/attention/scale_key/norm/scale", (0,)),
    "out": ("self_attention/attention/o_proj/weight", (1, 2, 0)),
    "ffn_norm": ("feed_forward/norm/scale", (0,)),
    "pre_ffn_norm": ("feed_forward/prenorm/scale", (0,)),
    "post_ffn_norm": ("feed_forward/postnorm/scale", (0,)),
    "wi_0": ("feed_forward/linear1_0/weight", (0, 1)),
    "wi_1": ("feed_forward/linear1_1/weight", (0, 1)),
    "wo": ("feed_forward/linear2/weight", (0, 1)),
    "gate": ("feed_forward/gate_weight", (0, 1)),
    "expert_wi_0": ("feed_forward/wi_0_weight", (0, 1, 2)),
    "expert_wi_1": ("feed_forward/wi_1_weight", (0, 1, 2)),
    "expert_wo": ("feed_forward/wo_weight", (0, 1, 2)),
}
"""Name to AXLearn's path below a layer and the axes' dimensions there, the layer axis left out."""


def axlearn_weights(source: Source) -> Weights:
    """The weights of an AXLearn checkpoint.

    Raises:
      MappingError: the checkpoint is of another model family.
      SourceError: an array cannot be opened, or shapes contradict each other.
    """
    match = source.match
    if match.table.name != ENVY:
        raise MappingError(
            f"logits are computed for Envy models only; the table '{match.table.name}' describes another family"
        )
    opened = {path: open_axlearn(array) for path, array in source.arrays.items()}
    named: dict[tuple[str, str], tuple[StoredArray, int | None]] = {}
    for row in match.rows:
        for path, local, axes in zip(row.sources, row.row.axlearn, row.expression.sources, strict=True):
            names = [str(dim) for dim in axes]
            axis = names.index(LAYER_AXIS) if LAYER_AXIS in names else None
            named[row.source_place, local.removeprefix("{layer}/")] = opened[path], axis
    layers: list[Mapping[str, View]] = []
    places = list(dict.fromkeys(place for place, _ in named if place))
    for repeat in range(match.sizes.get(LAYER_AXIS, 1)):
        for place in places:
            tensors = {local: entry for (where, local), entry in named.items() if where == place}
            layers.append(_axlearn_layer(tensors, repeat))
    top = {
        "embedding": layer_view(*named["", "decoder/emb/token_emb/weight"], 0),
        "final_norm": layer_view(*named["", "decoder/output_norm/scale"], 0),
    }
    weights = Weights(source.shown, top, tuple(layers), notes=source.notes)
    weights.check()
    return weights


def _axlearn_layer(tensors: Mapping[str, tuple[StoredArray, int | None]], repeat: int) -> dict[str, View]:
    layer: dict[str, View] = {}
    for name, (local, order) in AXLEARN_LAYER.items():
        if local in tensors:
            layer["ffn_norm" if name == "pre_ffn_norm" else name] = layer_view(*tensors[local], repeat, order)
    array, axis = tensors[QKV]
    whole = layer_view(array, axis, repeat)
    heads = layer["out"].shape[0]
    total = whole.shape[1]
    kv_heads = (total - heads) // 2
    edges = {"query": (0, heads), "key": (heads, heads + kv_heads), "value": (heads + kv_heads, total)}
    for name, edge in edges.items():
        box = list(whole.box)
        box[whole.order[1]] = edge
        layer[name] = View(array, tuple(box), whole.order)
    return layer
