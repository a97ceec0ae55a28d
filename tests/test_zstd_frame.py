"""Following zstd frames from outside, against what zstandard itself writes and says."""

import random

import pytest
import zstandard

from converter.errors import SourceError
from converter.zstd_frame import MAX_HEADER, FrameCheck, frame_header

CONTENTS = [b"", b"a", b"abc" * 10, bytes(300), random.Random(1).randbytes(200), random.Random(2).randbytes(300_000)]


def check(frame: bytes, content: int, piece: int) -> None:
    walk = FrameCheck(content, "leaf: chunk 0")
    for start in range(0, len(frame), piece):
        walk.feed(frame[start : start + piece])
    walk.finish()


def frames(content: bytes) -> list[bytes]:
    """The same content with every kind of header: with and without its size, its checksum, a single segment."""
    made = []
    for checksum in (False, True):
        for size in (False, True):
            options = zstandard.ZstdCompressor(level=1, write_checksum=checksum, write_content_size=size)
            made.append(options.compress(content))
            stream = options.compressobj(size=len(content)) if size else options.compressobj()
            made.append(stream.compress(content) + stream.flush())
    return made


@pytest.mark.parametrize("content", CONTENTS, ids=len)
@pytest.mark.parametrize("piece", [1, 2, 7, 1000, 1 << 20])
def test_every_kind_of_frame_is_followed_to_its_end_in_pieces_of_any_size(content: bytes, piece: int) -> None:
    for frame in frames(content):
        assert zstandard.ZstdDecompressor().decompress(frame, max_output_size=len(content) or 1) == content
        check(frame, len(content), piece)


@pytest.mark.parametrize("content", CONTENTS[:5], ids=len)
def test_a_frame_cut_anywhere_is_refused(content: bytes) -> None:
    for frame in frames(content):
        for end in range(len(frame)):
            for piece in (1, 1 << 20):
                with pytest.raises(SourceError, match=r"leaf: chunk 0: (no zstd frame|truncated)"):
                    check(frame[:end], len(content), piece)


def test_bytes_behind_the_frame_are_refused() -> None:
    for frame in frames(b"abc"):
        with pytest.raises(SourceError, match=f"followed by other bytes: the zstd frame has {len(frame)}"):
            check(frame + b"x", 3, 5)


@pytest.mark.parametrize("content", CONTENTS[1:], ids=len)
def test_the_content_size_in_the_header_must_be_the_chunks(content: bytes) -> None:
    frame = zstandard.ZstdCompressor().compress(content)
    with pytest.raises(SourceError, match=f"decodes to {len(content)} bytes, the chunk has {len(content) + 1}"):
        frame_header(frame[:MAX_HEADER], len(content) + 1, "leaf: chunk 0")


def test_a_reserved_block_is_damage() -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(b"abc"))
    length, _ = frame_header(bytes(frame[:MAX_HEADER]), 3, "")
    frame[length] |= 0b110
    with pytest.raises(SourceError, match=f"no zstd block at byte {length}"):
        check(bytes(frame), 3, 4)
