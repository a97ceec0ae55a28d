"""The known differences between an AXLearn model and a converted one, each as a switch that undoes it.

A switch changes what MaxText's weights are run with: one point of the arithmetic, or some tensors for the source's
own. If the logits then come closer to AXLearn's, the difference is there, and that is how much it explains.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from converter.forward.model import Variant
from converter.forward.semantics import HALVES, INTERLEAVED, Semantics
from converter.forward.views import View
from converter.forward.weights import Weights

TIED_ROUNDING = "tied table rounded to bfloat16"
NORM_ORDER = "q/k norm before RoPE"

SAMPLE = 8
"""Rows of a kernel that are enough to recognise a head."""


@dataclass(frozen=True)
class Cause:
    """A known difference.

    Attributes:
      name: what is wrong, or different.
      advice: what to do about it.
      switch: undoes it in a variant; returns the variant itself where the difference is not there.
    """

    name: str
    advice: str
    switch: Callable[[Variant], Variant]


def known_causes(source: Weights, computes: Semantics, fitted: Collection[str]) -> tuple[Cause, ...]:
    """All known differences, the more specific ones first.

    Args:
      source: the AXLearn weights.
      computes: what AXLearn computes from them.
      fitted: names of the destination's tensors whose values were fitted.
    """
    again = "convert again with the bundled mapping table, and compare your own with `ax2mt mappings show envy`"
    scales = tuple(sorted(fitted))
    return (
        _fact(computes, "experts per token", "top_k", "num_experts_per_tok"),
        _setting(
            computes,
            "logits divided by sqrt(width)",
            "normalize_logits",
            "set normalize_embedding_logits=false in maxtext.yml",
        ),
        _fact(computes, "RoPE's base", "theta", "rope_max_timescale"),
        _fact(computes, "the norms' epsilon", "epsilon", "normalization_layer_epsilon"),
        Cause(
            NORM_ORDER,
            "run MaxText with `python -m converter.maxtext_patch`, which is exact with plain scales; or lower the "
            "difference with `convert --qk-norm fit`",
            lambda variant: _norm_after(variant, source, scales),
        ),
        _setting(
            computes,
            TIED_ROUNDING,
            "round_table",
            "convert with --untie; MaxText then keeps the output projection in float32",
        ),
        _order("RoPE permutation missing on q, k and both scales", again, "query_order", "key_order", "scale_order"),
        _order("RoPE permutation missing on q and k", again, "query_order", "key_order"),
        _order("RoPE permutation missing on q", again, "query_order"),
        _order("RoPE permutation missing on k", again, "key_order"),
        _order("q/k norm scales not permuted", again, "scale_order"),
        Cause(
            "q, k and v hold other heads of the fused kernel",
            f"qkv_proj holds all query heads, then all key heads, then all value heads; {again}",
            lambda variant: _replaced(variant, source, ("query", "key", "value")),
        ),
    )


def head_findings(source: Weights, destination: Weights) -> tuple[str, ...]:
    """What the heads of the first layer's q, k and v hold, where it is not what they should.

    Compares values: each head with every head of AXLearn's fused kernel, with rotated pairs side by side and as halves.
    """
    names = ("query", "key", "value")
    heads = [_sample(source.layers[0][name]) for name in names]
    fused = np.concatenate(heads, axis=1)
    first = np.cumsum([0, *(array.shape[1] for array in heads)])
    lines: list[str] = []
    for name, start in zip(names, first, strict=False):
        found = _sample(destination.layers[0][name])
        if found.shape[0] != fused.shape[0] or found.shape[2] != fused.shape[2]:
            return ()
        wanted = HALVES if name != "value" else INTERLEAVED
        held = [_recognise(found[:, head], fused) for head in range(found.shape[1])]
        right = all(number == int(start) + head and wanted in orders for head, (number, orders) in enumerate(held))
        if not right and all(number >= 0 for number, _ in held):
            expected = [(int(start) + head, frozenset({wanted})) for head in range(found.shape[1])]
            lines.append(f"{name}: {_heads_text(held)}; expected {_heads_text(expected)}")
    return tuple(lines)


def _setting(computes: Semantics, name: str, field: str, advice: str) -> Cause:
    def switch(variant: Variant) -> Variant:
        return replace(variant, semantics=replace(variant.semantics, **{field: getattr(computes, field)}))

    return Cause(name, advice, switch)


def _fact(computes: Semantics, name: str, field: str, key: str) -> Cause:
    """A fact that no tensor shows: either side may be the wrong one, and only the user knows which."""
    advice = (
        f"set {key}={getattr(computes, field):.15g} in maxtext.yml, as the source computes; if the source was trained "
        f"with the other value, convert it with --set {key}=VALUE"
    )
    return _setting(computes, name, field, advice)


def _order(name: str, advice: str, *fields: str) -> Cause:
    def switch(variant: Variant) -> Variant:
        return replace(variant, semantics=replace(variant.semantics, **dict.fromkeys(fields, INTERLEAVED)))

    return Cause(name, advice, switch)


def _norm_after(variant: Variant, source: Weights, scales: tuple[str, ...]) -> Variant:
    if variant.semantics.norm_after_rope:
        return variant
    after = replace(variant, semantics=replace(variant.semantics, norm_after_rope=True))
    return _replaced(after, source, scales) if scales else after


def _replaced(variant: Variant, source: Weights, names: tuple[str, ...]) -> Variant:
    """Takes tensors from the source, with the order of pairs that they have there."""
    already: Mapping[str, Weights] = variant.replaced or {}
    orders = {"query": "query_order", "key": "key_order", "query_scale": "scale_order", "key_scale": "scale_order"}
    fields = {orders[name]: INTERLEAVED for name in names if name in orders}
    semantics: Semantics = replace(variant.semantics, **fields)
    return replace(variant, semantics=semantics, replaced={**already, **dict.fromkeys(names, source)})


def _sample(view: View) -> np.ndarray:
    """The first rows of a q, k or v kernel [rows, heads, H]."""
    dim = view.order[0]
    low, high = view.box[dim]
    box = tuple((low, min(high, low + SAMPLE)) if d == dim else edge for d, edge in enumerate(view.box))
    return View(view.array, box, view.order).read()


def _recognise(head: np.ndarray, fused: np.ndarray) -> tuple[int, frozenset[str]]:
    """The fused head with these values and the orders of pairs in which it has them; -1 where there is none."""
    for number in range(fused.shape[1]):
        candidate = fused[:, number]
        halves = np.concatenate([candidate[:, 0::2], candidate[:, 1::2]], axis=-1)
        orders = [order for order, values in ((HALVES, halves), (INTERLEAVED, candidate)) if (head == values).all()]
        if orders:
            return number, frozenset(orders)
    return -1, frozenset()


def _heads_text(held: list[tuple[int, frozenset[str]]]) -> str:
    numbers = ", ".join(str(number) for number, _ in held[:8]) + (", ..." if len(held) > 8 else "")
    orders = sorted({order for _, found in held for order in found})
    return f"heads {numbers} of AXLearn's qkv_proj, pairs {' or '.join(orders)}"
