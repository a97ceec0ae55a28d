"""How an array is stored as chunks: metadata, codecs, readers and writers, digests."""

from converter.arrays.array import Array, slices
from converter.arrays.audit import audit_chunks, file_states, largest_chunk_bytes
from converter.arrays.chunk_codec import FEED_SIZE, can_decode, check_chunk, encode_chunk, says_its_size
from converter.arrays.database import open_chunk
from converter.arrays.digest import chunk_digest, start_chunk, sum_digest
from converter.arrays.encoding import ZSTD, Encoding, target_index
from converter.arrays.object_writer import ObjectLeafStore, content_sum, stored_sum
from converter.arrays.ocdbt import CHUNKS, MANIFEST_NAME, NODES, write_index
from converter.arrays.opened import OpenArray, new_context, open_stored_array
from converter.arrays.reader import ArrayReader, BlockReader
from converter.arrays.shared_writer import ChunkRecord, SharedLeafStore
from converter.arrays.stack import StackStore, split, stack
from converter.arrays.writer import CRC_BYTES, ChunkWriter, LeafStore
from converter.arrays.zarr import MAX_DIMENSIONS, read_array, read_database_array, unknown_dtype
from converter.arrays.zstd_frame import FrameCheck

__all__ = [
    "CHUNKS",
    "CRC_BYTES",
    "FEED_SIZE",
    "MANIFEST_NAME",
    "MAX_DIMENSIONS",
    "NODES",
    "ZSTD",
    "Array",
    "ArrayReader",
    "BlockReader",
    "ChunkRecord",
    "ChunkWriter",
    "Encoding",
    "FrameCheck",
    "LeafStore",
    "ObjectLeafStore",
    "OpenArray",
    "SharedLeafStore",
    "StackStore",
    "audit_chunks",
    "can_decode",
    "check_chunk",
    "chunk_digest",
    "content_sum",
    "encode_chunk",
    "file_states",
    "largest_chunk_bytes",
    "new_context",
    "open_chunk",
    "open_stored_array",
    "read_array",
    "read_database_array",
    "says_its_size",
    "slices",
    "split",
    "stack",
    "start_chunk",
    "stored_sum",
    "sum_digest",
    "target_index",
    "unknown_dtype",
    "write_index",
]
