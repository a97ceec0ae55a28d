"""What the evidence of a checkpoint comes to, in words and figures: the same for page, Markdown and terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console

from converter.evidence import CAUTION, FAILED, OPEN, PASSED, Evidence
from converter.forward import DIFFERENT_VERDICT, EQUAL_VERDICT
from converter.planning import ParameterReport, ParameterRow
from converter.report.logits import verdict_lines
from converter.report.plan import fidelity_lines, plural
from converter.words import format_size, printable

MARKS = {PASSED: "OK", FAILED: "FAILED", CAUTION: "NOTE", OPEN: "-"}
"""What the states of a proof are in plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One proof and what came of it.

    Attributes:
      name: what was proved.
      state: passed, failed, caution, or open.
      lines: in words.
    """

    name: str
    state: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSum:
    """The parameters of one part of the model.

    Attributes:
      name: of the part.
      tensors: AXLearn's tensors.
      leaves: MaxText's leaves.
      source: AXLearn's parameters.
      target: MaxText's parameters.
      experts: those of AXLearn's that are in experts.
    """

    name: str
    tensors: int
    leaves: int
    source: int
    target: int
    experts: int


def title(evidence: Evidence) -> str:
    """The verdict in two or three words."""
    if not evidence.passed:
        equal = evidence.bits.ok and evidence.parameters.equivalent and evidence.bits.sample is None
        return "Equal weights, different logits" if equal and evidence.logits is not None else "Not equivalent"
    return "Equivalent" if evidence.bits.sample is None else "No difference found"


def summary(evidence: Evidence) -> str:
    """The verdict in one or two sentences."""
    lines = [_bits_summary(evidence)] if evidence.bits.ok and evidence.parameters.equivalent else []
    return " ".join([*lines, *(_failures(evidence) or filter(None, [_logits_summary(evidence)]))])


def proofs(evidence: Evidence, *, figures: str) -> list[Proof]:
    """Each proof and what came of it.

    Args:
      evidence: the evidence.
      figures: where the pairs of q/k norm scales are shown.
    """
    made = [_parameters_proof(evidence.parameters), _bits_proof(evidence), _logits_proof(evidence)]
    lines = fidelity_lines(evidence.plan, evidence.mismatches, figures=figures)
    if lines:
        exact = all(entry.exact for entry in evidence.mismatches) and not evidence.plan.tied
        state = PASSED if exact and evidence.plan.state is None else CAUTION
        made.append(Proof(name="Stock MaxText", state=state, lines=tuple(lines)))
    return made


def figures(evidence: Evidence) -> list[tuple[str, str, str]]:
    """The counts: name, value, and what there is to add."""
    report, bits = evidence.parameters, evidence.bits
    added = f"{report.added_total:,} of them copies made on request" if report.added_total else ""
    made = [
        ("parameters in AXLearn", f"{report.source_total:,}", f"{count_tensors(report.rows):,} tensors"),
        ("parameters in MaxText", f"{report.target_total:,}", added or f"{count_leaves(report.rows):,} leaves"),
        ("difference", f"{report.difference:,}", ""),
        ("elements compared", f"{bits.elements:,}", f"{format_size(bits.compared_bytes)} in {bits.leaves:,} leaves"),
    ]
    if report.experts:
        share = f"{report.experts_per_token} of {report.experts} experts a layer"
        made.insert(3, ("active per token", f"{report.active_total:,}", share))
    return made


def group_sums(report: ParameterReport) -> list[GroupSum]:
    """The parameters by part of the model, in the report's order."""
    groups: dict[str, list[ParameterRow]] = {}
    for row in report.rows:
        groups.setdefault(row.group, []).append(row)
    return [
        GroupSum(
            name=name,
            tensors=count_tensors(rows),
            leaves=count_leaves(rows),
            source=sum(row.source_parameters for row in rows),
            target=sum(row.target_parameters for row in rows),
            experts=sum(row.source_parameters for row in rows if row.expert),
        )
        for name, rows in groups.items()
    ]


def count_tensors(rows: Iterable[ParameterRow]) -> int:
    """AXLearn's tensors in the rows; a copy made on request reads one that counts elsewhere."""
    return sum(len(row.sources) for row in rows if not row.added)


def count_leaves(rows: Iterable[ParameterRow]) -> int:
    """MaxText's leaves in the rows."""
    return sum(len(row.targets) for row in rows)


def origin_counts(evidence: Evidence) -> list[tuple[str, int]]:
    """How many keys of maxtext.yml come from where, the origins shortened to what keys have in common."""
    counts: dict[str, int] = {}
    for key in evidence.configuration:
        origin = key.origin.split(": ")[0].split("; ")[-1] or "not known"
        counts[origin] = counts.get(origin, 0) + 1
    return sorted(counts.items(), key=lambda entry: -entry[1])


def notes(evidence: Evidence) -> list[str]:
    """What else there is to know, each once."""
    found = (*evidence.parameters.notes, *evidence.bits.notes, *evidence.plan.notes)
    return list(dict.fromkeys(map(printable, found)))


