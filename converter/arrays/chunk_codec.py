"""Decodes and encodes single chunks in as little memory and as few copies as possible.

TensorStore would do, at twice the CPU time and three times the memory (BENCHMARKS.md): here a chunk is decoded slab by
slab, and encoded piece by piece into the memory that its file is written from. Chunks that are compressed with
something else than zstd are left to TensorStore (see `reader`).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import zstandard

from converter.arrays.array import Array
from converter.arrays.database import open_chunk
from converter.arrays.encoding import ZSTD
from converter.arrays.zstd_frame import MAX_HEADER, FrameCheck, frame_header
from converter.dtypes import storage_dtype
from converter.errors import SourceError
from converter.storage import Reader

READ_SIZE = 256 << 10
"""Compressed bytes that are read at once: they stay in a core's cache until they are decoded."""

FEED_SIZE = 4 << 20
WINDOW_LOG = 17
"""A window that fits a core's cache: a tenth less time than with the level's own, and weights repeat nothing anyway."""

MAX_WINDOW = 1 << 27
"""zstd's window for the levels that AXLearn uses is at most 8 MiB; a frame that asks for more than this is refused."""


SKIPPED_SIZE = 1 << 20
"""Decoded bytes that are passed over at once."""


def can_decode(array: Array) -> bool:
    """Whether chunks of this array can be decoded here, also piece by piece."""
    encoding = array.encoding
    if array.database_key is not None or encoding.foreign or encoding.inner_chunks:
        return False
    is_plain = not encoding.is_transposed and not encoding.crc32c
    return is_plain and (encoding.compressor is None or encoding.compressor.get("id") == ZSTD)


def decode_chunk(array: Array, index: tuple[int, ...], out: np.ndarray | None = None) -> np.ndarray:
    """Decodes a whole chunk.

    Args:
      array: the array.
      index: the chunk's place in the grid.
      out: a C-contiguous array of the chunk's shape to decode into, or None for a new one.

    Raises:
      SourceError: the chunk cannot be read, is damaged, or is shorter or longer than its shape says.
    """
    ((_, values),) = slabs(array, index, array.chunks, out)
    return values


