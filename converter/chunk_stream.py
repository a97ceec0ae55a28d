"""Decodes one large zarr v2 chunk as a stream, slab by slab, in little memory.

A checkpoint that one host saved has whole arrays in single chunks of many gigabytes, and XXL's chunks have 1.9 GiB;
decoding one in one piece takes three times its size. A zstd frame can be decoded from front to back instead, and a slab
along the slowest axes is one run of the decoded bytes.
"""

import io
import itertools
import os
from collections.abc import Iterator

import numpy as np

from converter.errors import SourceError
from converter.zarr2 import ArraySpec, chunk_key

READ_SIZE = 1 << 20
MAX_WINDOW = 1 << 27
"""zstd's window for the levels that AXLearn uses is at most 8 MiB; a frame that asks for more than this is refused."""


def slabs(
    array: ArraySpec, chunk: tuple[int, ...], slab: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Decodes a chunk once, from front to back.

    Args:
      array: the array.
      chunk: the chunk's index in the grid.
      slab: shape of a slab: 1 along the slowest dimensions, a divisor of the chunk's length along one, and whole along
        the rest.

    Yields:
      The slab's offset inside the chunk, and its elements. Slabs in an edge chunk's padding are yielded as well.

    Raises:
      SourceError: the chunk is damaged, shorter or longer than its shape says.
    """
    where = f"{array.path}: chunk {chunk_key(chunk)}"
    file = os.path.join(array.directory, chunk_key(chunk))
    try:
        with open(file, "rb") as raw:
            stream = _decoder(array, raw)
            offsets = itertools.product(
                *(range(0, length, step) for length, step in zip(array.chunks, slab, strict=True))
            )
            for offset in offsets:
                buffer = np.empty(slab, _storage_dtype(array.dtype))
                _fill(stream, buffer, where)
                yield offset, buffer
            if stream.read(1):
                raise SourceError(f"{where}: holds more than its {array.chunk_bytes} bytes")
    except OSError as error:
        raise SourceError(f"{where}: {file} cannot be read: {error.strerror or error}") from None
    except _zstd_error() as error:
        raise SourceError(f"{where}: {file} cannot be decoded: {error}") from None


def _decoder(array: ArraySpec, raw: io.BufferedReader) -> io.RawIOBase:
    if array.compressor is None:
        return raw  # pyright: ignore[reportReturnType]
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    return decompressor.stream_reader(raw, read_size=READ_SIZE, read_across_frames=True)  # pyright: ignore[reportReturnType]


def _zstd_error() -> type[Exception]:
    import zstandard

    return zstandard.ZstdError


def _fill(stream: io.RawIOBase, buffer: np.ndarray, where: str) -> None:
    view = buffer.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = stream.readinto(view[done:])
        if not count:
            raise SourceError(f"{where}: ends too early; the file is truncated or is not the chunk of this array")
        done += count


def _storage_dtype(name: str) -> np.dtype:
    if name in ("bfloat16", "int4", "uint4") or name.startswith("float8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)
