"""The pass route: compressed chunks of the source become chunks of the target as they are."""

import math
import os
from collections.abc import Callable
from typing import Any

from converter.errors import SourceError
from converter.leaf_store import LeafStore
from converter.zarr2 import ArraySpec, chunk_key
from converter.zstd_frame import check_frame

COPY_SIZE = 1 << 20
"""Small enough that what was read is still in the processor's cache when it is summed and written."""


def target_index(index: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Where a source chunk stands in the target's grid, when source dimension i is target dimension order[i]."""
    result = [0] * len(index)
    for source_dim, target_dim in enumerate(order):
        result[target_dim] = index[source_dim]
    return tuple(result)


def copy_chunk(array: ArraySpec, index: tuple[int, ...], store: LeafStore) -> int:
    """Copies one chunk; returns its bytes.

    The chunk's zstd frame is followed from block to block, so that truncated and foreign files are found.

    Raises:
      SourceError: the chunk cannot be read, or is not one whole chunk of this array.
      DestinationError: it cannot be written.
    """
    where = f"{array.path}: chunk {chunk_key(index)}"
    descriptor = _open(array, index, where)
    try:
        size = os.fstat(descriptor).st_size

        def fill(write: Callable[[Any], None]) -> None:
            _copy(descriptor, size, size if store.needs_whole_chunks else COPY_SIZE, write, where)
            _check(array, descriptor, size, where)

        store.store_chunk(target_index(index, store.leaf.encoding.order), fill)
        return size
    finally:
        os.close(descriptor)


def link_chunk(array: ArraySpec, index: tuple[int, ...], store: LeafStore) -> int:
    """Links one chunk into the target; returns its bytes.

    Only the head of the zstd frame is checked: to follow its blocks would take longer than all the rest.

    Raises:
      SourceError: the chunk cannot be read, or is not a chunk of this array.
      DestinationError: it cannot be linked.
    """
    where = f"{array.path}: chunk {chunk_key(index)}"
    descriptor = _open(array, index, where)
    try:
        size = os.fstat(descriptor).st_size
        _check(array, descriptor, size, where, whole=False)
    finally:
        os.close(descriptor)
    store.link_chunk(target_index(index, store.leaf.encoding.order), os.path.join(array.directory, chunk_key(index)))
    return size


def _open(array: ArraySpec, index: tuple[int, ...], where: str) -> int:
    path = os.path.join(array.directory, chunk_key(index))
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"{where}: {path} cannot be read: {error.strerror}") from None


def _copy(descriptor: int, size: int, piece: int, write: Callable[[Any], None], where: str) -> None:
    buffer = memoryview(bytearray(piece))
    done = 0
    while done < size:
        try:
            count = os.readv(descriptor, [buffer])
        except OSError as error:
            raise SourceError(f"{where}: cannot be read: {error.strerror}") from None
        if not count:
            raise SourceError(f"{where}: became shorter while it was read ({done} of {size} bytes)")
        done += count
        write(buffer[:count])
    if os.fstat(descriptor).st_size != size:
        raise SourceError(f"{where}: changed its size while it was read")


def _check(array: ArraySpec, descriptor: int, size: int, where: str, *, whole: bool = True) -> None:
    content = math.prod(array.chunks) * array.item_size
    try:
        if array.compressor is not None:
            check_frame(descriptor, size, content, where, whole=whole)
        elif size != content:
            raise SourceError(f"{where}: {size} bytes, the chunk has {content}")
    except OSError as error:
        raise SourceError(f"{where}: cannot be read: {error.strerror}") from None
