"""Compares chunks as they are stored, which takes no longer than reading them.

A chunk that was passed through is the source's own bytes with a checksum behind them. Equal bytes decode to equal
elements, if both sides decode them in the same way. That is proved apart: TensorStore reads a small array of known
elements with the leaf's own metadata.
"""

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from crc32c import crc32c

from converter.arrays import (
    CRC_BYTES,
    Array,
    FrameCheck,
    OpenArray,
    largest_chunk_bytes,
    open_chunk,
    says_its_size,
    slices,
    target_index,
)
from converter.axes import AxisMap
from converter.dtypes import storage_dtype
from converter.errors import SourceError, VerificationError
from converter.mapping import COPY
from converter.planning import Task
from converter.storage import RESIDUE, Reader, ReadError, storage_of

PIECE = 1 << 19
"""Bytes of each side that are compared at once: larger pieces leave the caches, smaller ones take more calls."""

MEMORY = 4 << 20
"""Bytes that comparing a chunk takes where both sides are files of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLeaf:
    """A leaf whose chunks should be those of one source array.

    Attributes:
      source: the source array.
      opened: the leaf.
      order: the leaf's dimension of each of the source's dimensions; a leaf of one layer has the layers as its first.
      layer: the layer that the leaf holds; None where it holds all of the array.
      place: where the leaf's chunks are objects of a store that knows their checksums; empty elsewhere.
    """

    source: Array
    opened: OpenArray
    order: tuple[int, ...]
    layer: int | None = None
    place: str = ""

    @property
    def chunks(self) -> list[tuple[int, ...]]:
        """Where the chunks that the leaf should have stand in the source's grid."""
        grid: list[Sequence[int]] = [range(count) for count in self.source.grid]
        if self.layer is not None:
            grid[self.order.index(0)] = (self.layer,)
        return list(itertools.product(*grid))

    def _target(self, index: tuple[int, ...]) -> tuple[int, ...]:
        place = target_index(index, self.order)
        return place if self.layer is None else place[1:]

    @property
    def memory(self) -> int:
        """Bytes that comparing a chunk takes; a database hands out whole chunks."""
        ours, theirs = (array.database_key is not None for array in (self.source, self.opened.array))
        return MEMORY + ours * largest_chunk_bytes(self.source) + theirs * 2 * self.source.chunk_bytes

    def same_chunk(self, index: tuple[int, ...]) -> bool:
        """Whether the leaf's chunk holds the source's bytes and their checksum, and nothing else.

        Args:
          index: the chunk's place in the source's grid.

        Raises:
          SourceError: the source's chunk cannot be read, or is not one whole chunk of this array.
        """
        source = self.source
        where, path = source.chunk_label(index), source.chunk_file(index)
        try:
            if self.place and self._same_sums(path, index):
                return True
            with open_chunk(source, index) as chunk, self._found(index) as found:
                return _same_bytes(chunk, found, source, where)
        except VerificationError:
            return False
        except ReadError as error:
            raise SourceError(f"{where}: {error}") from None
        except OSError as error:
            raise SourceError(f"{where}: {path} cannot be read: {error.strerror or error}") from None

    def _same_sums(self, path: str, index: tuple[int, ...]) -> bool:
        """Whether what the stores know proves that a chunk is the source's: sizes, checksums, and its last four bytes.

        The object is whole by its checksum, so that the last bytes are the CRC-32C of the rest: the source's, if both
        have the same bytes.
        """
        target = self._target(index)
        name = os.path.join(self.place, self.opened.array.chunk_key(target))
        source, found = storage_of(path).stat(path), storage_of(name).stat(name)
        if source.checksum is None or found.checksum != RESIDUE or found.size != source.size + CRC_BYTES:
            return False
        return self.opened.read_end(target, CRC_BYTES)[::-1] == source.checksum

    def _found(self, index: tuple[int, ...]) -> Reader:
        try:
            return open_chunk(self.opened.array, self._target(index))
        except (OSError, SourceError) as error:
            raise VerificationError(str(error)) from None


def stored_leaves(
    task: Task, arrays: Mapping[str, OpenArray], places: Mapping[str, str]
) -> Iterator[tuple[str, StoredLeaf]]:
    """The leaves of a task whose metadata says that their chunks are the source's with a checksum behind them, by path.

    Without a checksum, as where chunks were linked, only decoding shows damage that both sides share.

    Args:
      task: the work on one row in one place.
      arrays: path to array, of the leaves that are there.
      places: where a leaf's chunks are objects of a store that knows their checksums.
    """
    leaf, *others = task.leaves
    if others:
        return
    stack = bool(leaf.parts)
    proofs: dict[str, bool] = {}
    for number, part in enumerate(leaf.each):
        opened, place = arrays.get(part.path), places.get(part.path, "")
        found = None if opened is None else _stored_leaf(task, opened, number if stack else None, place, proofs)
        if found is not None:
            yield part.path, found


def _stored_leaf(
    task: Task, opened: OpenArray, layer: int | None, place: str, proofs: dict[str, bool]
) -> StoredLeaf | None:
    """As `stored_leaves`, for one of them; `proofs` keeps what is known of leaves with equal metadata."""
    permutation = task.axis_map.axis_permutation()
    if permutation is None or task.value != COPY or len(task.sources) != 1:
        return None
    (source,), leaf = task.sources, opened.array
    encoding, compressor = leaf.encoding, source.compressor
    plain = source.encoding.zarr_format == 2 and not source.encoding.is_transposed
    fits = (
        plain
        and encoding.crc32c
        and not (encoding.foreign or encoding.inner_chunks)
        and leaf.dtype == source.dtype
        and (leaf.chunks if layer is None else (1, *leaf.chunks)) == tuple(source.chunks[dim] for dim in permutation)
        and (compressor is None) == (leaf.compressor is None)
        and (compressor is None or compressor.get("id") == "zstd")
    )
    order = tuple(permutation.index(dim) for dim in range(len(permutation)))
    if not fits:
        return None
    metadata = opened.store.spec().to_json()["metadata"]
    key = json.dumps(metadata, sort_keys=True)
    if key not in proofs:
        proofs[key] = _decodes_alike(task, opened, metadata, one_layer=layer is not None)
    if not proofs[key]:
        return None
    return StoredLeaf(source=source, opened=opened, order=order, layer=layer, place=place)


