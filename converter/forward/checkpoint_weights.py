"""A checkpoint's tensors by the roles that its mapping table gives them: the same names and axes from either side.

Both sides are read through the same rows. On AXLearn's side a row's axis expression says which part of a stored array a
role is, and in which order its axes lie; on MaxText's the leaf is in the order of the role already.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from converter.arrays import ArrayReader
from converter.axes import AxisMap, Branch, Product
from converter.checkpoints import (
    CONFIG_NAME,
    Target,
    load_config,
    recorded_fits,
    recorded_mapping,
    recorded_settings,
    same_value,
)
from converter.errors import MappingError, SourceError
from converter.forward.views import View
from converter.forward.weights import Weights, layer_view
from converter.mapping import (
    LAYER_AXIS,
    LAYER_FIELD,
    TRAINING,
    Fit,
    LayerLayout,
    MappingTable,
    MatchedRow,
    join,
    load_bundled,
)
from converter.planning import Source, evident_orders
from converter.storage import is_file
from converter.words import first_names

MAX_NAMED = 4
"""Tensors that a note names."""


def axlearn_weights(source: Source) -> Weights:
    """The weights of an AXLearn checkpoint.

    Raises:
      MappingError: the table gives no roles, or a role to something that is not a part of one stored array.
      SourceError: an array cannot be opened, or shapes contradict each other.
    """
    match = source.match
    _check_roles(match.table)
    opened: dict[str, ArrayReader] = {}
    top: dict[str, View] = {}
    places = list(dict.fromkeys(row.source_place for row in match.rows if row.source_place))
    layers: dict[int, dict[str, View]] = {}
    unused: list[str] = []
    for row in match.rows:
        if row.row.option:
            continue  # a copy that only MaxText has
        unused += () if row.row.roles else row.sources
        for number, role in enumerate(row.row.roles):
            for path in row.sources:
                opened.setdefault(path, ArrayReader(source.arrays[path]))
            for repeat, view in _source_views(row, number, match.sizes, opened):
                if not row.source_place:
                    top[role] = view
                else:
                    layers.setdefault(repeat * match.blocks + places.index(row.source_place), {})[role] = view
    notes = (*source.notes, *_unused_note(unused))
    weights = Weights(source.shown, top, _in_order(source.shown, layers), notes=notes)
    weights.check()
    return weights


def maxtext_weights(target: Target, table: MappingTable, shown: str, notes: Sequence[str] = ()) -> Weights:
    """The weights of a MaxText checkpoint, in any of the formats that Orbax writes and any layout that the table has.

    Args:
      target: the checkpoint.
      table: the table whose MaxText side it has, see `fitting_table`.
      shown: its path as the user gave it, for messages.
      notes: what the user has to know about the choice of the table.

    Raises:
      MappingError: the table gives no roles.
      SourceError: an array cannot be opened, or shapes contradict each other.
    """
    _check_roles(table)
    top: dict[str, View] = {}
    layers: dict[int, dict[str, View]] = {}
    unused: list[str] = []
    for row in table.rows:
        for path, role in zip(row.maxtext, row.roles or [""] * len(row.maxtext), strict=True):
            for layout, block, full in _target_places(table, path, target):
                if not role:
                    unused.append(full)
                    continue
                opened = target.open(full, SourceError)
                reader = ArrayReader(opened.array, opened)
                if layout is None:
                    top[role] = layer_view(reader, None, 0)
                    continue
                for repeat in range(_repeats(reader.array.shape, layout)):
                    number = block if layout.axis is None else repeat * _blocks(table, layout, target) + block
                    layers.setdefault(number, {})[role] = layer_view(reader, layout.axis, repeat)
    weights = Weights(
        shown,
        top,
        _in_order(shown, layers),
        fitted_roles(table, recorded_fits(target.custom, table.fits)),
        notes=(*notes, *_unused_note(unused)),
        settings=recorded_settings(target.custom),
        orders=evident_orders(table, target),
    )
    weights.check()
    return weights


def converting_table(target: Target) -> tuple[MappingTable, tuple[str, ...]]:
    """The bundled table that a checkpoint was converted with, by its receipt, or else by its leaves; and notes on it.

    Raises:
      MappingError: it was converted with another table, or no table fits, or several do.
    """
    tables = load_bundled()
    name, digest = recorded_mapping(target.root)
    if not name:
        found = _fitting_tables(tables, target)
        return (found[0], ()) if len(found) == 1 else _decide(found, target)
    named = [table for table in tables if table.name == name]
    if not named:
        raise MappingError(
            f"{target.root}: converted with mapping '{name}', which is not bundled; pass its file as --mapping FILE"
        )
    table = fitting_table(named, target)
    other = f"the checkpoint was converted with another text of mapping '{name}' than the bundled one; if it was a "
    return table, () if table.digest == digest else (f"{other}table of your own, pass it as --mapping FILE",)


def fitted_roles(table: MappingTable, fits: Collection[str]) -> frozenset[str]:
    """Roles of the tensors whose values these fits make."""
    rows = (row for row in table.rows if isinstance(row.value, Fit) and row.value.name in fits)
    return frozenset(role for row in rows for role in row.roles)


def fitting_table(tables: Sequence[MappingTable], target: Target) -> MappingTable:
    """The one table whose MaxText side has all weights of a checkpoint, and no others.

    Raises:
      MappingError: none has, or several have; the message names the leaves in which the nearest one differs.
    """
    fitting = _fitting_tables(tables, target)
    if len(fitting) > 1:
        raise _undecided(fitting, target)
    return fitting[0]


def _decide(tables: Sequence[MappingTable], target: Target) -> tuple[MappingTable, tuple[str, ...]]:
    """The one of several tables whose constants maxtext.yml has, with a note that says so.

    Raises:
      MappingError: there is no maxtext.yml, or it decides for none or for several.
    """
    file = os.path.join(target.root, CONFIG_NAME)
    found = load_config(file, SourceError) if is_file(file) else {}
    against = {table.name: _other_constants(table, found) for table in tables}
    left = [table for table in tables if not against[table.name]]
    if len(left) != 1:
        raise _undecided(tables, target)
    names = ", ".join(table.name for table in tables)
    reasons = "; ".join(f"{key} is {found[key]}" for keys in against.values() for key in keys[:1])
    return left[0], (f"the mappings {names} have these leaves; {CONFIG_NAME} decided for {left[0].name}: {reasons}",)


def _other_constants(table: MappingTable, found: Mapping[str, Any]) -> list[str]:
    """The keys that have no value which models of a table have."""
    return [
        rule.key
        for rule in table.config
        if rule.constant is not None
        and not rule.option
        and rule.set != TRAINING
        and rule.key in found
        and not any(same_value(found[rule.key], value) for value in (rule.constant, *(c.value for c in rule.cases)))
    ]


def _undecided(tables: Sequence[MappingTable], target: Target) -> MappingError:
    names = ", ".join(table.name for table in tables)
    return MappingError(f"{target.root}: several mappings have its leaves: {names}; name one with --mapping")


def _fitting_tables(tables: Sequence[MappingTable], target: Target) -> list[MappingTable]:
    """The tables whose MaxText side has all weights of a checkpoint, and no others; raises where none has."""
    unknown = {table.name: _unknown_leaves(table, target) for table in tables}
    missing = {table.name: _missing_leaves(table, target) for table in tables}
    misfits = {name: [*unknown[name], *missing[name]] for name in unknown}
    fitting = [table for table in tables if not misfits[table.name]]
    if fitting:
        return fitting
    nearest = min(misfits, key=lambda name: len(misfits[name]), default="")
    raise MappingError(
        f"{target.root}: no mapping has its leaves (compared: {', '.join(misfits) or 'none'}); "
        "pass the table that it was converted with as --mapping FILE",
        [
            *(f"{nearest}: no row produces {path}" for path in unknown.get(nearest, [])[:20]),
            *(f"{nearest}: missing in the checkpoint: {path}" for path in missing.get(nearest, [])[:20]),
        ],
    )


def _unused_note(paths: Sequence[str]) -> tuple[str, ...]:
    """What has to be said where tensors have no role: the logits are those of a model without them."""
    if not paths:
        return ()
    names = first_names(paths, MAX_NAMED)
    return (f"the logits are computed without tensors that have no role in the mapping table: {names}",)


def _check_roles(table: MappingTable) -> None:
    if not any(row.roles for row in table.rows):
        raise MappingError(
            f"mapping '{table.name}' gives no roles to its tensors, so that no logits can be computed; "
            "add `role` to its rows (docs/mapping.md)"
        )


def _in_order(path: str, layers: Mapping[int, Mapping[str, View]]) -> tuple[Mapping[str, View], ...]:
    missing = sorted(set(range(max(layers, default=0))) - layers.keys())
    if missing:
        raise SourceError(f"{path}: layers {missing[:5]} have no tensors")
    return tuple(layers[number] for number in sorted(layers))


def _source_views(
    row: MatchedRow, number: int, sizes: Mapping[str, int], opened: Mapping[str, ArrayReader]
) -> Iterator[tuple[int, View]]:
    """The parts of a stored array that are one role's tensors, layer by layer, with axes as MaxText has them."""
    axis_map = AxisMap(row.expression, {name: sizes[name] for name in row.expression.names()})
    branches = [branch for branch in row.expression.branches() if branch.target == number]
    order = _order(branches[0]) if len(branches) == 1 else None
    if order is None:
        raise MappingError(
            f"{row.targets[number]}: the role {row.row.roles[number]!r} needs a tensor whose axes only move, "
            f"found {row.expression}"
        )
    branch = branches[0]
    box = axis_map.source_box(branch)
    names = [product == (LAYER_AXIS,) for product in branch.source_dims]
    reader = opened[row.sources[branch.source]]
    if True not in names:
        yield 0, View(reader, box, order)
        return
    axis = names.index(True)
    for repeat in range(sizes[LAYER_AXIS]):
        yield repeat, View(reader, (*box[:axis], (repeat, repeat + 1), *box[axis + 1 :]), order)


