"""The parameter report: which AXLearn tensor is which MaxText leaf, in shapes, words and counts. Reads no weights."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from converter.axes import AxisMap, Branch, Product, product_size
from converter.checkpoints import Target, check_pair, open_target, recorded_settings
from converter.errors import DestinationError, SourceError, UsageError
from converter.location import locate
from converter.mapping import (
    EXPERT_ROLES,
    HEAD_DIM,
    HEADS,
    LAYER_AXIS,
    ROTATED,
    Fit,
    Match,
    MatchedRow,
    Scale,
    Shape,
    check_model,
    converted_keys,
    find_mapping,
    find_published,
    load_bundled,
    match_table,
    model_config,
    source_arithmetic,
)
from converter.planning.source import check_options, evident_options, open_source


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One row of the mapping in one place.

    Attributes:
      group: heading.
      sources: AXLearn paths.
      source_shapes: their shapes.
      targets: MaxText paths.
      target_shapes: their shapes by the mapping.
      found_shapes: their shapes in the checkpoint, None for a leaf that is not there; empty without a checkpoint.
      relation: what becomes of the elements, in words.
      axes: the same as an axis expression.
      note: why.
      source_parameters: elements of the sources; 0 for a copy made on request.
      target_parameters: elements of the targets (in the checkpoint, where there is one).
      added: the row adds a copy of a tensor that another row converts.
      expert: the tensors belong to single experts, so that a token uses only a part of them.
    """

    group: str
    sources: tuple[str, ...]
    source_shapes: tuple[Shape, ...]
    targets: tuple[str, ...]
    target_shapes: tuple[Shape, ...]
    found_shapes: tuple[Shape | None, ...]
    relation: str
    axes: str
    note: str
    source_parameters: int
    target_parameters: int
    added: bool
    expert: bool

    @property
    def fits(self) -> bool:
        """Whether the checkpoint has the planned shapes; true without a checkpoint."""
        return not self.found_shapes or self.found_shapes == self.target_shapes


@dataclass(frozen=True)
class ParameterReport:
    """The report of one model.

    Attributes:
      title: the source, or the name of the published model.
      destination: the checkpoint that was looked at; empty without one.
      table: name of the mapping.
      rows: grouped and in the order of the model.
      extra: leaves of the checkpoint that no row produces, with their shapes.
      experts: number of experts; 0 without any.
      experts_per_token: experts that each token is sent to.
      notes: what the user has to know about the source, one line each.
    """

    title: str
    destination: str
    table: str
    rows: tuple[ParameterRow, ...]
    extra: Mapping[str, Shape]
    experts: int
    experts_per_token: int
    notes: tuple[str, ...] = ()

    @property
    def source_total(self) -> int:
        """Parameters in AXLearn."""
        return sum(row.source_parameters for row in self.rows)

    @property
    def target_total(self) -> int:
        """Parameters in MaxText, copies made on request and extra leaves included."""
        return sum(row.target_parameters for row in self.rows) + sum(map(math.prod, self.extra.values()))

    @property
    def added_total(self) -> int:
        """Parameters of copies made on request."""
        return sum(row.target_parameters for row in self.rows if row.added)

    @property
    def difference(self) -> int:
        """MaxText's parameters without those copies, minus AXLearn's; 0 in a correct conversion."""
        return self.target_total - self.added_total - self.source_total

    @property
    def expert_total(self) -> int:
        """Parameters in experts."""
        return sum(row.source_parameters for row in self.rows if row.expert)

    @property
    def active_total(self) -> int:
        """Parameters that one token meets: everything outside of experts, and those of the experts it is sent to."""
        if not self.experts:
            return self.source_total
        return self.source_total - self.expert_total + self.expert_total * self.experts_per_token // self.experts

    @property
    def equivalent(self) -> bool:
        """Whether counts and shapes agree on both sides."""
        return self.difference == 0 and not self.extra and all(row.fits for row in self.rows)


@dataclass(frozen=True, slots=True)
class ParameterRequest:
    """What `params` was asked for.

    Attributes:
      source: a step or trainer directory; None for a published model.
      destination: the MaxText checkpoint to look at; None for the planned result.
      model: name of a published model; with a source: what the source must be.
      step: the wanted step of the source; None for the latest.
      mapping: path of a user's own table, or None.
      options: options of the mapping table that are on; a checkpoint shows by itself which those are.
    """

    source: str | None = None
    destination: str | None = None
    _: KW_ONLY
    model: str | None = None
    step: int | None = None
    mapping: str | None = None
    options: frozenset[str] = frozenset()


