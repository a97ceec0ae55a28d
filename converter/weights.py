"""An Envy model's weights, read lazily: one interface over an AXLearn and over a MaxText checkpoint.

A tensor is a `View`: it looks the same whichever checkpoint it comes from (axis order below), and is read block by
block. Names and their axes, H being the head dimension in the checkpoint's own order of rotated pairs:

    embedding [V,D]  unembedding [D,V], where it is stored  final_norm [D]
    of a layer: attention_norm [D]  query [D,N,H]  key, value [D,K,H]  query_scale, key_scale [H]  out [N,H,D]
                ffn_norm [D]  post_ffn_norm [D], where the model has it
      dense: wi_0, wi_1 [D,F]  wo [F,D]
      mixture of experts: gate [D,E]  expert_wi_0, expert_wi_1 [E,D,F]  expert_wo [E,F,D]
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from converter.array_view import StoredArray, View, open_axlearn, open_store
from converter.errors import MappingError, SourceError, UsageError
from converter.mapping import LAYER_AXIS
from converter.maxtext import CONFIG_NAME, ITEMS
from converter.source import Source

ENVY = "envy"
MAX_METADATA_BYTES = 64 << 20

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

MAXTEXT_LAYER: Mapping[str, str] = {
    "attention_norm": "pre_self_attention_layer_norm/scale",
    "query": "self_attention/query/kernel",
    "key": "self_attention/key/kernel",
    "value": "self_attention/value/kernel",
    "query_scale": "self_attention/query_norm/scale",
    "key_scale": "self_attention/key_norm/scale",
    "out": "self_attention/out/kernel",
    "ffn_norm": "post_self_attention_layer_norm/scale",
    "post_ffn_norm": "post_ffw_norm/scale",
    "wi_0": "mlp/wi_0/kernel",
    "wi_1": "mlp/wi_1/kernel",
    "wo": "mlp/wo/kernel",
    "gate": "MoeBlock_0/gate/kernel",
    "expert_wi_0": "MoeBlock_0/wi_0",
    "expert_wi_1": "MoeBlock_0/wi_1",
    "expert_wo": "MoeBlock_0/wo",
}
"""Name to MaxText's path below a layer; the axes are in our order already."""

TOP = {
    "embedding": "token_embedder/embedding",
    "unembedding": "decoder/logits_dense/kernel",
    "final_norm": "decoder/decoder_norm/scale",
}

RANKS = {"query": 3, "key": 3, "value": 3, "out": 3, "expert_wi_0": 3, "expert_wi_1": 3, "expert_wo": 3}
REQUIRED = ("attention_norm", "query", "key", "value", "query_scale", "key_scale", "out", "ffn_norm")


@dataclass(frozen=True)
class Weights:
    """A model's tensors.

    Attributes:
      path: the checkpoint, for messages.
      top: tensors outside the layers, by name.
      layers: for each layer its tensors, by name.
      qk_norm: what the checkpoint says of its q/k norm scales: "plain", or "fit" where they were fitted.
    """

    path: str
    top: Mapping[str, View]
    layers: tuple[Mapping[str, View], ...]
    qk_norm: str = "plain"

    @property
    def width(self) -> int:
        """Elements of a hidden state."""
        return self.top["embedding"].shape[1]

    @property
    def vocabulary(self) -> int:
        return self.top["embedding"].shape[0]

    @property
    def largest_block(self) -> int:
        """Bytes that reading takes at most."""
        views = [*self.top.values(), *(view for layer in self.layers for view in layer.values())]
        return max(view.memory for view in views)

    def check(self) -> None:
        """Holds the tensors of the layers against each other.

        Raises:
          SourceError: shapes that no model has; `details` has a line for each finding.
        """
        problems: list[str] = []
        for number, layer in enumerate(self.layers):
            missing = [name for name in REQUIRED if name not in layer]
            experts = "expert_wi_0" in layer
            wanted = ("gate", "expert_wi_0", "expert_wi_1", "expert_wo") if experts else ("wi_0", "wi_1", "wo")
            missing += [name for name in wanted if name not in layer]
            problems += [f"layer {number}: {name} is missing" for name in missing]
            if not missing:
                problems += [f"layer {number}: {text}" for text in _shape_problems(layer, self.width)]
        if problems:
            raise SourceError(f"{self.path}: no Envy model can have these tensors", problems[:20])


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
        "embedding": _view(*named["", "decoder/emb/token_emb/weight"], 0),
        "final_norm": _view(*named["", "decoder/output_norm/scale"], 0),
    }
    weights = Weights(source.checkpoint.directory, top, tuple(layers))
    weights.check()
    return weights


