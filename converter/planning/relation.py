"""What becomes of a row's elements, in words, for the parameter report.

Axes that share a dimension on both sides are one *part*: they keep together. So a branch turns a list of dimensions,
each a list of parts, into another: dimensions are split and merged, parts change places, and inside a part the axes may
be re-ordered, as RoPE's pairs are.
"""

from collections.abc import Mapping, Sequence

from converter.axes import AxisMap, Branch, Expression, Product, product_size
from converter.mapping import HEAD_DIM, HEADS, LAYER_AXIS, ROTATED, Fit, MatchedRow, Scale

Part = tuple[int | str, ...]
"""Axes that keep together, in the order of the source."""


def relation(row: MatchedRow, axis_map: AxisMap) -> str:
    """What becomes of the elements, in words.

    Args:
      row: the row in one place.
      axis_map: its axes with their sizes.
    """
    branches = _alike(row.expression)
    words = [_sum_words(row, axis_map), _layer_words(branches[0])]
    words += _by_name(row, [_dimension_words(branch, row.row.roles) for branch in branches])
    words += _by_name(row, [_order_words(branch, row.row.roles) for branch in branches])
    if isinstance(row.value, Scale):
        words.append(f"values times {row.value.factor(axis_map.sizes):.6g}")
    if isinstance(row.value, Fit):
        words.append("values fitted")
    return "; ".join(filter(None, words)) or "identical"


def without_layers(dims: Sequence[Product]) -> list[Product]:
    """A tensor's dimensions but for the one of the layers."""
    return [product for product in dims if product != (LAYER_AXIS,)]


def _sum_words(row: MatchedRow, axis_map: AxisMap) -> str:
    """How tensors are split or joined along a dimension."""
    position, expression = row.expression.sum_position(), row.expression
    if position is None:
        return ""
    side, dim = position
    whole = (expression.sources if side == "source" else expression.targets)[0]
    sizes = [product_size(term, axis_map.sizes) for term in whole[dim].terms]
    parts = " + ".join(map(str, sizes))
    if side == "target":
        return f"joined {parts} into {sum(sizes)}"
    names = ", ".join(_short_name(path) for path in row.targets)
    if all(branch.source_dims[dim] == _role_dim(branch, row.row.roles, HEADS) for branch in expression.branches()):
        return f"{names} split {parts} of {sum(sizes)} heads"
    return f"split {parts} ({names})"


def _layer_words(branch: Branch) -> str:
    sides = (branch.source_dims, branch.target_dims)
    before, after = (dims.index((LAYER_AXIS,)) if (LAYER_AXIS,) in dims else None for dims in sides)
    if before == after:
        return ""
    if before is not None and after is not None:
        return f"layer axis moved ({before} to {after})"
    return "layers taken apart" if after is None else "layers stacked"


def _dimension_words(branch: Branch, roles: Sequence[str]) -> str:
    """How dimensions are split, merged and moved."""
    parts, sides = _parts(branch), [without_layers(dims) for dims in (branch.source_dims, branch.target_dims)]
    together = [part for part in parts.values() if all(_side_by_side(part, dims) for dims in sides)]
    source, target = (_in_parts(dims, together) for dims in sides)
    words: list[str] = []
    if len({number for number, _ in parts}) < len(parts):
        words.append("dimension split")
    if len({number for _, number in parts}) < len(parts):
        words.append("dimensions merged")
    if len(source) != len(target) and not words:
        words.append(f"dimension of 1 {'added' if len(target) > len(source) else 'removed'}")
    if [part for dim in source for part in dim] != [part for dim in target for part in dim]:
        words.append("transposed" if not words and len(source) == 2 else "axes re-ordered")
    head = set(_role_dim(branch, roles, HEAD_DIM) or ())
    before, after = (", ".join(_dimension_name(dim, head) for dim in dims) for dims in (source, target))
    return f"{', '.join(words)} ({before} to {after})" if words else ""


