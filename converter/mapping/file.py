"""Reads and validates a mapping file: TOML text to `MappingTable`, all faults with their line.

Every fault found is reported, not only the first one, with the file, the line, and for an axis expression the text and
a caret.
"""

import dataclasses
import functools
import hashlib
import os
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from converter.errors import MappingError
from converter.location import locate
from converter.mapping.bundled import table_names, table_path
from converter.mapping.config_rows import read_config, read_expected
from converter.mapping.roles import ROTATED
from converter.mapping.rows import (
    read_arithmetic,
    read_choice,
    read_conformance,
    read_drop,
    read_learner,
    read_model,
    read_refusal,
    read_tensor,
    read_tree,
)
from converter.mapping.table import ConformanceRules, MappingTable, TensorRow
from converter.mapping.toml import Fault, Section, TomlText, suggestion

_Part = TypeVar("_Part")

MAX_BYTES = 1 << 20
"""A mapping file is text that people write; anything larger is not one."""


def load_bundled() -> Sequence[MappingTable]:
    """All tables that come with ax2mt; a process reads each once."""
    return [_bundled(name) for name in table_names()]


@functools.cache
def _bundled(name: str) -> MappingTable:
    return load_mapping(table_path(name))


def is_bundled(table: MappingTable) -> bool:
    """Whether a table is one of those that come with ax2mt, so that its name is enough to find it."""
    return table.name in table_names() and table.path == table_path(table.name)


def find_mapping(name: str) -> MappingTable:
    """A bundled table by its name, or any other by its path.

    Raises:
      MappingError: neither a bundled table nor a file.
    """
    if name in table_names():
        return _bundled(name)
    if not os.path.lexists(locate(name, MappingError, local=True).path):
        raise MappingError(f"no mapping {name!r}: bundled are {', '.join(table_names())}, and no such file exists")
    return load_mapping(name)