def _order(branch: Branch) -> tuple[int, ...] | None:
    """The source dimension of each target dimension, without the layer axis; pairs may lie either way."""

    def key(product: Product) -> frozenset[tuple[str | int, int]]:
        return frozenset(Counter(factor for factor in product if factor != 1).items())

    sources = [key(product) for product in branch.source_dims]
    targets = [key(product) for product in branch.target_dims if product != (LAYER_AXIS,)]
    # A dimension of one element that has no axis, such as one of three kernels of a stack, is left out.
    wanted = [product for product in sources if product and product != key((LAYER_AXIS,))]
    if Counter(targets) != Counter(wanted) or len(set(wanted)) != len(wanted):
        return None
    return tuple(sources.index(target) for target in targets)


def _target_places(table: MappingTable, path: str, target: Target) -> Iterator[tuple[LayerLayout | None, int, str]]:
    """Where a row's MaxText tensor is in a checkpoint: the layout, the layer's number in its names, the leaf."""
    if not path.startswith(LAYER_FIELD):
        full = join(table.maxtext.prefix, path)
        if full in target.keys:
            yield None, 0, full
        return
    for layout in table.maxtext.layers:
        pattern = _pattern(join(table.maxtext.prefix, path.replace(LAYER_FIELD, layout.path)))
        for full in target.keys:
            if found := pattern.fullmatch(full):
                yield layout, int(found[1]) if pattern.groups else 0, full


