"""Markdown as GitHub renders it, from values that may hold anything: no name can end a cell, a code span or a line."""

import re
from collections.abc import Iterable, Sequence

from converter.words import printable


def code(text: str) -> str:
    """A code span, also of a text with backticks or bars; empty for an empty text."""
    plain = printable(text).replace("|", r"\|")
    if not plain:
        return ""
    fence = "`" * (max(map(len, re.findall("`+", plain)), default=0) + 1)
    space = " " if "`" in (plain[0], plain[-1]) else ""
    return f"{fence}{space}{plain}{space}{fence}"


def words(text: str) -> str:
    """A text in which nothing is an element, a link or the end of a cell; backticks stay code spans."""
    return re.sub(r"([\\|\[\]])", r"\\\1", printable(text)).replace("<", "&lt;")


def table(names: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """The lines of a table.

    Args:
      names: of the columns.
      rows: cells that are Markdown already.
      right: names of the columns that are aligned to the right.
    """
    marks = ["---:" if name in right else "---" for name in names]
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(marks)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Lines that are shown when their summary is opened."""
    return [f"<details><summary>{words(summary)}</summary>", "", *lines, "</details>", ""]
