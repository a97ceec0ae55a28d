"""JUnit XML: the structure that JUnit's and xUnit's schemas share, hostile names, and the file that holds it."""

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from converter.report.junit import Case, Suite, junit_text, verification_suites
from converter.verification import Finding, Verification
from tests.conftest import AXLEARN, MAXTEXT, Cli

SOURCE = AXLEARN / "micro-hybrid-qkpair"
GOLDEN = MAXTEXT / "micro-hybrid-qkpair" / "scanned-untied"

COUNTS = {"tests", "failures", "errors"}
ATTRIBUTES = {
    "testsuites": (COUNTS | {"name", "time"}, set()),
    "testsuite": (COUNTS | {"name", "time", "skipped"}, {"timestamp", "hostname", "id", "package", "file"}),
    "testcase": ({"name", "classname", "time"}, {"assertions", "status", "file", "line"}),
    "failure": ({"message", "type"}, set()),
}
"""Element to the attributes that it must have, and those that it may have beside them."""

CHILDREN = {
    "testsuites": {"testsuite"}, "testsuite": {"properties", "testcase", "system-out", "system-err"},
    "testcase": {"skipped", "error", "failure", "system-out", "system-err"}, "failure": set(),
}  # fmt: skip


def checked(text: str) -> ElementTree.Element:
    """The document, of the structure that readers of JUnit XML expect, with counts that are right."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for element in root.iter():
        needed, allowed = ATTRIBUTES[element.tag]
        assert needed <= set(element.attrib) <= needed | allowed, element.tag
        assert {child.tag for child in element} <= CHILDREN[element.tag], element.tag
        assert float(element.get("time", "0")) >= 0
        if element.tag in ("testsuites", "testsuite"):
            cases = list(element.iter("testcase"))
            assert int(element.attrib["tests"]) == len(cases)
            assert int(element.attrib["failures"]) == sum(case.find("failure") is not None for case in cases)
    return root


def test_one_suite() -> None:
    text = junit_text([Suite("a suite", (Case("fine"), Case("bad", "shape", ("2 x 3\nmore", "again"))))], 1.23456)
    assert text.splitlines() == [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<testsuites name="ax2mt" tests="2" failures="1" errors="0" time="1.235">',
        '  <testsuite name="a suite" tests="2" failures="1" errors="0" time="1.235" skipped="0">',
        '    <testcase name="fine" classname="a suite" time="0" />',
        '    <testcase name="bad" classname="a suite" time="0">',
        '      <failure message="2 x 3" type="shape">2 x 3',
        "more",
        "again</failure>",
        "    </testcase>",
        "  </testsuite>",
        "</testsuites>",
    ]
    checked(text)


HOSTILE = ["<b>&amp;\"'", "]]>", "\x00\x1b[31m\x85", "\udcff", "\ufffe\uffff", "a\nb", "é中😀", "<!--", "x" * 10_000]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_names(name: str) -> None:
    finding = Finding("values", name, name, first_index=(1,), expected=name, found=name, diagnosis=name)
    result = Verification("source", name, 1, name, 1, 0, 4, 16, None, (finding,), (), None, 0.1, 1, (name, "b"))
    text = verification_suites(result)
    root = checked(text.encode().decode())
    first, second = root.iter("testcase")
    assert (first.find("failure") is not None, second.attrib["name"]) == (True, "b")
    if name.isprintable():
        assert first.attrib["name"] == name


def test_many_leaves() -> None:
    cases = tuple(Case(f"layers_{number}/kernel") for number in range(10_000))
    assert len(list(checked(junit_text([Suite("s", cases)], 0)).iter("testcase"))) == 10_000


def test_verify_writes_a_case_for_each_leaf(in_process: Cli, tmp_path: Path) -> None:
    for words in ([SOURCE, GOLDEN], [AXLEARN / "micro-hybrid", GOLDEN]):
        file = tmp_path / "junit.xml"
        done = in_process("verify", *words, "--junit", file, "--json")
        root = checked(file.read_text())
        findings = done.document["findings"]
        assert done.code == (6 if findings else 0)
        failed = {case.attrib["name"] for case in root.iter("testcase") if case.find("failure") is not None}
        assert failed == {finding["place"] for finding in findings}
        assert len(list(root.iter("testcase"))) >= done.document["leaves"] == 28
        assert os.listdir(tmp_path) == ["junit.xml"]


def test_digests_have_cases_too(in_process: Cli, converted, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target = converted("micro-hybrid-qkpair")
    assert in_process("verify", target, "--junit", tmp_path / "junit.xml").code == 0
    assert len(list(checked((tmp_path / "junit.xml").read_text()).iter("testcase"))) == 27


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--junit", "missing/junit.xml"], 5, "--junit missing/junit.xml: there is no directory"),
        (["--junit", "."], 5, "--junit .: is a directory; expected the name of a file"),
        (["--junit", ""], 5, "empty path"),
        (["--junit", "gs://bucket/junit.xml"], 5, "gs://bucket/junit.xml"),
        (["--junit", "junit.xml", "--logits"], 2, "--junit cannot be used with --logits"),
        (["--junit", "junit.xml", "--step", "77"], 3, "step"),
    ],
)  # fmt: skip
def test_nothing_is_written_where_it_cannot_be(
    words: list[str], code: int, message: str, in_process: Cli, tmp_path: Path
) -> None:
    done = in_process("verify", SOURCE, GOLDEN, *words, cwd=tmp_path)
    assert (done.code, message in done.err) == (code, True), done
    assert not any(tmp_path.iterdir())


def test_an_old_file_stays_whole_until_the_end(in_process: Cli, tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text("old")
    assert in_process("verify", SOURCE, GOLDEN, "--step", "77", "--junit", tmp_path / "junit.xml").code == 3
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"junit.xml": "old"}