def load_mapping(path: str) -> MappingTable:
    """Reads a mapping file.

    Raises:
      MappingError: the file cannot be read, is not TOML, or its content is wrong; `details` lists all faults.
    """
    place = locate(path, MappingError, local=True).path
    try:
        with open(place, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MappingError(f"mapping file {path} cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise MappingError(f"mapping file {path} is larger than {MAX_BYTES >> 20} MiB; expected a table of text rows")
    return parse_mapping(text, path)


def parse_mapping(text: str, path: str) -> MappingTable:
    """Parses and validates the text of a mapping file; `path` is for messages.

    Raises:
      MappingError: it is not TOML, or its content is wrong; `details` lists all faults.
    """
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise MappingError(f"mapping file {path} is not valid TOML: {error}") from None
    toml = TomlText(text, path)
    table = _read_table(toml, content, hashlib.sha256(text.encode()).hexdigest())
    if table is not None:
        _cross_check(toml, table)
    if toml.problems:
        count = sum(not line.startswith(" ") for line in toml.problems)  # further lines of a fault are indented
        raise MappingError(f"mapping file {path} has {count} fault{'s' * (count > 1)}", toml.problems)
    assert table is not None
    return table


def _read_table(toml: TomlText, content: dict[str, Any], digest: str) -> MappingTable | None:
    """The table; None where something is wrong with it, which then is among the problems."""
    top = Section(toml, content, "", 0)
    axlearn, maxtext = (_guarded(read_tree, top.subtable(side, required=True)) for side in ("axlearn", "maxtext"))
    choices = _each(read_choice, top.subtables("choice"))
    rows = _each(read_tensor, top.subtables("tensor"))
    drops = _each(read_drop, top.subtables("drop"))
    refusals = _each(read_refusal, top.subtables("refuse"))
    models = _each(read_model, top.subtables("model"))
    config = _guarded(read_config, top.subtable("config"))
    arithmetic = _guarded(read_arithmetic, top.subtable("arithmetic"))
    learner, optimizer = _guarded(read_learner, top.subtable("learner")) or ({}, "")
    expected = _guarded(read_expected, top.subtable("trainer_config")) or ()
    conformance = _guarded(read_conformance, top.subtable("conformance"))
    name, title = top.text("name"), top.text("title", required=False)
    groups = _read_groups(top)
    top.no_more()
    if not rows and not toml.problems:
        toml.complain(0, "no [[tensor]] rows")
    if toml.problems or axlearn is None or maxtext is None:
        return None
    return MappingTable(
        name=name,
        title=title,
        path=toml.path,
        digest=digest,
        groups=groups,
        axlearn=axlearn,
        maxtext=maxtext,
        choices=choices,
        rows=rows,
        drops=drops,
        refusals=refusals,
        config=config or (),
        arithmetic=arithmetic,
        models=models,
        learner=learner,
        optimizer=optimizer,
        expected=expected,
        conformance=conformance or ConformanceRules(),
    )


def _read_groups(top: Section) -> tuple[str, ...]:
    """The headings of the parameter report; a fault does not end the reading of the file."""
    try:
        return top.texts("groups") if "groups" in top.values else ()
    except Fault:
        return ()


def _guarded(read: Callable[[Section], _Part], section: Section | None) -> _Part | None:
    """What a section holds; None where there is none, or where its fault is among the problems."""
    if section is None:
        return None
    try:
        result = read(section)
        section.no_more()
    except Fault:
        return None
    return result


def _each(read: Callable[[Section], _Part], sections: list[Section]) -> tuple[_Part, ...]:
    parts = [_guarded(read, section) for section in sections]
    return tuple(part for part in parts if part is not None)


def _cross_check(toml: TomlText, table: MappingTable) -> None:
    """Names that refer to other parts of the table."""
    kinds = {kind for choice in table.choices for kind in choice.markers}
    axes = {str(f) for row in table.rows for t in row.expression.sources for d in t for p in d.terms for f in p}
    axes.add("layers")
    options = {name for row in table.rows for name in (row.option, row.unpermuted) if name}
    groups = {row.group for row in table.rows}

    def known(name: str, names: set[str], what: str, line: int) -> None:
        if name and name not in names:
            toml.complain(line, f"unknown {what} {name!r}{suggestion(name, names)}")

    of_model = {kind for choice in table.choices if choice.of_model for kind in choice.markers}
    for row in table.rows:
        known(row.when, kinds, "kind", row.line)
        if row.when in kinds - of_model and not row.in_layer:
            toml.complain(row.line, f"'when' names {row.when!r}, a kind of layer, but the row is not of a layer")
    for group in table.groups:
        known(group, groups, "group", toml.line_of("", 0, "groups"))
    for kind in table.axlearn.cycle:
        known(kind, kinds, "kind", toml.line_of("axlearn", 0, "cycle"))
    for rule in table.config:
        line = toml.line_of("config", 0, rule.key)
        for axis in (rule.size, rule.otherwise, rule.at_most, rule.divides):
            known(axis, axes, "axis", line)
        known(rule.has, kinds, "kind", line)
        known(rule.unless, options, "option", line)
        known(rule.option, options, "option", line)
        for case in rule.cases:
            known(case.when, kinds, "kind", line)
            for axis in case.sizes:
                known(axis, axes, "axis", line)
    for number, model in enumerate(table.models):
        for kind in model.kinds:
            known(kind, kinds, "kind", toml.line_of("model", number, "kinds"))
    _check_arithmetic(toml, table)
    _check_roles(toml, table)
    _check_orders(toml, table)
    targets: dict[tuple[str, str], int] = {}
    for row in table.rows:
        for path in row.maxtext:
            other = targets.setdefault((path, row.when), row.line)
            if other != row.line:
                toml.complain(row.line, f"target {path} is also produced by line {other}")


def _check_roles(toml: TomlText, table: MappingTable) -> None:
    """No layer can have a role twice: rows share one only if their kinds exclude each other."""
    choices = {kind: choice.name for choice in table.choices for kind in choice.markers}
    seen: dict[str, list[TensorRow]] = {}
    for row in table.rows:
        for role in row.roles:
            others = seen.setdefault(role, [])
            for other in others:
                apart = row.when != other.when and choices.get(row.when, "") == choices.get(other.when, "") != ""
                if not apart:
                    toml.complain(row.line, f"role {role!r} is also that of line {other.line}")
            others.append(row)


def _check_orders(toml: TomlText, table: MappingTable) -> None:
    """One RoPE rotates q, k and their scales: no option leaves the pairs of some of them in the source's order only."""
    rotated = [row for row in table.rows if ROTATED & set(row.roles)]
    for name in table.orders:
        for row in rotated:
            if row.unpermuted != name and row.expression.in_source_order() != row.expression:
                toml.complain(row.line, f"unpermuted: expected {name!r}, which other rows that RoPE rotates have")


def _check_arithmetic(toml: TomlText, table: MappingTable) -> None:
    """Each key that [arithmetic] names has a number in [config]."""
    if table.arithmetic is None:
        return
    numbers = {rule.key for rule in table.config if type(rule.constant) in (int, float)}
    for field, value in dataclasses.asdict(table.arithmetic).items():
        if isinstance(value, str) and value not in numbers:
            line = toml.line_of("arithmetic", 0, field)
            toml.complain(line, f"{field}: no number {value!r} in [config]{suggestion(value, numbers)}")
