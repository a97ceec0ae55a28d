"""Writes AXLearn-layout checkpoints of any shape and sharding, with nothing but numpy and zstandard.

It shares no code with the converter, so that it can be held against it: `index` as AXLearn's Checkpointer writes it,
one zarr v2 array a tensor, zstd level 1, edge chunks padded.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import zstandard

STACK = "model/decoder/transformer/repeat/layer"

_ZARR_DTYPES = {"float32": "<f4", "float64": "<f8", "int32": "<i4", "uint32": "<u4", "bfloat16": "bfloat16"}

DIMENSIONS = ("embed", "repeats", "heads", "kv_heads", "head_dim", "mlp", "moe_mlp", "experts", "vocab")


def dimensions(*values: int) -> dict[str, int]:
    """A model's dimensions, in the order of DIMENSIONS; `repeats` is half the number of layers."""
    return dict(zip(DIMENSIONS, values, strict=True))


PUBLISHED = {
    "envy-switch-base": dimensions(1536, 6, 12, 12, 128, 6144, 6144, 128, 32768),
    "envy-switch-large": dimensions(2048, 12, 16, 16, 128, 8192, 8192, 128, 32768),
    "envy-switch-xxl": dimensions(8192, 12, 64, 8, 128, 20480, 20480, 64, 32768),
}
"""The published dimensions, as both code bases' configurations give them."""

SMALL = dimensions(12, 2, 4, 2, 6, 20, 10, 4, 24)
"""A model whose dimensions nearly all differ from each other."""


def envy_shapes(dims: Mapping[str, int], *, hybridnorm: bool = True) -> dict[str, tuple[int, ...]]:
    """Path to shape of every model tensor of an Envy checkpoint."""
    d, r, nq, nkv, h = (dims[name] for name in ("embed", "repeats", "heads", "kv_heads", "head_dim"))
    shapes: dict[str, tuple[int, ...]] = {
        "model/decoder/emb/token_emb/weight": (dims["vocab"], d),
        "model/decoder/output_norm/scale": (d,),
    }
    for layer in (f"{STACK}/layer0", f"{STACK}/layer1"):
        attention = f"{layer}/self_attention/attention"
        shapes[f"{layer}/self_attention/norm/scale"] = (r, d)
        shapes[f"{attention}/i_proj/i_proj/qkv_proj/weight"] = (r, d, nq + 2 * nkv, h)
        shapes[f"{attention}/o_proj/weight"] = (r, d, nq, h)
        shapes[f"{attention}/scale_query/norm/scale"] = (r, h)
        shapes[f"{attention}/scale_key/norm/scale"] = (r, h)
        for norm in ("prenorm", "postnorm") if hybridnorm else ("norm",):
            shapes[f"{layer}/feed_forward/{norm}/scale"] = (r, d)
    f, e, m = dims["mlp"], dims["experts"], dims["moe_mlp"]
    shapes[f"{STACK}/layer0/feed_forward/linear1_0/weight"] = (r, d, f)
    shapes[f"{STACK}/layer0/feed_forward/linear1_1/weight"] = (r, d, f)
    shapes[f"{STACK}/layer0/feed_forward/linear2/weight"] = (r, f, d)
    shapes[f"{STACK}/layer1/feed_forward/gate_weight"] = (r, d, e)
    shapes[f"{STACK}/layer1/feed_forward/wi_0_weight"] = (r, e, d, m)
    shapes[f"{STACK}/layer1/feed_forward/wi_1_weight"] = (r, e, d, m)
    shapes[f"{STACK}/layer1/feed_forward/wo_weight"] = (r, e, m, d)
    return shapes


def envy_tensors(
    dims: Mapping[str, int] = SMALL, *, hybridnorm: bool = True, dtype: str = "float32", seed: int = 0
) -> dict[str, np.ndarray]:
    """Random weights for every tensor of an Envy checkpoint; no two elements of a tensor are likely to be equal."""
    random = np.random.default_rng(seed)
    return {
        path: random.standard_normal(shape).astype(numpy_dtype(dtype))
        for path, shape in envy_shapes(dims, hybridnorm=hybridnorm).items()
    }


def expected_leaves(
    tensors: Mapping[str, np.ndarray], *, untie: bool = False, interleaved: bool = False
) -> dict[str, np.ndarray]:
    """MaxText's leaves of an Envy checkpoint, by plain numpy from the layouts of both programs.

    Knows nothing of mapping tables: each tensor's layout is written out by hand; `interleaved` leaves rotary pairs as
    they are.
    """
    embedding = tensors["model/decoder/emb/token_emb/weight"]
    leaves = {
        "token_embedder/embedding": embedding,
        "decoder/decoder_norm/scale": tensors["model/decoder/output_norm/scale"],
    }
    if untie:
        leaves["decoder/logits_dense/kernel"] = embedding.T
    for number in (0, 1):
        layer = {
            path.removeprefix(f"{STACK}/layer{number}/"): np.asarray(value)
            for path, value in tensors.items()
            if path.startswith(f"{STACK}/layer{number}/")
        }
        for path, value in _expected_layer(layer, np.asarray if interleaved else halves).items():
            leaves[f"decoder/layers/layers_{number}/{path}"] = value
    return {f"params/params/{path}": np.ascontiguousarray(value) for path, value in leaves.items()}


