"""Faults of a checkpoint's index: exit code 3, the entry and what is wrong with it named, nothing left behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.axlearn_checkpoint import STACK, envy_tensors, write_checkpoint
from tests.helpers.damage import (
    cut_to,
    edit_index,
    entry,
    replace_by_dangling_link,
    replace_by_directory,
    replace_by_pipe,
)
from tests.helpers.refusals import nothing_left, refused

PASSED = f"{STACK}/layer1/feed_forward/wi_0_weight"
STEP = "step_00000100"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / STEP, envy_tensors())


def shape(text: Any) -> Callable[[list[Any]], Any]:
    return lambda index: entry(index, PASSED).update(shape=text)


INDEX_FAULTS: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "an object": (lambda index: {"all": index}, "expected a JSON list"),
    "no pairs": (lambda index: [*index, ["model/x"]], "expected pairs of a path and a value"),
    "a number for a path": (lambda index: [*index, [7, {}]], "expected pairs"),
    "duplicate": (lambda index: [*index, [PASSED, entry(index, PASSED)]], f"'{PASSED}' is listed twice"),
    "absolute": (lambda index: [*index, ["/etc/x", entry(index, PASSED)]], "would leave the checkpoint's gda/"),
    "dots": (lambda index: [*index, ["model/../../x", entry(index, PASSED)]], "would leave"),
    "empty part": (lambda index: [*index, ["model//x", entry(index, PASSED)]], "would leave"),
    "newline": (lambda index: [*index, ["model/\n", entry(index, PASSED)]], "unprintable"),
    "surrogate": (lambda index: [*index, ["model/\ud800", entry(index, PASSED)]], "unprintable"),
    "very long": (lambda index: [*index, ["x" * 5000, entry(index, PASSED)]], "too long"),
    "inside a tensor": (lambda index: [*index, [f"{PASSED}/x", entry(index, PASSED)]], f"inside the tensor {PASSED}"),
    "negative": (shape("(-2, 4, 12, 10)"), "expected a shape like"),
    "zero": (shape("(0, 4, 12, 10)"), "has no elements"),
    "2^63": (shape(f"({2**63}, 4, 12, 10)"), "no tensor has the shape"),
    "not a tuple": (shape("[2, 4, 12, 10]"), "expected a shape like"),
    "a list": (shape([2, 4, 12, 10]), "expected a shape like"),
    "code": (shape("(__import__('os').getpid(),)"), "expected a shape like"),
    "33 dimensions": (shape("(" + "1, " * 33 + ")"), "no tensor has the shape"),
    "no shape": (lambda index: entry(index, PASSED).pop("shape") and None, "expected a shape like"),
    "unknown dtype": (lambda index: entry(index, PASSED).update(dtype="float33"), "unknown dtype 'float33'"),
    "a list as dtype": (lambda index: entry(index, PASSED).update(dtype=[]), "unknown dtype []"),
    "other dtype": (lambda index: entry(index, PASSED).update(dtype="bfloat16"), "index says bfloat16"),
    "other shape": (shape("(2, 4, 12, 11)"), "which does not fit"),
}  # fmt: skip


@pytest.mark.parametrize("fault", INDEX_FAULTS)
def test_index_entries(fault: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, expected = INDEX_FAULTS[fault]
    edit_index(source, change)
    # A shape that only the index has wrong contradicts other tensors first; that is the mapping's finding.
    message = refused(capsys, 4 if fault == "other shape" else 3, source, tmp_path / "out")
    assert expected in message
    nothing_left(tmp_path, STEP)


def test_a_path_with_control_characters_is_shown_escaped(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_index(source, lambda index: [*index, ["model/\x1b[31m\nx", entry(index, PASSED)]])
    assert "\x1b" not in refused(capsys, 3, source, tmp_path / "out")


INDEX_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "not committed, it has no index file"),
    "empty": (cut_to(0), "not valid JSON"),
    "cut": (cut_to(100), "not valid JSON"),
    "directory": (replace_by_directory, "not committed, it has no index file"),
    "dangling link": (replace_by_dangling_link, "not committed"),
    "pipe": (replace_by_pipe, "not committed"),
    "binary": (lambda file: file.write_bytes(bytes(range(256))), "not valid JSON"),
}


@pytest.mark.parametrize("fault", INDEX_FILES)
def test_index_files(fault: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, expected = INDEX_FILES[fault]
    change(source / "index")
    message = refused(capsys, 3, source, tmp_path / "out")
    assert str(source) in message
    assert expected in message
    nothing_left(tmp_path, STEP)