def _decodes_alike(task: Task, opened: OpenArray, own: Mapping[str, Any], *, one_layer: bool) -> bool:
    """Whether TensorStore, with the leaf's metadata, reads the source's chunks as the leaf that the mapping asks for.

    A few small chunks of known elements, under the leaf's own codecs and key encoding, show all that the metadata
    decides: the order of axes and bytes, the codecs and their order, and which key is which place of the grid.
    """
    import tensorstore as ts

    small = _small(task.axis_map)
    source, expected = _example(small, opened.array.dtype)
    permutation = small.axis_permutation()
    assert permutation is not None
    left = int(one_layer)  # leading dimensions of the stack that a leaf of one layer does not have
    chunks = tuple(1 if dim in permutation[:left] else -(-length // 2) for dim, length in enumerate(source.shape))
    expected = expected[0] if one_layer else expected
    metadata = {
        **own,
        "shape": list(expected.shape),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [chunks[dim] for dim in permutation[left:]]},
        },
        "node_type": "array",
        "zarr_format": 3,
    }
    context = ts.Context()
    memory = {"driver": "memory"}
    try:
        files = ts.KvStore.open(memory, context=context).result()
        files.write("zarr.json", json.dumps(metadata).encode()).result()
        for index, stored in _stored_chunks(source, chunks, task.sources[0]):
            place = tuple(index[dim] for dim in permutation)
            if not any(place[:left]):
                files.write(opened.array.chunk_key(place[left:]), stored).result()
        spec = {"driver": "zarr3", "kvstore": memory, "fill_missing_data_reads": False}
        found = ts.open(spec, context=context, read=True).result().read().result()
    except ValueError:
        return False
    return found.shape == expected.shape and found.tobytes() == expected.tobytes()


def _small(axis_map: AxisMap) -> AxisMap:
    """The map with small sizes: all different, as are their halves, which chunks have; no half is a single element."""
    names = dict.fromkeys(axis_map.expression.names())
    return AxisMap(axis_map.expression, {name: 2 * number + 3 for number, name in enumerate(names)})


def _example(axis_map: AxisMap, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """A source array in which no two elements are equal, as far as the dtype has values, and its leaf."""
    item = storage_dtype(dtype)
    (shape,), (target,) = axis_map.source_shapes, axis_map.target_shapes
    count = int(np.prod(shape))
    source = np.arange(count).astype(f"u{np.dtype(item).itemsize}").reshape(shape)
    expected = np.zeros(target, source.dtype)
    for piece in axis_map.pieces(0, tuple((0, length) for length in target)):
        expected[piece.target_slices] = piece.rearrange(source[piece.source_slices])
    return source, expected


def _stored_chunks(
    source: np.ndarray, chunks: tuple[int, ...], array: Array
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """The chunks of an example as the source stores its own, with a checksum behind each."""
    grid = [range(-(-length // chunk)) for length, chunk in zip(source.shape, chunks, strict=True)]
    for index in itertools.product(*grid):
        start = [number * chunk for number, chunk in zip(index, chunks, strict=True)]
        values = source[slices(tuple((at, at + chunk) for at, chunk in zip(start, chunks, strict=True)))]
        padded = np.zeros(chunks, source.dtype)
        padded[tuple(slice(0, length) for length in values.shape)] = values
        data = padded.tobytes()
        if array.compressor is not None:
            data = zstandard.ZstdCompressor().compress(data)
        yield index, data + crc32c(data).to_bytes(CRC_BYTES, "little")


def _same_bytes(chunk: Reader, found: Reader, source: Array, where: str) -> bool:
    if not says_its_size(source, chunk, where):
        return False  # only decoding shows it
    check = None if source.compressor is None else FrameCheck(source.chunk_bytes, where)
    ours, theirs = bytearray(PIECE), bytearray(PIECE)
    here, there = memoryview(ours), memoryview(theirs)
    same, checksum = found.size() == chunk.size() + CRC_BYTES, 0
    while count := chunk.readinto(ours):
        piece = here[:count]
        if check:
            check.feed(piece)
        if same:
            # Of two bytearrays Python compares the memory, of views the items.
            same = _fill(found, there[:count]) == count
            same = same and (ours == theirs if count == PIECE else ours[:count] == theirs[:count])
            checksum = crc32c(piece, checksum)
    if check:
        check.finish()
    return same and _tail(found) == checksum.to_bytes(CRC_BYTES, "little")


def _fill(found: Reader, room: memoryview) -> int:
    """Reads until the room is full or the bytes end.

    Raises:
      VerificationError: the checkpoint cannot be read.
    """
    done = 0
    try:
        while done < len(room) and (count := found.readinto(room[done:])):
            done += count
    except OSError as error:
        raise VerificationError(str(error.strerror or error)) from None
    return done


def _tail(found: Reader) -> bytes:
    room = bytearray(CRC_BYTES + 1)
    return bytes(room[: _fill(found, memoryview(room))])
