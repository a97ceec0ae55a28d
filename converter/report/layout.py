"""Tables of paths: in columns where the terminal is wide enough, and otherwise with each path whole on its own line.

A path that is folded inside a column cannot be read, searched for or copied. In the narrow form a row is

    self_attention/norm/scale  2 x 32
      -> pre_self_attention_layer_norm/scale  32 x 2  float32  pass  256 B

What does not fit beside its path goes below it.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP = "  "
ARROW = "  -> "
WHOLE_CELL = 24
"""Characters of a cell that is never broken, such as a shape."""

_NO_BREAK = "\u00a0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name, whether it is aligned to the right, and whether its cells begin a line of their own."""

    name: str
    right: bool = False
    path: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a text for each column (missing ones are empty), whether it is a heading, its indent in characters."""

    cells: tuple[str, ...]
    heading: bool = False
    indent: int = 0


def side_by_side(*sides: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The lines of a row: the cells of each side beside each other, empty ones where a side has fewer lines."""
    empty = [("",) * max((len(cells) for cells in side), default=0) for side in sides]
    return [
        tuple(cell for cells, blank in zip(line, empty, strict=True) for cell in cells or blank)
        for line in zip_longest(*sides)
    ]


def print_rows(console: Console, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Prints a table; in columns where it fits, or where the output is not a terminal."""
    rows = [Row(tuple(column.name for column in columns), heading=True), *rows]
    table = [_wide_cells(row, columns) for row in rows]
    widths = [max(cell_len(cells[number]) for cells in table) for number in range(len(columns))]
    if console.is_terminal and sum(widths) + len(GAP) * (len(widths) - 1) > console.width:
        texts = [(row, text) for row in rows for text in _narrow(row, columns, console.width)]
    else:
        texts = [(row, _wide(cells, columns, widths)) for row, cells in zip(rows, table, strict=True)]
    lines = [Text(text, style="bold" if row.heading else "") for row, text in texts]
    console.print(Text("\n").join(lines), soft_wrap=True)


def _wide_cells(row: Row, columns: Sequence[Column]) -> list[str]:
    cells = list(row.cells) + [""] * (len(columns) - len(row.cells))
    return [
        " " * row.indent + cell if cell and column.path else cell for cell, column in zip(cells, columns, strict=True)
    ]


def _wide(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded: list[str] = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if column.right else cell + space)
    return GAP.join(padded).rstrip()


def _narrow(row: Row, columns: Sequence[Column], width: int) -> Iterator[str]:
    first = True
    for path, details in _groups(row, columns):
        start = " " * row.indent + ("" if first else ARROW)
        first = False
        if not path and not details:
            continue
        line = GAP.join((start + path, *details))
        if cell_len(line) <= width or not details:
            yield line
            continue
        if path:
            yield start + path
        below = " " * (len(start) + 2)
        whole = (cell.replace(" ", _NO_BREAK) if len(cell) <= WHOLE_CELL else cell for cell in details)
        wrapped = textwrap.wrap(
            GAP.join(whole), max(width, len(below) + WHOLE_CELL), initial_indent=below, subsequent_indent=below,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        yield from (text.replace(_NO_BREAK, " ") for text in wrapped)


def _groups(row: Row, columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """The cells by the path that they follow, empty ones left out."""
    groups: list[tuple[str, list[str]]] = []
    for number, column in enumerate(columns):
        cell = row.cells[number] if number < len(row.cells) else ""
        if column.path:
            groups.append((cell, []))
        elif cell:
            groups[-1][1].append(cell)
    return groups
