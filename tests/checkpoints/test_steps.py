"""Which step a path means, which newer steps are passed over, and what is an error instead."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoints.axlearn import is_committed
from converter.checkpoints.axlearn_steps import find_step, list_steps, open_step, step_number
from converter.errors import SourceError
from tests.helpers.faulty_storage import FaultyStorage


def make_steps(place: Path, *committed: int, uncommitted: tuple[int, ...] = ()) -> Path:
    for number in (*committed, *uncommitted):
        (place / f"step_{number:08d}" / "gda").mkdir(parents=True)
        if number in committed:
            (place / f"step_{number:08d}" / "index").write_text("[]")
    return place


def make_step(step: Path, number: int = 200) -> None:
    (step / "gda").mkdir(parents=True)
    (step / "index").write_text(json.dumps([["step", number], ["w", {"dtype": "float32", "shape": "()"}]]))


def refusal(path: object, step: int | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        found(str(path), step)
    return caught.value.message


def found(path: str, step: int | None = None) -> str:
    return find_step(path, step).directory


def test_every_path_that_may_mean_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = make_steps(tmp_path / "trainer" / "checkpoints", 100, 90, uncommitted=(200,))
    latest = str(checkpoints / "step_00000100")
    assert found(str(tmp_path / "trainer")) == latest
    assert found(str(checkpoints)) == latest
    assert found(str(checkpoints), 90) == str(checkpoints / "step_00000090")
    assert found(latest) == found(latest, 100) == latest
    assert found(latest + "/", 100) == latest + "/"
    (tmp_path / "link").symlink_to(latest)
    assert found(str(tmp_path / "link"), 100) == str(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    assert found("trainer") == os.path.join("trainer", "checkpoints", "step_00000100")


def test_steps_are_ordered_by_number_not_by_name(tmp_path: Path) -> None:
    make_steps(tmp_path, 99_999_999, 100_000_000, 7)
    assert list(list_steps(str(tmp_path))) == [7, 99_999_999, 100_000_000]
    assert found(str(tmp_path)) == str(tmp_path / "step_100000000")
    assert list_steps(str(tmp_path / "nothing")) == {}


UNFINISHED = "it has no index file, so its save or its copy did not finish"
MISNAMED = "its name is not step_ and 8 digits; it is a temporary or renamed copy"

PASSED_OVER: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "uncommitted": (lambda place: (place / "step_00000200" / "gda").mkdir(parents=True), "step_00000200", UNFINISHED),
    "empty": (lambda place: (place / "step_00000200").mkdir(), "step_00000200", UNFINISHED),
    "a file": (lambda place: (place / "step_00000200").write_text(""), "step_00000200", "it is not a directory"),
    "fewer digits": (lambda place: make_step(place / "step_200"), "step_200", MISNAMED),
    "more zeros": (lambda place: make_step(place / "step_000000200"), "step_000000200", MISNAMED),
    "a temporary name": (lambda place: make_step(place / "step_00000200.tmp"), "step_00000200.tmp", MISNAMED),
    "a partial name": (lambda place: make_step(place / "step_00000200_part"), "step_00000200_part", MISNAMED),
}


@pytest.mark.parametrize("kind", PASSED_OVER)
def test_newer_steps_that_are_passed_over(kind: str, tmp_path: Path) -> None:
    make, name, why = PASSED_OVER[kind]
    make_steps(tmp_path / "checkpoints", 100)
    make(tmp_path / "checkpoints")
    step = find_step(str(tmp_path))
    assert step.directory == str(tmp_path / "checkpoints" / "step_00000100")
    assert step.notes == (f"{tmp_path}/checkpoints/{name} was passed over: {why}",)
    assert find_step(str(tmp_path), 100).notes == ()


def test_older_steps_are_no_matter(tmp_path: Path) -> None:
    make_steps(tmp_path, 100, uncommitted=(50,))
    make_step(tmp_path / "step_70")
    (tmp_path / "step_00000060").symlink_to("nowhere")
    (tmp_path / "step_final").mkdir()
    assert find_step(str(tmp_path)).notes == ()


def test_a_long_list_of_newer_steps_is_cut(tmp_path: Path) -> None:
    make_steps(tmp_path, 100, uncommitted=tuple(range(101, 121)))
    notes = find_step(str(tmp_path)).notes
    assert notes[0] == f"{tmp_path}/step_00000120 was passed over: {UNFINISHED}"
    assert notes[-1] == "12 more newer steps were passed over"
    assert len(notes) == 9


def test_only_misnamed_steps(tmp_path: Path) -> None:
    make_step(tmp_path / "step_200")
    expected = f"{tmp_path}: no AXLearn checkpoint here; expected step_* directories with 8 digits, or index and gda/"
    assert refusal(tmp_path) == refusal(tmp_path, 200) == f"{expected} (found step_200)"


def test_steps_in_both_places(tmp_path: Path) -> None:
    make_steps(tmp_path, 100)
    make_steps(tmp_path / "checkpoints", 100, 200)
    assert refusal(tmp_path) == f"{tmp_path}: steps both here and in {tmp_path}/checkpoints; pass the one that is meant"
    assert "is both" in refusal(tmp_path, 100)
    assert found(str(tmp_path), 200) == str(tmp_path / "checkpoints" / "step_00000200")


ANOTHER = "name another step with --step to convert that one"

REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "dangling step": (lambda step: (shutil.rmtree(step), step.symlink_to("gone")), " is a link to gone, where"),
    "dangling index": (
        lambda step: ((step / "index").unlink(), (step / "index").symlink_to("gone")),
        "/index is a link to gone, where nothing is",
    ),
    "loop": (lambda step: (shutil.rmtree(step), step.symlink_to(step)), ": cannot be read: Too many levels"),
    "empty index": (lambda step: (step / "index").write_text(""), "/index: not valid JSON: Expecting value"),
    "cut index": (lambda step: (step / "index").write_text('[["step", 20'), "/index: not valid JSON"),
    "no list": (lambda step: (step / "index").write_text("{}"), "/index: expected a JSON list"),
    "another step": (
        lambda step: (step / "index").write_text('[["step", 100]]'),
        ": the index is of step 100, the directory's name says step 200; copy the step again",
    ),
    "no arrays": (lambda step: shutil.rmtree(step / "gda"), ": there is an index, but no gda/ directory"),
    "a file for arrays": (
        lambda step: (shutil.rmtree(step / "gda"), (step / "gda").write_text("")),
        ": there is an index, but no gda/ directory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_newer_step_that_is_damaged_is_an_error(kind: str, tmp_path: Path) -> None:
    change, expected = REFUSED[kind]
    make_step(tmp_path / "step_00000100", number=100)
    make_step(tmp_path / "step_00000200", number=200)
    change(tmp_path / "step_00000200")
    with pytest.raises(SourceError) as caught:
        open_step(str(tmp_path))
    assert caught.value.message.startswith(f"{tmp_path}/step_00000200{expected}")
    assert caught.value.message.endswith(f"; {ANOTHER}")
    with pytest.raises(SourceError) as caught:
        open_step(str(tmp_path), 200)
    assert str(tmp_path / "step_00000200") in caught.value.message
    assert ANOTHER not in caught.value.message
    assert open_step(str(tmp_path), 100).step == 100


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/step_00000200", "checkpoints/step_00000200/index"])
def test_input_output_errors_are_not_absence(place: str, tmp_path: Path, faulty: FaultyStorage) -> None:
    make_step(tmp_path / "checkpoints" / "step_00000100", number=100)
    make_step(tmp_path / "checkpoints" / "step_00000200", number=200)
    broken = os.path.join(tmp_path, place).rstrip("/")

    faulty.fail("stat", f"^{broken}$")
    faulty.fail("names", f"^{broken}$")
    message = refusal(tmp_path)
    assert message.startswith(f"{broken}: cannot be ")
    assert "Input/output error" in message


def test_what_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    make_steps(tmp_path / "begun", uncommitted=(5, 6))
    expected = "expected an AXLearn step or trainer directory"
    assert refusal(tmp_path / "gone") == f"{tmp_path}/gone does not exist; {expected}"
    assert refusal(tmp_path / "file") == f"{tmp_path}/file is not a directory; {expected}"
    assert refusal(tmp_path / "empty") == (
        f"{tmp_path}/empty: no AXLearn checkpoint here; expected step_* directories with 8 digits, or index and gda/"
    )
    assert refusal(tmp_path / "begun") == (
        f"{tmp_path}/begun: none of the steps 5, 6 is committed (none has an index file); "
        "the training was stopped before a save finished"
    )
    assert refusal(tmp_path / "begun", 6) == (
        f"{tmp_path}/begun/step_00000006: not committed, it has no index file; the save was interrupted or is under way"
    )


def test_a_step_that_is_not_there(tmp_path: Path) -> None:
    make_steps(tmp_path, *range(1, 12))
    assert refusal(tmp_path, 12) == f"{tmp_path}: no step 12; there are ... 4, 5, 6, 7, 8, 9, 10, 11"
    step = tmp_path / "step_00000003"
    hint = "pass the directory above it, or drop --step"
    assert refusal(step, 4) == f"{step} is step 3, not step 4; {hint}"
    step.rename(tmp_path / "best")
    assert found(str(tmp_path / "best")) == str(tmp_path / "best")
    assert refusal(tmp_path / "best", 3) == f"{tmp_path}/best has no step in its name; {hint}"


def test_steps_in_orbaxs_format_are_steps(tmp_path: Path) -> None:
    make_steps(tmp_path, 100)
    for number in (50, 200):
        (tmp_path / f"step_{number:08d}" / "index").mkdir(parents=True)
    message = f"{tmp_path}/step_00000200: not committed, it has no index file; the save was interrupted or is under way"
    assert refusal(tmp_path / "step_00000200") == refusal(tmp_path, 200) == message
    (tmp_path / "step_00000200" / "index" / "index").write_text("[]")
    assert found(str(tmp_path)) == found(str(tmp_path), 200) == str(tmp_path / "step_00000200")
    (tmp_path / "step_00000200" / "index" / "index").unlink()
    assert found(str(tmp_path), 100) == str(tmp_path / "step_00000100")


def test_numbers_and_markers(tmp_path: Path) -> None:
    step = make_steps(tmp_path, 123) / "step_00000123"
    assert (step_number(str(step)), step_number(str(tmp_path))) == (123, None)
    assert is_committed(str(step))
    (step / "index").unlink()
    (step / "index").symlink_to("nowhere")
    assert not is_committed(str(step))
