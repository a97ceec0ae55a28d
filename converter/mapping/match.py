"""Applies a mapping table to the tensors of a checkpoint: which row meets which tensor, and is everything covered.

Coverage is checked here, before any weight is read: every source tensor is consumed exactly once or dropped by a row
that says why, and every target leaf is produced exactly once. All offenders are listed together.
"""

import difflib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from converter.axes import Expression, ShapeFact, solve_sizes
from converter.errors import MappingError
from converter.mapping.path_glob import matches
from converter.mapping.stacks import MAX_LAYERS, STACK_AXIS, Shape, fold, stack_name, stack_parts
from converter.mapping.table import LAYER_AXIS, LAYER_FIELD, DropRow, LayerLayout, MappingTable, Marker, TensorRow
from converter.mapping.values import COPY, Fit, ValueRule
from converter.words import MAX_LISTED, option_flag, shorten

MAX_PLACES = 100_000
"""Rows times layers; the largest model of the family has some hundred."""

MAX_CANDIDATES = 2_000
"""Names among which a near one is looked for; the search takes a while for each."""


@dataclass(frozen=True, slots=True)
class MatchedRow:
    """One row on one place of the model.

    Attributes:
      row: the row of the table.
      sources: full paths of its source tensors; a stack of layers in names counts as one, see `stacks`.
      targets: full paths of its target leaves, likewise.
      expression: the row's axes with the layer axis where the layouts have it.
      value: what becomes of the values, with the options that are on.
      source_place: the layer's full path in the source; empty for tensors that belong to no layer.
      target_place: the same in the target.
      unpermuted: the option that left axes in the source's order; empty where they are as the row says.
    """

    row: TensorRow
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    expression: Expression
    value: ValueRule = COPY
    source_place: str = ""
    target_place: str = ""
    unpermuted: str = ""

    @property
    def note(self) -> str:
        """Why, for the report."""
        return f"in the order of AXLearn ({option_flag(self.unpermuted)})" if self.unpermuted else self.row.note


@dataclass(frozen=True, slots=True)
class Match:
    """A table that covers a checkpoint.

    Attributes:
      table: the mapping table.
      rows: every row on every place, in the order of the model.
      dropped: source path to the reason it is left behind.
      notes: what the table has to say about tensors that are left behind, one line each.
      sizes: the solved size of every axis.
      blocks: layers in a cycle (1 where the table has no layers).
      kinds: kinds of layers that the model has.
      options: the options that were on.
      target_layout: name of the target's layer layout.
      prefix: what stands before the path of every source tensor that is converted; the table's own where the
        parameters themselves are.
      shapes: path to shape of every tensor of the checkpoint, stacks in the place of their parts.
      stacks: path of each stack of the source to the paths of its parts.
    """

    table: MappingTable
    rows: tuple[MatchedRow, ...]
    dropped: Mapping[str, str]
    notes: tuple[str, ...]
    sizes: Mapping[str, int]
    blocks: int
    kinds: frozenset[str]
    options: frozenset[str]
    target_layout: str
    prefix: str
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def parts(self, path: str) -> tuple[str, ...]:
        """The tensors of the checkpoint that a path of a row stands for."""
        return self.stacks.get(path, (path,))

    def rows_of(self, *roles: str) -> dict[str, tuple[MatchedRow, ...]]:
        """The rows with these roles, by the place of their layer in the source; places that lack one are left out."""
        found: dict[str, dict[str, MatchedRow]] = {}
        for row in self.rows:
            for role in row.row.roles:
                found.setdefault(row.source_place, {})[role] = row
        return {
            place: tuple(rows[role] for role in roles)
            for place, rows in found.items()
            if all(role in rows for role in roles)
        }


