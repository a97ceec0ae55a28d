"""Finds the table of a checkpoint among several, and says why none is: models that cannot be converted have a name."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from converter.errors import Ax2mtError, MappingError
from converter.mapping.learner import TRAINER_CONFIG
from converter.mapping.match import Match, Shape, join, match_table
from converter.mapping.path_glob import matches
from converter.mapping.stacks import fold
from converter.mapping.table import LAYER_FIELD, MappingTable, RefuseRow
from converter.mapping.trained import Line, read_model

MAX_TENSORS = 20_000
"""Tensors of a checkpoint that are looked at to explain why no table fits; no model has as many."""

MAX_FINDINGS = 12
"""Findings of the nearest table that are shown."""


def choose_table(
    tables: Sequence[MappingTable],
    shapes: Mapping[str, Shape],
    options: Collection[str] = (),
    lines: Mapping[str, Line] | None = None,
) -> Match:
    """Finds the one table that fits a checkpoint.

    Args:
      tables: those to choose from.
      shapes: path to shape of every tensor.
      options: those that are wanted.
      lines: the training's own configuration, which decides between tables that fit the tensors.

    Raises:
      MappingError: no table fits (with what the nearest one lacks or has too much, or the reason that a table gives for
        refusing such a model), or several do.
    """
    tried = [_try(table, shapes, options, hints=False) for table in tables]
    fits = [match for match in tried if isinstance(match, Match)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        return _decide(fits, lines or {})
    again = {table.name: _try(table, shapes, options, hints=True) for table in tables}
    misfits = {name: error for name, error in again.items() if isinstance(error, Ax2mtError)}
    count, shapes = len(shapes), dict(itertools.islice(shapes.items(), MAX_TENSORS))
    refused = refusals(tables, shapes)
    if refused:
        model, reason = refused[0].model, refused[0].reason
        raise MappingError(f"{model}: {reason}; it cannot be converted", _evidence(refused, shapes))
    names = ", ".join(misfits) or "none"
    raise MappingError(
        f"no mapping fits the checkpoint's {count} tensors (compared: {names}); "
        "write your own table and pass it with --mapping FILE",
        _nearest(tables, misfits, shapes),
    )


def _try(
    table: MappingTable, shapes: Mapping[str, Shape], options: Collection[str], *, hints: bool
) -> Match | Ax2mtError:
    try:
        return match_table(table, shapes, options=options, hints=hints)
    except Ax2mtError as error:
        return error


def _decide(fits: Sequence[Match], lines: Mapping[str, Line]) -> Match:
    """The one of several matches that the training's configuration does not contradict, with a note that says so."""
    names = ", ".join(match.table.name for match in fits)
    against = {match.table.name: read_model(match, lines).contradictions for match in fits}
    left = [match for match in fits if not against[match.table.name]]
    if len(left) != 1:
        raise MappingError(
            f"{len(fits)} mappings fit the checkpoint: {names}; name one with --mapping",
            [f"{name}: not by {TRAINER_CONFIG}: {found[0]}" for name, found in against.items() if found],
        )
    (match,) = left
    reasons = "; ".join(found[0] for found in against.values() if found)
    note = f"the mappings {names} fit the tensors; {TRAINER_CONFIG} decided for {match.table.name}: {reasons}"
    return replace(match, notes=(*match.notes, note))


def refusals(tables: Sequence[MappingTable], shapes: Mapping[str, Shape]) -> list[RefuseRow]:
    """The rules of the tables that recognise a checkpoint as a model that cannot be converted."""
    return [rule for table in tables for rule in table.refusals if any(matches(rule.pattern, path) for path in shapes)]


def _evidence(rules: Sequence[RefuseRow], shapes: Mapping[str, Shape]) -> list[str]:
    """For each rule the first tensor that shows it."""
    first = [(rule, next(path for path in shapes if matches(rule.pattern, path))) for rule in rules]
    return list(dict.fromkeys(f"recognised by {path} ({rule.model}: {rule.reason})" for rule, path in first))


def _nearest(
    tables: Sequence[MappingTable], misfits: Mapping[str, Ax2mtError], shapes: Mapping[str, Shape]
) -> list[str]:
    """What the nearest table finds, and which were further away."""
    known = {table.name: _known(table, shapes) for table in tables}
    order = sorted(misfits, key=lambda name: (-known[name][0] + known[name][1], len(misfits[name].details)))
    if not order:
        return []
    name, error = order[0], misfits[order[0]]
    lines = [f"nearest: {name}, which has rows for {known[name][0]} of the tensors; {error.message}"]
    lines += [f"  {line}" for line in error.details[:MAX_FINDINGS]]
    if len(error.details) > MAX_FINDINGS:
        lines.append(f"  and {len(error.details) - MAX_FINDINGS} more")
    rest = ", ".join(f"{other} (rows for {known[other][0]}, {known[other][1]} without a tensor)" for other in order[1:])
    return [*lines, *([f"further away: {rest}"] if rest else [])]


def _known(table: MappingTable, shapes: Mapping[str, Shape]) -> tuple[int, int]:
    """How many tensors a table has a row for, wherever its layers are, and how many rows for all models have none."""
    prefix = join(table.axlearn.prefix, "")
    folded = fold(shapes, table.axlearn.layers)
    own = {path.removeprefix(prefix): len(shape) for path, shape in folded.shapes.items() if path.startswith(prefix)}
    found: set[str] = set()
    idle = 0
    for row in table.rows:
        here: set[str] = set()
        for name, axes in zip(row.axlearn, row.expression.sources, strict=True):
            end, dims = name.removeprefix(LAYER_FIELD), len(axes) + row.in_layer
            here |= {
                path
                for path, count in own.items()
                if count == dims and (path.endswith(end) if row.in_layer else path == end)
            }
        found |= here
        idle += not here and not row.when and not row.option
    return sum(len(folded.stacks.get(prefix + path, (path,))) for path in found), idle
