"""What a model computes from its weights: every point in which AXLearn's decoder and MaxText's can differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.checkpoints import load_config
from converter.errors import SourceError, UsageError
from converter.mapping import Arithmetic, parse_setting

INTERLEAVED = "interleaved"
HALVES = "halves"


@dataclass(frozen=True, slots=True, kw_only=True)
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
      scaled_frequencies: RoPE's low frequencies are divided as Llama 3.1 does it.
      score_power: q times k is multiplied by this power of the head dimension.
      gate: which of the two inner projections goes through SiLU, `wi_0` or `wi_1`.
    """

    query_order: str
    key_order: str
    scale_order: str
    norm_after_rope: bool
    top_k: int
    renormalise: bool
    share_epsilon: float
    tied: bool
    round_table: bool
    normalize_logits: bool
    epsilon: float
    theta: float
    scaled_frequencies: bool = False
    score_power: float = -0.5
    gate: str = "wi_0"


def axlearn_semantics(arithmetic: Arithmetic, *, tied: bool) -> Semantics:
    """What AXLearn's decoder computes (axlearn/common/attention.py, mixture_of_experts.py).

    Args:
      arithmetic: the constants that no tensor shows, see `settings.source_arithmetic`.
      tied: logits come from the embedding table.
    """
    return Semantics(
        query_order=INTERLEAVED,
        key_order=INTERLEAVED,
        scale_order=INTERLEAVED,
        norm_after_rope=True,
        top_k=arithmetic.experts_per_token,
        renormalise=True,
        share_epsilon=arithmetic.share_epsilon,
        tied=tied,
        round_table=False,
        normalize_logits=False,
        epsilon=arithmetic.norm_epsilon,
        theta=arithmetic.rope_theta,
    )


STOCK_KEYS: Mapping[str, Any] = {
    "decoder_block": "llama2",
    "logits_via_embedding": False,
    "normalize_embedding_logits": True,
    "num_experts_per_tok": 1,
    "normalization_layer_epsilon": 1e-5,
    "rope_max_timescale": 10000,
    "rope_type": "default",
    "rope_use_scale": True,
    "use_qk_norm": False,
    "capacity_factor": -1.0,
}
"""The keys we understand, with the values that MaxText 0.2.5 takes where a configuration does not have them."""

KEYS: Mapping[str, str] = {
    "top_k": "num_experts_per_tok",
    "theta": "rope_max_timescale",
    "epsilon": "normalization_layer_epsilon",
}
"""Facts of `Semantics` that MaxText is configured with, and the key of each."""


BLOCKS: Mapping[str, str] = {
    "envy": "alternating", "llama2": "dense", "qwen2": "dense", "qwen3": "dense", "qwen3_moe": "sparse",
}  # fmt: skip
"""MaxText's decoder blocks that compute this arithmetic, and the tree that each makes: blocks of one tree load the same
leaves, and only the configuration tells them apart."""

UNSCALED_BLOCKS = frozenset({"llama2"})
"""Blocks that do not multiply scores by the head dimension's power of -0.5: they expect it in the query's weights."""

BLOCKS_WITHOUT_QK_NORM = frozenset({"llama2", "qwen2"})
"""Blocks that have no q/k norms, whatever use_qk_norm says."""

ROPE_ORDERS: Mapping[str, str] = {"default": HALVES, "llama3.1": INTERLEAVED}
"""MaxText's RoPE types that we compute, and how rotated pairs lie for each (layers/embeddings.py). The second also
scales low frequencies, unless rope_use_scale is false."""

ONLY: Mapping[str, Any] = {
    "mlp_activations": ["silu", "linear"],
    "rope_linear_scaling_factor": 1.0,
    "rope_min_timescale": 1,
    "partial_rotary_factor": 1.0,
    "attention_type": "global",
    "attention_bias": False,
    "attn_logits_soft_cap": 0.0,
    "final_logits_soft_cap": 0.0,
    "qk_norm_with_scale": True,
    "use_post_attn_norm": False,
}
"""Further keys that change what MaxText 0.2.5 computes, with their stock values, the only ones that we compute."""