def _order_words(branch: Branch, roles: Sequence[str]) -> str:
    """Whether the axes inside a part have another order in the target."""
    rotated = bool(roles) and roles[branch.target] in ROTATED
    for part in _parts(branch).values():
        order = tuple(factor for dim in branch.target_dims for factor in dim if factor in part)
        if order != part:
            return _pair_words(part, order) if rotated else "re-ordered inside an axis"
    return ""


def _by_name(row: MatchedRow, words: Sequence[str]) -> list[str]:
    """What is said of each branch, once, with the tensors' names where it is not said of all of them."""
    split = len(row.targets) > 1
    names = [_short_name(path) for path in (row.targets if split else row.sources)]
    said = {text: [name for name, own in zip(names, words, strict=True) if own == text] for text in words if text}
    return [text if len(own) == len(names) else f"{text} on {' and '.join(own)}" for text, own in said.items()]


def _alike(expression: Expression) -> list[Branch]:
    """The branches with the first term of the sum in each: its axes differ in name (heads, kv_heads), not in kind."""
    branches, position = expression.branches(), expression.sum_position()
    if position is None:
        return list(branches)
    side, dim = position
    terms = [(branch.source_dims if side == "source" else branch.target_dims)[dim] for branch in branches]
    result: list[Branch] = []
    for branch, term in zip(branches, terms, strict=True):
        names = dict(zip(term, terms[0], strict=True)) if len(term) == len(terms[0]) else {}
        source, target = (
            tuple(tuple(names.get(factor, factor) for factor in product) for product in dims)
            for dims in (branch.source_dims, branch.target_dims)
        )
        result.append(Branch(branch.source, branch.target, source, target))
    return result


def _pair_words(before: Part, after: Part) -> str:
    orders = [{0: "halves", len(part) - 1: "interleaved"}.get(part.index(2)) if 2 in part else None
              for part in (before, after)]  # fmt: skip
    change = f" ({orders[0]} to {orders[1]})" if all(orders) and orders[0] != orders[1] else ""
    return f"RoPE pairs re-ordered{change}"


def _parts(branch: Branch) -> dict[tuple[int, int], Part]:
    """The parts, by their source and target dimension."""
    places = {factor: number for number, dim in enumerate(branch.target_dims) for factor in dim}
    parts: dict[tuple[int, int], Part] = {}
    for number, dim in enumerate(branch.source_dims):
        for factor in dim:
            if factor != 1:
                place = (number, places[factor])
                parts[place] = (*parts.get(place, ()), factor)
    return parts


def _side_by_side(part: Part, dims: Sequence[Product]) -> bool:
    within = next((dim for dim in dims if part[0] in dim), part)
    places = [within.index(factor) for factor in part]
    return max(places) - min(places) < len(part)


def _in_parts(dims: Sequence[Product], together: Sequence[Part]) -> list[list[Part]]:
    """Each dimension as the parts in it; axes that do not keep together stand alone."""
    part_of = {factor: part for part in together for factor in part}
    return [list(dict.fromkeys(part_of.get(factor, (factor,)) for factor in dim if factor != 1)) for dim in dims]


def _dimension_name(dim: Sequence[Part], head: set[int | str]) -> str:
    if head and head == {factor for part in dim for factor in part}:
        return "head dim"
    return " ".join("head dim" if set(part) == head else " ".join(map(str, part)) for part in dim) or "1"


def _role_dim(branch: Branch, roles: Sequence[str], dims: Mapping[str, int]) -> Product | None:
    """The axes of the target's dimension that `dims` names for its role; None without such a role."""
    number = dims.get(roles[branch.target]) if roles else None
    return None if number is None else without_layers(branch.target_dims)[number]


def _short_name(path: str) -> str:
    """The part of a leaf's path that distinguishes it from its neighbours: query for .../query/kernel."""
    parts = path.split("/")
    return parts[-2] if parts[-1] in ("kernel", "scale", "embedding", "weight") and len(parts) > 1 else parts[-1]