def maxtext_items(path: str) -> str | None:
    """The directory of a MaxText checkpoint's items, for a path to the checkpoint, its step or the items themselves."""
    for below in (ITEMS, "items", ""):
        items = os.path.join(path, below) if below else path
        if os.path.isfile(os.path.join(items, "_METADATA")):
            return items
    return None


def config_file(path: str) -> str | None:
    """The model configuration beside a MaxText checkpoint."""
    for up in (".", "..", os.path.join("..", "..")):
        file = os.path.normpath(os.path.join(path, up, CONFIG_NAME))
        if os.path.isfile(file):
            return file
    return None


def maxtext_weights(path: str) -> Weights:
    """The weights of a MaxText checkpoint, in any of the formats that Orbax writes, scanned or unscanned.

    Raises:
      SourceError: there is no checkpoint, or it is damaged, or its shapes contradict each other.
    """
    items = maxtext_items(os.path.expanduser(path))
    if items is None:
        raise SourceError(f"{path}: no MaxText checkpoint here; expected {ITEMS}/_METADATA below it")
    metadata = _read_json(os.path.join(items, "_METADATA"))
    leaves = _leaf_names(metadata, items)
    arrays = {leaf: _open_leaf(items, metadata, leaf) for leaf in leaves}
    missing = [f"missing: {TOP[name]}" for name in ("embedding", "final_norm") if TOP[name] not in arrays]
    layers = _maxtext_layers(arrays)
    if missing or not layers:
        raise SourceError(f"{path}: no Envy checkpoint of MaxText", missing or ["no decoder/layers*"])
    top = {name: _view(arrays[leaf], None, 0) for name, leaf in TOP.items() if leaf in arrays}
    step = os.path.join(os.path.dirname(items.rstrip("/")), "_CHECKPOINT_METADATA")
    weights = Weights(path, top, layers, _qk_norm(_read_json(step) if os.path.isfile(step) else {}))
    weights.check()
    return weights


def _axlearn_layer(tensors: Mapping[str, tuple[StoredArray, int | None]], repeat: int) -> dict[str, View]:
    layer: dict[str, View] = {}
    for name, (local, order) in AXLEARN_LAYER.items():
        if local in tensors:
            layer["ffn_norm" if name == "pre_ffn_norm" else name] = _view(*tensors[local], repeat, order)
    array, axis = tensors[QKV]
    whole = _view(array, axis, repeat)
    heads = layer["out"].shape[0]
    total = whole.shape[1]
    kv_heads = (total - heads) // 2
    edges = {"query": (0, heads), "key": (heads, heads + kv_heads), "value": (heads + kv_heads, total)}
    for name, edge in edges.items():
        box = list(whole.box)
        box[whole.order[1]] = edge
        layer[name] = View(array, tuple(box), whole.order)
    return layer


def _maxtext_layers(arrays: Mapping[str, StoredArray]) -> tuple[Mapping[str, View], ...]:
    scanned = _numbers(arrays, "decoder/layers/layers_")
    if not scanned:
        numbers = _numbers(arrays, "decoder/layers_")
        return tuple(_maxtext_layer(arrays, f"decoder/layers_{number}", None, 0) for number in numbers)
    norm = arrays.get(f"decoder/layers/layers_0/{MAXTEXT_LAYER['attention_norm']}")
    repeats = norm.shape[1] if norm is not None and len(norm.shape) == 2 else 0
    return tuple(
        _maxtext_layer(arrays, f"decoder/layers/layers_{block}", 1, repeat)
        for repeat in range(repeats)
        for block in scanned
    )


def _numbers(leaves: Iterable[str], prefix: str) -> list[int]:
    parts = {leaf.removeprefix(prefix).split("/")[0] for leaf in leaves if leaf.startswith(prefix)}
    return sorted(int(part) for part in parts if part.isdigit())


def _maxtext_layer(arrays: Mapping[str, StoredArray], place: str, axis: int | None, repeat: int) -> dict[str, View]:
    found = {name: arrays.get(f"{place}/{local}") for name, local in MAXTEXT_LAYER.items()}
    return {name: _view(array, axis, repeat) for name, array in found.items() if array is not None}


