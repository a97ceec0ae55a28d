"""Mapping tables, for people. Holds no decisions."""

from collections.abc import Sequence

from rich.console import Console

from converter.mapping import MappingTable
from converter.report.layout import Column, Row, print_rows, side_by_side
from converter.words import option_flag


def print_mappings(tables: Sequence[MappingTable], console: Console) -> None:
    """One line a bundled table."""
    columns = (
        Column(name="mapping", path=True), Column(name="rows"), Column(name="for"), Column(name="published sizes"),
    )  # fmt: skip
    rows = [
        Row((table.name, str(len(table.rows)), table.title, ", ".join(model.name for model in table.models)))
        for table in tables
    ]
    print_rows(console, columns, rows)


def print_mapping(table: MappingTable, console: Console) -> None:
    """All rows of a table."""
    console.print(f"{table.name}: {table.title}")
    for framework, versions in (("MaxText", table.conformance.maxtext), ("AXLearn", table.conformance.axlearn)):
        if versions:
            console.print(f"checked with {framework} {', '.join(versions)}")
    console.print(f"below {table.axlearn.prefix}/ and {table.maxtext.prefix}/; a layer lives at")
    for side in (table.axlearn, table.maxtext):
        for layout in side.layers:
            console.print(f"  {layout.path}  ({layout.name}, layer axis {layout.axis})")
    columns = (
        Column(name="AXLearn", path=True), Column(name="axes"), Column(name="MaxText", path=True), Column(name="when"),
    )  # fmt: skip
    rows: list[Row] = []
    for row in table.rows:
        condition = ", ".join(filter(None, (row.when, option_flag(row.option) if row.option else "")))
        targets = [(path, condition) for path in row.maxtext]
        sources = [(path,) for path in row.axlearn]
        rows += [Row(cells) for cells in side_by_side(sources, [(str(row.expression),)], targets)]
    print_rows(console, columns, rows)
    for drop in table.drops:
        console.print(f"left behind: {drop.pattern} ({drop.reason})")
    for refusal in table.refusals:
        console.print(f"refused: {refusal.pattern} ({refusal.model}: {refusal.reason})")
