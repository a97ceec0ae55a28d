"""How a checkpoint takes its place: at once, or not at all; and how a publication that was killed is undone."""

import ctypes
import errno
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from converter.errors import DestinationError
from converter.storage import PROBE, Publication, publishing
from converter.storage.local import LocalStorage
from tests.helpers.faulty_storage import FaultyStorage, Kill

LOCAL = LocalStorage()


def checkpoint(directory: Path, *steps: str, name: str = "a") -> Path:
    for step in steps or ("0",):
        (directory / step / "items").mkdir(parents=True)
        (directory / step / "items" / "_METADATA").write_text(name)
    (directory / "maxtext.yml").write_text(name)
    (directory / "ax2mt.json").write_text(name)
    return directory


def publication(finished: Path, destination: Path, replaced: Path) -> Publication:
    return Publication(
        finished=str(finished),
        destination=str(destination),
        replaced=str(replaced),
        is_marker=str.isdigit,
        others=("maxtext.yml", "ax2mt.json"),
    )


def name_of(directory: Path) -> str:
    return (directory / "0" / "items" / "_METADATA").read_text()


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
        LOCAL.publish(publication(checkpoint(work / "checkpoint", name="new"), target, work / "replaced"))
        assert name_of(target) == "new"
        # What was there is not gone yet: in the new one's former place, or where it was put.
        kept = {"checkpoint": work / "checkpoint", "replaced": work / "replaced"}
        names = {place: name_of(path) for place, path in kept.items() if (path / "0").exists()}
        assert names == ({"checkpoint" if system else "replaced": "old"} if what == "a checkpoint" else {})


@EXCHANGE
@pytest.mark.usefixtures("system")
def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = checkpoint(tmp_path / "out", name="old")
    with pytest.raises(DestinationError) as caught:
        LOCAL.publish(publication(tmp_path / "gone", target, tmp_path / "replaced"))
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
            LOCAL.publish(publication(new, target, tmp_path / "replaced"))
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
    LOCAL.flush(str(tree))
    if system:
        assert synced == []  # the file system as a whole
        return
    inodes = {path: path.stat().st_ino for path in (tree, *tree.rglob("*"))}
    assert sorted(synced) == sorted(inodes.values())
    for path in tree.rglob("*"):
        assert synced.index(inodes[path]) < synced.index(inodes[path.parent])  # a name after what it names


RENAMES = 3
"""Two files and the step."""


@pytest.mark.parametrize("moment", range(RENAMES + 1))
def test_filling_can_be_killed_at_any_moment(moment: int, tmp_path: Path) -> None:
    target, new = tmp_path / "out", tmp_path / "checkpoint"
    target.mkdir()
    checkpoint(new, name="new")
    work = publication(new, target, tmp_path / "replaced")
    faulty = FaultyStorage()
    faulty.kill("rename", nth=moment + 1)
    with pytest.raises(Kill) if moment < RENAMES else nullcontext():
        faulty.publish(work)
    arrived = moment == RENAMES
    assert (target / "0").exists() == arrived  # there is a checkpoint after the last step, and not before
    assert LOCAL.is_published(work) == arrived
    LOCAL.take_back(work)
    assert sorted(os.listdir(target)) == (["0", "ax2mt.json", "maxtext.yml"] if arrived else [])
    if not arrived:
        LOCAL.publish(work)
    assert name_of(target) == "new"
    assert (target / "maxtext.yml").read_text() == (target / "ax2mt.json").read_text() == "new"


@pytest.mark.parametrize("moment", range(3))
def test_two_renames_can_be_killed_at_any_moment(moment: int, tmp_path: Path) -> None:
    target, new, replaced = (tmp_path / name for name in ("out", "checkpoint", "replaced"))
    checkpoint(target, name="old")
    checkpoint(new, name="new")
    work = publication(new, target, replaced)
    faulty = FaultyStorage()
    faulty.exchanges = False
    faulty.kill("rename", nth=moment + 1)
    with pytest.raises(Kill) if moment < 2 else nullcontext():
        faulty.publish(work)
    LOCAL.take_back(work)
    assert name_of(target) == ("new" if moment == 2 else "old")
    assert name_of(replaced if moment == 2 else new) == ("old" if moment == 2 else "new")


def test_filling_that_fails_is_undone(tmp_path: Path) -> None:
    target, new = tmp_path / "out", checkpoint(tmp_path / "checkpoint", name="new")
    target.mkdir()
    faulty = FaultyStorage()
    faulty.fail("rename", f"{target}/0$", errno.ENOSPC)
    with pytest.raises(DestinationError, match="cannot be put in place: No space left on device"):
        faulty.publish(publication(new, target, tmp_path / "replaced"))
    assert os.listdir(target) == []
    assert sorted(os.listdir(new)) == ["0", "ax2mt.json", "maxtext.yml"]