def print_evidence(shown: "Shown", console: Console) -> None:
    """The verdict, each proof, and the page that was written."""
    evidence = shown.evidence
    console.print(f"{printable(evidence.destination)} against {printable(evidence.source)} (step {evidence.plan.step})")
    for proof in shown.proofs:
        for number, line in enumerate(proof.lines):
            start = f"{MARKS[proof.state]:<6}  {proof.name:<13}" if number == 0 else " " * 21
            console.print(f"{start}  {line}")
    console.print(f"{shown.title}: {shown.summary}")
    wrote = f"Wrote {shown.html} ({format_size(shown.html_bytes)})"
    told = wrote if shown.html else "Nothing written (--html FILE, or --markdown)"
    console.print(f"{told}; {evidence.seconds:.1f} s, peak memory {format_size(evidence.peak_memory)}.")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Evidence with what is said of it: what `ax2mt report` prints.

    Attributes:
      evidence: the evidence.
      html: the page that was written; empty without one.
      html_bytes: its size.
    """

    evidence: Evidence
    html: str = ""
    html_bytes: int = 0

    @property
    def title(self) -> str:
        """The verdict in two or three words."""
        return title(self.evidence)

    @property
    def summary(self) -> str:
        """The verdict in one or two sentences."""
        return summary(self.evidence)

    @property
    def proofs(self) -> list[Proof]:
        """Each proof and what came of it."""
        return proofs(self.evidence, figures="--html and --markdown show them")

    @property
    def groups(self) -> list[GroupSum]:
        """The parameters by part of the model."""
        return group_sums(self.evidence.parameters)

    @property
    def notes(self) -> list[str]:
        """What else there is to know."""
        return notes(self.evidence)


def _failures(evidence: Evidence) -> list[str]:
    report, bits, lines = evidence.parameters, evidence.bits, list[str]()
    if not bits.ok:
        places = list(dict.fromkeys(printable(finding.place) for finding in bits.findings))
        more = f" and {plural(len(places) - 1, 'other place')}" if len(places) > 1 else ""
        lines.append(f"{plural(len(bits.findings), 'finding')}: {places[0]}{more}.")
    if not report.equivalent:
        lines.append(f"Counts or shapes differ (difference {report.difference:,}).")
    if evidence.logits_problem:
        lines.append("The logits could not be computed.")
    if evidence.logits is not None and not evidence.logits.passed:
        lines.append(f"The logits are beyond the limits: {'; '.join(evidence.logits.limits)}.")
    return lines


def _bits_summary(evidence: Evidence) -> str:
    bits = evidence.bits
    what = f"Every one of {bits.elements:,} elements"
    if bits.sample is not None:
        what = f"In a sample of {bits.sample:g} of the blocks each of {bits.elements:,} elements"
    origin = "the fitted or copied value that it should be" if evidence.plan.fitted else "AXLearn's"
    return f"{what} is {origin}, {f'cast to {bits.cast.dtype}' if bits.cast else 'bit for bit'}."


def _logits_summary(evidence: Evidence) -> str:
    if evidence.logits is None:
        return ""
    if evidence.logits.verdict == EQUAL_VERDICT:
        return "Both models compute the same function."
    size = f"relative difference {evidence.logits.difference.relative:.1e}"
    if evidence.logits.verdict == DIFFERENT_VERDICT:
        return f"The logits differ within the limits ({size})."
    return f"The logits are {evidence.logits.verdict} of the tied table ({size})."


def _parameters_proof(report: ParameterReport) -> Proof:
    lines = [
        f"{report.source_total:,} parameters in AXLearn, {report.target_total:,} in MaxText"
        + (f", {report.added_total:,} of them copies made on request" if report.added_total else "")
        + f": difference {report.difference:,}."
    ]
    wrong = sum(not row.fits for row in report.rows)
    if not report.destination:
        lines.append("A leaf of the checkpoint cannot be opened: these are the planned shapes.")
    elif wrong or report.extra:
        lines.append(
            f"{plural(wrong, 'row')} of other shapes, {plural(len(report.extra), 'extra leaf', 'extra leaves')}."
        )
    else:
        lines.append(f"All {count_leaves(report.rows):,} leaves have the planned shapes.")
    state = FAILED if not report.equivalent else PASSED if report.destination else CAUTION
    return Proof(name="Parameters", state=state, lines=tuple(lines))


def _bits_proof(evidence: Evidence) -> Proof:
    bits = evidence.bits
    sample = f", a SAMPLE of {bits.sample:g} of the blocks" if bits.sample is not None else ""
    lines = [
        f"{bits.elements:,} elements in {plural(bits.leaves, 'leaf', 'leaves')} compared"
        f" ({format_size(bits.compared_bytes)}{sample}): {plural(len(bits.findings), 'finding')}."
    ]
    if bits.stored_leaves:
        lines.append(
            f"{plural(bits.stored_leaves, 'leaf', 'leaves')} by their bytes as they are stored, "
            f"{bits.leaves - bits.stored_leaves:,} decoded (--decode decodes all)."
        )
    if bits.cast is not None:
        lines.append(
            f"Cast to {bits.cast.dtype}: largest absolute error {bits.cast.max_absolute:.6g}, largest relative error "
            f"{bits.cast.max_relative:.6g}, {bits.cast.overflows} overflows to infinity."
        )
    state = FAILED if not bits.ok else CAUTION if bits.sample is not None else PASSED
    return Proof(name="Values", state=state, lines=tuple(lines))


def _logits_proof(evidence: Evidence) -> Proof:
    if evidence.logits_problem:
        return Proof(name="Logits", state=FAILED, lines=(f"Not computed: {printable(evidence.logits_problem)}",))
    if evidence.logits is None:
        return Proof(name="Logits", state=OPEN, lines=("Not compared; --logits computes and compares them.",))
    state = PASSED if evidence.logits.passed else FAILED
    return Proof(name="Logits", state=state, lines=tuple(_stripped(verdict_lines(evidence.logits))))


def _stripped(lines: Sequence[str]) -> list[str]:
    return [printable(line.strip()) for line in lines]
