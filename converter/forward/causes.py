"""The known differences between an AXLearn model and a converted one, each as a switch that undoes it.

A switch changes what MaxText's weights are run with: one point of the arithmetic, or some tensors for the source's
own. If the logits then come closer to AXLearn's, the difference is there, and that is how much it explains.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from converter.forward.model import Variant
from converter.forward.run import Model
from converter.forward.semantics import HALVES, INTERLEAVED, KEYS, Semantics
from converter.forward.views import View
from converter.forward.weights import Weights
from converter.mapping import KEY_SCALE, QUERY_SCALE, converted_keys, is_bundled, value_text
from converter.planning import Remedies
from converter.words import option_flag

TIED_ROUNDING = "tied table rounded to bfloat16"
NORM_ORDER = "q/k norm before RoPE"

ORDERS = "query_order", "key_order", "scale_order"
"""Fields of `Semantics` that say how rotated pairs lie."""

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


def known_causes(source: Model, fitted: Collection[str], order: str) -> tuple[Cause, ...]:
    """All known differences that the source's tensors allow, the more specific ones first.

    Args:
      source: the AXLearn model.
      fitted: names of the destination's tensors whose values were fitted.
      order: how the destination's RoPE takes pairs to lie.
    """
    computes, weights = source.semantics, source.weights
    again = f"convert again, and compare the axes of its rows with `ax2mt mappings show {_shown(source)}`"
    remedies = Remedies.of(source.table)
    experts = (_fact(source, "experts per token", "top_k", "experts_per_token"),) if weights.experts else ()
    has_norms = QUERY_SCALE in weights.layers[0]
    norms = (_norm_order(weights, tuple(sorted(fitted)), remedies.fit),) if has_norms else ()
    return (
        *experts,
        _setting(
            computes,
            "logits divided by sqrt(width)",
            "normalize_logits",
            "set normalize_embedding_logits=false in maxtext.yml",
        ),
        _fact(source, "RoPE's base", "theta", "rope_theta"),
        _setting(
            computes,
            "RoPE's low frequencies scaled as in Llama 3.1",
            "scaled_frequencies",
            "set rope_use_scale=false in maxtext.yml",
        ),
        _fact(source, "the norms' epsilon", "epsilon", "norm_epsilon"),
        Cause(
            "scores not divided by sqrt(head dimension)",
            _block_advice(source),
            lambda variant: _powered(variant, 0.0, -0.5),
        ),
        Cause(
            "scores divided by sqrt(head dimension) twice",
            f"the query's weights already hold the factor that the decoder block applies; {again}",
            lambda variant: _powered(variant, -0.5, 0.0),
        ),
        Cause("wi_0 and wi_1 changed places", again, _swapped),
        *norms,
        *(_scale_causes(source, again, order) if has_norms else ()),
        _setting(
            computes,
            TIED_ROUNDING,
            "round_table",
            _untie_advice(remedies.untie),
        ),
        *_pair_causes(source, again, order, all_roles=not has_norms),
        Cause(
            "q, k and v hold other heads of the fused kernel",
            f"each of them holds its own heads of AXLearn's {_kernels(weights)}; {again}",
            lambda variant: _replaced(variant, weights, ("query", "key", "value")),
        ),
    )


def _norm_order(source: Weights, fitted: tuple[str, ...], fit: str) -> Cause:
    """The order of q/k norm and RoPE."""
    lower = f"; or lower the difference with `convert {fit}`" if fit else ""
    return Cause(
        NORM_ORDER,
        f"run MaxText with `python -m converter.maxtext_patch`, which is exact with plain scales{lower}",
        lambda variant: _norm_after(variant, source, fitted),
    )


def _scale_causes(source: Model, again: str, order: str) -> tuple[Cause, ...]:
    """Pairs that lie in another order in the q/k norm scales, or in all that RoPE rotates."""
    advice = _all_advice(source, again, order)
    if order == HALVES:
        return (
            _order("RoPE permutation missing on q, k and both scales", advice, *ORDERS),
            _order("q/k norm scales not permuted", again, "scale_order"),
        )
    return (
        _order("RoPE permutation applied to q, k and both scales", advice, *ORDERS, order=HALVES),
        _order("q/k norm scales permuted", again, "scale_order", order=HALVES),
    )


def _pair_causes(source: Model, again: str, order: str, *, all_roles: bool) -> tuple[Cause, ...]:
    """Pairs that lie in another order in q and k; which is `all_roles` that RoPE rotates in models without norms."""
    other, names = (
        (INTERLEAVED, ("missing on q and k", "missing on q", "missing on k"))
        if order == HALVES
        else (HALVES, ("applied to q and k", "applied to q", "applied to k"))
    )
    both = _all_advice(source, again, order) if all_roles else again
    return (
        _order(f"RoPE permutation {names[0]}", both, "query_order", "key_order", order=other),
        _order(f"RoPE permutation {names[1]}", again, "query_order", order=other),
        _order(f"RoPE permutation {names[2]}", again, "key_order", order=other),
    )


def _all_advice(source: Model, again: str, order: str) -> str:
    """What to do where everything that RoPE rotates has its pairs in the other order."""
    rules = [rule for rule in source.table.config if rule.option in source.table.orders]
    if not rules:
        return again
    flag = option_flag(rules[0].option)
    if order == HALVES:
        keys = " and ".join(f"{rule.key}={value_text(rule.constant)}" for rule in rules)
        return f"set {keys} in maxtext.yml, as `convert {flag}` writes; or {again}"
    keys = " and ".join(rule.key for rule in rules)
    return f"take {keys} out of maxtext.yml, as `convert` without {flag} leaves them out; or {again}"


def head_findings(source: Weights, destination: Weights, order: str) -> tuple[str, ...]:
    """What the heads of the first layer's q, k and v hold, where it is not what they should.

    Compares values: each head with every head of AXLearn's q, k and v, with rotated pairs side by side and as halves.
    `order` is that which the destination's RoPE wants in q and k.
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
        wanted = order if name != "value" else INTERLEAVED
        held = [_recognise(found[:, head], fused) for head in range(found.shape[1])]
        right = all(number == int(start) + head and wanted in orders for head, (number, orders) in enumerate(held))
        if not right and all(number >= 0 for number, _ in held):
            expected = [(int(start) + head, frozenset({wanted})) for head in range(found.shape[1])]
            kernels = _kernels(source)
            lines.append(f"{name}: {_heads_text(held, kernels)}; expected {_heads_text(expected, kernels)}")
    return tuple(lines)


