"""Arrays that are the parts of one: layers with a name each, seen as one array with a dimension of layers in front.

A chunk of a stack is a chunk of one part: chunks have length 1 along the first dimension, and the first number of a
chunk's place is the part's. So whoever cuts, passes or rewrites chunks need not know of stacks; only names, metadata
and digests belong to the parts.
"""

import dataclasses
from collections.abc import Sequence

from converter.arrays.array import Array
from converter.arrays.encoding import Encoding
from converter.arrays.writer import ChunkFill, LeafStore
from converter.errors import SourceError
from converter.storage import Reader


def stack(path: str, parts: Sequence[Array]) -> Array:
    """Arrays that are read, as one.

    Args:
      path: what the stack is called.
      parts: one or more, which are equal in all but their places.

    Raises:
      SourceError: they are not; names the first that differs.
    """
    first = parts[0]
    for part in parts[1:]:
        for what, own, other in (
            ("shape", list(part.shape), list(first.shape)),
            ("dtype", part.dtype, first.dtype),
            ("chunks", list(part.chunks), list(first.chunks)),
            ("encoding", _shown(part.encoding), _shown(first.encoding)),
        ):
            if own != other:
                raise SourceError(
                    f"{part.path}: {what} {own}, but {first.path} has {other}; the layers of a model are stored alike"
                )
    order = (0, *(dim + 1 for dim in first.encoding.order)) if first.encoding.order else ()
    return Array(
        path=path,
        dtype=first.dtype,
        shape=(len(parts), *first.shape),
        chunks=(1, *first.chunks),
        encoding=dataclasses.replace(first.encoding, order=order),
        directory=first.directory,
        database_key=first.database_key,
        parts=tuple(parts),
    )


def split(leaf: Array, paths: Sequence[str]) -> Array:
    """A leaf that is planned, made a stack of leaves.

    Args:
      leaf: the whole, of chunks with length 1 along the first dimension.
      paths: the path of each part.
    """
    assert (leaf.chunks[0], leaf.shape[0]) == (1, len(paths)), leaf.path
    order = leaf.encoding.order
    assert not order or order[0] == 0, leaf.path
    encoding = dataclasses.replace(leaf.encoding, order=tuple(dim - 1 for dim in order[1:]))
    part = dataclasses.replace(leaf, shape=leaf.shape[1:], chunks=leaf.chunks[1:], encoding=encoding)
    return dataclasses.replace(leaf, parts=tuple(dataclasses.replace(part, path=path) for path in paths))


class StackStore:
    """The places of the parts of one leaf, as one place; safe to use from several threads."""

    def __init__(self, leaf: Array, parts: Sequence[LeafStore]):
        self.leaf = leaf
        self.each = tuple(parts)

    def finish(self) -> None:
        """Ends all parts, see `LeafStore.finish`."""
        for part in self.each:
            part.finish()

    def store_chunk(self, index: tuple[int, ...], size: int, fill: ChunkFill) -> None:
        """Stores one chunk, see `LeafStore.store_chunk`."""
        self.each[index[0]].store_chunk(index[1:], size, fill)

    def link_chunk(self, index: tuple[int, ...], source: str) -> None:
        """Links one chunk, see `LeafStore.link_chunk`."""
        self.each[index[0]].link_chunk(index[1:], source)

    def moves(self, source: Reader) -> bool:
        """Whether the storage copies such a chunk by itself, see `LeafStore.moves`."""
        return self.each[0].moves(source)

    def moved_bytes(self, index: tuple[int, ...]) -> int | None:
        """Bytes of a chunk that the storage copied by itself, see `LeafStore.moved_bytes`."""
        return self.each[index[0]].moved_bytes(index[1:])

    def has_chunk(self, index: tuple[int, ...]) -> bool:
        """Whether an earlier run stored this chunk, see `LeafStore.has_chunk`."""
        return self.each[index[0]].has_chunk(index[1:])


def _shown(encoding: Encoding) -> str:
    compressor = encoding.compressor
    name = "no compressor" if compressor is None else " ".join(f"{key} {value}" for key, value in compressor.items())
    return f"zarr v{encoding.zarr_format}, {name}, order {list(encoding.order) or 'C'}"
