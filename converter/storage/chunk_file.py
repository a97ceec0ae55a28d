"""The file of one chunk: under another name until it is whole, and past the page cache where that pays.

Direct writes (O_DIRECT) go from memory to the device: the kernel neither allocates a page of cache for each page
written nor copies it there and writes it back later, which costs more than all the rest of a copy (BENCHMARKS.md), and
no dirty pages are left for a flush at the end.
"""

import errno
import fcntl
import functools
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from converter.storage.base import Reader, ReadError, write_through
from converter.storage.file_reader import FileReader

PART = ".part"
PAGE = 4096
"""Direct writes begin and end on multiples of this; no device asks for more than its file system's block."""

COPY_SIZE = 1 << 20
"""Small enough that what was read is still in the processor's cache when it is looked at and written."""

MAPPED_SIZE = 2 << 20
"""Bytes of pages that are written at once: they count as this process's memory meanwhile."""

WRITE_SIZE = 4 << 20
"""Bytes of one direct write: enough to keep a device busy, and small against a chunk."""

DIRECT_SYSTEMS = frozenset({"ext4", "xfs", "f2fs"})
"""File systems on which direct writes are plain disk writes; network and union file systems do other things."""

FICLONE = 0x40049409
"""Linux's ioctl that makes a file share another file's extents (linux/fs.h)."""


def open_chunk_file(
    path: str, size: int, part: str = PART, settle: Callable[[str, str], None] = os.replace
) -> "ChunkFile":
    """Begins the file of a chunk.

    Args:
      path: its name.
      size: its bytes, about.
      part: what is added to the name while it is written.
      settle: gives a file that is whole its name: from one name to the other.

    Raises:
      OSError: it cannot be created.
    """
    direct = size >= WRITE_SIZE and _is_direct(os.stat(os.path.dirname(path)).st_dev)
    return (DirectFile if direct else ChunkFile)(path, part, settle)


def write_whole(file: "ChunkFile", data: bytes, *, durable: bool) -> None:
    """Writes all of a small file; what has its name stays until then.

    Args:
      file: one that was begun.
      data: its content.
      durable: it has to be on disk before it has its name.
    """
    try:
        file.write(data)
        if durable:
            file.flush()
        file.commit()
    except BaseException:
        file.abort()
        raise


