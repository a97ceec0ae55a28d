"""The pass route: compressed chunks of the source become chunks of the target as they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from converter.arrays import (
    Array,
    ChunkWriter,
    FrameCheck,
    LeafStore,
    StackStore,
    check_chunk,
    open_chunk,
    says_its_size,
    target_index,
)
from converter.errors import SourceError
from converter.storage import Reader, ReadError


def copy_chunk(array: Array, index: tuple[int, ...], store: LeafStore | StackStore) -> int:
    """Copies one chunk; returns its bytes.

    The chunk's zstd frame is followed from block to block, so that truncated and foreign files are found. One that does
    not say what size it decodes to is decoded first. A chunk that an object store copies by itself is not looked at.

    Raises:
      SourceError: the chunk cannot be read, or is not one whole chunk of this array.
      DestinationError: it cannot be written.
    """
    with _open(array, index) as (chunk, where):
        if not store.moves(chunk):
            _check_head(array, index, chunk, where)
        size = chunk.size()
        check = None if array.compressor is None else FrameCheck(array.chunk_bytes, where)
        look: Callable[[memoryview], None] = check.feed if check else lambda _: None

        def fill(writer: ChunkWriter) -> None:
            if writer.copy_from(chunk, look) and check:
                check.finish()

        store.store_chunk(target_index(index, store.leaf.encoding.order), size, fill)
        return size


def link_chunk(array: Array, index: tuple[int, ...], store: LeafStore | StackStore) -> int:
    """Links one chunk into the target; returns its bytes.

    Only the head of the zstd frame is checked: to follow its blocks would take longer than all the rest. One that does
    not say what size it decodes to is decoded.

    Raises:
      SourceError: the chunk cannot be read, or is not a chunk of this array.
      DestinationError: it cannot be linked.
    """
    with _open(array, index) as (chunk, where):
        _check_head(array, index, chunk, where)
        size = chunk.size()
    store.link_chunk(target_index(index, store.leaf.encoding.order), array.chunk_file(index))
    return size


@contextmanager
def _open(array: Array, index: tuple[int, ...]) -> Iterator[tuple[Reader, str]]:
    """An open chunk and its name for messages; what cannot be read of it in the block is the source's fault."""
    where, path = array.chunk_label(index), array.chunk_file(index)
    try:
        chunk = open_chunk(array, index)
    except OSError as error:
        raise SourceError(f"{where}: {path} cannot be read: {error.strerror}") from None
    with chunk:
        try:
            yield chunk, where
        except ReadError as error:
            raise SourceError(f"{where}: {error}") from None


def _check_head(array: Array, index: tuple[int, ...], chunk: Reader, where: str) -> None:
    """Sees that a chunk has the size that it should decode to, as far as that takes no reading of it all."""
    try:
        says = says_its_size(array, chunk, where)
    except OSError as error:
        raise SourceError(f"{where}: cannot be read: {error.strerror}") from None
    if not says:
        check_chunk(array, index)
