"""Prints where tests write: a file system in memory if it has the room, otherwise `build/tests`.

    python tests/helpers/scratch.py

A conversion of a small checkpoint makes and removes hundreds of files, and waits for a disk four fifths of its time.
Tests that need a certain file system mount it.
"""

import os
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")
ROOM = 6 << 30
"""Bytes; the suite has 1.5 GiB in files at most, and its processes need memory too."""

LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
USED = ("memory.current", "memory/memory.usage_in_bytes")


def room(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that files in memory may take: of the file system, of the machine, and of the container."""
    try:
        space = os.statvfs(MEMORY)
    except OSError:
        return 0
    return min(space.f_bavail * space.f_frsize, psutil.virtual_memory().available, _room_of_container(cgroup))


def _room_of_container(cgroup: Path) -> int:
    for limit, used in zip(LIMITS, USED, strict=True):
        try:
            return int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return 1 << 62


def place(name: str = "tests") -> Path:
    """A directory of this process's own; pytest makes it, and whoever asked for it removes it."""
    if os.access(MEMORY, os.W_OK) and room() >= ROOM:
        return MEMORY / f"ax2mt-{name}-{os.getuid()}-{os.getpid()}"
    return ROOT / "build" / name


if __name__ == "__main__":
    print(place())
