import struct
from collections.abc import Sequence

import xxhash


def start_chunk(grid_index: Sequence[int]) -> xxhash.xxh3_128:
    """The running digest of a chunk in its place; its bytes come next."""
    return xxhash.xxh3_128(struct.pack(f"<{len(grid_index)}Q", *grid_index))


def chunk_digest(grid_index: Sequence[int], stored: bytes) -> int:
    """The 128-bit digest of one chunk in its place."""
    state = start_chunk(grid_index)
    state.update(stored)
    return state.intdigest()


def sum_digest(grid_index: Sequence[int], size: int, content_sum: int) -> int:
    """The digest of a chunk in its place of which only sizes and checksums are known.

    Args:
      grid_index: its place.
      size: its bytes as it is stored, with the four of its checksum.
      content_sum: the CRC-32C of the bytes before those.
    """
    return chunk_digest(grid_index, struct.pack("<QI", size, content_sum))
