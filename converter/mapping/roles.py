"""The parts that a decoder is made of: what a mapping table says of a tensor, so that no tensor name is in the code.

A row of a table names the role of each of its MaxText tensors. The forward pass, the check of q/k norm scales and the
parameter report find their tensors by these roles, in the axis order that MaxText has them in:

    embedding [V,D]  unembedding [D,V]  final_norm [D]
    of a layer: attention_norm [D]  query [D,N,H]  key, value [D,K,H]  query_scale, key_scale [H]  out [N,H,D]
                ffn_norm [D]  post_ffn_norm [D]
      dense: wi_0, wi_1 [D,F]  wo [F,D]
      mixture of experts: gate [D,E]  expert_wi_0, expert_wi_1 [E,D,F]  expert_wo [E,F,D]

V: vocabulary, D: width, N: query heads, K: key heads, H: head dimension, F: inner width, E: experts.
"""

from collections.abc import Mapping

RANKS: Mapping[str, int] = {
    "embedding": 2, "unembedding": 2, "final_norm": 1,
    "attention_norm": 1, "query": 3, "key": 3, "value": 3, "query_scale": 1, "key_scale": 1, "out": 3,
    "ffn_norm": 1, "post_ffn_norm": 1,
    "wi_0": 2, "wi_1": 2, "wo": 2,
    "gate": 2, "expert_wi_0": 3, "expert_wi_1": 3, "expert_wo": 3,
}  # fmt: skip
"""Role to the number of dimensions of such a tensor, without a layer axis."""

TOP = frozenset({"embedding", "unembedding", "final_norm"})
"""Roles of tensors outside of the layers."""

QUERY_SCALE, KEY_SCALE = "query_scale", "key_scale"
"""The scales of the q/k norms: RoPE turns their pairs, so that their values decide what is exact."""

HEADS: Mapping[str, int] = {"query": 1, "key": 1, "value": 1, "out": 0}
"""Role to the dimension that counts heads, N or K."""

HEAD_DIM: Mapping[str, int] = {"query": 2, "key": 2, "value": 2, "query_scale": 0, "key_scale": 0, "out": 1}
"""Role to the dimension of one head, H."""

ROTATED = frozenset({"query", "key", QUERY_SCALE, KEY_SCALE})
"""Tensors whose head dimension RoPE rotates in pairs."""

EXPERT_ROLES = frozenset({"expert_wi_0", "expert_wi_1", "expert_wo"})
"""Tensors that belong to single experts, their first dimension; a token uses only a part of them."""
