"""Verification, parameter report and inspection as tables and Markdown. Holds no decisions."""

from typing import TYPE_CHECKING, Any

from rich.console import Console

from converter.checkpoints import Inspection
from converter.report.console import shape_text
from converter.report.layout import Column, Row, print_rows, side_by_side
from converter.report.markdown import code, table, words
from converter.verification import Verification
from converter.words import format_size, printable

if TYPE_CHECKING:
    from converter.planning import ParameterReport, ParameterRow

MAX_SHOWN = 50
"""Findings that a terminal shows; JSON has all of them."""

PARAMETER_COLUMNS = (
    Column(name="AXLearn", path=True),
    Column(name="shape"),
    Column(name="MaxText", path=True),
    Column(name="shape"),
    Column(name="relation"),
    Column(name="parameters", right=True),
)
ARRAY_COLUMNS = (Column(name="array", path=True), Column(name="dtype"), Column(name="shape"), Column(name="chunks"))


def print_verification(result: Verification, console: Console) -> None:
    """What was compared, everything that is wrong, and the verdict."""
    origin = f"{result.source} (step {result.step})" if result.source else "unknown source"
    against = origin if result.method == "source" else "its own digests"
    share = f", share {result.share}" if result.share is not None else ""
    console.print(f"{result.destination} against {against}{share}")
    for finding in result.findings[:MAX_SHOWN]:
        console.print(f"  {finding.check}: {finding.place}: {finding.message}")
        if finding.first_index is not None:
            at = list(finding.first_index)
            console.print(f"    first at {at}: expected {finding.expected}, found {finding.found}")
        if finding.diagnosis:
            console.print(f"    {finding.diagnosis}")
    if len(result.findings) > MAX_SHOWN:
        console.print(f"  and {len(result.findings) - MAX_SHOWN} more findings (--json lists all)")
    for note in result.notes:
        console.print(f"  note: {printable(note)}")
    if result.cast is not None:
        console.print(
            f"  cast to {result.cast.dtype}: largest absolute error {result.cast.max_absolute:.6g}, largest relative "
            f"error {result.cast.max_relative:.6g}, {result.cast.overflows} overflows to infinity"
        )
    sample = f", a SAMPLE of {result.sample:g} of the blocks" if result.sample is not None else ""
    if result.stored_leaves:
        decoded = result.leaves - result.stored_leaves
        console.print(
            f"  proof: {result.stored_leaves} leaves by their bytes as they are stored, {decoded} decoded"
            " (--decode decodes all)",
            soft_wrap=True,
        )
    console.print(
        f"{'OK' if result.ok else 'FAILED'}: {result.leaves} leaves, {result.elements:,} elements"
        f" ({format_size(result.compared_bytes)}{sample}) compared in {result.seconds:.1f} s, "
        f"{len(result.findings)} findings; peak memory {format_size(result.peak_memory)}."
    )


def print_parameters(report: "ParameterReport", console: Console) -> None:
    """The report as a table, a group at a time, then the totals."""
    rows: list[Row] = []
    group = ""
    for row in report.rows:
        if row.group != group:
            group = row.group
            rows.append(Row((group,), heading=True))
        rows += [Row(line) for line in _cells(row)]
    console.print(_heading(report))
    print_rows(console, PARAMETER_COLUMNS, rows)
    console.print()
    for name, value in _total_lines(report):
        console.print(f"{name:<20} {value}")


def print_markdown(report: "ParameterReport", console: Console) -> None:
    """The report as Markdown, for a pull request."""
    lines = [f"## {words(_heading(report))}", "", *parameter_lines(report), "### totals", ""]
    lines += table(("", ""), [(words(name), words(value)) for name, value in _total_lines(report)])
    console.out("\n".join(lines[:-1]), highlight=False)


def parameter_lines(report: "ParameterReport") -> list[str]:
    """The rows as Markdown, a table for each group."""
    lines: list[str] = []
    for group in dict.fromkeys(row.group for row in report.rows):
        cells = [line for row in report.rows if row.group == group for line in _cells(row)]
        names = [column.name for column in PARAMETER_COLUMNS]
        marked = [[code(cell) if number in (0, 2) else words(cell) for number, cell in enumerate(c)] for c in cells]
        lines += [f"### {words(group)}", "", *table(names, marked, right=("parameters",))]
    return lines


def print_inspection(found: Inspection, console: Console) -> None:
    """The kind of a path, its facts and arrays, and what is missing."""
    console.print(f"{found.path}: {found.title}")
    for name, value in found.facts.items():
        text = format_size(value) if name == "bytes" else _plain(value)
        console.print(f"  {name.replace('_', ' '):<20} {text}")
    for line in found.missing:
        console.print(f"  missing: {line}")
    if found.leaves:
        rows = [
            Row((printable(leaf.path), leaf.dtype, shape_text(leaf.shape), shape_text(leaf.chunks)))
            for leaf in found.leaves
        ]
        print_rows(console, ARRAY_COLUMNS, rows)


def _heading(report: "ParameterReport") -> str:
    text = f"Parameters of {report.title}, mapping '{report.table}'"
    return f"{text}, as found in {report.destination}" if report.destination else f"{text}, as planned"


def _cells(row: "ParameterRow") -> list[tuple[str, ...]]:
    """The lines of a row: one for each source or target, whichever are more."""
    sources = list(zip(row.sources, map(shape_text, row.source_shapes), strict=True))
    targets = [(path, found_shape(row, number)) for number, path in enumerate(row.targets)]
    words = row.relation + (" (a copy)" if row.added else "")
    return side_by_side(sources, targets, [(words, f"{row.target_parameters:,}")])


def found_shape(row: "ParameterRow", number: int) -> str:
    """A leaf's shape as planned, and what was found where that is another one."""
    planned = shape_text(row.target_shapes[number])
    if not row.found_shapes or row.found_shapes[number] == row.target_shapes[number]:
        return planned
    found = row.found_shapes[number]
    return f"{'missing' if found is None else shape_text(found)} (expected {planned})"


def _total_lines(report: "ParameterReport") -> list[tuple[str, str]]:
    lines = [("AXLearn", f"{report.source_total:,}"), ("MaxText", f"{report.target_total:,}")]
    if report.added_total:
        lines.append(("of these copied", f"{report.added_total:,}"))
    lines.append(("difference", f"{report.difference:,}"))
    if report.experts:
        lines.append(("experts", f"{report.expert_total:,} in {report.experts} experts a layer"))
        lines.append(("outside of experts", f"{report.source_total - report.expert_total:,}"))
        lines.append(("active per token", f"{report.active_total:,} ({report.experts_per_token} experts a layer)"))
    lines += [(f"extra leaf {path}", shape_text(shape)) for path, shape in report.extra.items()]
    lines += [("note", printable(note)) for note in report.notes]
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({count})" for name, count in value.items()) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)
