"""What may be a destination."""

import os
import shutil
from pathlib import Path

import pytest

from converter.checkpoints.maxtext import is_maxtext_checkpoint
from converter.conversion.destination import RESERVE, check_destination, check_overlap, check_space, resolve_destination
from converter.errors import DestinationError
from tests.helpers.faulty_storage import FaultyStorage


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "source").mkdir()
    return str(tmp_path / "source")


def checkpoint(directory: Path, *steps: str, name: str = "a") -> Path:
    for step in steps or ("0",):
        (directory / step / "items").mkdir(parents=True)
        (directory / step / "items" / "_METADATA").write_text(name)
    (directory / "maxtext.yml").write_text(name)
    return directory


def name_of(directory: Path) -> str:
    return (directory / "0" / "items" / "_METADATA").read_text()


def refusal(path: object, source: str, *, overwrite: bool = False) -> str:
    with pytest.raises(DestinationError) as caught:
        check_destination(str(path), source, overwrite=overwrite)
    return caught.value.message


def test_remote_storage(source: str) -> None:
    assert refusal("az://bucket/out", source).startswith("az://bucket/out: az:// is not supported; ")
    assert refusal("gs://bucket", source).startswith("gs://bucket: is a whole bucket; ")


def test_what_is_there_is_not_written_over(source: str, tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "out")
    expected = f"{target}: exists and is not empty; give a new directory, or --overwrite a checkpoint"
    assert refusal(target, source) == expected
    assert check_destination(str(target), source, overwrite=True) == str(target)
    (target / "notes.txt").write_text("mine")
    assert refusal(target, source, overwrite=True) == (
        f"{target}: --overwrite replaces only a MaxText checkpoint (step directories with items/_METADATA, "
        "maxtext.yml, nothing else); found 0, maxtext.yml, notes.txt"
    )


def test_new_and_empty_directories_are_taken(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path, place in {"new": "new", "empty/": "empty", "a/../new": "new", "~/new": "new", "link": "empty"}.items():
        for overwrite in (False, True):
            assert check_destination(path, source, overwrite=overwrite) == str(tmp_path / place)
            assert resolve_destination(path) == str(tmp_path / place)
    assert sorted(os.listdir(tmp_path)) == ["empty", "link", "source"]


@pytest.mark.parametrize(
    ("target", "overlaps"),
    [
        ("source", True), ("source/out", True), (".", True), ("source-2", False), ("sourc", False),
        ("step", False), ("link/out", True), ("other/out", False),
    ],
)  # fmt: skip
def test_overlaps(target: str, overlaps: bool, source: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("source")
    path = os.path.normpath(tmp_path / target)
    if not overlaps:
        check_overlap(path, source)
        return
    with pytest.raises(DestinationError) as caught:
        check_overlap(path, source)
    place = os.path.realpath(path)
    assert caught.value.message == f"{place}: overlaps the source {source}; give a directory outside of it"


def test_the_work_area_must_not_overlap_either(tmp_path: Path) -> None:
    for suffix in (".ax2mt-wip", ".ax2mt-wip.json"):
        for inner in ("", "/step_00000100"):
            with pytest.raises(DestinationError, match=rf"out{suffix}: overlaps the source"):
                check_overlap(str(tmp_path / "out"), f"{tmp_path}/out{suffix}{inner}")


def test_what_a_checkpoint_is(tmp_path: Path) -> None:
    whole = checkpoint(tmp_path / "whole", "0", "100")
    (whole / "ax2mt.json").write_text("{}")
    assert is_maxtext_checkpoint(str(whole))
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "maxtext.yml").write_text("")
    assert not is_maxtext_checkpoint(str(tmp_path / "bare"))
    for extra in ("0.orbax-checkpoint-tmp-1", "latest", "7"):
        (whole / extra / "items").mkdir(parents=True)
        assert not is_maxtext_checkpoint(str(whole)), extra
        shutil.rmtree(whole / extra)
    (whole / "100" / "items" / "_METADATA").unlink()
    assert not is_maxtext_checkpoint(str(whole))


def test_space_is_needed_to_the_byte(tmp_path: Path, faulty: FaultyStorage) -> None:
    faulty.free = 1 << 30
    target = str(tmp_path / "not" / "yet" / "there")
    check_space(target, (1 << 30) - RESERVE)
    with pytest.raises(DestinationError) as caught:
        check_space(target, (1 << 30) - RESERVE + 1)
    expected = f"{target}: too little room: 1.00 GiB needed, 1.00 GiB free on {tmp_path}"
    assert caught.value.message == expected
