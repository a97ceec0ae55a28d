"""Paths as they come: overlaps of source and destination in every disguise, and names that could steer a terminal."""

import os
import shutil
from pathlib import Path

import pytest

from converter.cli.app import run as run_cli
from converter.conversion.destination import JOURNAL_SUFFIX, SUFFIX
from tests.conftest import AXLEARN, Cli
from tests.helpers.axlearn_checkpoint import envy_tensors, write_checkpoint
from tests.helpers.refusals import nothing_left, refused

STEP = "checkpoints/step_00000100"


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    shutil.copytree(AXLEARN / "envy-test", tmp_path / "trainer")
    return tmp_path / "trainer"


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("trainer", "trainer/out"),
        ("trainer", "trainer"),
        ("trainer", "trainer/checkpoints/out"),
        (f"trainer/{STEP}", f"trainer/{STEP}/gda/out"),
        (f"trainer/{STEP}", f"trainer/{STEP}/"),
        (f"trainer/{STEP}", "trainer/checkpoints"),
        (f"trainer/{STEP}", "."),
        ("link", "trainer/out"),
        ("trainer", "link/out"),
        (f"link/{STEP}", "trainer/checkpoints/../checkpoints"),
        ("trainer", "./nothing/../trainer/out"),
    ],
)
def test_overlaps_are_refused(
    source: str,
    target: str,
    trainer: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "link").symlink_to("trainer")
    before = tree(trainer)
    monkeypatch.chdir(tmp_path)
    for flags in ((), ("--overwrite", "--fresh")):
        assert "overlaps the source" in refused(capsys, 5, source, target, *flags)
        assert tree(trainer) == before
        nothing_left(tmp_path, "link", "trainer")


@pytest.mark.parametrize("suffix", [SUFFIX, JOURNAL_SUFFIX])
def test_a_source_in_the_place_of_the_work_area(
    suffix: str, trainer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The work area is cleared before work: that must never be the source.
    trainer.rename(tmp_path / f"out{suffix}")
    before = tree(tmp_path)
    assert "overlaps the source" in refused(capsys, 5, tmp_path / f"out{suffix}", tmp_path / "out", "--fresh")
    assert tree(tmp_path) == before


def test_beside_the_source_is_fine(trainer: Path, tmp_path: Path) -> None:
    before = tree(trainer)
    assert run_cli(["convert", "-q", str(trainer), str(tmp_path / "trainer-maxtext")]) == 0
    assert tree(trainer) == before


NAMES = [
    "new\nline",
    "\x1b[31mred",
    "tab\t",
    "[bold]rich[/bold]",
    "[/y]w",
    ":100:",
    "{layer}",
    "%s$HOME'\"",
    "naïve ☃ 模型",
    "-q",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_all_kinds(name: str, tmp_path: Path, in_process: Cli) -> None:
    source = write_checkpoint(tmp_path / name / "step_00000100", envy_tensors())
    target = tmp_path / f"{name} out"
    done = in_process("convert", source, target, "--json")
    assert done.code == 0, done.err
    assert done.document["destination"] == str(target)
    assert os.path.isfile(target / "maxtext.yml")
    refusal = in_process("convert", source, target)
    assert refusal.code == 5
    assert len(refusal.err.splitlines()) == 1
    assert "\x1b" not in refusal.err
    shutil.rmtree(target)
    shown = in_process("convert", source, target)
    assert shown.code == 0, shown.err
    assert "Traceback" not in shown.err
    if name.isprintable():
        assert f"{name} out" in shown.out


def test_names_that_are_no_text(tmp_path: Path, cli: Cli) -> None:
    refusal = cli("convert", AXLEARN / "envy-test", tmp_path / "\udcff")
    assert refusal.code == 5
    assert "not valid UTF-8" in refusal.err
    nothing_left(tmp_path)
