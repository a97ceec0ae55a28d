"""The console that results are printed on, and what several tables need."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

NARROW = 40
"""Columns of a terminal that says it has fewer, as those do whose size is not known."""

WIDE = 200
"""Columns where the output is no terminal, so that no path is cut."""


def stdout_console() -> Console:
    """A console for results; wide where stdout is no terminal. Paths may hold brackets and colons: text is text."""
    width = max(Console().width, NARROW) if sys.stdout.isatty() else WIDE
    return Console(highlight=False, markup=False, emoji=False, width=width)


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table without lines, whose long cells are folded; the columns of `right` are aligned there."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as people write it: 6 x 1536 x 36 x 128."""
    return " x ".join(map(str, shape)) or "scalar"
