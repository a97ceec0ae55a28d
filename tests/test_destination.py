"""What may be a destination, and how a checkpoint takes its place: at once, or not at all."""

import ctypes
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from converter.destination import (
    RESERVE,
    check_destination,
    check_overlap,
    check_space,
    is_maxtext_checkpoint,
    resolve_destination,
)
from converter.errors import DestinationError
from converter.publishing import flush, publish


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


@pytest.mark.parametrize("path", ["gs://bucket/out", "s3://bucket/out", "file:///out"])
def test_remote_storage(path: str, source: str) -> None:
    expected = f"{path}: remote storage is not supported; write to a file system and copy from there"
    assert refusal(path, source) == expected


def test_what_is_there_is_not_written_over(source: str, tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "out")
    expected = f"{target}: exists and is not empty; give a new directory, or --overwrite a checkpoint"
    assert refusal(target, source) == expected
    assert check_destination(str(target), source, overwrite=True) == str(target)
    (target / "notes.txt").write_text("mine")
    assert refusal(target, source, overwrite=True) == (
        f"{target}: --overwrite replaces only a MaxText checkpoint (step directories with items/_METADATA, "
        "maxtext.yml, nothing else)"
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


def test_space_is_needed_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: (asked.append(place), usage)[1])
    target = str(tmp_path / "not" / "yet" / "there")
    check_space(target, (1 << 30) - RESERVE)
    with pytest.raises(DestinationError) as caught:
        check_space(target, (1 << 30) - RESERVE + 1)
    expected = f"{target}: too little room: 1.00 GiB needed, 1.00 GiB free on {tmp_path}"
    assert caught.value.message == expected
    assert asked == [str(tmp_path)] * 2


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges directories")
EXCHANGE = pytest.mark.parametrize(
    "exchange", [pytest.param(True, marks=on_linux, id="exchange"), pytest.param(False, id="two renames")]
)


@pytest.fixture
def system(exchange: bool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A system with renameat2 and syncfs, or one whose C library has neither."""
    if not exchange:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    return exchange


@EXCHANGE
def test_a_new_checkpoint_takes_its_place(system: bool, tmp_path: Path) -> None:
    for number, what in enumerate(("nothing", "an empty directory", "a checkpoint")):
        target, work = tmp_path / f"out{number}", tmp_path / f"work{number}"
        if what != "nothing":
            target.mkdir()
        if what == "a checkpoint":
            checkpoint(target, name="old")
        work.mkdir()
        publish(str(checkpoint(work / "checkpoint", name="new")), str(target), str(work / "replaced"))
        assert name_of(target) == "new"
        # What was there is not gone yet: in the new one's former place, or where it was put.
        kept = {"checkpoint": work / "checkpoint", "replaced": work / "replaced"}
        names = {place: name_of(path) for place, path in kept.items() if path.exists()}
        assert names == ({"checkpoint" if system else "replaced": "old"} if what == "a checkpoint" else {})


@EXCHANGE
@pytest.mark.usefixtures("system")
def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "out", name="old")
    with pytest.raises(DestinationError) as caught:
        publish(str(tmp_path / "gone"), str(target), str(tmp_path / "replaced"))
    message = f"{target}: the checkpoint cannot be put in place: No such file or directory"
    assert caught.value.message == message
    assert name_of(target) == "old"
    assert os.listdir(tmp_path) == ["out"]


@on_linux
def test_an_exchange_is_never_seen_half_done(tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "out", name="0")
    seen: list[str] = []
    done, looked = threading.Event(), threading.Event()

    def look() -> None:
        # Any moment without a checkpoint at the destination would end this thread with an error.
        while not done.is_set():
            seen.append(name_of(target))
            looked.set()

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(1, 100):
            looked.clear()
            new = checkpoint(tmp_path / "new", name=str(number))
            publish(str(new), str(target), str(tmp_path / "replaced"))
            shutil.rmtree(new)
            if not number % 10:
                assert looked.wait(60)
    finally:
        done.set()
        reader.join()
    order = [int(name) for name in seen]
    assert order == sorted(order)
    assert len(set(order)) > 5


@EXCHANGE
def test_everything_is_made_durable(system: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = checkpoint(tmp_path / "out", "0", "1")
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_ino), real(descriptor)))
    flush(str(tree))
    if system:
        assert synced == []  # the file system as a whole
        return
    inodes = {path: path.stat().st_ino for path in (tree, *tree.rglob("*"))}
    assert sorted(synced) == sorted(inodes.values())
    for path in tree.rglob("*"):
        assert synced.index(inodes[path]) < synced.index(inodes[path.parent])  # a name after what it names
