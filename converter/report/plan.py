"""Tables of a plan or a result. Holds no decisions."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from converter.checkpoints import CONFIG_NAME, handoff_note
from converter.mapping import PARAMS
from converter.planning import PairMismatch, Plan, Task, Traffic
from converter.report.console import plain_table, print_table, shape_text
from converter.report.layout import Column, Row, print_rows, side_by_side
from converter.words import first_names, format_size, option_flag, printable

if TYPE_CHECKING:
    from converter.conversion import Result

BAR = 24
"""Characters of the longest bar."""

MAX_AWAITED = 8
"""Shares that are named."""

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

TRAINED_WITHOUT = {
    "norm_after_rope": ("0.6 %", "2 %"),
    "unrounded_tied_logits": ("0.07 %", "0.2 %"),
    "scaled_updates": ("84 % (at a scale of 0.5)", "86 %"),
}
"""How far a training goes elsewhere without a patch of MaxText: the difference of all parameters over their change,
after 1 and 20 steps of a small Envy in float32 (docs/training.md)."""

PATCHED = "`python -m converter.maxtext_patch` makes MaxText exact with these."


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
    console.print(f"{plan.source} (step {plan.step}), mapping '{plan.table}'")
    print_rows(console, PLAN_COLUMNS, rows)
    console.print()
    print_totals(plan, console)


def print_totals(plan: Plan, console: Console) -> None:
    """Parameters on both sides, bytes, memory, and what is left behind."""
    totals = plan.totals
    tasks = plan.parameter_tasks
    sources = sum(len(array.each) for task in tasks if not task.extra for array in task.sources)
    targets = sum(len(leaf.each) for task in tasks for leaf in task.leaves)
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
    if plan.traffic:
        rows += traffic_rows(plan.traffic)
    rows += [("left behind", dropped_text(reason, entries)) for reason, entries in plan.dropped.items()]
    if plan.others:
        rows.append(("left behind", f"entries that are not tensors: {', '.join(map(printable, plan.others))}"))
    rows += [("note", printable(note)) for note in plan.notes]
    for name, text in rows:
        console.print(Text.assemble((f"{name:<11}", "bold"), f"  {text}"))


def _state_rows(plan: Plan) -> list[Row]:
    """The training state, which repeats the rows of the parameters: a line for each moment, and one for each number."""
    rows: list[Row] = []
    if plan.state is None:
        return rows
    for tree in plan.trees[1:]:
        tasks = [task for task in plan.tasks if task.tree == tree.name]
        size = sum(leaf.bytes for task in tasks for leaf in task.leaves)
        rows.append(Row((f"{tree.source}/", "", f"{tree.target}/"), heading=True))
        tensors = sum(len(array.each) for task in tasks if not task.extra for array in task.sources)
        cells = (f"{tensors} tensors", "as the parameters")
        leaves = f"{sum(len(leaf.each) for task in tasks for leaf in task.leaves)} leaves"
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
        ("directory", f"{plan.step_directory}/items: MaxText continues with step {plan.state.step}"),
    ]


def traffic_rows(traffic: Traffic) -> list[tuple[str, str]]:
    """What is asked of object stores."""
    requests = f"about {traffic.class_a:,} of class A, {traffic.class_b:,} of class B, {traffic.free:,} free"
    through = f"{format_size(traffic.read_bytes)} read and {format_size(traffic.sent_bytes)} sent by this machine"
    moved = f"{format_size(traffic.moved_bytes)} in {traffic.moved_objects:,} objects moved inside the store"
    rows = [("requests", requests), ("traffic", f"{through}, {moved}")]
    return [*rows, ("leaving", f"bytes leave {traffic.leaving}")] if traffic.leaving else rows


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


def plural(count: int, noun: str, many: str = "") -> str:
    """A count with its noun: 1 tensor, 2,048 tensors; `many` where that is another word than with an s."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def print_result(result: "Result", console: Console) -> None:
    """What was done, what is not exact, and what to paste."""
    plan = result.plan
    if not result.finished:
        _print_share(result, console)
        return
    rate = plan.totals.write_bytes / max(result.seconds, 1e-3)
    console.print(f"{plan.source} (step {plan.step}) -> {result.destination}")
    print_totals(plan, console)
    console.print(
        f"Wrote {len(plan.leaves)} leaves, {format_size(result.written_bytes)} on disk, in {result.seconds:.1f} s "
        f"({format_size(int(rate))}/s of weights, peak memory {format_size(result.peak_memory)})."
    )
    console.print(_work_text(result))
    if result.removed_first:
        console.print(
            "The checkpoint that was there was removed before the new one was complete: buckets have no rename."
        )
    if result.leftover:
        console.print(f"Not everything of the work area could be removed: {result.leftover}")
    console.print()
    if any(not entry.exact for entry in result.mismatches):
        print_mismatches(result.mismatches, console)
    for line in fidelity_lines(plan, result.mismatches):
        console.print(line)
    console.print()
    _print_commands(result, console)


def _print_share(result: "Result", console: Console) -> None:
    """What a process did of a conversion that others have to finish."""
    portion, awaited = result.portion, result.awaited
    assert portion is not None
    console.print(f"{result.plan.source} (step {result.plan.step}) -> {result.destination}")
    console.print(
        f"Share {portion.share}: {plural(portion.unit_count, 'unit')}, about {format_size(portion.bytes)} of "
        f"{format_size(portion.total_bytes)} of weights, in {result.seconds:.1f} s "
        f"(peak memory {format_size(result.peak_memory)})."
    )
    console.print(_work_text(result))
    named = first_names(awaited, MAX_AWAITED)
    shares = plural(len(awaited), "share")
    console.print(f"Not finished: {shares} awaited ({named}); the process that does the last one commits.")
    console.print(
        f"`ax2mt status {result.destination}` shows how far all are. The same command with --process 0/1 does what is "
        "left."
    )


