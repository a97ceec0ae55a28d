"""Reads and validates a mapping file: TOML text to `MappingTable`, all faults with their line.

Every fault found is reported, not only the first one, with the file, the line, and for an axis expression the text and
a caret.
"""

import difflib
import hashlib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from converter.axes import Expression, ExpressionError
from converter.errors import MappingError
from converter.mapping import (
    LAYER_FIELD,
    Choice,
    ConfigRule,
    DropRow,
    Fidelity,
    LayerLayout,
    MappingTable,
    PublishedModel,
    TensorRow,
    TreeLayout,
)
from mappings import table_names, table_path

MAX_BYTES = 1 << 20
"""A mapping file is text that people write; anything larger is not one."""

MAX_HEADER = 200
MAX_EXPRESSION = 1000
"""Characters of an axis expression."""

MAX_NAMES = 500
"""Names among which a near one is looked for; the search takes a while for each."""

_PATH_PART = re.compile(r"[\w{}\-]+")
"""Part of a target path. No dots: leaves are stored under their path joined by dots."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\" ]+?)\s*\]\]?\s*(#.*)?$")


def load_bundled() -> list[MappingTable]:
    """All tables that come with ax2mt."""
    return [load_mapping(table_path(name)) for name in table_names()]


def find_mapping(name: str) -> MappingTable:
    """A bundled table by its name, or any other by its path.

    Raises:
      MappingError: neither a bundled table nor a file.
    """
    if name in table_names():
        return load_mapping(table_path(name))
    if not os.path.isfile(name):
        raise MappingError(f"no mapping {name!r}: bundled are {', '.join(table_names())}, and no such file exists")
    return load_mapping(name)


def load_mapping(path: str) -> MappingTable:
    """Reads a mapping file.

    Raises:
      MappingError: the file cannot be read, is no TOML, or its content is wrong; `details` lists all faults.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MappingError(f"mapping file {path} cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise MappingError(f"mapping file {path} is larger than {MAX_BYTES >> 20} MiB; expected a table of text rows")
    return parse_mapping(text, path)


def parse_mapping(text: str, path: str) -> MappingTable:
    """Parses and validates the text of a mapping file; `path` is for messages."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise MappingError(f"mapping file {path} is no valid TOML: {error}") from None
    reader = _Reader(text, path)
    table = reader.table(content)
    reader.raise_problems()
    assert table is not None
    return table


class _Fault(Exception):
    """Ends the reading of one section; its text is already among the problems."""


class _Reader:
    def __init__(self, text: str, path: str):
        self.lines = text.splitlines()
        self.parts = self.find_parts()
        self.path = path
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.problems: list[str] = []

    def raise_problems(self) -> None:
        if self.problems:
            count = len(self.problems)
            raise MappingError(f"mapping file {self.path} has {count} fault{'s' * (count > 1)}", self.problems)

    def table(self, content: dict[str, Any]) -> MappingTable | None:
        top = _Section(self, content, "", 0)
        axlearn, maxtext = (
            self.guard(lambda section: section.tree(), top.subtable(side, required=True))
            for side in ("axlearn", "maxtext")
        )
        choices = [self.guard(lambda section: section.choice(), s) for s in top.subtables("choice")]
        rows = [self.guard(lambda section: section.tensor(), s) for s in top.subtables("tensor")]
        drops = [self.guard(lambda section: section.drop(), s) for s in top.subtables("drop")]
        models = [self.guard(lambda section: section.model(), s) for s in top.subtables("model")]
        config = self.guard(lambda section: section.config(), top.subtable("config"))
        fidelity = self.guard(lambda section: section.fidelity(), top.subtable("fidelity"))
        name, title = top.text("name"), top.text("title", required=False)
        top.no_more()
        if not rows and not self.problems:
            self.problems.append(f"{self.path}: no [[tensor]] rows")
        if self.problems or axlearn is None or maxtext is None:
            return None
        table = MappingTable(
            name=name,
            title=title,
            path=self.path,
            digest=self.digest,
            axlearn=axlearn,
            maxtext=maxtext,
            choices=tuple(c for c in choices if c),
            rows=tuple(r for r in rows if r),
            drops=tuple(d for d in drops if d),
            config=config or (),
            fidelity=fidelity,
            models=tuple(m for m in models if m),
        )
        self.cross_check(table)
        return table

    def guard(self, read: Callable[["_Section"], Any], section: "_Section | None") -> Any:
        if section is None:
            return None
        try:
            result = read(section)
            section.no_more()
        except _Fault:
            return None
        return result

    def cross_check(self, table: MappingTable) -> None:
        """Names that refer to other parts of the table."""
        kinds = {kind for choice in table.choices for kind in choice.markers}
        axes = {str(f) for row in table.rows for t in row.expression.sources for d in t for p in d.terms for f in p}
        axes.add("layers")
        options = {row.option for row in table.rows if row.option}
        for row in table.rows:
            self.known(row.when, kinds, "kind", row.line)
        for kind in table.axlearn.cycle:
            self.known(kind, kinds, "kind", self.line_of("axlearn", 0, "cycle"))
        for rule in table.config:
            line = self.line_of("config", 0, rule.key)
            self.known(rule.size, axes, "axis", line)
            self.known(rule.has, kinds, "kind", line)
            self.known(rule.unless, options, "option", line)
        targets: dict[tuple[str, str], int] = {}
        for row in table.rows:
            for path in row.maxtext:
                other = targets.setdefault((path, row.when), row.line)
                if other != row.line:
                    self.problems.append(f"{self.path}:{row.line}: target {path} is also produced by line {other}")

    def known(self, name: str, names: set[str], what: str, line: int) -> None:
        if name and name not in names:
            self.problems.append(f"{self.path}:{line}: unknown {what} {name!r}{suggestion(name, names)}")

    def line_of(self, section: str, index: int, key: str = "") -> int:
        """Line of a section's header, or of a key in it (0 where it cannot be told)."""
        parts = self.parts.get(section, [])
        if index >= len(parts):
            return 0
        start = parts[index][0][0]
        if key:
            pattern = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]")
            for low, high in parts[index]:
                for number in range(low + 1, high):
                    if pattern.match(self.lines[number - 1]):
                        return number
        return start

    def find_parts(self) -> dict[str, list[list[tuple[int, int]]]]:
        """For each section and each of its [[tables]] the lines between its headers and the next ones."""
        headers = [
            (number, match[2].split(".")[0].strip('" '), match[1] == "[[")
            for number, line in enumerate(self.lines, 1)
            if len(line) <= MAX_HEADER and (match := _HEADER.match(line))
        ]
        ends = [*(number for number, _, _ in headers), len(self.lines) + 1]
        parts: dict[str, list[list[tuple[int, int]]]] = {"": [[(0, ends[0])]]}
        for (number, name, is_array), end in zip(headers, ends[1:], strict=True):
            found = parts.setdefault(name, [])
            if is_array or not found:
                found.append([])
            found[-1].append((number, end))
        return parts


