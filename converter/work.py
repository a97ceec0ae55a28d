"""Memory as a contract: a budget for bytes in flight, the allocator's habits, and the measured peak."""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Protocol


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


class Progress(Protocol):
    """Told of everything that was written; called from several threads."""

    def start(self, leaves: int, total_bytes: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def leaf_done(self, path: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Says nothing."""

    def start(self, leaves: int, total_bytes: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def leaf_done(self, path: str) -> None:
        pass

    def close(self) -> None:
        pass


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