def _untie_advice(option: str) -> str:
    if option:
        return f"convert with {option}; MaxText then keeps the output projection in float32"
    return "the mapping has no option that writes the output projection as a leaf of its own"


def _setting(computes: Semantics, name: str, field: str, advice: str) -> Cause:
    def switch(variant: Variant) -> Variant:
        return replace(variant, semantics=replace(variant.semantics, **{field: getattr(computes, field)}))

    return Cause(name, advice, switch)


def _fact(source: Model, name: str, field: str, constant: str) -> Cause:
    """A fact that no tensor shows: either side may be the wrong one, and only the user knows which.

    Args:
      source: the AXLearn model.
      name: what it is called.
      field: the fact in `Semantics`.
      constant: the fact in the table's [arithmetic].
    """
    value = getattr(source.semantics, field)
    key = getattr(source.table.arithmetic, constant, None)
    if isinstance(key, str) and any(rule.key == key and rule.set for rule in source.table.config):
        other = f"convert it with --set {key}=VALUE"
    else:
        other = f"correct {key if isinstance(key, str) else constant} in mapping '{source.table.name}'"
    advice = (
        f"set {KEYS[field]}={value:.15g} in maxtext.yml, as the source computes; if the source was trained with the "
        f"other value, {other}"
    )
    return _setting(source.semantics, name, field, advice)


def _powered(variant: Variant, wrong: float, right: float) -> Variant:
    """Multiplies scores by another power of the head dimension, where it is the wrong one."""
    if variant.semantics.score_power != wrong:
        return variant
    return replace(variant, semantics=replace(variant.semantics, score_power=right))


def _swapped(variant: Variant) -> Variant:
    other = {"wi_0": "wi_1", "wi_1": "wi_0"}[variant.semantics.gate]
    return replace(variant, semantics=replace(variant.semantics, gate=other))


def _block_advice(source: Model) -> str:
    """How to get the decoder block that the table's weights are for."""
    keys = converted_keys(source.table, {})
    return f"set decoder_block={keys.get('decoder_block')} in maxtext.yml, as convert writes: it divides at run time"


def _order(name: str, advice: str, *fields: str, order: str = INTERLEAVED) -> Cause:
    def switch(variant: Variant) -> Variant:
        return replace(variant, semantics=replace(variant.semantics, **dict.fromkeys(fields, order)))

    return Cause(name, advice, switch)


def _norm_after(variant: Variant, source: Weights, scales: tuple[str, ...]) -> Variant:
    if variant.semantics.norm_after_rope:
        return variant
    after = replace(variant, semantics=replace(variant.semantics, norm_after_rope=True))
    return _replaced(after, source, scales) if scales else after


def _replaced(variant: Variant, source: Weights, names: tuple[str, ...]) -> Variant:
    """Takes tensors from the source, with the order of pairs that they have there."""
    already: Mapping[str, Weights] = variant.replaced or {}
    orders = {"query": "query_order", "key": "key_order", QUERY_SCALE: "scale_order", KEY_SCALE: "scale_order"}
    fields = {orders[name]: INTERLEAVED for name in names if name in orders}
    semantics: Semantics = replace(variant.semantics, **fields)
    return replace(variant, semantics=semantics, replaced={**already, **dict.fromkeys(names, source)})


def _sample(view: View) -> np.ndarray:
    """The first rows of a q, k or v kernel [rows, heads, H]."""
    dim = view.order[0]
    low, high = view.box[dim]
    box = tuple((low, min(high, low + SAMPLE)) if d == dim else edge for d, edge in enumerate(view.box))
    return View(view.reader, box, view.order).read()


def _recognise(head: np.ndarray, fused: np.ndarray) -> tuple[int, frozenset[str]]:
    """The fused head with these values and the orders of pairs in which it has them; -1 where there is none."""
    for number in range(fused.shape[1]):
        candidate = fused[:, number]
        halves = np.concatenate([candidate[:, 0::2], candidate[:, 1::2]], axis=-1)
        orders = [order for order, values in ((HALVES, halves), (INTERLEAVED, candidate)) if (head == values).all()]
        if orders:
            return number, frozenset(orders)
    return -1, frozenset()


def _kernels(source: Weights) -> str:
    """The AXLearn kernels that q, k and v come from, by the names of their layers."""
    paths = (source.layers[0][name].array.path.split("/") for name in ("query", "key", "value"))
    return ", ".join(dict.fromkeys(path[-2] if path[-1] == "weight" else path[-1] for path in paths))


def _shown(source: Model) -> str:
    """The table as `mappings show` takes it."""
    return source.table.name if is_bundled(source.table) else source.table.path


def _heads_text(held: list[tuple[int, frozenset[str]]], kernels: str) -> str:
    numbers = ", ".join(str(number) for number, _ in held[:8]) + (", ..." if len(held) > 8 else "")
    orders = sorted({order for _, found in held for order in found})
    return f"heads {numbers} of AXLearn's {kernels}, pairs {' or '.join(orders)}"
