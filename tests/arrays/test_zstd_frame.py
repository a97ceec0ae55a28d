"""Following a zstd frame from outside, held against what zstandard itself makes of the same bytes."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays.zstd_frame import MAX_HEADER, FrameCheck, frame_header
from converter.errors import SourceError

MAGIC = bytes.fromhex("28b52ffd")
BLOCK = 128 << 10
"""zstd's largest block."""


def complaint(data: bytes, content_size: int, piece: int = 1 << 20) -> str:
    """What is wrong with a file that comes in pieces; empty where nothing is."""
    walk = FrameCheck(content_size, "w: chunk 0.0")
    try:
        for start in range(0, len(data), piece):
            walk.feed(data[start : start + piece])
        walk.finish()
    except SourceError as error:
        return error.message
    return ""


def header_complaint(data: bytes, content_size: int) -> str:
    """What is wrong with its header alone."""
    try:
        frame_header(data[:MAX_HEADER], content_size, "w: chunk 0.0")
    except SourceError as error:
        return error.message
    return ""


def decoded_size(data: bytes) -> int | None:
    """The content's size, where zstandard takes the bytes for exactly one whole frame."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    try:
        content = decoder.decompress(data)
    except zstandard.ZstdError:
        return None
    return len(content) if decoder.eof and not decoder.unused_data else None


@st.composite
def contents(draw: st.DrawFn, most: int = 3 * BLOCK) -> bytes:
    """Noise, runs and text-like stretches, so that raw, RLE and compressed blocks occur."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts: list[bytes] = []
    for kind in draw(st.lists(st.sampled_from(["noise", "run", "few"]), max_size=3)):
        size = draw(st.integers(0, most))
        high = {"noise": 256, "run": 1, "few": 5}[kind]
        parts.append(random.integers(0, high, size, np.uint8).tobytes())
    return b"".join(parts)


@st.composite
def frames(draw: st.DrawFn, most: int = 3 * BLOCK) -> tuple[bytes, int, bool]:
    """A frame as some writer makes it; the size of its content; whether its header says so."""
    content = draw(contents(most))
    sized = draw(st.booleans())
    compressor = zstandard.ZstdCompressor(
        level=draw(st.sampled_from([-7, 1, 3, 12])), write_checksum=draw(st.booleans()), write_content_size=sized
    )
    if draw(st.booleans()):
        return compressor.compress(content), len(content), sized
    # As a stream: blocks end where the writer flushes, and an empty block may be the last.
    stream = compressor.compressobj(size=len(content) if sized else -1)
    cut = draw(st.integers(0, len(content)))
    data = stream.compress(content[:cut]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return data + stream.compress(content[cut:]) + stream.flush(), len(content), sized


pieces = st.sampled_from([1, 2, 3, 7, 1000, 1 << 20])


@given(frame=frames(), tail=st.binary(min_size=1, max_size=9), piece=pieces)
def test_any_frame_is_followed_to_its_end_and_no_further(
    frame: tuple[bytes, int, bool], tail: bytes, piece: int
) -> None:
    data, size, sized = frame
    assert decoded_size(data) == size
    assert complaint(data, size, piece) == header_complaint(data, size) == ""
    assert complaint(data + tail, size, piece) == (
        f"w: chunk 0.0: followed by other bytes: the zstd frame has {len(data)} bytes, the file {len(data) + len(tail)}"
    )
    other = f"w: chunk 0.0: decodes to {size} bytes, the chunk has {size + 1}"
    assert complaint(data, size + 1, piece) == header_complaint(data, size + 1) == (other if sized else "")


@given(frame=frames(most=60))
def test_a_frame_that_is_cut_off_at_any_byte_is_told(frame: tuple[bytes, int, bool]) -> None:
    data, size, _ = frame
    for length in range(len(data)):
        assert decoded_size(data[:length]) is None
        for piece in (1, 5, len(data)):
            message = complaint(data[:length], size, piece)
            assert message.startswith("w: chunk 0.0: " + ("no zstd frame" if length < 6 else "truncated")), length


@given(frame=frames(most=200), data=st.data())
def test_what_zstandard_decodes_is_not_refused(frame: tuple[bytes, int, bool], data: st.DataObject) -> None:
    # A changed byte may leave a frame that decodes to as many bytes: to find that takes a decoder, but the way through
    # the blocks must not be lost either.
    original, size, _ = frame
    at = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[at] ^= data.draw(st.integers(1, 255))
    if decoded_size(bytes(changed)) == size:
        assert complaint(bytes(changed), size) == ""


def header(descriptor: int, *rest: int) -> bytes:
    return MAGIC + bytes((descriptor, *rest))


def block(kind: int, size: int, data: bytes, *, last: bool = True) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + data


RAW, RLE, COMPRESSED, RESERVED = range(4)
ABC = header(0x20, 3) + block(RAW, 3, b"abc")


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (ABC, 3),
        (header(0x20, 7) + block(RAW, 3, b"abc", last=False) + block(RLE, 4, b"z"), 7),
        (header(0x00, 0x58) + block(RLE, 9, b"x"), 9),
        (header(0x60, 1, 0) + block(RLE, 257, b"x"), 257),
        (header(0xA0, 0, 0, 2, 0) + block(RLE, BLOCK, b"x", last=False) + block(RLE, 0, b"x"), BLOCK),
        (header(0xE0, 3, 0, 0, 0, 0, 0, 0, 0) + block(RAW, 3, b"abc"), 3),
    ],
    ids=["raw", "rle", "no size", "two bytes", "four bytes", "eight bytes"],
)
def test_frames_by_the_letter_of_the_rfc(data: bytes, size: int) -> None:
    assert decoded_size(data) == size
    assert complaint(data, size) == complaint(data, size, 1) == ""