def maxtext_semantics(
    config: Mapping[str, Any], needed: Mapping[str, Any], *, norm_after_rope: bool, missing: str
) -> Semantics:
    """What MaxText 0.2.5 computes under a configuration.

    Args:
      config: keys of its model configuration; those that are missing have MaxText's own defaults.
      needed: keys that decide over the architecture, with the values that the checkpoint's tensors need.
      norm_after_rope: MaxText runs with the patch of `maxtext_patch`.
      missing: the output projection that the checkpoint does not have; empty where it has one.

    Raises:
      UsageError: the configuration is of a model that we cannot compute, or contradicts the checkpoint.
    """
    keys = {**STOCK_KEYS, **config}
    block = keys["decoder_block"]
    for key, value in needed.items():
        same_tree = key == "decoder_block" and block in BLOCKS and BLOCKS[block] == BLOCKS.get(value)
        if keys[key] != value and not same_tree:
            raise UsageError(f"{key} is {keys[key]!r}; the checkpoint's tensors need {key}={value}")
    if block not in BLOCKS:
        known = " and ".join(sorted(BLOCKS))
        raise UsageError(f"decoder_block is {block!r}; logits are computed for {known} only")
    if block in BLOCKS_WITHOUT_QK_NORM and keys["use_qk_norm"]:
        raise UsageError(f"decoder_block is {block!r}, which has no q/k norms; the checkpoint has their scales")
    if keys["capacity_factor"] > 0:
        raise UsageError("capacity_factor is above 0, tokens would be dropped; logits are computed without dropping")
    order = ROPE_ORDERS.get(keys["rope_type"])
    if order is None:
        known = " and ".join(ROPE_ORDERS)
        raise UsageError(f"rope_type is {keys['rope_type']!r}; logits are computed for {known} only")
    tied = bool(keys["logits_via_embedding"])
    if not tied and missing:
        raise UsageError(f"logits_via_embedding is false, but the checkpoint has no {missing}")
    return Semantics(
        query_order=order,
        key_order=order,
        scale_order=order,
        norm_after_rope=norm_after_rope,
        top_k=int(keys[KEYS["top_k"]]),
        renormalise=True,
        share_epsilon=0.0,
        tied=tied,
        round_table=tied,
        normalize_logits=tied and bool(keys["normalize_embedding_logits"]),
        epsilon=float(keys[KEYS["epsilon"]]),
        theta=float(keys[KEYS["theta"]]),
        scaled_frequencies=order == INTERLEAVED and bool(keys["rope_use_scale"]),
        score_power=0.0 if block in UNSCALED_BLOCKS else -0.5,
    )


def check_semantics(semantics: Semantics, experts: int) -> None:
    """Refuses an arithmetic that no model has.

    Args:
      semantics: what is to be computed.
      experts: experts of the checkpoint's layers; 0 where it has none.

    Raises:
      UsageError: naming the key of MaxText's configuration.
    """
    if experts and not 1 <= semantics.top_k <= experts:
        raise UsageError(f"{KEYS['top_k']} is {semantics.top_k}; expected 1 to {experts}, the checkpoint's experts")
    for field in ("epsilon", "theta"):
        value = getattr(semantics, field)
        if not 0 < value < math.inf:
            raise UsageError(f"{KEYS[field]} is {value:g}; expected a number above 0")


def read_config(
    file: str | None, settings: Sequence[str], converted: Mapping[str, Any], *, has_unembedding: bool
) -> dict[str, Any]:
    """The keys of a MaxText configuration that matter here.

    Args:
      file: the yml beside the checkpoint; None where there is none.
      settings: `KEY=VALUE` changes, to ask "what if".
      converted: what a conversion writes; taken where there is no file.
      has_unembedding: the checkpoint has an output projection.

    Raises:
      SourceError: the file cannot be read.
      UsageError: a setting has another form, or a key that does not matter for logits; the model is one that we cannot
        compute.
    """
    config = {**converted, "logits_via_embedding": not has_unembedding} if file is None else _load(file)
    for key, value in ONLY.items():
        if config.get(key, value) not in (value, None):
            raise UsageError(f"{key} is {config[key]!r}; logits are computed for models with {key}={value!r} only")
    for setting in settings:
        key, mark, _ = setting.partition("=")
        if not mark or key not in STOCK_KEYS:
            raise UsageError(f"--set {setting}: expected KEY=VALUE with one of the keys {', '.join(STOCK_KEYS)}")
        config[key] = parse_setting(setting, STOCK_KEYS[key])
    return config


def _load(file: str) -> dict[str, Any]:
    content = load_config(file, SourceError)
    found = {key: content[key] for key in (*STOCK_KEYS, *ONLY) if key in content}
    for key, value in found.items():
        if key in ONLY:
            continue
        kind = (int, float) if isinstance(STOCK_KEYS[key], int | float) else str
        if not isinstance(value, kind):
            raise SourceError(f"{file}: {key} is {value!r}, expected a value like {STOCK_KEYS[key]!r}")
    return found