def _expected_layer(
    layer: Mapping[str, np.ndarray], turned: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    qkv = layer["self_attention/attention/i_proj/i_proj/qkv_proj/weight"]
    out = layer["self_attention/attention/o_proj/weight"]
    heads = out.shape[2]
    kv_heads = (qkv.shape[2] - heads) // 2
    query, key, value = qkv[:, :, :heads], qkv[:, :, heads : heads + kv_heads], qkv[:, :, heads + kv_heads :]
    leaves = {
        "pre_self_attention_layer_norm/scale": layer["self_attention/norm/scale"].T,
        "self_attention/query/kernel": turned(query).swapaxes(0, 1),
        "self_attention/key/kernel": turned(key).swapaxes(0, 1),
        "self_attention/value/kernel": value.swapaxes(0, 1),
        "self_attention/query_norm/scale": turned(layer["self_attention/attention/scale_query/norm/scale"]).T,
        "self_attention/key_norm/scale": turned(layer["self_attention/attention/scale_key/norm/scale"]).T,
        "self_attention/out/kernel": out.transpose(2, 0, 3, 1),
    }
    simple = {
        "feed_forward/norm/scale": "post_self_attention_layer_norm/scale",
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
    return leaves | {simple[path]: array.swapaxes(0, 1) for path, array in layer.items() if path in simple}


def halves(values: np.ndarray) -> np.ndarray:
    """Interleaved rotary pairs (last axis) as MaxText's halves."""
    return np.concatenate([values[..., 0::2], values[..., 1::2]], axis=-1)


def numpy_dtype(name: str) -> np.dtype:
    """numpy's dtype, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def write_checkpoint(
    directory: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    chunks: Mapping[str, Sequence[int]] | None = None,
    step: int = 100,
    compressor: str | None = "zstd",
    others: Sequence[tuple[str, Any]] = (),
) -> Path:
    """Writes a committed step.

    Args:
      directory: the step directory to make.
      tensors: path to values.
      chunks: path to chunk shape, for tensors that are not one chunk.
      step: the step in the index.
      compressor: "zstd" (level 1) or None for raw chunks.
      others: further entries of the index, such as iterator states.

    Returns:
      The directory.
    """
    for path, values in tensors.items():
        chunk = tuple((chunks or {}).get(path, values.shape))
        write_array(directory / "gda" / path, values, chunk, compressor=compressor)
    write_index(directory, {path: (str(v.dtype), v.shape) for path, v in tensors.items()}, step=step, others=others)
    return directory


def write_metadata(
    directory: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    chunks: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "float32",
    step: int = 100,
) -> Path:
    """Writes `index` and the `.zarray` files of a checkpoint of any size, and no weights."""
    for path, shape in shapes.items():
        place = directory / "gda" / path
        place.mkdir(parents=True)
        _write_zarray(place, shape, tuple((chunks or {}).get(path, shape)), dtype, "zstd")
    write_index(directory, {path: (dtype, shape) for path, shape in shapes.items()}, step=step)
    return directory


def write_index(
    directory: Path,
    entries: Mapping[str, tuple[str, tuple[int, ...]]],
    *,
    step: int = 100,
    others: Sequence[tuple[str, Any]] = (),
) -> None:
    """Writes the commit marker; shapes are texts that hold a Python tuple."""
    index: list[Any] = [["step", step], *([name, value] for name, value in others)]
    index += [[path, {"dtype": dtype, "shape": str(tuple(shape))}] for path, (dtype, shape) in sorted(entries.items())]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "index").write_text(json.dumps(index))


def write_array(
    directory: Path, values: np.ndarray, chunks: tuple[int, ...], *, compressor: str | None = "zstd"
) -> None:
    """Writes one zarr v2 array."""
    directory.mkdir(parents=True)
    _write_zarray(directory, values.shape, chunks, str(values.dtype), compressor)
    compress = zstandard.ZstdCompressor(level=1).compress
    grid = [range(math.ceil(length / chunk)) for length, chunk in zip(values.shape, chunks, strict=True)]
    for index in itertools.product(*grid):
        region = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))]
        padded = np.zeros(chunks, values.dtype)
        padded[tuple(slice(0, length) for length in region.shape)] = region
        data = padded.tobytes()
        (directory / (".".join(map(str, index)) or "0")).write_bytes(compress(data) if compressor else data)


def _write_zarray(
    directory: Path, shape: Sequence[int], chunks: Sequence[int], dtype: str, compressor: str | None
) -> None:
    content = {
        "chunks": list(chunks),
        "compressor": {"id": compressor, "level": 1} if compressor else None,
        "dimension_separator": ".",
        "dtype": _ZARR_DTYPES[dtype],
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": list(shape),
        "zarr_format": 2,
    }
    (directory / ".zarray").write_text(json.dumps(content))
