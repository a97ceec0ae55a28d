"""A comparison with the installed frameworks as tables and Markdown. Holds no decisions."""

from collections.abc import Iterator, Sequence
from html import escape

from rich.console import Console

from converter.conformance import Conformance, FlagComparison, Installed, Leaf, LeafComparison, ModelComparison
from converter.report.console import shape_text
from converter.report.layout import Column, Row, print_rows
from converter.words import format_size, printable

MAX_SHOWN = 100
"""Differences of a kind that a terminal shows; JSON has all of them."""

Table = tuple[str, tuple[Column, ...], list[tuple[str, ...]]]
"""A heading, columns, and rows of cells."""

MODEL_COLUMNS = (
    Column(name="model", path=True), Column(name="framework"), Column(name="layout"), Column(name="mapping"),
    Column(name="leaves", right=True), Column(name="flags", right=True), Column(name="differences", right=True),
)  # fmt: skip
LEAF_COLUMNS = (
    Column(name="leaf", path=True), Column(name="model"), Column(name="difference"), Column(name="expected"),
    Column(name="found"), Column(name="axes"),
)  # fmt: skip
FLAG_COLUMNS = (
    Column(name="key", path=True), Column(name="model"), Column(name="difference"), Column(name="expected"),
    Column(name="found"), Column(name="consequence"),
)  # fmt: skip
PUBLISHED_COLUMNS = (
    Column(name="key", path=True), Column(name="published"), Column(name="the weights need"),
    Column(name="consequence"),
)  # fmt: skip

WORDS = {
    "missing": "missing in the framework", "extra": "only in the framework", "shape": "other shape",
    "dtype": "other dtype", "other": "other value", "unknown": "not known to MaxText",
}  # fmt: skip


def print_conformance(result: Conformance, console: Console) -> None:
    """What is installed, what was compared, every difference, MaxText's own model files, and the verdict."""
    for line in _installed_lines(result.installed):
        console.print(line)
    for title, columns, rows in _tables(result):
        console.print(f"\n{title}")
        print_rows(console, columns, [Row(tuple(map(printable, cells))) for cells in rows[:MAX_SHOWN]])
        if len(rows) > MAX_SHOWN:
            console.print(f"and {len(rows) - MAX_SHOWN} more (--json lists all)")
    console.print()
    for note in result.notes:
        console.print(f"note: {printable(note)}")
    console.print(_verdict(result))


def print_conformance_markdown(result: Conformance, console: Console) -> None:
    """The same as Markdown, for a pull request, a job's summary or an issue upstream."""
    lines = [f"## {_verdict(result)}", "", *(f"* {_cell(line)}" for line in _installed_lines(result.installed))]
    for title, columns, rows in _tables(result):
        lines += ["", f"### {_cell(title)}", "", f"| {' | '.join(column.name for column in columns)} |"]
        lines.append(f"|{'|'.join('---:' if column.right else '---' for column in columns)}|")
        lines += [f"| {' | '.join(map(_cell, cells))} |" for cells in rows]
    lines += ["", *(f"* note: {_cell(note)}" for note in result.notes)] if result.notes else []
    console.out("\n".join(lines), highlight=False)


def _installed_lines(installed: Sequence[Installed]) -> list[str]:
    """One line for each framework."""
    lines: list[str] = []
    for one in installed:
        checked = "; ".join(f"{name} with {', '.join(versions) or 'none'}" for name, versions in one.checked.items())
        version = one.version or "without a version"
        lines.append(
            printable(f"{one.framework} {version} (Python {one.python}, {one.interpreter}); checked before: {checked}")
        )
    return lines


def _tables(result: Conformance) -> Iterator[Table]:
    models = [
        (model.model, model.framework, model.layout, model.mapping, f"{len(model.leaves):,}", f"{len(model.flags):,}",
         f"{model.differences:,}")
        for model in result.models
    ]  # fmt: skip
    yield "What was compared", MODEL_COLUMNS, models
    problems = [(_where(model), model.problem) for model in result.models if model.problem]
    if problems:
        yield "Models that the framework cannot make", (Column(name="model", path=True), Column(name="why")), problems
    leaves = [_leaf_cells(model, leaf) for model in result.models for leaf in model.different_leaves]
    if leaves:
        yield "Leaves that differ", LEAF_COLUMNS, leaves
    flags = [_flag_cells(model, flag) for model in result.models for flag in model.different_flags]
    if flags:
        yield "Flags that differ", FLAG_COLUMNS, flags
    for published in result.published:
        file = f"MaxText's {published.name}.yml"
        if not published.present:
            yield f"{file}: this MaxText has none", (Column(name="model", path=True),), [(published.model,)]
        elif not published.differences:
            yield f"{file} is what the weights need", (Column(name="model", path=True),), [(published.model,)]
        else:
            rows = [(flag.key, flag.found, flag.expected, flag.consequence) for flag in published.differences]
            yield f"{file} is not what the weights of {published.model} need", PUBLISHED_COLUMNS, rows


def _where(model: ModelComparison) -> str:
    return " ".join(filter(None, (model.framework, model.model, model.layout)))


def _leaf_cells(model: ModelComparison, leaf: LeafComparison) -> tuple[str, ...]:
    axes = ", ".join(axis or "-" for axis in leaf.found.axes) if leaf.found is not None else ""
    return leaf.path, _where(model), WORDS[leaf.status], _leaf_text(leaf.expected), _leaf_text(leaf.found), axes


def _leaf_text(leaf: Leaf | None) -> str:
    return "nothing" if leaf is None else f"{shape_text(leaf.shape)} {leaf.dtype}"


def _flag_cells(model: ModelComparison, flag: FlagComparison) -> tuple[str, ...]:
    return flag.key, _where(model), WORDS[flag.status], flag.expected, flag.found or "nothing", flag.consequence


def _verdict(result: Conformance) -> str:
    leaves, flags = (sum(len(getattr(model, name)) for model in result.models) for name in ("leaves", "flags"))
    verdict = "OK" if result.ok else "FAILED"
    return (
        f"{verdict}: {result.differences:,} differences in {leaves:,} leaves and {flags:,} flags of "
        f"{len(result.models)} trees; {result.seconds:.1f} s, peak memory of a framework "
        f"{format_size(result.peak_memory)}."
    )


def _cell(text: str) -> str:
    """A text that stays one in a Markdown table, whatever it holds."""
    return escape(printable(text), quote=False).replace("|", "\\|").replace("`", "\\`")