def test_nobodys_own_files_are_taken_back(tmp_path: Path) -> None:
    target, new = tmp_path / "out", checkpoint(tmp_path / "checkpoint", name="new")
    target.mkdir()
    (target / "maxtext.yml").write_text("mine")
    (target / "notes.txt").write_text("mine")
    LOCAL.take_back(publication(new, target, tmp_path / "replaced"))
    assert sorted(os.listdir(target)) == ["maxtext.yml", "notes.txt"]
    assert (new / "maxtext.yml").read_text() == "new"


def test_an_empty_directory_stays_the_one_it_is(tmp_path: Path) -> None:
    target, new = tmp_path / "out", checkpoint(tmp_path / "checkpoint", name="new")
    target.mkdir()
    target.chmod(0o2750)
    (target / ".DS_Store").write_text("litter")
    before = target.stat()
    LOCAL.publish(publication(new, target, tmp_path / "replaced"))
    after = target.stat()
    assert (after.st_ino, after.st_mode, after.st_uid, after.st_gid) == (
        before.st_ino, before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip
    assert sorted(os.listdir(target)) == [".DS_Store", "0", "ax2mt.json", "maxtext.yml"]


@EXCHANGE
@pytest.mark.usefixtures("system")
def test_a_replaced_directory_hands_on_its_rights(tmp_path: Path) -> None:
    target, new = checkpoint(tmp_path / "out", name="old"), checkpoint(tmp_path / "checkpoint", name="new")
    target.chmod(0o2770)
    if os.geteuid() == 0:
        os.chown(target, 12345, 23456)
        target.chmod(0o2770)
    before = target.stat()
    LOCAL.publish(publication(new, target, tmp_path / "replaced"))
    after = target.stat()
    assert name_of(target) == "new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_looking_before_work_leaves_no_trace(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    checkpoint(tmp_path / "old", name="old")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / PROBE).mkdir()  # from a run that was killed
    for name in ("new", "old", "empty"):
        LOCAL.prepare(str(tmp_path / name), str(work))
        assert os.listdir(work) == []
    assert sorted(os.listdir(tmp_path)) == ["empty", "old", "work"]
    assert name_of(tmp_path / "old") == "old"
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize("replies", ["overwrites", "always refuses"])
def test_systems_that_answer_in_their_own_way_are_not_asked(replies: str, tmp_path: Path) -> None:
    """FUSE file systems: some replace a directory that is not empty, some have one answer for every rename onto one."""
    target, work = checkpoint(tmp_path / "out", name="old"), tmp_path / "work"
    work.mkdir()

    class Odd(LocalStorage):
        def rename(self, source: str, target: str) -> None:
            if replies == "always refuses":
                raise PermissionError(1, "Operation not permitted")
            shutil.rmtree(target)
            shutil.move(source, target)

    Odd().prepare(str(target), str(work))
    assert name_of(target) == "old"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a group that is not our own")
@pytest.mark.parametrize("inherits", [True, False])
def test_what_is_made_has_the_group_of_the_directory_it_is_made_for(inherits: bool, tmp_path: Path) -> None:
    target, work = tmp_path / "out", tmp_path / "work"
    target.mkdir()
    work.mkdir()
    os.chown(target if inherits else work, -1, 23456)
    (target if inherits else work).chmod(0o2775)
    LOCAL.prepare(str(target), str(work))
    (work / "made" / "deep").mkdir(parents=True)
    status = (work / "made" / "deep").stat()
    assert (status.st_gid, bool(status.st_mode & stat.S_ISGID)) == (
        (23456, True) if inherits else (os.getegid(), False)
    )


@on_linux
def test_default_access_rights_are_handed_on(mounted: Callable[[str, int], Path]) -> None:
    disk = mounted("ext4", 16 << 20)
    (disk / "out").mkdir()
    (disk / "work").mkdir()
    # acl(5) in the kernel's form: version 2, then tag, permissions and id of user, group, mask and others.
    entries = ((1, 7, 0xFFFFFFFF), (2, 5, 12345), (4, 5, 0xFFFFFFFF), (16, 5, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF))
    packed = b"".join(
        tag.to_bytes(2, "little") + p.to_bytes(2, "little") + i.to_bytes(4, "little") for tag, p, i in entries
    )
    acl = (2).to_bytes(4, "little") + packed
    try:
        os.setxattr(disk / "out", publishing.DEFAULT_ACL, acl)
    except OSError:
        pytest.skip("no access control lists here")
    LOCAL.prepare(str(disk / "out"), str(disk / "work"))
    assert os.getxattr(disk / "work", publishing.DEFAULT_ACL) == acl
