"""The console that results are printed on, and what several tables need."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

NARROW = 40
"""Columns of a terminal that says it has fewer, as those do whose size is not known."""

WIDE = 200
"""Columns where the output is not a terminal, so that no path is cut."""


def stdout_console() -> Console:
    """A console for results. Lines are never broken: paths must stay whole. Brackets and colons in paths are text."""
    width = max(Console().width, NARROW) if sys.stdout.isatty() else WIDE
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def plain_table(*columns: str, left: Sequence[str] = ()) -> Table:
    """A table of numbers without lines, whose long cells are folded; the columns of `left` hold texts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table


def print_table(table: Table, console: Console) -> None:
    """Prints a table within the console's width."""
    console.print(table, soft_wrap=False)


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as people write it: 6 x 1536 x 36 x 128."""
    return " x ".join(map(str, shape)) or "scalar"