FAULTS = {
    "no frame": (b"not zstd", "no zstd frame; the file starts with 6e6f7420"),
    "nothing": (b"", "no zstd frame; the file starts with nothing"),
    "skippable": (bytes.fromhex("502a4d18") + bytes(4), "no zstd frame; the file starts with 502a4d18"),
    "inside the header": (header(0xE0, 3, 0), "truncated inside the zstd frame's header"),
    "no block header": (header(0x20, 3, 0), "truncated: the zstd frame continues past the file's 7 bytes"),
    "reserved block": (header(0x20, 3) + block(RESERVED, 3, b"abc"), "damaged: no zstd block at byte 6"),
    "too large a block": (
        header(0x20, 3) + block(COMPRESSED, BLOCK + 1, bytes(BLOCK + 1)), "damaged: no zstd block at byte 6"
    ),
    "reserved bit": (header(0x28, 3) + ABC[6:], "damaged: no header of a zstd frame without dictionary: 28b52ffd28"),
    "dictionary": (header(0x21, 9, 3) + ABC[6:], "damaged: no header of a zstd frame without dictionary: 28b52ffd21"),
    "two frames": (ABC + ABC, "followed by other bytes: the zstd frame has 12 bytes, the file 24"),
    "no checksum": (header(0x24, 3) + ABC[6:], "truncated: the zstd frame has 16 bytes, the file 12"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_whole_frame(fault: str) -> None:
    data, message = FAULTS[fault]
    assert decoded_size(data) != 3
    for piece in (1, 4, len(data) + 1):
        assert complaint(data, 3, piece) == f"w: chunk 0.0: {message}"


def test_the_header_says_where_the_blocks_begin_and_whether_a_checksum_follows() -> None:
    assert frame_header(ABC, 3, "w") == (6, False, True)
    assert frame_header(header(0x04, 0x58) + block(RLE, 9, b"x"), 9, "w") == (6, True, False)
    assert frame_header(header(0x40, 0x58, 1, 0) + block(RLE, 257, b"x"), 257, "w") == (8, False, True)
    assert frame_header(header(0xE4, *(3).to_bytes(8, "little")), 3, "w") == (13, True, True)
