"""Tables of a plan or a result. Holds no decisions."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from converter.checkpoints import CONFIG_NAME
from converter.mapping import PARAMS
from converter.planning import PairMismatch, Plan, Task
from converter.report.layout import Column, Row, print_rows
from converter.words import format_size, option_flag, printable

if TYPE_CHECKING:
    from converter.conversion import Result
from converter.report.console import plain_table, shape_text

BAR = 24
"""Characters of the longest bar."""

OPPOSITE = 1.0
"""From here on the scales of a pair have opposite signs; a longer bar would only hide the other layers."""


PLAN_COLUMNS = (
    Column(name="AXLearn", path=True),
    Column(name="shape"),
    Column(name="MaxText", path=True),
    Column(name="shape"),
    Column(name="dtype"),
    Column(name="route"),
    Column(name="size", right=True),
)


def print_plan(plan: Plan, console: Console) -> None:
    """The leaves as a table, grouped by layer, then the totals."""
    rows: list[Row] = []
    place = ""
    for task in plan.parameter_tasks:
        if task.source_place != place:
            place = task.source_place
            rows.append(Row((f"{place}/", "", f"{task.target_place}/") if place else (), heading=True))
        rows += _plan_rows(task)
    rows += _state_rows(plan)
    console.print(f"{plan.source} (step {plan.step}), mapping '{plan.table}'", soft_wrap=True)
    print_rows(console, PLAN_COLUMNS, rows)
    console.print()
    print_totals(plan, console)


def print_totals(plan: Plan, console: Console) -> None:
    """Parameters on both sides, bytes, memory, and what is left behind."""
    totals = plan.totals
    tasks = plan.parameter_tasks
    sources = sum(len(task.sources) for task in tasks if not task.extra)
    targets = sum(len(task.leaves) for task in tasks)
    rows = [
        ("parameters", f"{totals.source_parameters:,} in AXLearn, {totals.target_parameters:,} in MaxText"),
        ("difference", f"{totals.difference:,}" + (
            f" (and {totals.added_parameters:,} added by {_adders(plan)})" if totals.added_parameters else ""
        )),
        ("leaves", f"{sources} in AXLearn, {targets} in MaxText"),
        *_state_totals(plan),
        ("bytes", f"{format_size(totals.read_bytes)} to read, {format_size(totals.write_bytes)} to write" + (
            f", {format_size(totals.stored_bytes)} compressed" if totals.stored_bytes else " (before compression)"
        )),
        ("memory", f"{format_size(totals.memory)} for blocks in flight, of {format_size(plan.options.max_memory)}"),
    ]  # fmt: skip
    if plan.settings:
        rows.append(("set", ", ".join(f"{key}={value}" for key, value in plan.settings.items())))
    rows += [("left behind", dropped_text(reason, entries)) for reason, entries in plan.dropped.items()]
    if plan.others:
        rows.append(("left behind", f"entries that are not tensors: {', '.join(map(printable, plan.others))}"))
    rows += [("note", printable(note)) for note in plan.notes]
    for name, text in rows:
        console.print(Text.assemble((f"{name:<11}", "bold"), f"  {text}"), soft_wrap=True)


def _state_rows(plan: Plan) -> list[Row]:
    """The training state, which repeats the rows of the parameters: a line for each moment, and one for each number."""
    rows: list[Row] = []
    if plan.state is None:
        return rows
    for tree in plan.trees[1:]:
        tasks = [task for task in plan.tasks if task.tree == tree.name]
        size = sum(leaf.bytes for task in tasks for leaf in task.leaves)
        rows.append(Row((f"{tree.source}/", "", f"{tree.target}/"), heading=True))
        cells = (f"{sum(len(task.sources) for task in tasks if not task.extra)} tensors", "as the parameters")
        leaves = f"{sum(len(task.leaves) for task in tasks)} leaves"
        rows.append(Row((*cells, leaves, "", "", _routes_text(tasks), format_size(size)), indent=2))
    for leaf, scalar in plan.scalars:
        cells = ("", "", leaf.path, shape_text(leaf.shape), leaf.dtype, f"{scalar.meaning}: {scalar.value}")
        rows.append(Row((*cells, format_size(leaf.bytes))))
    return rows


def _routes_text(tasks: Sequence[Task]) -> str:
    """How many tasks take each route."""
    counts = Counter(task.route for task in tasks)
    return ", ".join(f"{count} {route}" for route, count in counts.items())


def _state_totals(plan: Plan) -> list[tuple[str, str]]:
    """What is said of the training state beside the parameters."""
    if plan.state is None:
        return [("tree", f"{plan.tree} ({plan.trees[0].source})")] if plan.tree != PARAMS else []
    names = " and ".join(tree.name for tree in plan.trees[1:])
    counts = ", ".join(f"{scalar.meaning} {scalar.value}" for _, scalar in plan.scalars)
    size = format_size(plan.totals.state_bytes)
    return [
        ("state", f"{plan.state.optimizer.name}: {names} of every parameter, {size}; {counts}"),
        ("directory", f"{plan.step_directory}/items: MaxText goes on with step {plan.state.step}"),
    ]


def _adders(plan: Plan) -> str:
    """The options that add parameters, as they are given on the command line."""
    return " and ".join(option_flag(name) for name in dict.fromkeys(task.option for task in plan.tasks if task.extra))


def dropped_text(reason: str, entries: Sequence[tuple[str, int | None]]) -> str:
    """What is left behind for one reason: how many tensors, and their elements as far as they are known."""
    known = [elements for _, elements in entries if elements is not None]
    parts = [plural(len(entries), "tensor")]
    if known:
        parts.append(plural(sum(known), "element"))
    if len(known) < len(entries):
        parts.append(f"{len(entries) - len(known):,} of unknown shape")
    return f"{reason}: {', '.join(parts)}"


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 tensor, 2,048 tensors."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def print_result(result: "Result", console: Console) -> None:
    """What was done, what is not exact, and what to paste."""
    plan = result.plan
    rate = plan.totals.write_bytes / max(result.seconds, 1e-3)
    console.print(f"{plan.source} (step {plan.step}) -> {result.destination}", soft_wrap=True)
    print_totals(plan, console)
    console.print(
        f"Wrote {len(plan.leaves)} leaves, {format_size(result.written_bytes)} on disk, in {result.seconds:.1f} s "
        f"({format_size(int(rate))}/s of weights, peak memory {format_size(result.peak_memory)}).",
        soft_wrap=True,
    )
    console.print(_work_text(result), soft_wrap=True)
    if result.leftover:
        console.print(f"Not everything of the work area could be removed: {result.leftover}", soft_wrap=True)
    console.print()
    if any(not entry.exact for entry in result.mismatches):
        print_mismatches(result.mismatches, console)
    for line in fidelity_lines(result.mismatches, tied=plan.tied, fitted=plan.fitted, state=plan.state is not None):
        console.print(line, soft_wrap=True)
    console.print()
    _print_commands(result, console)


def _print_commands(result: "Result", console: Console) -> None:
    """What to paste. The exact command comes first; a command that trains on random data is none."""
    if result.command == result.stock_command:
        console.print(f"To continue in MaxText ({CONFIG_NAME} holds the model's dimensions and flags):")
    else:
        console.print("To continue in MaxText exactly, with ax2mt installed beside it (docs/maxtext.md):")
    console.print(result.command, soft_wrap=True)
    if result.command != result.stock_command:
        console.print()
        console.print("In stock MaxText, which is not exact with these weights:")
        console.print(result.stock_command, soft_wrap=True)
    console.print()
    console.print(
        "Replace the words in capitals: MaxText refuses DATASET_TYPE and TOKENIZER_TYPE as they stand, since its own "
        "defaults are random data and Llama 2's tokenizer.",
        soft_wrap=True,
    )


def _work_text(result: "Result") -> str:
    counts, options = result.written.counts, result.plan.options
    parts = [
        f"{count:,} {what}"
        for count, what in (
            (counts.passed, "chunks linked" if options.link else "chunks passed through undecoded"),
            (counts.decoded, "decoded"),
            (counts.encoded, "encoded"),
            (counts.kept, "units kept from the interrupted run"),
        )
        if count
    ]
    text = ", ".join(parts) + "." if parts else "The interrupted run had finished all work."
    if options.link:
        text += " Linked chunks are the source's own files and carry no checksum: never change either side in place."
    return text[0].upper() + text[1:]


def print_mismatches(mismatches: tuple[PairMismatch, ...], console: Console) -> None:
    """How unequal the q/k norm scales are inside the rotated pairs, layer by layer, with bars."""
    figures = ("layer", "query*key", "query", "key")
    table = plain_table(*figures, "largest |a-b|/|a+b| of query*key in a pair", right=figures)
    mark = "█" if console.encoding.lower().startswith("utf") else "#"
    largest = max((min(entry.product, OPPOSITE) for entry in mismatches), default=0.0)
    for entry in mismatches:
        length = round(BAR * min(entry.product, largest) / largest) if largest else 0
        values = (f"{value:.3g}" for value in (entry.product, entry.query, entry.key))
        table.add_row(str(entry.layer), *values, Text(mark * length))
    console.print(table)


def _scale_advice(unequal: Sequence[PairMismatch], *, fitted: bool, state: bool) -> str:
    if fitted:
        return "--qk-norm fit: the scales written are not AXLearn's but fitted to MaxText's order, to come closer."
    if state:
        return "`python -m converter.maxtext_patch` makes MaxText exact with these."
    if all(entry.separable for entry in unequal):
        return "Their products are equal: --qk-norm fit makes stock MaxText exact, up to the scales' rounding."
    return "--qk-norm fit comes closer; `python -m converter.maxtext_patch` makes MaxText exact with these."


def fidelity_lines(mismatches: tuple[PairMismatch, ...], *, tied: bool, fitted: bool, state: bool = False) -> list[str]:
    """What MaxText computes from these weights, in words."""
    lines: list[str] = []
    unequal = [entry for entry in mismatches if not entry.exact]
    if unequal:
        lines.append(
            f"NOT EXACT in stock MaxText: it norms q and k before RoPE, AXLearn after it, and the norm scales of "
            f"{len(unequal)} of {len(mismatches)} layers differ inside rotated pairs (the table above)."
        )
        lines.append(_scale_advice(unequal, fitted=fitted, state=state))
    elif fitted and any(entry.query or entry.key for entry in mismatches):
        lines.append(
            f"--qk-norm fit: the products of the q/k norm scales of all {len(mismatches)} layers are equal inside each "
            "rotated pair, and the scales written have them: attention is exact."
        )
    elif mismatches:
        lines.append(
            f"The q/k norm scales of all {len(mismatches)} layers are equal inside each rotated pair: "
            "attention is exact."
        )
    if tied:
        lines.append(
            "Tied logits: MaxText rounds the embedding table to bfloat16 for the logits (about 0.5 % of their spread)"
            + ("." if state else "; --untie makes them exact.")
        )
    return lines


def _plan_rows(task: Task) -> list[Row]:
    rows: list[Row] = []
    for number in range(max(len(task.sources), len(task.leaves))):
        source = task.sources[number] if number < len(task.sources) else None
        leaf = task.leaves[number] if number < len(task.leaves) else None
        cells = (
            _below(source.path, task.source_place) if source else "",
            shape_text(source.shape) if source else "",
            _below(leaf.path, task.target_place) if leaf else "",
            shape_text(leaf.shape) if leaf else "",
            leaf.dtype if leaf else "",
            _route_text(task) if number == 0 else "",
            format_size(leaf.bytes) if leaf else "",
        )
        rows.append(Row(cells, indent=2 if task.source_place else 0))
    return rows


def _route_text(task: Task) -> str:
    return f"{task.route} ({task.reason})" if task.reason else task.route


def _below(path: str, place: str) -> str:
    return path.removeprefix(place + "/") if place else path
