"""Checks a compressed chunk from outside: is the file one whole zstd frame of the right size.

A truncated or overwritten file is found without decoding it: the size in the header must be the chunk's (AXLearn's
frames have one), and the chain of blocks must end exactly where the file ends (RFC 8878, section 3.1.1). Damage inside
a block is not seen, for AXLearn's frames carry no checksum.
"""

from typing import Any, NamedTuple

import zstandard

from converter.errors import SourceError

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_HEADER = 18
FRAME_START = 5
BLOCK_HEADER = 3
CHECKSUM_BYTES = 4
RESERVED_BLOCK, RLE_BLOCK = 3, 1
MAX_BLOCK = 128 << 10


class FrameHeader(NamedTuple):
    """A frame's start: how long it is, whether a checksum follows the blocks, whether the content size is given."""

    length: int
    has_checksum: bool
    has_size: bool


class FrameCheck:
    """Follows a chunk's blocks from header to header while its bytes go by."""

    def __init__(self, content_size: int, where: str):
        """Starts at the frame's first byte.

        Args:
          content_size: bytes that the frame must decode to.
          where: the chunk, for messages.
        """
        self._content_size = content_size
        self._where = where
        self._position = 0
        self._next = 0
        self._held = b""
        self._wanted = FRAME_START
        self._has_checksum = False
        self._ended = False

    def feed(self, data: Any) -> None:
        """Takes the next bytes of the file.

        Raises:
          SourceError: this is not a zstd frame of the right content size.
        """
        view = memoryview(data)
        end = self._position + len(view)
        while not self._ended and self._next < end:
            at = self._next - self._position
            if at > 0 and not self._held and at + BLOCK_HEADER <= len(view):
                self._take_block(view[at : at + BLOCK_HEADER])
                continue
            start = max(self._next + len(self._held) - self._position, 0)
            part = view[start : start + self._wanted - len(self._held)]
            self._held += bytes(part)
            if len(self._held) < self._wanted:
                break
            self._take_header()
        self._position = end

    def finish(self) -> None:
        """Ends the file.

        Raises:
          SourceError: the frame ends before or behind the file's end, or there is none.
        """
        if not self._next:
            frame_header(self._held, self._content_size, self._where)
        size = self._position
        if not self._ended:
            raise SourceError(f"{self._where}: truncated: the zstd frame continues past the file's {size} bytes")
        if self._next != size:
            what = "truncated" if self._next > size else "followed by other bytes"
            raise SourceError(f"{self._where}: {what}: the zstd frame has {self._next} bytes, the file {size}")

    def _take_header(self) -> None:
        """Reads the held header, of the frame or of a block, and finds where the next one stands."""
        if not self._next and self._wanted == FRAME_START:
            self._wanted = zstandard.frame_header_size(self._held)
            return
        data, self._held = self._held, b""
        if not self._next:
            self._next, self._has_checksum, _ = frame_header(data, self._content_size, self._where)
            self._wanted = BLOCK_HEADER
            return
        self._take_block(data)

    def _take_block(self, header: bytes | memoryview) -> None:
        """Finds where the next block stands, or the end."""
        fields = int.from_bytes(header, "little")
        last, kind, size = bool(fields & 1), fields >> 1 & 3, fields >> 3
        if kind == RESERVED_BLOCK or size > MAX_BLOCK:
            raise SourceError(f"{self._where}: damaged: no zstd block at byte {self._next}")
        self._next += BLOCK_HEADER + (1 if kind == RLE_BLOCK else size)
        if last:
            self._ended = True
            self._next += CHECKSUM_BYTES * self._has_checksum


def frame_header(data: bytes, content_size: int, where: str) -> FrameHeader:
    """Reads the header of a frame.

    Args:
      data: the first `MAX_HEADER` bytes of the file, or all that there are.
      content_size: bytes that the frame must decode to.
      where: the chunk, for messages.

    Raises:
      SourceError: this is not a zstd frame, or one of another content size.
    """
    if len(data) <= FRAME_START or data[:4] != MAGIC:
        raise SourceError(f"{where}: no zstd frame; the file starts with {data[:4].hex() or 'nothing'}")
    length = zstandard.frame_header_size(data)
    if len(data) < length:
        raise SourceError(f"{where}: truncated inside the zstd frame's header")
    try:
        fields = zstandard.get_frame_parameters(data)
    except zstandard.ZstdError:
        fields = None
    if fields is None or fields.dict_id:  # there is no dictionary to decode a chunk with
        raise SourceError(f"{where}: damaged: no header of a zstd frame without dictionary: {data[:5].hex()}")
    has_size = fields.content_size != zstandard.CONTENTSIZE_UNKNOWN
    if has_size and fields.content_size != content_size:
        raise SourceError(f"{where}: decodes to {fields.content_size} bytes, the chunk has {content_size}")
    return FrameHeader(length, fields.has_checksum, has_size)
