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
