"""What a model computes from its weights: every point in which AXLearn's Envy and MaxText's can differ."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from converter.errors import SourceError, UsageError

INTERLEAVED = "interleaved"
HALVES = "halves"


@dataclass(frozen=True, slots=True)
class Semantics:
    """A model's arithmetic; see docs/exactness.md.

    Attributes:
      query_order: how rotated pairs lie in the query's head dimension: side by side, or as two halves.
      key_order: the same for the key.
      scale_order: the same for the q/k norm scales.
      norm_after_rope: apply the q/k norms after RoPE, not before.
      top_k: experts of a token.
      renormalise: make the shares of the chosen experts sum to one.
      share_epsilon: added to that sum.
      tied: logits come from the embedding table.
      round_table: round that table to bfloat16 for the logits.
      normalize_logits: divide tied logits by the root of the width.
      epsilon: of all norms.
      theta: RoPE's base.
    """

    query_order: str = INTERLEAVED
    key_order: str = INTERLEAVED
    scale_order: str = INTERLEAVED
    norm_after_rope: bool = True
    top_k: int = 2
    renormalise: bool = True
    share_epsilon: float = 1e-9
    tied: bool = True
    round_table: bool = False
    normalize_logits: bool = False
    epsilon: float = 1e-5
    theta: float = 5e5


AXLEARN = Semantics()
"""AXLearn's Envy (axlearn/common/attention.py, mixture_of_experts.py)."""

STOCK_KEYS: Mapping[str, Any] = {
    "decoder_block": "envy",
    "logits_via_embedding": False,
    "normalize_embedding_logits": True,
    "num_experts_per_tok": 1,
    "normalization_layer_epsilon": 1e-5,
    "rope_max_timescale": 10000,
    "use_qk_norm": False,
    "capacity_factor": -1.0,
}
"""The keys we understand, with the values that MaxText 0.2.5 takes where a configuration does not have them."""

CONVERTED_KEYS: Mapping[str, Any] = {
    "decoder_block": "envy",
    "normalize_embedding_logits": False,
    "num_experts_per_tok": 2,
    "normalization_layer_epsilon": 1e-5,
    "rope_max_timescale": 500000,
    "use_qk_norm": True,
    "capacity_factor": -1.0,
}
"""What a conversion of Envy writes; taken where a checkpoint has no configuration beside it."""


def maxtext_semantics(config: Mapping[str, Any], *, norm_after_rope: bool, has_unembedding: bool) -> Semantics:
    """What MaxText 0.2.5 computes under a configuration.

    Args:
      config: keys of its model configuration; those that are missing have MaxText's own defaults.
      norm_after_rope: MaxText runs with the patch of `maxtext_patch`.
      has_unembedding: the checkpoint has an output projection.

    Raises:
      UsageError: the configuration is of a model that we cannot compute, or contradicts the checkpoint.
    """
    keys = {**STOCK_KEYS, **config}
    for key, needed in {"decoder_block": "envy", "use_qk_norm": True}.items():
        if keys[key] != needed:
            raise UsageError(f"{key} is {keys[key]!r}; logits are computed for {key}={needed} only")
    if keys["capacity_factor"] > 0:
        raise UsageError("capacity_factor is above 0, tokens would be dropped; logits are computed without dropping")
    tied = bool(keys["logits_via_embedding"])
    if not tied and not has_unembedding:
        raise UsageError("logits_via_embedding is false, but the checkpoint has no decoder/logits_dense/kernel")
    return Semantics(
        query_order=HALVES,
        key_order=HALVES,
        scale_order=HALVES,
        norm_after_rope=norm_after_rope,
        top_k=int(keys["num_experts_per_tok"]),
        share_epsilon=0.0,
        tied=tied,
        round_table=tied,
        normalize_logits=tied and bool(keys["normalize_embedding_logits"]),
        epsilon=float(keys["normalization_layer_epsilon"]),
        theta=float(keys["rope_max_timescale"]),
    )


def read_config(file: str | None, settings: list[str], *, has_unembedding: bool) -> dict[str, Any]:
    """The keys of a MaxText configuration that matter here.

    Args:
      file: the yml beside the checkpoint; None where there is none: then the values that a conversion writes.
      settings: `KEY=VALUE` changes, to ask "what if".
      has_unembedding: the checkpoint has an output projection.

    Raises:
      SourceError: the file cannot be read.
      UsageError: a setting has another form, or a key that does not matter for logits.
    """
    import yaml

    config = {**CONVERTED_KEYS, "logits_via_embedding": not has_unembedding} if file is None else _load(file)
    for setting in settings:
        key, mark, text = setting.partition("=")
        if not mark or key not in STOCK_KEYS:
            raise UsageError(f"--set {setting}: expected KEY=VALUE with one of the keys {', '.join(STOCK_KEYS)}")
        value = yaml.safe_load(text)
        kind = type(STOCK_KEYS[key])
        if kind in (int, float) and not isinstance(value, bool):
            try:
                value = kind(float(text))
            except (ValueError, OverflowError):
                raise UsageError(f"--set {setting}: expected a number") from None
        if type(value) is not kind:
            raise UsageError(f"--set {setting}: expected a value like {STOCK_KEYS[key]!r}")
        config[key] = value
    return config


def _load(file: str) -> dict[str, Any]:
    import yaml

    try:
        with open(file, encoding="utf-8") as stream:
            content = yaml.safe_load(stream)
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SourceError(f"{file}: no valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{os.path.abspath(file)}: expected a mapping of keys to values")
    found = {key: content[key] for key in STOCK_KEYS if key in content}
    for key, value in found.items():
        kind = (int, float) if isinstance(STOCK_KEYS[key], int | float) else str
        if not isinstance(value, kind):
            raise SourceError(f"{file}: {key} is {value!r}, expected a value like {STOCK_KEYS[key]!r}")
    return found
