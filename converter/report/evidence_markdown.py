"""The report as Markdown: what the page shows, for a pull request or a job's summary."""

import json
from collections.abc import Iterable

from rich.console import Console

from converter.forward import Difference, LogitsComparison
from converter.planning import PairMismatch
from converter.report.markdown import code, folded, table, words
from converter.report.plan import plural
from converter.report.proofs import MARKS, Shown, figures, proofs
from converter.report.verify import parameter_lines
from converter.verification import Finding

MOST_FINDINGS = 100
"""Findings that are listed: a pull request takes 64 KiB, and JSON has all of them."""


def evidence_markdown(shown: Shown) -> str:
    """The whole report.

    Args:
      shown: what is known of a checkpoint.
    """
    evidence = shown.evidence
    lines = [
        f"## {shown.title}",
        "",
        words(shown.summary),
        "",
        *table(("", ""), [("AXLearn", code(evidence.source)), ("MaxText", code(evidence.destination))]),
        *table(
            ("proof", "", ""),
            [
                (proof.name, MARKS[proof.state], "<br>".join(map(words, proof.lines)))
                for proof in proofs(evidence, figures="listed below")
            ],
        ),
        *table(("", "", ""), [(name, value, words(more)) for name, value, more in figures(evidence)]),
        *_findings(shown),
        *_parts(shown),
        *folded(f"Parameters, {plural(len(evidence.parameters.rows), 'row')}", parameter_lines(evidence.parameters)),
        *_pairs(evidence.mismatches),
        *(_logits(evidence.logits) if evidence.logits is not None else []),
        *_configuration(shown),
        *_digests(shown),
        "### Reproduce",
        "",
        *(line for command in evidence.commands for line in (f"{words(command.purpose)}:", "", *_block(command.line))),
    ]
    if shown.notes:
        lines += ["### Notes", "", *(f"* {words(note)}" for note in shown.notes), ""]
    return "\n".join(lines).rstrip("\n")


def print_evidence_markdown(shown: Shown, console: Console) -> None:
    """Prints it."""
    console.out(evidence_markdown(shown), highlight=False)


def _findings(shown: Shown) -> list[str]:
    findings = shown.evidence.bits.findings
    if not findings:
        return []
    rows = [
        (finding.check, code(finding.place), "<br>".join(map(words, filter(None, _finding_lines(finding)))))
        for finding in findings[:MOST_FINDINGS]
    ]
    more = len(findings) - MOST_FINDINGS
    rest = [f"And {more} more; --json lists all.", ""] if more > 0 else []
    return ["### Findings", "", *table(("check", "place", "what is wrong"), rows), *rest]


def _finding_lines(finding: Finding) -> Iterable[str]:
    yield finding.message
    if finding.first_index is not None:
        yield f"first at {list(finding.first_index)}: expected {finding.expected}, found {finding.found}"
    yield finding.diagnosis


def _parts(shown: Shown) -> list[str]:
    names = ("part", "tensors", "leaves", "AXLearn", "MaxText", "in experts")
    rows = [
        (words(group.name), *(f"{count:,}" for count in (
            group.tensors, group.leaves, group.source, group.target, group.experts
        )))
        for group in shown.groups
    ]  # fmt: skip
    return ["### Parts of the model", "", *table(names, rows, right=names[1:])]


def _pairs(mismatches: Iterable[PairMismatch]) -> list[str]:
    rows = [
        (str(entry.layer), f"{entry.product:.3g}", f"{entry.query:.3g}", f"{entry.key:.3g}", _exact(entry))
        for entry in mismatches
    ]
    if not rows:
        return []
    names = ("layer", "query × key", "query", "key", "stock MaxText")
    text = "Largest mismatch of q/k norm scales inside a rotated pair, by layer"
    return folded(text, table(names, rows, right=names[:4]))


def _exact(entry: PairMismatch) -> str:
    return "exact" if entry.exact else "not exact"


def _logits(result: LogitsComparison) -> list[str]:
    names = ("positions", "largest absolute", "relative", "KL mean", "KL max", "same top-1")
    rows = [(f"{bucket.first} to {bucket.last}", *_figures(bucket.difference)) for bucket in result.buckets]
    rows.append((f"all {len(result.tokens.ids):,} tokens", *_figures(result.difference)))
    lines = ["### Logits", "", *table(names, rows, right=names[1:])]
    if not result.switched:
        return lines
    names = ("known difference, undone", *names[1:])
    causes = [("as it is", *_figures(result.difference))]
    causes += [(f"cause: {words(step.name)}", *_figures(step.after)) for step in result.steps]
    named = {step.name for step in result.steps}
    causes += [
        (f"no cause: {words(single.name)}", *_figures(single.difference))
        for single in result.switched
        if single.name not in named
    ]
    return [*lines, *table(names, causes, right=names[1:])]


def _figures(difference: Difference) -> tuple[str, ...]:
    values = (difference.max_abs, difference.relative, difference.kl_mean, difference.kl_max)
    return (*(f"{value:.2e}" for value in values), f"{difference.top1:.2%}")


def _configuration(shown: Shown) -> list[str]:
    rows = [
        (
            code(key.name),
            code(json.dumps(key.value, ensure_ascii=False, default=str)),
            words("; ".join(filter(None, (key.origin, key.problem)))),
        )
        for key in shown.evidence.configuration
    ]
    return folded(f"maxtext.yml, {plural(len(rows), 'key')}", table(("key", "value", "origin"), rows))


def _digests(shown: Shown) -> list[str]:
    receipt = shown.evidence.receipt
    leaves = [(code(leaf.path), str(leaf.chunks), code(leaf.xxh3) or "none") for leaf in receipt.leaves]
    files = [(code(file.path), str(file.bytes), code(file.xxh3)) for file in receipt.files]
    told = f"ax2mt.json {words(receipt.problem)}." if receipt.problem else (
        f"Written by {words(receipt.tool)} with the mapping {code(receipt.mapping)}, whose text has the digest "
        f"{code(receipt.mapping_digest)}."
    )  # fmt: skip
    lines = [told, "", "`ax2mt verify` with the checkpoint alone computes all of these again.", ""]
    lines += table(("leaf", "chunks", "digest"), leaves, right=("chunks",)) if leaves else []
    lines += table(("file", "bytes", "XXH3-128"), files, right=("bytes",)) if files else []
    return folded(f"Digests of {plural(len(leaves), 'leaf', 'leaves')} and {plural(len(files), 'file')}", lines)


def _block(command: str) -> list[str]:
    """A fenced block; a shell's word can hold a line break, and backticks."""
    fence = "```" if "```" not in command else "`" * (command.count("`") + 1)
    return [f"{fence}sh", command, fence, ""]
