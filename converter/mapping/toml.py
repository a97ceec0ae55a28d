"""A TOML text that is read table by table and key by key: every fault is collected, with its line."""

import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

MAX_HEADER = 200
MAX_NAMES = 500
"""Names among which a near one is looked for; the search takes a while for each."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\" ]+?)\s*\]\]?\s*(#.*)?$")


class Fault(Exception):
    """Ends the reading of one section; its text is already among the problems."""


class TomlText:
    """The lines of a TOML text, and what was found wrong in it.

    Attributes:
      path: the file, for messages.
      problems: one line a fault; further lines about it are indented.
    """

    def __init__(self, text: str, path: str):
        self.path = path
        self.problems: list[str] = []
        self._lines = text.splitlines()
        self._parts = self._find_parts()

    def complain(self, line: int, reason: str, details: Iterable[str] = ()) -> None:
        """Adds a problem; `line` is 0 where none can be named."""
        self.problems.append(f"{self.path}:{line}: {reason}" if line else f"{self.path}: {reason}")
        self.problems.extend(f"    {detail}" for detail in details)

    def line_of(self, section: str, index: int, key: str = "") -> int:
        """Line of a section's header, or of a key in it (0 if it is not known)."""
        parts = self._parts.get(section, [])
        if index >= len(parts):
            return 0
        start = parts[index][0][0]
        if key:
            pattern = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]")
            for low, high in parts[index]:
                for number in range(low + 1, high):
                    if pattern.match(self._lines[number - 1]):
                        return number
        return start

    def _find_parts(self) -> dict[str, list[list[tuple[int, int]]]]:
        """For each section and each of its [[tables]] the lines between its headers and the next ones."""
        headers = [
            (number, match[2].split(".")[0].strip('" '), match[1] == "[[")
            for number, line in enumerate(self._lines, 1)
            if len(line) <= MAX_HEADER and (match := _HEADER.match(line))
        ]
        ends = [*(number for number, _, _ in headers), len(self._lines) + 1]
        parts: dict[str, list[list[tuple[int, int]]]] = {"": [[(0, ends[0])]]}
        for (number, name, is_array), end in zip(headers, ends[1:], strict=True):
            found = parts.setdefault(name, [])
            if is_array or not found:
                found.append([])
            found[-1].append((number, end))
        return parts


class Section:
    """One TOML table that is being read: every key must be asked for, whatever is left over is a fault.

    Attributes:
      toml: the text that it is in.
      values: what has not been read yet.
      name: its name; empty for the top of the file.
    """

    def __init__(self, text: TomlText, values: dict[str, Any], name: str, index: int):
        self.toml = text
        self.values = dict(values)
        self.asked: set[str] = set()
        self.name = name
        self.index = index

    def fail(self, reason: str, key: str = "", details: Iterable[str] = ()) -> NoReturn:
        """Adds a problem, at the line of a key where one is given, and ends the reading of this section."""
        self.complain(reason, key, details)
        raise Fault

    def complain(self, reason: str, key: str = "", details: Iterable[str] = ()) -> None:
        """Records a problem and continues."""
        self.toml.complain(self.toml.line_of(self.name, self.index, key), reason, details)

    def take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        """The value of a key, which is then read; without a default the key is required."""
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
        """How messages call it."""
        return f"[{self.name}]" if self.name else "the file"

    def text(self, key: str, *, required: bool = True) -> str:
        """A text. A missing one at the top of the file is a problem that does not end the reading."""
        try:
            return self.take(key, str, "a text", None if required else "")
        except Fault:
            if self.name:
                raise
            return ""

    def texts(self, key: str) -> tuple[str, ...]:
        """Several texts, or one."""
        value = self.take(key, (str, list), "a text or a list of texts")
        values = [value] if isinstance(value, str) else value
        if not values or not all(isinstance(entry, str) and entry for entry in values):
            self.fail(f"{key} must be a text or a list of texts, found {value!r}", key)
        return tuple(values)

    def subtable(self, key: str, *, required: bool = False) -> "Section | None":
        """The table [key] of this one."""
        self.asked.add(key)
        value = self.values.pop(key, None)
        if isinstance(value, dict):
            return Section(self.toml, value, key, 0)
        if value is not None or required:
            self.complain(f"{self.title} needs a table [{key}]")
        return None

    def subtables(self, key: str) -> list["Section"]:
        """The tables [[key]]."""
        self.asked.add(key)
        values = self.values.pop(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self.complain(f"{key} must be written as [[{key}]] tables")
            return []
        return [Section(self.toml, value, key, index) for index, value in enumerate(values)]

    def no_more(self) -> None:
        """Every key that nobody asked for is a problem."""
        for key in self.values:
            self.complain(f"unknown key {key!r} in {self.title}{suggestion(key, self.asked)}", key)


def suggestion(name: str, names: Iterable[str]) -> str:
    """`; did you mean ...?` where one of the names is near."""
    candidates = sorted(set(names))
    near = difflib.get_close_matches(name, candidates, n=1) if len(candidates) <= MAX_NAMES else []
    return f"; did you mean {near[0]!r}?" if near else ""
