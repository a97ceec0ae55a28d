"""The parameter report: which AXLearn tensor is which MaxText leaf, in shapes, words and counts. Reads no weights."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from converter.axes import AxisMap, product_size
from converter.checkpoints import Made, Target, check_pair, open_target, recorded_settings, recorded_trees
from converter.choices import SCANNED
from converter.errors import DestinationError, SourceError, UsageError
from converter.location import locate
from converter.mapping import (
    EXPERT_ROLES,
    Match,
    MatchedRow,
    Shape,
    check_model,
    converted_keys,
    find_mapping,
    find_published,
    load_bundled,
    match_table,
    model_config,
    read_model,
    source_arithmetic,
    stack_parts,
)
from converter.planning.relation import relation, without_layers
from converter.planning.source import Source, check_options, chosen_tree, evident_match, open_source


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
      notes: remarks about the source, one line each.
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


def make_report(
    source: str | None = None,
    destination: str | None = None,
    *,
    model: str | None = None,
    step: int | None = None,
    mapping: str | None = None,
    options: Collection[str] = (),
    tree: str | None = None,
    layout: str | None = None,
) -> ParameterReport:
    """Makes the report of a checkpoint or of a published model.

    Args:
      source: a step or trainer directory; None for a published model.
      destination: the MaxText checkpoint to look at; None for the planned result.
      model: name of a published model; with a source: what the source must be.
      step: the wanted step of the source; None for the latest.
      mapping: path of a user's own table, or None.
      options: options of the mapping table that are on; with a destination, those that it was made with count.
      tree: what becomes MaxText's parameters; None for the one that the checkpoint names, or AXLearn's parameters.
      layout: MaxText's layer layout; None for the destination's, or the usual one.

    Raises:
      UsageError: neither a source nor a model was named.
      SourceError, MappingError, VerificationError: the source, the mapping or the checkpoint cannot be used, or the
        source is not of the named model's size.
    """
    tables = load_bundled() if mapping is None else [find_mapping(mapping)]
    if source is None:
        if model is None:
            raise UsageError("params: expected SRC, or --model NAME")
        if tree is not None:
            raise UsageError("--tree chooses a tree of a checkpoint, and --model has none: give SRC")
        match, shapes = find_published(tables, model)
        if options or layout is not None:
            check_options([match.table], options)
            match = match_table(match.table, shapes, options=options, target_layout=layout or SCANNED)
        return report(match, shapes, model)
    if destination is not None:
        check_pair(locate(source, SourceError), locate(destination, DestinationError))
    target = None if destination is None else open_target(destination)
    made = Made() if target is None else recorded_trees(target.custom, target.root)
    opened = open_source(
        source,
        step=step,
        mapping=mapping,
        options=options,
        metadata_only=True,
        tree=chosen_tree(tree, made, target.root if target is not None else ""),
        layout=layout or SCANNED,
    )
    if model is not None:
        check_model(opened.match, find_published(tables, model)[0], model)
    if target is not None:
        opened = dataclasses.replace(opened, match=evident_match(opened, target))
        if layout is not None and layout != opened.match.target_layout:
            raise UsageError(f"--layout {layout}: {target.root} is {opened.match.target_layout}; drop --layout")
    return report_source(opened, target)


def report_source(source: Source, target: Target | None) -> ParameterReport:
    """Makes the report of an opened source.

    Args:
      source: the source, with the options and the layout of the checkpoint, where there is one.
      target: the MaxText checkpoint to look at; None for the planned result.

    Raises:
      VerificationError: a leaf of the checkpoint cannot be opened.
    """
    match = source.match
    title = f"{source.shown} (step {source.checkpoint.step})"
    known = read_model(match, source.trained.lines).values if source.trained is not None else {}
    if target is None:
        return report(match, match.shapes, title, known=known, notes=source.notes)
    found, known = _found_shapes(target, match), {**known, **recorded_settings(target.custom)}
    return report(match, match.shapes, title, destination=target.root, found=found, known=known, notes=source.notes)


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
    known: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> ParameterReport:
    """Makes the report.

    Args:
      match: the mapping on the model's tensors.
      shapes: shape of every AXLearn tensor.
      title: what the report is about.
      destination: the checkpoint that `found` was read from.
      found: shape of every leaf of that checkpoint; None for the planned result.
      known: keys of MaxText's configuration that the training's own configuration or a user has the values of.
      notes: what the user has to know about the source.
    """
    rows = [_row(row, match, shapes, found) for row in match.rows]
    order = list(dict.fromkeys((*match.table.groups, *(row.group for row in rows))))
    rows.sort(key=lambda row: order.index(row.group))
    produced = {part for row in rows for path in row.targets for part in (stack_parts(path) or (path,))}
    extra = {path: shape for path, shape in (found or {}).items() if path not in produced}
    keys = {**model_config(match), **converted_keys(match.table, known or {}, match.options)}
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
    return 0 if dims is None else product_size(without_layers(dims)[0], match.sizes)


def _found_shape(path: str, found: Mapping[str, Shape]) -> Shape | None:
    """The shape of a leaf, or of one for each layer: that of the odd one where they differ; None where one lacks."""
    parts = stack_parts(path)
    if not parts:
        return found.get(path)
    shapes = [found.get(part) for part in parts]
    odd = next((shape for shape in shapes if shape != shapes[0]), shapes[0])
    return None if None in shapes or odd is None else (len(parts), *odd)


def _row(row: MatchedRow, match: Match, shapes: Mapping[str, Shape], found: Mapping[str, Shape] | None) -> ParameterRow:
    axis_map = AxisMap(row.expression, {name: match.sizes[name] for name in row.expression.names()})
    found_shapes = tuple(_found_shape(path, found) for path in row.targets) if found is not None else ()
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
        note=row.note,
        source_parameters=0 if row.row.option else sum(math.prod(shapes[path]) for path in row.sources),
        target_parameters=sum(map(math.prod, counted)),
        added=bool(row.row.option),
        expert=bool(EXPERT_ROLES & set(row.row.roles)),
    )
