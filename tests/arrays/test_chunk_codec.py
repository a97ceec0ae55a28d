"""Chunks decoded and encoded here, held against numpy, zstandard and TensorStore; damage at each byte."""

import itertools
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays.array import Array
from converter.arrays.chunk_codec import (
    FEED_SIZE,
    can_decode,
    check_chunk,
    decode_chunk,
    encode_chunk,
    slabs,
)
from converter.arrays.zarr import read_array
from converter.dtypes import ITEM_SIZES, storage_dtype
from converter.errors import SourceError
from tests.helpers.arrays import ZSTD, zarr2_array

GARBAGE = [b"\0", b"\x28", b"\x28\xb5\x2f", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x20\x03", b"tail"]
"""What may follow a chunk: nothing of meaning, or the beginning of another frame."""


def spec(directory: str | Path, chunks: tuple[int, ...], dtype: str = "uint8", compressor: Any = ZSTD) -> Array:
    return zarr2_array(chunks, dtype=dtype, directory=directory, path="model/w", compressor=compressor)


@contextmanager
def stored(data: bytes, chunks: tuple[int, ...], dtype: str = "uint8", compressor: Any = ZSTD) -> Iterator[Array]:
    """An array with one chunk that holds these bytes."""
    with tempfile.TemporaryDirectory() as directory:
        array = spec(directory, chunks, dtype, compressor)
        Path(array.chunk_file((0,) * len(chunks))).write_bytes(data)
        yield array


def random_values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Any bits at all, as far as the dtype has them."""
    random = np.random.default_rng(seed)
    if dtype in ("bool", "int4"):
        return random.integers(0, 2, shape).astype(storage_dtype(dtype))
    data = random.integers(0, 256, math.prod(shape) * ITEM_SIZES[dtype], np.uint8)
    return data.view(storage_dtype(dtype)).reshape(shape)


shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(sorted(ITEM_SIZES))


def encoded(values: np.ndarray, level: int | None, *, checksum: bool) -> bytes:
    read, room, data = encode_chunk(values, level, checksum=checksum), bytearray(1000), b""
    while count := read(memoryview(room)):
        data += room[:count]
    return data


@given(
    shape=shapes, dtype=dtypes, level=st.sampled_from([None, -5, 1, 19]), checksum=st.booleans(), seed=st.integers(0)
)
def test_decoding_undoes_encoding(
    shape: tuple[int, ...], dtype: str, level: int | None, checksum: bool, seed: int
) -> None:
    values = random_values(shape, dtype, seed)
    data = encoded(values, level, checksum=checksum)
    raw = data if level is None else zstandard.ZstdDecompressor().decompress(data)
    assert raw == values.tobytes()
    if level is not None:
        head = zstandard.get_frame_parameters(data)
        assert (head.content_size, head.has_checksum) == (values.nbytes, checksum)
    with stored(data, shape, dtype, None if level is None else {"id": "zstd", "level": level}) as array:
        found = decode_chunk(array, (0,) * len(shape))
        check_chunk(array, (0,) * len(shape))
    assert (found.shape, found.dtype) == (shape, storage_dtype(dtype))
    assert found.tobytes() == values.tobytes()


@given(shape=shapes.filter(bool), seed=st.integers(0), data=st.data())
def test_slabs_are_the_chunk_from_front_to_back(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    values = random_values(shape, "float32", seed)
    cut = data.draw(st.integers(0, len(shape) - 1))
    step = data.draw(st.sampled_from([n for n in range(1, shape[cut] + 1) if shape[cut] % n == 0]))
    slab = (*(1 for _ in shape[:cut]), step, *shape[cut + 1 :])
    out = np.empty(slab, np.float32) if data.draw(st.booleans()) else None
    seen: list[tuple[int, ...]] = []
    with stored(encoded(values, 1, checksum=False), shape, "float32") as array:
        for offset, part in slabs(array, (0,) * len(shape), slab, out):
            assert out is None or part is out
            where = tuple(slice(at, at + length) for at, length in zip(offset, slab, strict=True))
            assert part.tobytes() == values[where].tobytes()
            seen.append(offset)
    assert seen == list(itertools.product(*(range(0, n, s) for n, s in zip(shape, slab, strict=True))))


@pytest.mark.parametrize("compressor", [ZSTD, None], ids=["zstd", "raw"])
@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_chunks_that_tensorstore_wrote(dtype: str, compressor: Any, tmp_path: Path) -> None:
    values = random_values((5, 7), dtype, 3)
    made = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}, "create": True, "dtype": dtype}
    metadata = {"shape": [5, 7], "chunks": [2, 4], "compressor": compressor}
    store = ts.open({**made, "metadata": metadata, "store_data_equal_to_fill_value": True}).result()
    store.write(values).result()
    array = read_array("w", str(tmp_path))
    assert can_decode(array)
    for index in itertools.product(range(3), range(2)):
        due = values[tuple(slice(n * c, (n + 1) * c) for n, c in zip(index, (2, 4), strict=True))]
        found = decode_chunk(array, index)
        assert found.shape == (2, 4)
        assert found[: due.shape[0], : due.shape[1]].tobytes() == due.tobytes()


@pytest.mark.parametrize("level", [1, None], ids=["zstd", "raw"])
def test_a_chunk_that_takes_several_pieces(level: int | None) -> None:
    values = random_values((3, FEED_SIZE // 2 + 1), "uint8", 7)
    values[1] = 0
    data = encoded(values, level, checksum=False)
    with stored(data, values.shape, compressor=ZSTD if level else None) as array:
        out = np.full(values.shape, 9, np.uint8)
        assert decode_chunk(array, (0, 0), out) is out
        check_chunk(array, (0, 0))
    assert out.tobytes() == values.tobytes()


def stream_ended_by_an_empty_block(content: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj(size=len(content))
    return stream.compress(content) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + stream.flush()


CONTENT = bytes(range(48)) + bytes(48)
FRAMES = {
    "plain": zstandard.ZstdCompressor().compress(CONTENT),
    "checksum": zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT),
    "no size": zstandard.ZstdCompressor(write_content_size=False).compress(CONTENT),
    "empty last block": stream_ended_by_an_empty_block(CONTENT),
    "raw": CONTENT,
}


def refusal(data: bytes, kind: str) -> str:
    """Why a chunk is refused, the same by both ways of decoding one; empty where it is not."""
    messages = {""}
    with stored(data, (96,), compressor=None if kind == "raw" else ZSTD) as array:
        for decode in (decode_chunk, check_chunk):
            try:
                decode(array, (0,))
            except SourceError as error:
                messages.add(error.message.replace(array.directory, "DIR"))
    assert len(messages) <= 2
    return max(messages)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_chunk_that_is_cut_off_at_any_byte(kind: str) -> None:
    assert refusal(FRAMES[kind], kind) == ""
    for length in range(len(FRAMES[kind])):
        message = refusal(FRAMES[kind][:length], kind)
        assert message.startswith("model/w: chunk 0: "), length
        assert "ends too early" in message or "truncated" in message, length


TAILS = [*GARBAGE, FRAMES["plain"], FRAMES["plain"][:9], bytes.fromhex("502a4d1800000000")]


@pytest.mark.parametrize("tail", TAILS, ids=bytes.hex)
@pytest.mark.parametrize("kind", FRAMES)
def test_a_chunk_that_is_followed_by_something(kind: str, tail: bytes) -> None:
    message = refusal(FRAMES[kind] + tail, kind)
    assert message.startswith("model/w: chunk 0: ")
    assert any(text in message for text in ("holds more", "followed by other bytes", "cannot be decoded")), message


@pytest.mark.parametrize("place", range(8))
def test_a_flipped_bit_does_not_pass_zstds_checksum(place: int) -> None:
    values = np.arange(96, dtype=np.uint8)
    data = bytearray(encoded(values, 1, checksum=True))
    data[-12 + place] ^= 1 << place
    message = refusal(bytes(data), "checksum")
    assert message.startswith("model/w: chunk 0: DIR/0 cannot be decoded: ")


def test_a_chunk_of_another_size() -> None:
    for size in (97, 95):
        frame = zstandard.ZstdCompressor().compress(bytes(size))
        assert refusal(frame, "plain") == f"model/w: chunk 0: decodes to {size} bytes, the chunk has 96"
    # A header need not say it: then it shows in the end.
    longer, shorter = (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(size)) for size in (97, 95))
    assert refusal(longer, "no size") == "model/w: chunk 0: holds more than its 96 bytes"
    assert "ends too early; the file is truncated or is not the chunk" in refusal(shorter, "no size")


def test_two_frames_that_make_up_a_chunk() -> None:
    # Refused here too, for they could not be passed on as one chunk.
    halves = [zstandard.ZstdCompressor().compress(CONTENT[:48]), zstandard.ZstdCompressor().compress(CONTENT[48:])]
    assert refusal(b"".join(halves), "plain") == "model/w: chunk 0: decodes to 48 bytes, the chunk has 96"


@pytest.mark.parametrize(("exponent", "refused"), [(27, False), (28, True)])
def test_a_window_that_would_fill_the_memory(exponent: int, refused: bool) -> None:
    # One raw block of 96 bytes in a frame that says it needs so large a window.
    window = bytes([exponent - 10 << 3])
    frame = bytes.fromhex("28b52ffd00") + window + (96 << 3 | 1).to_bytes(3, "little") + CONTENT
    assert ("cannot be decoded" in refusal(frame, "no size")) is refused


def test_a_missing_chunk_is_named_with_its_file(tmp_path: Path) -> None:
    expected = f"model/w: chunk 1.0: {tmp_path}/1.0 cannot be read: No such file or directory"
    for decode in (decode_chunk, check_chunk):
        with pytest.raises(SourceError) as caught:
            decode(spec(tmp_path, (2, 2)), (1, 0))
        assert caught.value.message == expected


def test_what_is_left_to_tensorstore(tmp_path: Path) -> None:
    blosc = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
    assert [can_decode(spec(tmp_path, (2,), compressor=c)) for c in (None, ZSTD, blosc)] == [True, True, False]
    assert not can_decode(zarr2_array((2, 2), compressor=ZSTD, fortran=True))
