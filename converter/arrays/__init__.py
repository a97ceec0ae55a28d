"""How an array is stored as chunks: metadata, codecs, readers and writers, digests."""

from converter.arrays.array import ArraySpec, Leaf, chunk_key
from converter.arrays.audit import audit_chunks, file_states
from converter.arrays.chunk_codec import FEED_SIZE, can_decode, check_chunk, encode_chunk, slabs, storage_dtype
from converter.arrays.digest import chunk_digest, start_chunk
from converter.arrays.encoding import Encoding
from converter.arrays.ocdbt import CHUNKS, MANIFEST_NAME, NODES, write_index
from converter.arrays.reader import BlockReader, chunks_in, place, slices
from converter.arrays.writer import ChunkWriter, LeafStore
from converter.arrays.zarr import MAX_DIMENSIONS, open_spec, read_array, unknown_dtype
from converter.arrays.zstd_frame import MAX_HEADER, FrameCheck, frame_header

__all__ = [
    "CHUNKS",
    "FEED_SIZE",
    "MANIFEST_NAME",
    "MAX_DIMENSIONS",
    "MAX_HEADER",
    "NODES",
    "ArraySpec",
    "BlockReader",
    "ChunkWriter",
    "Encoding",
    "FrameCheck",
    "Leaf",
    "LeafStore",
    "audit_chunks",
    "can_decode",
    "check_chunk",
    "chunk_digest",
    "chunk_key",
    "chunks_in",
    "encode_chunk",
    "file_states",
    "frame_header",
    "open_spec",
    "place",
    "read_array",
    "slabs",
    "slices",
    "start_chunk",
    "storage_dtype",
    "unknown_dtype",
    "write_index",
]
