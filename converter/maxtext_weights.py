"""The weights of a MaxText Envy checkpoint, under the names and in the axis orders of `weights`."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from converter.array_view import StoredArray, View, open_store
from converter.digest import recorded_qk_norm, recorded_settings
from converter.errors import SourceError
from converter.location import locate
from converter.maxtext import CONFIG_NAME, ITEMS
from converter.maxtext_reader import find_items, has_items
from converter.weights import Weights, layer_view

MAX_METADATA_BYTES = 64 << 20

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


def maxtext_items(path: str) -> str | None:
    """The directory of a MaxText checkpoint's items, for a path to the checkpoint, its step or the items themselves."""
    return find_items(path) if has_items(path) else None


def config_file(path: str) -> str | None:
    """The model configuration beside a MaxText checkpoint."""
    for up in (".", "..", os.path.join("..", "..")):
        file = os.path.normpath(os.path.join(path, up, CONFIG_NAME))
        if os.path.isfile(file):
            return file
    return None


def recorded_at(path: str) -> dict[str, Any]:
    """What a user set when a MaxText checkpoint was converted; empty where there is none, or where it does not say."""
    items = maxtext_items(os.path.expanduser(path))
    try:
        return recorded_settings(_custom_metadata(items)) if items else {}
    except SourceError:
        return {}


def maxtext_weights(path: str) -> Weights:
    """The weights of a MaxText checkpoint, in any of the formats that Orbax writes, scanned or unscanned.

    Raises:
      SourceError: there is no checkpoint, or it is damaged, or its shapes contradict each other.
    """
    place = locate(path, SourceError)
    items = maxtext_items(place.path)
    if items is None:
        raise SourceError(f"{place.given}: no MaxText checkpoint here; expected {ITEMS}/_METADATA below it")
    metadata = _read_json(os.path.join(items, "_METADATA"))
    leaves = _leaf_names(metadata, items)
    arrays = {leaf: _open_leaf(items, metadata, leaf) for leaf in leaves}
    missing = [f"missing: {TOP[name]}" for name in ("embedding", "final_norm") if TOP[name] not in arrays]
    layers = _maxtext_layers(arrays)
    if missing or not layers:
        raise SourceError(f"{place.given}: no Envy checkpoint of MaxText", missing or ["no decoder/layers*"])
    top = {name: layer_view(arrays[leaf], None, 0) for name, leaf in TOP.items() if leaf in arrays}
    custom = _custom_metadata(items)
    weights = Weights(place.given, top, layers, recorded_qk_norm(custom), settings=recorded_settings(custom))
    weights.check()
    return weights


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
    return {name: layer_view(array, axis, repeat) for name, array in found.items() if array is not None}


def _leaf_names(metadata: Mapping[str, object], items: str) -> list[str]:
    """Paths of the parameters below `params/params`."""
    tree = metadata.get("tree_metadata")
    if not isinstance(tree, dict):
        raise SourceError(f"{items}/_METADATA: has no tree_metadata; expected what Orbax writes")
    names: list[str] = []
    for entry in tree.values():
        if not isinstance(entry, dict):
            continue
        keys = [str(part.get("key")) for part in entry.get("key_metadata", ()) if isinstance(part, dict)]
        value = entry.get("value_metadata")
        skipped = isinstance(value, dict) and value.get("skip_deserialize")
        if keys[:2] == ["params", "params"] and not skipped:
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


def _custom_metadata(items: str) -> object:
    file = os.path.join(os.path.dirname(items.rstrip("/")), "_CHECKPOINT_METADATA")
    return _read_json(file).get("custom_metadata") if os.path.isfile(file) else None


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