def match_table(
    table: MappingTable,
    shapes: Mapping[str, Shape],
    *,
    options: Collection[str] = (),
    target_layout: str = "scanned",
    prefix: str | None = None,
    hints: bool = True,
) -> Match:
    """Matches a table with a checkpoint's tensors.

    Args:
      table: the mapping table.
      shapes: path to shape of every tensor in the checkpoint.
      options: names of the options whose rows are wanted.
      target_layout: the layer layout to produce.
      prefix: where another tree of the parameters' shape is, which is converted in their place; None for the table's
        own prefix.
      hints: look for the nearest name of a path that has no counterpart, which takes longer than all the rest.

    Raises:
      MappingError: the table does not cover the checkpoint, or sizes contradict; `details` lists all findings.
    """
    rows, problems = _Matcher(table, shapes, options, target_layout, prefix, hints).match()
    if problems:
        raise MappingError(f"mapping '{table.name}' does not fit the checkpoint", shorten(problems))
    return rows


class _Matcher:
    def __init__(
        self,
        table: MappingTable,
        shapes: Mapping[str, Shape],
        options: Collection[str],
        target_layout: str,
        prefix: str | None,
        hints: bool,
    ) -> None:
        self.table = table
        self.hints = hints
        folded = fold(shapes, table.axlearn.layers)
        self.shapes, self.stacks, self.layouts = folded.shapes, folded.stacks, folded.layouts
        self.options = frozenset(options)
        self.target_layout = target_layout
        self.prefix = table.axlearn.prefix if prefix is None else prefix
        self.problems: list[str] = list(folded.problems)
        self.kinds: set[str] = set()

    def match(self) -> tuple[Match, list[str]]:
        known = self.table.options
        self.problems += [f"the table has no rows for option '{option}'" for option in sorted(self.options - known)]
        source = self._source_layout()
        target = self._target_layout()
        blocks = self._blocks(source) if source else 0
        of_model = self._kinds(self.prefix, of_model=True)
        kinds = [of_model | self._block_kinds(source, block) for block in range(blocks)] if source else []
        self.kinds = of_model.union(*kinds)
        rows = self._rows(source, target, kinds)
        dropped = self._cover(rows)
        sizes: dict[str, int] = {}
        if not self.problems:
            sizes = self._solve(rows)
        match = Match(
            self.table, tuple(rows), {path: drop.reason for path, drop in dropped.items()},
            (*dict.fromkeys(drop.note for drop in dropped.values() if drop.note), *self._idle_notes(rows)), sizes,
            max(blocks, 1), frozenset(self.kinds), self.options, self.target_layout, self.prefix,
            self.shapes, self.stacks,
        )  # fmt: skip
        return match, self.problems

    def _idle_notes(self, rows: Sequence[MatchedRow]) -> list[str]:
        """A note for each option that is on and whose rows are not for this kind of model."""
        used = {matched.row.option for matched in rows}
        idle = {row.option: row for row in self.table.rows if row.option in self.options - used}
        return [
            f"{option_flag(option)} changes nothing: it adds {', '.join(row.maxtext)} to {row.when} models only"
            for option, row in sorted(idle.items())
        ]

    def _source_layout(self) -> LayerLayout | None:
        """The source layout in which layers are found; they cannot be mixed."""
        found = [layout for layout in self.layouts if layout.axis is not None and self._found_blocks(layout)]
        if self.layouts and not found:
            looked = " or ".join(join(self.prefix, layout.path) for layout in self.layouts)
            self.problems.append(f"no layers at {looked}")
        if len(found) > 1:
            self.problems.append("layers in several layouts: " + ", ".join(layout.name for layout in found))
        return found[0] if found else None

    def _target_layout(self) -> LayerLayout | None:
        layouts = {layout.name: layout for layout in self.table.maxtext.layers}
        if layouts and self.target_layout not in layouts:
            self.problems.append(f"the table has no target layout '{self.target_layout}' ({', '.join(layouts)})")
        return layouts.get(self.target_layout)

    def _found_blocks(self, layout: LayerLayout) -> set[int]:
        text = re.escape(join(self.prefix, layout.path)).replace(r"\{block\}", r"(\d{1,4})")
        pattern = re.compile(text + "/")
        found = [match for match in map(pattern.match, self.shapes) if match]
        return {int(match[1]) if pattern.groups else 0 for match in found}

    def _blocks(self, layout: LayerLayout) -> int:
        found = self._found_blocks(layout)
        count = max(found) + 1
        missing = sorted(set(range(count)) - found)
        if missing:
            self.problems.append(f"{layout.path}: blocks {sorted(found)} without {missing[:5]}")
        expected = len(self.table.axlearn.cycle)
        if expected and count != expected:
            self.problems.append(f"{layout.path}: {count} layers in a cycle, the table has {expected}")
        return count

    def _block_kinds(self, layout: LayerLayout, block: int) -> set[str]:
        place = join(self.prefix, layout.path.replace("{block}", str(block)))
        kinds = self._kinds(place, of_model=False, stacked=layout.axis is not None)
        cycle = self.table.axlearn.cycle
        if block < len(cycle) and cycle[block] not in kinds:
            self.problems.append(
                f"{place}: expected to be {cycle[block]}, found {', '.join(sorted(kinds)) or 'neither'}"
            )
        return kinds

    def _kinds(self, place: str, *, of_model: bool, stacked: bool = False) -> set[str]:
        """The kinds of a layer, or of the model, by the tensors below its place."""
        kinds: set[str] = set()
        for choice in self.table.choices:
            if choice.of_model != of_model:
                continue
            found = [kind for kind, marker in choice.markers.items() if self._shows(marker, place, stacked)]
            if len(found) != 1 and len(choice.markers) > 1:
                expected = " or ".join(f"{marker} ({kind})" for kind, marker in choice.markers.items())
                self.problems.append(
                    f"{place}: one {choice.name} is expected, {expected}; found {' and '.join(found) or 'none'}"
                )
            kinds.update(found)
        return kinds

    def _shows(self, marker: Marker, place: str, stacked: bool) -> bool:
        shape = self.shapes.get(join(place, marker.tensor))
        if marker.absent or shape is None:
            return marker.absent and shape is None
        return marker.dims is None or len(shape) == marker.dims + stacked

    def _rows(
        self, source: LayerLayout | None, target: LayerLayout | None, kinds: Sequence[set[str]]
    ) -> list[MatchedRow]:
        result: list[MatchedRow] = []
        if len(self.table.rows) * len(kinds) > MAX_PLACES:
            self.problems.append(f"{len(kinds)} layers in a cycle for {len(self.table.rows)} rows; no model has that")
            return result
        repeats = self._repeats(source) if source else 1
        if repeats * len(kinds) > MAX_LAYERS:
            self.problems.append(f"{repeats * len(kinds)} layers; expected {MAX_LAYERS} at most")
            return result
        for row in self.table.rows:
            if row.option and row.option not in self.options:
                continue
            own = row.expression.in_source_order() if row.unpermuted in self.options else row.expression
            if not row.in_layer:
                if not row.when or row.when in self.kinds:
                    result.append(self._place(row, "", "", own))
            elif source and target:
                target_at = STACK_AXIS if target.axis is None else target.axis
                expression = own.with_axis(LAYER_AXIS, source_at=source.axis, target_at=target_at)
                for block, found in enumerate(kinds):
                    if not row.when or row.when in found:
                        place = source.path.replace("{block}", str(block))
                        target_place = _target_place(target, block, len(kinds), repeats)
                        result.append(self._place(row, place, target_place, expression))
        _check_tree([part for matched in result for path in matched.targets for part in _each(path)], self.problems)
        order = {place: number for number, place in enumerate(dict.fromkeys(r.source_place for r in result))}
        return sorted(result, key=lambda matched: order[matched.source_place] if matched.source_place else -1)

    def _repeats(self, source: LayerLayout) -> int:
        """How often the cycle of layers is repeated: by the first tensor of a layer that there is."""
        text = re.escape(join(self.prefix, source.path)).replace(r"\{block\}", r"\d{1,4}")
        pattern, axis = re.compile(text + "/"), source.axis or 0
        return next(
            (shape[axis] for path, shape in self.shapes.items() if len(shape) > axis and pattern.match(path)), 1
        )

    def _place(self, row: TensorRow, source: str, target: str, expression: Expression) -> MatchedRow:
        prefixes = self.prefix, self.table.maxtext.prefix
        value = COPY if isinstance(row.value, Fit) and row.value.name not in self.options else row.value
        return MatchedRow(
            row,
            tuple(join(prefixes[0], path.replace(LAYER_FIELD, source)) for path in row.axlearn),
            tuple(join(prefixes[1], path.replace(LAYER_FIELD, target)) for path in row.maxtext),
            expression,
            value,
            join(prefixes[0], source) if source else "",
            join(prefixes[1], target) if target else "",
            row.unpermuted if row.unpermuted in self.options else "",
        )

    def _cover(self, rows: Sequence[MatchedRow]) -> dict[str, DropRow]:
        consumed: dict[str, int] = {}
        produced: dict[str, int] = {}
        for matched in rows:
            for path in matched.sources:
                if path not in self.shapes:
                    self.problems.append(f"missing in the checkpoint: {path}{self._nearest(path, self.shapes)}")
                if not matched.row.option:
                    consumed[path] = consumed.get(path, 0) + 1
            for path in (part for target in matched.targets for part in _each(target)):
                produced[path] = produced.get(path, 0) + 1
        self.problems += [f"consumed {count} times: {path}" for path, count in consumed.items() if count > 1]
        self.problems += [f"produced {count} times: {path}" for path, count in produced.items() if count > 1]
        dropped: dict[str, DropRow] = {}
        known = {path for matched in rows for path in matched.sources}
        for path in self.shapes:
            rule = self._drop(path)
            if path in consumed:
                if rule is not None and self.prefix == self.table.axlearn.prefix:
                    self.problems.append(f"both consumed and dropped ({rule.reason}): {path}")
            elif rule is not None:
                dropped[path] = rule
            elif path.startswith(join(self.table.axlearn.prefix, "")):
                self.problems.append(f"no row for the checkpoint's {path}{self._nearest(path, known)}")
            else:
                self.problems.append(f"no rule for the checkpoint's {path}; a [[drop]] rule can leave it behind")
        return dropped

    def _drop(self, path: str) -> DropRow | None:
        """The rule that leaves a tensor behind."""
        own = self.table.axlearn.prefix
        if self.prefix != own and path.startswith(join(own, "")):
            note = f"the tree {self.prefix} is converted, not the parameters themselves ({own})"
            return DropRow(join(own, "**"), "the parameters themselves", note)
        return next((drop for drop in self.table.drops if matches(drop.pattern, path)), None)

    def _nearest(self, path: str, candidates: Collection[str]) -> str:
        """A hint for the findings that are shown; the search is too slow for thousands of them."""
        if not self.hints or len(self.problems) >= MAX_LISTED or len(candidates) > MAX_CANDIDATES:
            return ""
        near = difflib.get_close_matches(path, candidates, n=1, cutoff=0.8)
        return f" (nearest: {near[0]})" if near else ""

    def _solve(self, rows: Sequence[MatchedRow]) -> dict[str, int]:
        facts = [
            ShapeFact(path, axes, self.shapes[path])
            for matched in rows
            for path, axes in zip(matched.sources, matched.expression.sources, strict=True)
        ]
        try:
            return solve_sizes(facts)
        except MappingError as error:
            self.problems += [error.message, *error.details]
            return {}


def _target_place(layout: LayerLayout, block: int, blocks: int, repeats: int) -> str:
    """A layer's place in the target; where layers live in names, that of all repeats of its block."""
    if layout.axis is not None:
        return layout.path.replace("{block}", str(block))
    if LAYER_FIELD in layout.path:
        return stack_name(layout.path, range(block, repeats * blocks, blocks))
    return stack_name(layout.path.replace("{block}", str(block)), range(repeats))


def _each(path: str) -> tuple[str, ...]:
    """The leaves that a row's target stands for."""
    return stack_parts(path) or (path,)


def join(prefix: str, path: str) -> str:
    """Joins a tree's prefix and a path below it."""
    return f"{prefix}/{path}" if prefix else path


def _check_tree(targets: Sequence[str], problems: list[str]) -> None:
    """A leaf cannot hold another one."""
    for outer, inner in itertools.pairwise(sorted(path.split("/") for path in set(targets))):
        if inner[: len(outer)] == outer:
            problems.append(f"target {'/'.join(inner)} is inside the target {'/'.join(outer)}")
