"""Memory as a contract: a budget for bytes in flight, the allocator's habits, and the measured peak."""

import ctypes
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from converter.errors import UsageError

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(i?B)?", re.IGNORECASE | re.ASCII)


class ByteBudget:
    """Lets work start only while the bytes in flight stay under a limit; first come, first served."""

    def __init__(self, limit: int):
        self.limit = limit
        self.peak = 0
        self._used = 0
        self._queue: list[object] = []
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Waits until `amount` bytes are free and takes them for the time of the block.

        Raises:
          ValueError: the amount is larger than the whole budget, so that it could never be had.
        """
        if amount > self.limit:
            raise ValueError(f"{amount} bytes are asked for, the budget has {self.limit}")
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            self._changed.wait_for(lambda: self._queue[0] is ticket and self._used + amount <= self.limit)
            self._queue.pop(0)
            self._used += amount
            self.peak = max(self.peak, self._used)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= amount
                self._changed.notify_all()


def parse_size(text: str) -> int:
    """Bytes from a text such as `512MiB`, `1GiB`, `2G` or `1000000`; units are powers of 1024.

    Raises:
      UsageError: the text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is no size; expected something like 512MiB or 2GiB")
    return int(float(match[1]) * (1 << (10 * "KMGT".find(match[2].upper()) + 10 if match[2] else 0)))


def format_size(count: int) -> str:
    """Bytes for people, in powers of 1024."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        # What would be rounded to 1024.0 belongs to the next unit, and what to 10.00 has one decimal as 10.1 has.
        if value < 1023.95:
            return f"{value:.2f} {unit}" if value < 9.995 else f"{value:.1f} {unit}"
    return f"{value / 1024:.2f} TiB"


def reuse_freed_memory() -> None:
    """Makes glibc keep freed blocks for the next ones instead of giving them back to the kernel.

    Block buffers are tens of megabytes; with glibc's defaults each is mapped and unmapped, and page faults then cost as
    much as the compression. Does nothing on other C libraries. Must be called before any thread is started.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL("libc.so.6", use_errno=True)
        libc.gnu_get_libc_version.restype = ctypes.c_char_p
        libc.gnu_get_libc_version()
    except (OSError, AttributeError):
        return
    mmap_threshold, trim_threshold, arena_max = -3, -1, -8
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(arena_max, 1)


def peak_resident() -> int:
    """The largest resident set this process has had so far, in bytes.

    Linux hands `ru_maxrss` of the process that started us down to us; /proc knows our own.
    """
    import resource

    try:
        with open("/proc/self/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