def _view(array: StoredArray, axis: int | None, repeat: int, order: tuple[int, ...] | None = None) -> View:
    """One layer of an array; `order` counts dimensions with the layer axis left out."""
    if axis is not None and (axis >= len(array.shape) or repeat >= array.shape[axis]):
        raise SourceError(f"{array.name}: shape {list(array.shape)} has no layer {repeat} on axis {axis}")
    rest = [dim for dim in range(len(array.shape)) if dim != axis]
    box = tuple((repeat, repeat + 1) if dim == axis else (0, length) for dim, length in enumerate(array.shape))
    return View(array, box, tuple(rest) if order is None else tuple(rest[dim] for dim in order))


def _shape_problems(layer: Mapping[str, View], width: int) -> list[str]:
    shapes = {name: view.shape for name, view in layer.items()}
    bad = [name for name, shape in shapes.items() if len(shape) != _rank(name)]
    if bad:
        return [f"{name} ({layer[name].array.name}) has shape {list(shapes[name])}" for name in bad]
    _, heads, size = shapes["query"]
    kv_heads = shapes["key"][1]
    expected = {
        "attention_norm": (width,),
        "query": (width, heads, size),
        "key": (width, kv_heads, size),
        "value": (width, kv_heads, size),
        "query_scale": (size,),
        "key_scale": (size,),
        "out": (heads, size, width),
        "ffn_norm": (width,),
        "post_ffn_norm": (width,),
    }
    if "gate" in shapes:
        experts, inner = shapes["gate"][1], shapes["expert_wi_0"][2]
        expected |= {"gate": (width, experts), "expert_wo": (experts, inner, width)}
        expected |= dict.fromkeys(("expert_wi_0", "expert_wi_1"), (experts, width, inner))
    else:
        inner = shapes["wi_0"][1]
        expected |= {"wi_0": (width, inner), "wi_1": (width, inner), "wo": (inner, width)}
    found = [
        f"{name} ({layer[name].array.name}) has shape {list(shapes[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if not found and (kv_heads == 0 or heads % kv_heads):
        found.append(f"{heads} query heads do not share {kv_heads} key heads evenly")
    return found


def _rank(name: str) -> int:
    return RANKS.get(name, 2 if name in ("wi_0", "wi_1", "wo", "gate") else 1)


def _leaf_names(metadata: Mapping[str, object], items: str) -> list[str]:
    """Paths of the parameters below `params/params`."""
    tree = metadata.get("tree_metadata")
    if not isinstance(tree, dict):
        raise SourceError(f"{items}/_METADATA: has no tree_metadata; expected what Orbax writes")
    names: list[str] = []
    for entry in tree.values():
        keys = [str(part.get("key")) for part in entry.get("key_metadata", ())]
        if keys[:2] == ["params", "params"] and not entry.get("value_metadata", {}).get("skip_deserialize"):
            names.append("/".join(keys[2:]))
    if not names:
        raise SourceError(f"{items}: holds no params/params; expected a MaxText checkpoint")
    return names


def _open_leaf(items: str, metadata: Mapping[str, object], leaf: str) -> StoredArray:
    key = "params.params." + leaf.replace("/", ".")
    base = os.path.abspath(items) + "/"
    if metadata.get("use_ocdbt", True):
        kvstore = {"driver": "ocdbt", "base": {"driver": "file", "path": base}, "path": key + "/"}
    else:
        kvstore = {"driver": "file", "path": base + key + "/"}
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    store = open_store(leaf, {"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": False})
    chunks = tuple(length or 1 for length in store.chunk_layout.read_chunk.shape or store.shape)
    return StoredArray(leaf, tuple(store.shape), chunks, store, None)


def _qk_norm(metadata: Mapping[str, object]) -> str:
    custom = metadata.get("custom_metadata")
    own = custom.get("ax2mt") if isinstance(custom, dict) else None
    return "fit" if isinstance(own, dict) and own.get("qk_norm") == "fit" else "plain"


def _read_json(file: str) -> dict[str, object]:
    try:
        with open(file, "rb") as stream:
            content = json.loads(stream.read(MAX_METADATA_BYTES))
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file}: no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{file}: expected a JSON object")
    return content


def open_weights(path: str, *, step: int | None = None, mapping: str | None = None) -> tuple[Weights, bool]:
    """Opens a checkpoint of either kind, and tells whether it is AXLearn's.

    Raises:
      UsageError: `--step` or `--mapping` was given for a MaxText checkpoint.
      SourceError: it is neither, or damaged.
    """
    if maxtext_items(os.path.expanduser(path)) is not None:
        if step is not None or mapping is not None:
            raise UsageError(f"{path} is a MaxText checkpoint; --step and --mapping are for AXLearn checkpoints")
        return maxtext_weights(path), False
    from converter.source import open_source

    return axlearn_weights(open_source(path, step=step, mapping=mapping)), True
