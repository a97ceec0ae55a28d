"""What a store says about its objects, in place of their bytes.

A chunk with its own CRC-32C behind it has always the same CRC-32C: where the store says that an object has it, the
object is whole, and its last four bytes are the CRC-32C of the rest.
"""

import errno
import os

from crc32c import crc32c

from converter.arrays import CRC_BYTES, content_sum, sum_digest
from converter.errors import VerificationError
from converter.storage import FILE, RESIDUE, storage_of

READ_SIZE = 1 << 20


def pin(directory: str) -> None:
    """Lists a checkpoint once; all that is looked at of it is what was there then.

    Raises:
      VerificationError: it cannot be listed.
    """
    try:
        storage_of(directory).pin(directory, described=True)
    except OSError as error:
        raise VerificationError(f"{directory}: cannot be listed: {error.strerror}") from None


def chunk_sum(path: str, index: tuple[int, ...]) -> int:
    """The digest of a chunk by its size and checksums; a file is read for them, of an object the store knows them.

    Args:
      path: the chunk's file or object.
      index: its place in the grid.

    Raises:
      OSError: it is not there, cannot be read, or does not end with the CRC-32C of the rest.
    """
    storage = storage_of(path)
    blob = storage.stat(path)
    if blob.kind != FILE:
        raise OSError(errno.EINVAL, "it is not a file", path)
    if blob.checksum is not None:
        if blob.checksum != RESIDUE:
            raise OSError(errno.EIO, "its CRC-32C is not that of a whole chunk", path)
        return sum_digest(index, blob.size, content_sum(blob))
    state, held = 0, b""
    with storage.open(path) as file:
        while piece := file.read(READ_SIZE):
            data = held + piece
            held = data[-CRC_BYTES:]
            state = crc32c(data[:-CRC_BYTES], state)
    if held != state.to_bytes(CRC_BYTES, "little"):
        raise OSError(errno.EIO, "it does not end with its checksum", os.fspath(path))
    return sum_digest(index, blob.size, state)