def slabs(
    array: Array, index: tuple[int, ...], slab: tuple[int, ...], out: np.ndarray | None = None
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Decodes a chunk once, from front to back, as slabs along its slowest axes.

    A chunk that is larger than memory can be handled so: a zstd frame decodes as a stream, and a slab is one run of
    the decoded bytes.

    Args:
      array: the array.
      index: the chunk's place in the grid.
      slab: shape of a slab: 1 along the slowest dimensions, a divisor of the chunk's length along one, and whole along
        the rest.
      out: a C-contiguous array of the slab's shape to use for every slab, or None for a new one each time.

    Yields:
      The slab's offset inside the chunk, and its elements; slabs in an edge chunk's padding too.

    Raises:
      SourceError: the chunk cannot be read, is damaged, or is shorter or longer than its shape says.
    """
    where = array.chunk_label(index)
    dtype = storage_dtype(array.dtype)
    with _open_stream(array, index, where) as stream:
        steps = (range(0, length, step) for length, step in zip(array.chunks, slab, strict=True))
        for offset in itertools.product(*steps):
            values = np.empty(slab, dtype) if out is None else out
            _fill(stream, values, where)
            yield offset, values


def decode_part(array: Array, index: tuple[int, ...], inside: Sequence[Sequence[int]]) -> np.ndarray:
    """Decodes a part of a chunk from its front to the last wanted element; what follows is not looked at.

    Args:
      array: the array.
      index: the chunk's place in the grid.
      inside: the wanted positions inside the chunk along each dimension, ascending.

    Raises:
      SourceError: the chunk cannot be read, is damaged, or ends before the last wanted element.
    """
    cut = next((dim for dim in reversed(range(len(inside))) if len(inside[dim]) != array.chunks[dim]), 0)
    is_run = len(inside[cut]) == inside[cut][-1] - inside[cut][0] + 1
    depth = cut if is_run else cut + 1
    values = np.empty([len(span) for span in inside], storage_dtype(array.dtype))
    runs = values.reshape(math.prod(values.shape[:depth]), -1)
    strides = [math.prod(array.chunks[dim + 1 :]) * array.item_size for dim in range(len(inside))]
    first = inside[depth][0] * strides[depth] if depth < len(inside) else 0
    where = array.chunk_label(index)
    scratch, at = np.empty(SKIPPED_SIZE, np.uint8), 0
    with _open_stream(array, index, where, to_end=False) as stream:
        for run, place in zip(runs, itertools.product(*inside[:depth]), strict=True):
            start = first + sum(position * stride for position, stride in zip(place, strides[:depth], strict=True))
            while at < start:
                skipped = scratch[: start - at]
                _fill(stream, skipped, where)
                at += len(skipped)
            _fill(stream, run, where)
            at += run.nbytes
    return values


def check_chunk(array: Array, index: tuple[int, ...]) -> None:
    """Decodes a chunk in little memory, only to see that it can be decoded.

    Raises:
      SourceError: the chunk cannot be read, is damaged, or is shorter or longer than its shape says.
    """
    where = array.chunk_label(index)
    scratch = np.empty(FEED_SIZE, np.uint8)
    with _open_stream(array, index, where) as stream:
        rest = array.chunk_bytes
        while rest:
            piece = scratch[: min(rest, FEED_SIZE)]
            _fill(stream, piece, where)
            rest -= len(piece)


def says_its_size(array: Array, chunk: Reader, where: str) -> bool:
    """Whether a stored chunk says that it has the array's chunk size, as far as that takes no reading of it all.

    Args:
      array: the array.
      chunk: the chunk, of which nothing need have been read.
      where: the chunk, for messages.

    Raises:
      SourceError: it has another size, or is not a chunk of this array.
      OSError: it cannot be read.
    """
    if array.compressor is not None:
        return frame_header(chunk.read_range(0, MAX_HEADER), array.chunk_bytes, where).has_size
    if chunk.size() != array.chunk_bytes:
        raise SourceError(f"{where}: {chunk.size()} bytes, the chunk has {array.chunk_bytes}")
    return True


def encode_chunk(values: np.ndarray, level: int | None, *, checksum: bool) -> Callable[[memoryview], int]:
    """Begins to encode a chunk.

    Args:
      values: the chunk, C-contiguous and of the chunk's full shape.
      level: zstd's level; None for raw bytes.
      checksum: write zstd's own checksum into the frame.

    Returns:
      A reader: puts the next encoded bytes into the memory it is given and returns how many, 0 at the end.
    """
    data = values.reshape(-1).view(np.uint8).data
    if level is None:
        return functools.partial(_take_raw, [data])
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=len(data), window_log=WINDOW_LOG, write_checksum=checksum, write_content_size=True
    )
    # Asked for more than a block, zstd compresses straight into the memory it is given.
    return zstandard.ZstdCompressor(compression_params=parameters).stream_reader(data, size=len(data)).readinto


def _take_raw(rest: list[memoryview], room: memoryview) -> int:
    """Moves what there is room for; `rest` holds the bytes that are left."""
    count = min(len(room), len(rest[0]))
    room[:count], rest[0] = rest[0][:count], rest[0][count:]
    return count


@contextmanager
def _open_stream(array: Array, index: tuple[int, ...], where: str, *, to_end: bool = True) -> Iterator[Any]:
    """The decoded bytes of a chunk as a stream; faults of reading and decoding become errors that name the chunk.

    Where it is read to its end, the block must read all bytes: behind them the file has to end.
    """
    file = array.chunk_file(index)
    try:
        with open_chunk(array, index) as raw:
            watched: Any = _WatchedFile(raw, FrameCheck(array.chunk_bytes, where))
            stream: Any = raw
            if array.compressor is not None:
                decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
                stream = decompressor.stream_reader(watched, read_size=READ_SIZE, read_across_frames=True)
            yield stream
            if to_end:
                _expect_end(stream, array, where)
            if to_end and stream is not raw:
                watched.finish()
    except OSError as error:
        raise SourceError(f"{where}: {file} cannot be read: {error.strerror or error}") from None
    except zstandard.ZstdError as error:
        raise SourceError(f"{where}: {file} cannot be decoded: {error}") from None


class _WatchedFile:
    """A file whose outline is checked while it is decoded.

    The decoder keeps silent about a last block or checksum that is cut off, and about a few bytes too many.
    """

    def __init__(self, raw: Any, check: FrameCheck):
        self.raw = raw
        self.check = check

    def read(self, size: int) -> bytes:
        data = self.raw.read(size)
        self.check.feed(data)
        return data

    def finish(self) -> None:
        """Ends the check; what the decoder has not asked for counts too."""
        while self.read(READ_SIZE):
            pass
        self.check.finish()


def _expect_end(stream: Any, array: Array, where: str) -> None:
    if stream.read(1):
        raise SourceError(f"{where}: holds more than its {array.chunk_bytes} bytes")


def _fill(stream: Any, values: np.ndarray, where: str) -> None:
    view = values.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = stream.readinto(view[done : done + FEED_SIZE])
        if not count:
            raise SourceError(f"{where}: ends too early; the file is truncated or is not the chunk of this array")
        done += count
