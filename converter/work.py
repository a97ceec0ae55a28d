"""Memory as a contract: a budget for bytes in flight, the allocator's habits, and the measured peak."""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Protocol

_IMPORTED = time.monotonic()

LONGEST_START = 600
"""Seconds from the start of a process until this module is imported, at most."""


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
            raise ValueError(f"{amount} bytes requested, the budget has {self.limit}")
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


def process_seconds() -> float:
    """Seconds since this process was started; where the system does not tell, since this module was imported."""
    since_import = time.monotonic() - _IMPORTED
    try:
        with open("/proc/self/stat", "rb") as file:
            # What is in parentheses is the program's name, which may hold anything.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return since_import
    # Some sandboxes count the start from another moment.
    return age if 0 <= age - since_import < LONGEST_START else since_import


class Progress(Protocol):
    """Is notified of finished work, from several threads.

    Work on leaves is counted, from `start` on. Work of other kinds is named, by `say`. `close` comes last.
    """

    def start(self, leaves: int, total_bytes: int) -> None:
        """So many leaves, and so many bytes in them, are to be done."""

    def advance(self, count: int) -> None:
        """So many more bytes are done."""

    def leaf_done(self, path: str) -> None:
        """All of a leaf is done."""

    def moved(self, objects: int, count: int) -> None:
        """So many objects, and bytes of them, were moved by a store itself."""

    def say(self, text: str) -> None:
        """What is being worked on, such as "layer 3 of 12"."""

    def close(self) -> None:
        """Work has ended, well or not."""


class Silent(Progress):
    """Prints nothing."""


def run_units(work: Iterator[Callable[[], None]], jobs: int) -> None:
    """Runs units of work in order, several at a time; units are made only as they are asked for.

    Raises:
      Exception: the first one that a unit raised; no further units are then started.
    """
    stop = threading.Event()
    lock = threading.Lock()

    def worker() -> None:
        try:
            while not stop.is_set():
                with lock:
                    unit = next(work, None)
                if unit is None:
                    return
                unit()
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(jobs, "ax2mt-verify") as pool:
        futures = [pool.submit(worker) for _ in range(jobs)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in futures:
        future.result()
