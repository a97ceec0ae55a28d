"""The pass route: compressed chunks of the source become chunks of the target as they are."""

import errno
import mmap
import os
from collections.abc import Callable
from typing import Any

from converter.arrays import (
    MAX_HEADER,
    Array,
    ChunkWriter,
    FrameCheck,
    LeafStore,
    check_chunk,
    frame_header,
)
from converter.errors import SourceError
from converter.storage import PAGE

COPY_SIZE = 1 << 20
"""Small enough that what was read is still in the processor's cache when it is summed and written."""

MAPPED_SIZE = 2 << 20
"""Bytes of pages that are written at once: they count as this process's memory meanwhile."""


def target_index(index: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Where a source chunk stands in the target's grid, when source dimension i is target dimension order[i]."""
    result = [0] * len(index)
    for source_dim, target_dim in enumerate(order):
        result[target_dim] = index[source_dim]
    return tuple(result)


def copy_chunk(array: Array, index: tuple[int, ...], store: LeafStore) -> int:
    """Copies one chunk; returns its bytes.

    The chunk's zstd frame is followed from block to block, so that truncated and foreign files are found. One that does
    not say what size it decodes to is decoded first.

    Raises:
      SourceError: the chunk cannot be read, or is not one whole chunk of this array.
      DestinationError: it cannot be written.
    """
    where = array.chunk_label(index)
    descriptor = _open(array, index, where)
    try:
        _check_head(array, index, descriptor, where)
        size = os.fstat(descriptor).st_size
        reader = _ChunkReader(array, descriptor, size, where)
        store.store_chunk(target_index(index, store.leaf.encoding.order), size, reader.copy_to)
        return size
    finally:
        os.close(descriptor)


def link_chunk(array: Array, index: tuple[int, ...], store: LeafStore) -> int:
    """Links one chunk into the target; returns its bytes.

    Only the head of the zstd frame is checked: to follow its blocks would take longer than all the rest. One that does
    not say what size it decodes to is decoded.

    Raises:
      SourceError: the chunk cannot be read, or is not a chunk of this array.
      DestinationError: it cannot be linked.
    """
    where = array.chunk_label(index)
    descriptor = _open(array, index, where)
    try:
        _check_head(array, index, descriptor, where)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    store.link_chunk(target_index(index, store.leaf.encoding.order), array.chunk_file(index))
    return size


class _ChunkReader:
    """Reads a chunk's file from front to back, once."""

    def __init__(self, array: Array, descriptor: int, size: int, where: str):
        self.descriptor = descriptor
        self.size = size
        self.where = where
        self.done = 0
        self.buffer = memoryview(bytearray(min(COPY_SIZE, size)))
        self.check = None if array.compressor is None else FrameCheck(array.chunk_bytes, where)

    def copy_to(self, writer: ChunkWriter) -> None:
        """Copies the whole file: by sharing its blocks on disk, by direct writes of its pages, or piece by piece.

        Its bytes are read in any case, for their checksum.
        """
        take = writer.write
        if writer.clone(self.descriptor):
            take = writer.add
        elif writer.takes_pages:
            for start in range(0, self.size // PAGE * PAGE, MAPPED_SIZE):
                count = min(MAPPED_SIZE, self.size // PAGE * PAGE - start)
                self._read_to(start + count, writer.add)
                self._write_pages(start, count, writer)
        self._read_to(self.size, take)
        if self.check is not None:
            self.check.finish()
        if os.fstat(self.descriptor).st_size != self.size:
            raise SourceError(f"{self.where}: changed its size while it was read")

    def _read_to(self, end: int, take: Callable[[Any], None]) -> None:
        while self.done < end:
            count = _read(os.readv, self.where, self.descriptor, [self.buffer[: end - self.done]])
            if not count:
                raise SourceError(f"{self.where}: became shorter while it was read ({self.done} of {self.size} bytes)")
            self.done += count
            if self.check is not None:
                self.check.feed(self.buffer[:count])
            take(self.buffer[:count])

    def _write_pages(self, start: int, count: int, writer: ChunkWriter) -> None:
        """Writes the pages that the kernel holds since they were read; no copy of them is made.

        Only system calls touch the mapping: what they cannot read, of a file cut short meanwhile, is an error for them.
        """
        mapping = mmap.mmap(self.descriptor, count, prot=mmap.PROT_READ, offset=start)
        try:
            writer.write_pages(memoryview(mapping))
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise SourceError(f"{self.where}: became shorter while it was read") from None
            raise
        # Unmapped when the last view of it is gone; after an error its traceback still holds one.


def _open(array: Array, index: tuple[int, ...], where: str) -> int:
    path = array.chunk_file(index)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"{where}: {path} cannot be read: {error.strerror}") from None


def _read(function: Callable[..., Any], where: str, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except OSError as error:
        raise SourceError(f"{where}: cannot be read: {error.strerror}") from None


def _check_head(array: Array, index: tuple[int, ...], descriptor: int, where: str) -> None:
    """Sees that a chunk has the size that it should decode to, as far as that takes no reading of it all."""
    if array.compressor is None:
        size = os.fstat(descriptor).st_size
        if size != array.chunk_bytes:
            raise SourceError(f"{where}: {size} bytes, the chunk has {array.chunk_bytes}")
    elif not frame_header(_read(os.pread, where, descriptor, MAX_HEADER, 0), array.chunk_bytes, where).has_size:
        check_chunk(array, index)
