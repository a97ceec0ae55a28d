"""Checks a compressed chunk from outside: is the file one whole zstd frame of the right size.

A truncated or overwritten file is found without decoding it: the size in the header must be the chunk's (AXLearn's
frames have one; a frame without is taken), and the chain of blocks must end exactly where the file ends (RFC 8878,
section 3.1.1). Damage inside a block is not seen, for AXLearn's frames carry no checksum.
"""

import os

from converter.errors import SourceError

MAGIC = 0xFD2FB528
MAX_HEADER = 18
CONTENT_SIZE_BYTES = (0, 2, 4, 8)
RESERVED_BLOCK, RLE_BLOCK = 3, 1
MAX_BLOCK = 128 << 10


def check_frame(descriptor: int, file_size: int, content_size: int, where: str, *, whole: bool = True) -> None:
    """Follows a file's blocks from header to header.

    Args:
      descriptor: the open file.
      file_size: its length in bytes.
      content_size: bytes that it must decode to.
      where: the chunk, for messages.
      whole: follow all blocks; otherwise only the frame's header is checked.

    Raises:
      SourceError: the file is no zstd frame of this content size, or ends too early or too late.
    """
    position, has_checksum = _frame_header(os.pread(descriptor, MAX_HEADER, 0), content_size, where)
    last = not whole
    while not last:
        header = os.pread(descriptor, 3, position)
        if len(header) < 3:
            raise SourceError(f"{where}: truncated: the zstd frame goes on past the file's {file_size} bytes")
        fields = int.from_bytes(header, "little")
        last, kind, size = bool(fields & 1), fields >> 1 & 3, fields >> 3
        if kind == RESERVED_BLOCK or size > MAX_BLOCK:
            raise SourceError(f"{where}: damaged: no zstd block at byte {position}")
        position += 3 + (1 if kind == RLE_BLOCK else size)
    position += 4 if has_checksum else 0
    if whole and position != file_size:
        what = "truncated" if position > file_size else "followed by other bytes"
        raise SourceError(f"{where}: {what}: the zstd frame has {position} bytes, the file {file_size}")


def _frame_header(data: bytes, content_size: int, where: str) -> tuple[int, bool]:
    """Length of the frame's header, and whether a checksum follows the blocks."""
    if len(data) < 6 or int.from_bytes(data[:4], "little") != MAGIC:
        raise SourceError(f"{where}: no zstd frame; the file starts with {data[:4].hex() or 'nothing'}")
    descriptor = data[4]
    if descriptor & 0x08 or descriptor & 3:
        # No decoder knows the reserved bit, and there is no dictionary to decode a chunk with.
        raise SourceError(f"{where}: damaged: no header of a zstd frame without dictionary: {data[:5].hex()}")
    single_segment = bool(descriptor & 0x20)
    size_bytes = CONTENT_SIZE_BYTES[descriptor >> 6] or int(single_segment)
    start = 5 + (not single_segment)
    if len(data) < start + size_bytes:
        raise SourceError(f"{where}: truncated inside the zstd frame's header")
    if size_bytes:
        found = int.from_bytes(data[start : start + size_bytes], "little") + (256 if size_bytes == 2 else 0)
        if found != content_size:
            raise SourceError(f"{where}: decodes to {found} bytes, the chunk has {content_size}")
    return start + size_bytes, bool(descriptor & 4)
