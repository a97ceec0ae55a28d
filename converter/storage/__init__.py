"""Where bytes live: files, locks, and how a finished checkpoint takes its place."""

from converter.storage.chunk_file import PAGE, PART, ChunkFile, open_chunk_file
from converter.storage.litter import PROBE, find_litter, has_litter_in, is_litter, without_litter
from converter.storage.lock import FileLock
from converter.storage.write_errors import free_text, write_error

__all__ = [
    "PAGE",
    "PART",
    "PROBE",
    "ChunkFile",
    "FileLock",
    "find_litter",
    "free_text",
    "has_litter_in",
    "is_litter",
    "open_chunk_file",
    "without_litter",
    "write_error",
]
