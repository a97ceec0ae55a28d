"""Mapping tables, for people. Holds no decisions."""

from rich.console import Console

from converter.mapping import MappingTable
from converter.report.layout import Column, Row, print_rows
from converter.words import option_flag


def print_mappings(tables: list[MappingTable], console: Console) -> None:
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
    console.print(f"{table.name}: {table.title}", soft_wrap=True)
    console.print(f"below {table.axlearn.prefix}/ and {table.maxtext.prefix}/; a layer lives at", soft_wrap=True)
    for side in (table.axlearn, table.maxtext):
        for layout in side.layers:
            console.print(f"  {layout.path}  ({layout.name}, layer axis {layout.axis})", soft_wrap=True)
    columns = (
        Column(name="AXLearn", path=True), Column(name="axes"), Column(name="MaxText", path=True), Column(name="when"),
    )  # fmt: skip
    rows: list[Row] = []
    for row in table.rows:
        condition = ", ".join(filter(None, (row.when, option_flag(row.option) if row.option else "")))
        for number in range(max(len(row.axlearn), len(row.maxtext))):
            source = row.axlearn[number] if number < len(row.axlearn) else ""
            target = row.maxtext[number] if number < len(row.maxtext) else ""
            axes = str(row.expression) if number == 0 else ""
            rows.append(Row((source, axes, target, condition if target else "")))
    print_rows(console, columns, rows)
    for drop in table.drops:
        console.print(f"left behind: {drop.pattern} ({drop.reason})", soft_wrap=True)
    for refusal in table.refusals:
        console.print(f"refused: {refusal.pattern} ({refusal.model}: {refusal.reason})", soft_wrap=True)
