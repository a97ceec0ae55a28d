"""Results as JUnit XML, which continuous integration shows as tests: a test case for each leaf.

The elements and attributes are those that JUnit's and xUnit's schemas have in common: testsuites, testsuite with tests,
failures, errors, skipped and time, testcase with name and classname, failure with message and type.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from converter.conformance import Conformance, FlagComparison, LeafComparison, ModelComparison
from converter.report.console import shape_text
from converter.verification import Finding, Verification
from converter.words import printable


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: its name, what kind of failure it is and each failure's text; no texts where it passed."""

    name: str
    kind: str = ""
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suite:
    """A test suite and its cases."""

    name: str
    cases: tuple[Case, ...]


def verification_suites(result: Verification) -> str:
    """A verification: a case for each leaf that was compared, and for each other place with a finding."""
    found: dict[str, list[Finding]] = {}
    for finding in result.findings:
        found.setdefault(finding.place, []).append(finding)
    places = dict.fromkeys((*result.paths, *found))
    cases = [_verified(place, found.get(place, [])) for place in places]
    against = result.source if result.method == "source" else "its own digests"
    return junit_text([Suite(f"{result.destination} against {against}", tuple(cases))], result.seconds)


def _verified(place: str, findings: Sequence[Finding]) -> Case:
    kinds = ", ".join(dict.fromkeys(finding.check for finding in findings))
    return Case(place, kinds, tuple(_finding_text(finding) for finding in findings))


def _finding_text(finding: Finding) -> str:
    lines = [f"{finding.check}: {finding.message}"]
    if finding.first_index is not None:
        lines.append(f"first at {list(finding.first_index)}: expected {finding.expected}, found {finding.found}")
    return "\n".join([*lines, *filter(None, [finding.diagnosis])])


def conformance_suites(result: Conformance) -> str:
    """A comparison with the frameworks: a suite for each model and layout, a case for each leaf and flag."""
    return junit_text([_model_suite(model) for model in result.models], result.seconds)


def _model_suite(model: ModelComparison) -> Suite:
    cases = [Case(leaf.path, leaf.status, _leaf_failures(leaf)) for leaf in model.leaves]
    cases += [Case(f"flag {flag.key}", flag.status, _flag_failures(flag)) for flag in model.flags]
    if model.problem:
        cases.append(Case("model", "problem", (f"{model.framework} cannot make the model: {model.problem}",)))
    return Suite(" ".join(filter(None, (model.framework, model.model, model.layout))), tuple(cases))


def _leaf_failures(leaf: LeafComparison) -> tuple[str, ...]:
    if leaf.status == "equal":
        return ()
    sides = [
        f"{side} {'nothing' if value is None else f'{shape_text(value.shape)} {value.dtype}'}"
        for side, value in (("expected", leaf.expected), ("found", leaf.found))
    ]
    return (f"{leaf.status}: {', '.join(sides)}",)


def _flag_failures(flag: FlagComparison) -> tuple[str, ...]:
    if flag.status == "equal":
        return ()
    text = f"{flag.status}: expected {flag.expected or 'nothing'}, found {flag.found or 'nothing'}"
    return ("\n".join(filter(None, (text, flag.consequence))),)


def junit_text(suites: Iterable[Suite], seconds: float) -> str:
    """JUnit XML of suites that together took some seconds."""
    suites, root = list(suites), ElementTree.Element("testsuites")
    _count(root, "ax2mt", [case for suite in suites for case in suite.cases], seconds)
    for suite in suites:
        element = ElementTree.SubElement(root, "testsuite")
        _count(element, suite.name, suite.cases, seconds if len(suites) == 1 else 0.0)
        element.set("skipped", "0")
        for case in suite.cases:
            _add_case(element, suite.name, case)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _count(element: ElementTree.Element, name: str, cases: Sequence[Case], seconds: float) -> None:
    failures = sum(bool(case.failures) for case in cases)
    attributes = {"name": printable(name), "tests": str(len(cases)), "failures": str(failures), "errors": "0"}
    for key, value in {**attributes, "time": f"{seconds:.3f}"}.items():
        element.set(key, value)


def _add_case(parent: ElementTree.Element, suite: str, case: Case) -> None:
    names = {"name": printable(case.name), "classname": printable(suite), "time": "0"}
    element = ElementTree.SubElement(parent, "testcase", names)
    for text in case.failures[:1]:
        more = "".join(f"\n{one}" for one in case.failures[1:])
        lines = [printable(line) for line in f"{text}{more}".split("\n")]
        failure = ElementTree.SubElement(element, "failure", {"message": lines[0], "type": case.kind})
        failure.text = "\n".join(lines)