class ChunkFile:
    """A file that is written through the page cache."""

    _takes_pages = False
    """Whether whole pages of memory are written without a copy."""

    def __init__(self, path: str, part: str = PART, settle: Callable[[str, str], None] = os.replace):
        self.path = path
        self._part = path + part
        self._settle = settle
        self._piece: mmap.mmap | None = None
        self.descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def write(self, data: Any) -> None:
        view = memoryview(data)
        while len(view):
            view = view[self._put_some(view) :]

    def room(self) -> memoryview:
        """Memory of the file's own, at least one byte, to put the next bytes into; `added` then takes them."""
        if self._piece is None:
            self._piece = _take_memory()
        return memoryview(self._piece)

    def added(self, count: int) -> None:
        """Takes bytes that were put at the start of `room`."""
        self.write(self.room()[:count])

    def copy_from(self, source: Reader, look: Callable[[memoryview], None]) -> None:
        """Shares the source's blocks on disk, or writes its pages directly, or copies it piece by piece.

        Its bytes are read in any case, to be looked at: no file system knows their checksum.
        """
        size = source.size()
        copy = _Copy(source, size, look)
        own = isinstance(source, FileReader)
        if own and self._clone(source.fileno()):
            copy.read_to(size)
        else:
            if own and self._takes_pages:
                for start in range(0, size // PAGE * PAGE, MAPPED_SIZE):
                    count = min(MAPPED_SIZE, size // PAGE * PAGE - start)
                    copy.read_to(start + count)
                    self._put_mapped(source.fileno(), start, count)
            copy.read_to(size, self.write)
        if source.size() != size:
            raise ReadError("changed its size while it was read")

    def write_pages(self, pages: memoryview) -> None:
        """Writes whole pages, without copying them where the file takes pages; before any other write."""
        self.write(pages)

    def flush(self) -> None:
        """Makes what was written durable."""
        os.fsync(self.descriptor)

    def commit(self) -> None:
        self._close()
        self._settle(self._part, self.path)

    def abort(self) -> None:
        try:
            self._close()
            os.unlink(self._part)
        except OSError:
            pass

    def _clone(self, source: int) -> bool:
        """Makes the content that of another file, sharing its blocks on disk; returns whether the file system can."""
        try:
            fcntl.ioctl(self.descriptor, FICLONE, source)
        except OSError:
            return False
        os.lseek(self.descriptor, 0, os.SEEK_END)
        return True

    def _put_mapped(self, source: int, start: int, count: int) -> None:
        """Writes the pages that the kernel holds since they were read; no copy of them is made.

        Only system calls touch the mapping: what they cannot read, of a file cut short meanwhile, is an error for them.
        """
        mapping = mmap.mmap(source, count, prot=mmap.PROT_READ, offset=start)
        try:
            self.write_pages(memoryview(mapping))
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise ReadError("became shorter while it was read") from None
            raise
        # Unmapped when the last view of it is gone; after an error its traceback still holds one.

    def _put_some(self, view: memoryview) -> int:
        """Writes what the system takes at once; returns how much that was."""
        return os.write(self.descriptor, view)

    def _close(self) -> None:
        """Closes the file once: its number may be another file's afterwards."""
        if self._piece is not None:
            _spare_memory.append(self._piece)
            self._piece = None
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class DirectFile(ChunkFile):
    """A file that is written past the page cache, in large pieces from memory that is aligned to pages.

    One piece is written while the next one is made. The last one, which fills no whole page, takes the usual way.
    """

    _takes_pages = True

    def __init__(self, path: str, part: str = PART, settle: Callable[[str, str], None] = os.replace):
        super().__init__(path, part, settle)
        self._memory = _Pieces()
        self._writer: ThreadPoolExecutor | None = None
        self._written: Future[None] | None = None

    def write(self, data: Any) -> None:
        write_through(self, data)

    def room(self) -> memoryview:
        return self._memory.room()

    def added(self, count: int) -> None:
        self._memory.held += count
        if self._memory.is_full:
            self._wait()
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "ax2mt-write")
            self._written = self._writer.submit(self._put, self._memory.take())

    def write_pages(self, pages: memoryview) -> None:
        self._put(pages)

    def commit(self) -> None:
        self._wait()
        rest = self._memory.take()
        whole = len(rest) // PAGE * PAGE
        self._put(rest[:whole])
        super().write(rest[whole:])
        super().commit()

    def _wait(self) -> None:
        """Waits for the piece that is being written."""
        if self._written is not None:
            written, self._written = self._written, None
            written.result()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.shutdown()
        self._memory.close()
        super()._close()

    def _put(self, pages: memoryview) -> None:
        """Writes whole pages directly; what the device does not take so goes the usual way."""
        direct = _set_direct(self.descriptor, True)
        while direct and len(pages) >= PAGE:
            try:
                pages = pages[self._put_some(pages) :]
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break
        _set_direct(self.descriptor, False)
        super().write(pages)


class _Copy:
    """Reads a blob from front to back, once, and shows every piece."""

    def __init__(self, source: Reader, size: int, look: Callable[[memoryview], None]):
        self.source = source
        self.size = size
        self.look = look
        self.done = 0
        self.buffer = memoryview(bytearray(min(COPY_SIZE, size)))

    def read_to(self, end: int, take: Callable[[memoryview], None] | None = None) -> None:
        """Reads up to a position; every piece is looked at, and then taken."""
        while self.done < end:
            try:
                count = self.source.readinto(self.buffer[: end - self.done])
            except OSError as error:
                raise ReadError(f"cannot be read: {error.strerror}") from None
            if not count:
                raise ReadError(f"became shorter while it was read ({self.done} of {self.size} bytes)")
            self.done += count
            self.look(self.buffer[:count])
            if take is not None:
                take(self.buffer[:count])


class _Pieces:
    """Two aligned pieces of memory: one is filled while the other is written."""

    def __init__(self) -> None:
        self._memory: list[mmap.mmap] = []
        self.held = 0

    @property
    def is_full(self) -> bool:
        return self.held == WRITE_SIZE

    def room(self) -> memoryview:
        """What is free of the piece that is being filled."""
        if not self._memory:
            self._memory = [_take_memory(), _take_memory()]
        return memoryview(self._memory[0])[self.held :]

    def take(self) -> memoryview:
        """What is held; it stays as it is until the next call."""
        if not self._memory:
            return memoryview(b"")
        self._memory.reverse()
        held, self.held = self.held, 0
        return memoryview(self._memory[1])[:held]

    def close(self) -> None:
        """Leaves the memory for other files."""
        _spare_memory.extend(self._memory)
        self._memory = []


_spare_memory: list[mmap.mmap] = []
"""Pieces that no file uses now: as many as files were ever written at once."""


def _take_memory() -> mmap.mmap:
    try:
        return _spare_memory.pop()
    except IndexError:
        memory = mmap.mmap(-1, WRITE_SIZE)
        try:
            # In large pages the kernel finds the memory of a direct write in a few steps.
            memory.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, AttributeError):
            pass  # a hint, where there is such a thing
        return memory


def _set_direct(descriptor: int, wanted: bool) -> bool:
    """Turns O_DIRECT on or off; returns whether that was possible."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True


@functools.cache
def _is_direct(device: int) -> bool:
    """Whether direct writes pay on a device, by the kind of its file system."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return False
    # proc(5): the device is the third field; the kind follows a lone dash.
    return any(fields[2] == number and fields[fields.index("-") + 1] in DIRECT_SYSTEMS for fields in mounts)