def make_report(request: ParameterRequest) -> ParameterReport:
    """Makes the report that was asked for.

    Raises:
      UsageError: neither a source nor a model was named.
      SourceError, MappingError, VerificationError: the source, the mapping or the checkpoint cannot be used, or the
        source is not of the named model's size.
    """
    tables = load_bundled() if request.mapping is None else [find_mapping(request.mapping)]
    if request.source is None:
        if request.model is None:
            raise UsageError("params: expected SRC, or --model NAME")
        match, shapes = find_published(tables, request.model)
        if request.options:
            check_options([match.table], request.options)
            match = match_table(match.table, shapes, options=request.options)
        return report(match, shapes, request.model)
    if request.destination is not None:
        check_pair(locate(request.source, SourceError), locate(request.destination, DestinationError))
    source = open_source(
        request.source, step=request.step, mapping=request.mapping, options=request.options, metadata_only=True
    )
    match = source.match
    shapes = source.checkpoint.shapes
    if request.model is not None:
        check_model(match, find_published(tables, request.model)[0], request.model)
    title = f"{source.shown} (step {source.checkpoint.step})"
    if request.destination is None:
        return report(match, shapes, title, notes=source.notes)
    target = open_target(request.destination)
    evident = evident_options(match, target)
    if evident != request.options:
        match = match_table(match.table, shapes, options=evident)
    found, recorded = _found_shapes(target, match), recorded_settings(target.custom)
    return report(match, shapes, title, destination=target.root, found=found, recorded=recorded, notes=source.notes)


def _found_shapes(target: Target, match: Match) -> dict[str, Shape]:
    """The shapes of a checkpoint's weights; leaves that no row produces count only below the weights' prefix."""
    weights = match.table.maxtext.prefix + "/"
    return {path: target.open(path).array.shape for path in target.keys if path.startswith(weights)}