def _blocks(table: MappingTable, layout: LayerLayout, target: Target) -> int:
    """How many layers of a cycle a checkpoint has in a layout."""
    pattern = _pattern(join(table.maxtext.prefix, layout.path))
    found = {match[1] if pattern.groups else "0" for path in target.keys if (match := pattern.match(path))}
    return len(found)


def _repeats(shape: tuple[int, ...], layout: LayerLayout) -> int:
    if layout.axis is None:
        return 1
    return shape[layout.axis] if layout.axis < len(shape) else 0


def _unknown_leaves(table: MappingTable, target: Target) -> list[str]:
    """The weights of a checkpoint that no row of a table leads to."""
    patterns = [
        _pattern(join(table.maxtext.prefix, path.replace(LAYER_FIELD, place)))
        for row in table.rows
        for path in row.maxtext
        for place in ([layout.path for layout in table.maxtext.layers] if row.in_layer else [""])
    ]
    weights = [path for path in target.keys if path.startswith(f"{table.maxtext.prefix}/")]
    return [path for path in weights if not any(pattern.fullmatch(path) for pattern in patterns)] or (
        [] if weights else [f"{table.maxtext.prefix}/ (nothing is there)"]
    )


def _missing_leaves(table: MappingTable, target: Target) -> list[str]:
    """What each row that every model has would make, and a checkpoint does not have."""
    rows = (row for row in table.rows if not row.when and not row.option)
    return [path for row in rows for path in row.maxtext if not any(_target_places(table, path, target))]


def _pattern(path: str) -> re.Pattern[str]:
    """A path in which the number of a layer or block stands open."""
    return re.compile(re.sub(r"\\\{(?:block|layer)\\\}", r"(\\d{1,4})", re.escape(path)))