def _print_commands(result: "Result", console: Console) -> None:
    """The commands to paste, the exact one first."""
    if note := handoff_note(result.destination):
        console.print(f"{note}\n")
    if result.command == result.stock_command:
        console.print(f"To continue in MaxText ({CONFIG_NAME} holds the model's dimensions and flags):")
    else:
        console.print("To continue in MaxText exactly, with ax2mt installed beside it (docs/maxtext.md):")
        console.print(f"{result.command}\n\nIn stock MaxText, which is not exact with these weights:")
    console.print(result.stock_command)
    for patch in result.patches if result.plan.state is not None else ():
        first, later = TRAINED_WITHOUT[str(patch["name"])]
        console.print(
            f"Without {patch['name']}: parameters off by {first} of what the training changes in 1 step, {later} in 20 "
            "(measured on a small model, docs/training.md)."
        )
    console.print()
    console.print(
        "Replace the words in capitals: MaxText refuses DATASET_TYPE and TOKENIZER_TYPE as they stand, since its own "
        "defaults are random data and Llama 2's tokenizer."
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
    if counts.moved:
        parts.insert(1, f"{counts.moved:,} of them ({format_size(counts.moved_bytes)}) moved by the store itself")
    nothing = "The interrupted run had finished all work."
    if result.portion is not None:
        nothing = "Other processes had done all of it."
    text = ", ".join(parts) + "." if parts else nothing
    if options.link:
        text += " Linked chunks are the source's own files and carry no checksum: never change either side in place."
    return text[0].upper() + text[1:]


def print_mismatches(mismatches: tuple[PairMismatch, ...], console: Console) -> None:
    """How unequal the q/k norm scales are inside the rotated pairs, layer by layer, with bars."""
    figures = ("layer", "query*key", "query", "key")
    bars = "largest |a-b|/|a+b| of query*key in a pair"
    table = plain_table(*figures, bars, left=[bars])
    mark = "█" if console.encoding.lower().startswith("utf") else "#"
    largest = max((min(entry.product, OPPOSITE) for entry in mismatches), default=0.0)
    for entry in mismatches:
        length = round(BAR * min(entry.product, largest) / largest) if largest else 0
        values = (f"{value:.3g}" for value in (entry.product, entry.query, entry.key))
        table.add_row(str(entry.layer), *values, Text(mark * length))
    print_table(table, console)


def fidelity_lines(plan: Plan, mismatches: Sequence[PairMismatch], *, figures: str = "the table above") -> list[str]:
    """What MaxText computes from these weights, in words.

    Args:
      plan: what is written.
      mismatches: the q/k norm pairs of every layer.
      figures: where these are shown.
    """
    lines: list[str] = []
    unequal = [entry for entry in mismatches if not entry.exact]
    if unequal:
        lines.append(
            f"NOT EXACT in stock MaxText: it norms q and k before RoPE, AXLearn after it, and the norm scales of "
            f"{len(unequal)} of {len(mismatches)} layers differ inside rotated pairs ({figures})."
        )
        lines.append(_scale_advice(plan, unequal))
    elif plan.fitted and any(entry.query or entry.key for entry in mismatches):
        lines.append(
            f"{plan.remedies.fit}: the products of the q/k norm scales of all {len(mismatches)} layers are equal "
            "inside each rotated pair, and the scales written have them: attention is exact."
        )
    elif mismatches:
        equal = f"The q/k norm scales of all {len(mismatches)} layers are equal inside each rotated pair: "
        lines.append(equal + ("the first step is exact in stock MaxText." if plan.state else "attention is exact."))
    if plan.state and not unequal and mismatches:
        lines.append(
            "NOT EXACT in stock MaxText from the second step on: its order of norm and RoPE gives the scales other "
            f"gradients. {PATCHED}"
        )
    if plan.tied:
        remedy = f"; {plan.remedies.untie} makes them exact" if plan.remedies.untie and plan.state is None else ""
        lines.append(
            "Tied logits: MaxText rounds the embedding table to bfloat16 for the logits (about 0.5 % of their spread)"
            f"{remedy}."
        )
    return lines


def _scale_advice(plan: Plan, unequal: Sequence[PairMismatch]) -> str:
    fit = plan.remedies.fit if plan.state is None else ""
    if plan.fitted:
        return (
            f"{plan.remedies.fit}: the scales written are not AXLearn's but fitted to MaxText's order, to come closer."
        )
    if fit and all(entry.separable for entry in unequal):
        return f"Their products are equal: {fit} makes stock MaxText exact, up to the scales' rounding."
    return f"{fit} comes closer; {PATCHED}" if fit else PATCHED


def _plan_rows(task: Task) -> list[Row]:
    sources = [(_below(array.path, task.source_place), shape_text(array.shape)) for array in task.sources]
    leaves = [(_below(leaf.path, task.target_place), shape_text(leaf.shape), leaf.dtype) for leaf in task.leaves]
    route = f"{task.route} ({task.reason})" if task.reason else task.route
    ends = [(route if number == 0 else "", format_size(leaf.bytes)) for number, leaf in enumerate(task.leaves)]
    return [Row(cells, indent=2 if task.source_place else 0) for cells in side_by_side(sources, leaves, ends)]


def _below(path: str, place: str) -> str:
    return path.removeprefix(place + "/") if place else path