class _Section:
    """One TOML table that is being read: every key must be asked for, whatever is left over is a fault."""

    def __init__(self, reader: _Reader, values: dict[str, Any], name: str, index: int):
        self.reader = reader
        self.values = dict(values)
        self.asked: set[str] = set()
        self.name = name
        self.index = index

    def fail(self, reason: str, key: str = "", details: Iterable[str] = ()) -> NoReturn:
        self.complain(reason, key, details)
        raise _Fault

    def complain(self, reason: str, key: str = "", details: Iterable[str] = ()) -> None:
        line = self.reader.line_of(self.name, self.index, key)
        where = f"{self.reader.path}:{line}" if line else self.reader.path
        self.reader.problems.append(f"{where}: {reason}")
        self.reader.problems.extend(f"    {detail}" for detail in details)

    def take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        self.asked.add(key)
        if key not in self.values:
            if default is None:
                self.fail(f"{self.title} lacks {key!r}, {what}")
            return default
        value = self.values.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            self.fail(f"{key} must be {what}, found {value!r}", key)
        return value

    @property
    def title(self) -> str:
        return f"[{self.name}]" if self.name else "the file"

    def text(self, key: str, *, required: bool = True) -> str:
        try:
            return self.take(key, str, "a text", None if required else "")
        except _Fault:
            if self.name:
                raise
            return ""

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key, (str, list), "a text or a list of texts")
        values = [value] if isinstance(value, str) else value
        if not values or not all(isinstance(entry, str) and entry for entry in values):
            self.fail(f"{key} must be a text or a list of texts, found {value!r}", key)
        return tuple(values)

    def subtable(self, key: str, *, required: bool = False) -> "_Section | None":
        self.asked.add(key)
        value = self.values.pop(key, None)
        if isinstance(value, dict):
            return _Section(self.reader, value, key, 0)
        if value is not None or required:
            self.complain(f"{self.title} needs a table [{key}]")
        return None

    def subtables(self, key: str) -> list["_Section"]:
        self.asked.add(key)
        values = self.values.pop(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self.complain(f"{key} must be written as [[{key}]] tables")
            return []
        return [_Section(self.reader, value, key, index) for index, value in enumerate(values)]

    def no_more(self) -> None:
        for key in self.values:
            self.complain(f"unknown key {key!r} in {self.title}{suggestion(key, self.asked)}", key)

    def tree(self) -> TreeLayout:
        prefix = self.take("prefix", str, "the path under which the parameters live", "").strip("/")
        if self.name == "maxtext" and prefix:
            self.target_path(prefix, "prefix")
        layers: list[LayerLayout] = []
        for name, value in self.take("layers", dict, "a table of layer layouts", {}).items():
            if not isinstance(value, dict) or set(value) != {"path", "axis"}:
                self.fail(f"layers.{name} must be {{ path = ..., axis = ... }}", "layers")
            path, axis = value["path"], value["axis"]
            if not isinstance(path, str) or type(axis) is not int or not 0 <= axis <= 8:
                self.fail(f"layers.{name}: path must be a text and axis a number from 0 to 8", "layers")
            fields = set(re.findall(r"\{(\w*)\}", path))
            if not fields <= {"block"}:
                self.fail(f"layers.{name}: unknown field in {path!r}; only {{block}} can stand there", "layers")
            if self.name == "maxtext":
                self.target_path(path.strip("/"), "layers")
            layers.append(LayerLayout(name, path.strip("/"), axis))
        cycle = self.take("cycle", list, "a list of kinds", [])
        return TreeLayout(prefix, tuple(layers), tuple(map(str, cycle)))

    def choice(self) -> Choice:
        name = self.text("name")
        markers = {key: self.text(key) for key in list(self.values)}
        if len(markers) < 2:
            self.fail(f"choice {name!r} needs at least two kinds")
        return Choice(name, markers)

    def tensor(self) -> TensorRow:
        line = self.reader.line_of(self.name, self.index)
        axlearn, maxtext = self.texts("axlearn"), self.texts("maxtext")
        text = self.text("axes")
        optional = {key: self.text(key, required=False) for key in ("group", "note", "when", "option")}
        for path in maxtext:
            self.target_path(path.removeprefix(LAYER_FIELD + "/"), "maxtext")
        if len(text) > MAX_EXPRESSION:
            self.fail(f"axes of {maxtext[0]}: longer than {MAX_EXPRESSION} characters", "axes")
        try:
            expression = Expression.parse(text)
        except ExpressionError as error:
            caret = " " * error.position + "^"
            self.fail(f"axes of {maxtext[0]}: {error.reason}", "axes", [error.text, caret])
        for side, paths, tensors in (
            ("axlearn", axlearn, expression.sources),
            ("maxtext", maxtext, expression.targets),
        ):
            if len(paths) != len(tensors):
                self.fail(f"{side} names {len(paths)} tensors, its side of axes has {len(tensors)}", "axes", [text])
        in_layer = {path.startswith(LAYER_FIELD + "/") for path in (*axlearn, *maxtext)}
        if len(in_layer) > 1 or any("{" in path.removeprefix(LAYER_FIELD) for path in (*axlearn, *maxtext)):
            self.fail("either all paths of a row start with {layer}/, or none; no other field can stand in them")
        if optional["when"] and True not in in_layer:
            self.fail("'when' needs a row of a layer", "when")
        return TensorRow(axlearn, maxtext, expression, line=line, **optional)

    def target_path(self, path: str, key: str) -> None:
        """A target's path becomes a name on disk: nothing in it may lead elsewhere."""
        if not all(_PATH_PART.fullmatch(part) for part in path.split("/")):
            self.fail(f"{key}: {path[:200]!r} is no path; expected words of letters, digits, _ and - joined by /", key)

    def drop(self) -> DropRow:
        return DropRow(self.text("axlearn"), self.text("reason"))

    def fidelity(self) -> Fidelity:
        return Fidelity(self.text("query_scale"), self.text("key_scale"))

    def model(self) -> PublishedModel:
        sizes = self.take("sizes", dict, "a table of axis sizes")
        if not all(type(size) is int and size > 0 for size in sizes.values()):
            self.fail("sizes must be positive numbers", "sizes")
        kinds = self.take("kinds", list, "a list of kinds", [])
        return PublishedModel(self.text("name"), tuple(map(str, kinds)), sizes)

    def config(self) -> tuple[ConfigRule, ...]:
        fields = {"size": str, "times": int, "times_blocks": bool, "has": str, "unless": str, "layout": str}
        rules: list[ConfigRule] = []
        for key in list(self.values):
            value = self.values.pop(key)
            if not isinstance(value, dict):
                if not _is_constant(value):
                    self.fail(f"{key} must be a number, a text, true or false, or a list of texts", key)
                rules.append(ConfigRule(key, constant=value))
                continue
            unknown = [field for field in value if field not in fields or not isinstance(value[field], fields[field])]
            if unknown or len(set(value) & {"size", "has", "unless", "layout"}) != 1:
                self.fail(f"{key} must be a value or one rule of size, has, unless, layout; found {value!r}", key)
            rules.append(ConfigRule(key, **value))
        return tuple(rules)


def _is_constant(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(entry, str) for entry in value)
    if isinstance(value, int | float):
        return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63
    return isinstance(value, str)


def suggestion(name: str, names: Iterable[str]) -> str:
    """`; did you mean ...?` where one of the names is near."""
    candidates = sorted(set(names))
    near = difflib.get_close_matches(name, candidates, n=1) if len(candidates) <= MAX_NAMES else []
    return f"; did you mean {near[0]!r}?" if near else ""
