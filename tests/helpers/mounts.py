"""File systems of a test's own, that no killed test run leaves behind."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

_CLONE_NEWNS = 0x00020000
"""Linux, sched.h: a mount namespace of its own."""


def keep_to_this_process() -> bool:
    """From now on mounts are seen by this process and its children only, and go when the last of them does.

    A run that is killed between a mount and its unmount would otherwise leave a directory that nobody can remove: later
    runs of pytest, which tidy up the temporary directories of earlier ones, fail there. Threads that exist already
    stay where they are; call this before libraries start theirs.

    Returns:
        Whether mounts are private now: where this needs root or Linux and there is none, nothing changes.
    """
    try:
        done = ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) == 0
    except (AttributeError, OSError, TypeError):
        return False
    return done and _succeeds("mount", "--make-rprivate", "/")


def memory(place: Path, size: int) -> bool:
    """Mounts `size` bytes of memory as a file system on the new directory `place`, where the system lets us."""
    place.mkdir()
    return PRIVATE and _succeeds("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))


def image(kind: str, place: Path, size: int) -> bool:
    """Mounts a new file system of a kind ("ext4") and of `size` bytes on the new directory `place`, if it can."""
    program = shutil.which(f"mkfs.{kind}", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None or not PRIVATE:
        return False
    place.mkdir()
    file = place.with_name(f"image-{place.name}")
    with file.open("wb") as opened:
        opened.truncate(size)
    subprocess.run([program, "-q", str(file)], check=True, capture_output=True)
    return _succeeds("mount", "-o", "loop", str(file), str(place))


def overlay(place: Path, lower: Path) -> bool:
    """Mounts an overlay over the directory `lower` on the new directory `place`; what is written goes beside it."""
    place.mkdir()
    upper, work = (place.with_name(f"{place.name}-{name}") for name in ("upper", "work"))
    upper.mkdir()
    work.mkdir()
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    return PRIVATE and _succeeds("mount", "-t", "overlay", "-o", layers, "overlay", str(place))


def bind(place: Path, directory: Path) -> bool:
    """Shows `directory` at the existing directory `place` too: a mount point on the same device."""
    return PRIVATE and _succeeds("mount", "--bind", str(directory), str(place))


def remove(place: Path) -> None:
    """Unmounts what is on `place`, also while a file in it is still open."""
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)


def _succeeds(*command: str) -> bool:
    found = shutil.which(command[0]) is not None
    return found and subprocess.run(command, capture_output=True, check=False).returncode == 0


PRIVATE = keep_to_this_process()