def report(
    match: Match,
    shapes: Mapping[str, Shape],
    title: str,
    *,
    destination: str = "",
    found: Mapping[str, Shape] | None = None,
    recorded: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> ParameterReport:
    """Makes the report.

    Args:
      match: the mapping on the model's tensors.
      shapes: shape of every AXLearn tensor.
      title: what the report is about.
      destination: the checkpoint that `found` was read from.
      found: shape of every leaf of that checkpoint; None for the planned result.
      recorded: what a user set when that checkpoint was converted.
      notes: what the user has to know about the source.
    """
    rows = [_row(row, match, shapes, found) for row in match.rows]
    order = list(dict.fromkeys((*match.table.groups, *(row.group for row in rows))))
    rows.sort(key=lambda row: order.index(row.group))
    known = {path for row in rows for path in row.targets}
    extra = {path: shape for path, shape in (found or {}).items() if path not in known}
    keys = {**model_config(match), **converted_keys(match.table, recorded or {})}
    per_token = source_arithmetic(match.table, keys).experts_per_token if match.table.arithmetic is not None else 0
    return ParameterReport(title, destination, match.table.name, tuple(rows), extra, _experts(match), per_token, notes)


def _experts(match: Match) -> int:
    """Experts of a layer, the first dimension of each tensor of theirs; 0 without any."""
    firsts = (
        branch.target_dims
        for row in match.rows
        for branch in row.expression.branches()
        if row.row.roles and row.row.roles[branch.target] in EXPERT_ROLES
    )
    dims = next(firsts, None)
    return 0 if dims is None else product_size(_without_layers(dims)[0], match.sizes)


def relation(row: MatchedRow, axis_map: AxisMap) -> str:
    """What becomes of the elements, in words.

    Args:
      row: the row in one place.
      axis_map: its axes with their sizes.
    """
    expression, targets, roles = row.expression, row.targets, row.row.roles
    phrases: list[str] = []
    position = expression.sum_position()
    if position is not None:
        phrases.append(_split_words(row, axis_map, position))
    branches = expression.branches()
    # The same for all branches but for names in the sum, so the first one speaks.
    head = _role_dim(branches[0], roles, HEAD_DIM)
    moved = _axes_words(_axis_names(branches[0].source_dims, head), _axis_names(branches[0].target_dims, head))
    if moved:
        phrases.append(moved)
    permuted = [branch.target for branch in branches if _reordered_inside(branch.source_dims, branch.target_dims)]
    rotated = [number for number in permuted if roles and roles[number] in ROTATED]
    others = [number for number in permuted if number not in rotated]
    for numbers, words in (
        (rotated, "RoPE pairs re-ordered (interleaved to halves)"),
        (others, "re-ordered inside an axis"),
    ):
        names = " and ".join(_short_name(targets[number]) for number in numbers)
        if numbers:
            phrases.append(f"{words} on {names}" if len(branches) > 1 else words)
    if isinstance(row.value, Scale):
        phrases.append(f"values times {row.value.factor(axis_map.sizes):.6g}")
    if isinstance(row.value, Fit):
        phrases.append("values fitted")
    return "; ".join(phrases) or "identical"


def _row(row: MatchedRow, match: Match, shapes: Mapping[str, Shape], found: Mapping[str, Shape] | None) -> ParameterRow:
    axis_map = AxisMap(row.expression, {name: match.sizes[name] for name in row.expression.names()})
    found_shapes = tuple(found.get(path) for path in row.targets) if found is not None else ()
    counted = [shape for shape in found_shapes if shape is not None] if found is not None else axis_map.target_shapes
    return ParameterRow(
        group=row.row.group,
        sources=row.sources,
        source_shapes=tuple(shapes[path] for path in row.sources),
        targets=row.targets,
        target_shapes=axis_map.target_shapes,
        found_shapes=found_shapes,
        relation=relation(row, axis_map),
        axes=str(row.expression),
        note=row.row.note,
        source_parameters=0 if row.row.option else sum(math.prod(shapes[path]) for path in row.sources),
        target_parameters=sum(map(math.prod, counted)),
        added=bool(row.row.option),
        expert=bool(EXPERT_ROLES & set(row.row.roles)),
    )


def _split_words(row: MatchedRow, axis_map: AxisMap, position: tuple[str, int]) -> str:
    side, dim = position
    expression = row.expression
    whole = (expression.sources if side == "source" else expression.targets)[0]
    sizes = [product_size(term, axis_map.sizes) for term in whole[dim].terms]
    parts = " + ".join(map(str, sizes))
    if side == "target":
        return f"joined {parts} into {sum(sizes)}"
    names = ", ".join(_short_name(path) for path in row.targets)
    if all(branch.source_dims[dim] == _role_dim(branch, row.row.roles, HEADS) for branch in expression.branches()):
        return f"{names} split {parts} of {sum(sizes)} heads"
    return f"split {parts} ({names})"


def _role_dim(branch: Branch, roles: tuple[str, ...], dims: Mapping[str, int]) -> Product | None:
    """The axes of the target's dimension that `dims` names for its role; None without such a role."""
    number = dims.get(roles[branch.target]) if roles else None
    return None if number is None else _without_layers(branch.target_dims)[number]


def _without_layers(dims: tuple[Product, ...]) -> list[Product]:
    return [product for product in dims if product != (LAYER_AXIS,)]


def _axes_words(source: list[str], target: list[str]) -> str:
    """How dimensions moved, given their names on both sides."""
    if source == target:
        return ""
    rest = [[name for name in names if name != LAYER_AXIS] for names in (source, target)]
    words: list[str] = []
    if LAYER_AXIS in source and LAYER_AXIS in target:
        before, after = source.index(LAYER_AXIS), target.index(LAYER_AXIS)
        if before != after:
            words.append(f"layer axis moved ({before} to {after})")
    elif LAYER_AXIS in source or LAYER_AXIS in target:
        words.append("layers taken apart" if LAYER_AXIS in source else "layers stacked")
    if rest[0] != rest[1]:
        swapped = "transposed" if len(rest[0]) == 2 else "axes re-ordered"
        verb = swapped if sorted(rest[0]) == sorted(rest[1]) else "reshaped"
        words.append(f"{verb} ({', '.join(rest[0])} to {', '.join(rest[1])})")
    return "; ".join(words)


def _axis_names(dims: tuple[Product, ...], head: Product | None) -> list[str]:
    """One name a dimension, alike however its axes lie; `head` are the axes of one head."""
    names = [sorted(map(str, product), reverse=True) for product in dims]
    one_head = None if head is None else sorted(map(str, head), reverse=True)
    return ["head dim" if name == one_head else " ".join(name) for name in names]


def _reordered_inside(source: tuple[Product, ...], target: tuple[Product, ...]) -> bool:
    """Whether a dimension has the same axes on both sides, in another order."""
    after = [Counter(product) for product in target]
    return any(product not in target and Counter(product) in after for product in source)


def _short_name(path: str) -> str:
    """The part of a leaf's path that tells it from its neighbours: query for .../query/kernel."""
    parts = path.split("/")
    return parts[-2] if parts[-1] in ("kernel", "scale", "embedding") and len(parts) > 1 else parts[-1]
