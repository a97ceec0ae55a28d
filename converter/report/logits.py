"""Tables about logits: of one checkpoint, and of two compared."""

from rich.console import Console
from rich.text import Text

from converter.forward import (
    DIFFERENT_VERDICT,
    EQUAL,
    EQUAL_VERDICT,
    NOT_FINITE_VERDICT,
    Difference,
    LogitsComparison,
    LogitsResult,
    Model,
    NonFinite,
    Tokens,
)
from converter.report.console import plain_table, print_table
from converter.report.plan import print_mismatches
from converter.words import format_size, printable


def print_logits(result: LogitsResult, console: Console) -> None:
    """What was computed, and where it went."""
    _print_model(result.model, console)
    console.print(
        f"{len(result.tokens.ids)} tokens in {len(result.tokens.sequences)} sequences ({result.tokens.origin}); logits "
        f"of mean {result.mean:.4g}, standard deviation {result.deviation:.4g}"
    )
    if result.non_finite is not None:
        console.print(_non_finite_line(result.model, result.non_finite, result.bad_tokens, result.tokens))
    where = f"Wrote {result.file}" if result.file else "Nothing written (--out FILE.npz or FILE.jsonl)"
    console.print(f"{where}; {result.seconds:.1f} s, peak memory {format_size(result.peak_memory)}.")


def print_comparison(result: LogitsComparison, console: Console) -> None:
    """The verdict, the distance by position, what explains it, and what to do."""
    _print_model(result.source, console)
    _print_model(result.destination, console)
    console.print()
    columns = "positions", "max abs difference", "relative", "KL mean", "KL max", "same top-1"
    table = plain_table(*columns, left=columns[:1])
    for bucket in result.buckets:
        table.add_row(f"{bucket.first} to {bucket.last}", *_cells(bucket.difference))
    table.add_row(f"all {len(result.tokens.ids)} tokens", *_cells(result.difference), style="bold")
    print_table(table, console)
    console.print()
    if result.switched:
        _print_causes(result, console)
    if not result.destination.semantics.norm_after_rope and any(not entry.exact for entry in result.mismatches):
        print_mismatches(result.mismatches, console)
        console.print()
    for line in verdict_lines(result):
        console.print(line)


def verdict_lines(result: LogitsComparison) -> list[str]:
    """The verdict in words, with what to do."""
    lines = [
        _non_finite_line(model, found, bad, result.tokens) for model, found, bad in _sides(result) if found is not None
    ]
    lines.append(_verdict_line(result))
    lines += [f"  {step.name}: {step.advice}" for step in result.steps]
    lines += [f"  {finding}" for finding in result.findings]
    if result.switched and not result.explained:
        lines.append(
            f"  no known difference explains the remaining {result.remaining.relative:.2g}; compare the tensors with "
            "`ax2mt verify` without --logits"
        )
    lines += [f"FAILED: {line}" for line in result.limits]
    return lines


def _print_causes(result: LogitsComparison, console: Console) -> None:
    columns = "known difference", "undone alone: relative", "undone in turn: relative", "KL mean", "max abs", ""
    table = plain_table(*columns, left=(columns[0], ""))
    base = result.difference
    table.add_row("(as it is)", "", f"{base.relative:.2e}", f"{base.kl_mean:.2e}", f"{base.max_abs:.2e}", "")
    alone = {entry.name: entry.difference for entry in result.switched}
    for step in result.steps:
        after = step.after
        note = "equal now" if after.relative <= EQUAL else ""
        single = f"{alone[step.name].relative:.2e}" if step.name in alone else ""
        figures = f"{after.relative:.2e}", f"{after.kl_mean:.2e}", f"{after.max_abs:.2e}"
        table.add_row(f"+ {step.name}", single, *figures, note, style="bold")
    named = {step.name for step in result.steps}
    for name, difference in alone.items():
        if name not in named:
            table.add_row(Text(f"  {name}"), f"{difference.relative:.2e}", "", "", "", "no cause")
    print_table(table, console)
    console.print()


def _verdict_line(result: LogitsComparison) -> str:
    difference = result.difference
    if result.verdict == NOT_FINITE_VERDICT:
        if result.bad_tokens[0]:
            return "NOT COMPARABLE: the source itself is not finite; `ax2mt verify` without --logits compares the bits."
        return "DIFFERENT: only MaxText's logits are not finite; `ax2mt verify` without --logits finds what differs."
    if result.verdict == EQUAL_VERDICT:
        return f"EQUAL: the same function, up to float32 rounding (relative difference {difference.relative:.1e})."
    if result.verdict != DIFFERENT_VERDICT:
        size = f"relative difference {difference.relative:.1e}, KL {difference.kl_mean:.1e}"
        return f"{result.verdict.upper()} of the tied table ({size})."
    share = f"{1 - difference.top1:.1%} of the tokens get another top-1"
    cause = f", because of {', '.join(step.name for step in result.steps)}" if result.steps else ""
    return f"DIFFERENT by {difference.relative:.2g} relative, KL {difference.kl_mean:.2g} ({share}){cause}."


def _sides(result: LogitsComparison) -> list[tuple[Model, NonFinite | None, int]]:
    """Each model, where it first has NaN or infinity, and how many tokens it has none but such logits for."""
    sides = zip((result.source, result.destination), result.non_finite, result.bad_tokens, strict=True)
    return list(sides)


def _non_finite_line(model: Model, found: NonFinite, bad_tokens: int, tokens: Tokens) -> str:
    names = ", ".join(found.weights)
    weights = f"the weights {names} hold NaN or infinity" if names else "the weights there are finite, values overflow"
    return (
        f"NOT FINITE: {model.kind}: the logits of {bad_tokens} of {len(tokens.ids)} tokens are NaN or infinite. "
        f"This begins in {found.place}: {weights}."
    )


def _cells(difference: Difference) -> tuple[str, ...]:
    return (
        f"{difference.max_abs:.2e}",
        f"{difference.relative:.2e}",
        f"{difference.kl_mean:.2e}",
        f"{difference.kl_max:.2e}",
        f"{difference.top1:.2%}",
    )


def _print_model(model: Model, console: Console) -> None:
    fitted = ", q/k norm scales fitted (--qk-norm fit)" if model.weights.fitted else ""
    console.print(f"{model.kind}: {model.weights.path}{fitted}; computes as {model.origin}")
    for note in model.weights.notes:
        console.print(f"  note: {printable(note)}")
