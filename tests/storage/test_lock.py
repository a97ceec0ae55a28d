"""The lock on a work area, also where the file system has none."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from converter.storage.lock import FileLock


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = FileLock(path)
    with pytest.raises(BlockingIOError):
        FileLock(path)
    first.close()
    FileLock(path).close()


def test_a_file_that_was_made_anew_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = FileLock(str(path))
    assert held.is_in_place()
    path.unlink()
    assert not held.is_in_place()
    path.touch()
    assert not held.is_in_place()
    held.close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, elsewhere = tmp_path / "disk", tmp_path / "tmp"
    disk.mkdir()
    elsewhere.mkdir()
    flock = fcntl.flock

    def refuse(descriptor: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(disk)):
            raise OSError(number, os.strerror(number))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("converter.storage.lock.LOCAL", str(elsewhere))
    held = FileLock(str(disk / "lock"))
    assert held.is_in_place()
    assert len(list(elsewhere.iterdir())) == 1
    with pytest.raises(BlockingIOError):
        FileLock(str(disk / "lock"))
    other = FileLock(str(disk / "other"))
    held.close()
    FileLock(str(disk / "lock")).close()
    other.close()


def test_nothing_stays_open_after_a_failure(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        FileLock(str(tmp_path / "no" / "lock"))
    held = FileLock(str(tmp_path / "lock"))
    with pytest.raises(BlockingIOError):
        FileLock(str(tmp_path / "lock"))
    held.close()
    assert len(os.listdir("/proc/self/fd")) == before
