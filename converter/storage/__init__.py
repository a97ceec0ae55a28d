"""Where bytes live: the `Storage` protocol, local file systems behind it, litter, and errors of writing."""

from typing import TYPE_CHECKING

from converter.storage.base import (
    CONTENT_SUM,
    CONVERSION,
    DANGLING,
    DIRECTORY,
    FILE,
    RESIDUE,
    UNREADABLE,
    Blob,
    Mark,
    Publication,
    Reader,
    ReadError,
    Storage,
    Writer,
)
from converter.storage.chunk_file import PART
from converter.storage.litter import PROBE, has_litter_in, is_litter, litter_in, without_litter
from converter.storage.reading import (
    find_litter,
    in_parallel,
    is_file,
    parse_json,
    read_json,
    read_small,
    short_text,
    store_errors,
)
from converter.storage.registry import STORAGES, is_remote, object_storage, storage_of
from converter.storage.shared import SharedFiles, claim
from converter.storage.write_errors import foreign_error, free_text, write_error

if TYPE_CHECKING:
    from converter.storage.remote import ObjectStorage

__all__ = [
    "CONTENT_SUM",
    "CONVERSION",
    "DANGLING",
    "DIRECTORY",
    "FILE",
    "PART",
    "PROBE",
    "RESIDUE",
    "STORAGES",
    "UNREADABLE",
    "Blob",
    "Mark",
    "ObjectStorage",
    "Publication",
    "ReadError",
    "Reader",
    "SharedFiles",
    "Storage",
    "Writer",
    "claim",
    "find_litter",
    "foreign_error",
    "free_text",
    "has_litter_in",
    "in_parallel",
    "is_file",
    "is_litter",
    "is_remote",
    "litter_in",
    "object_storage",
    "parse_json",
    "read_json",
    "read_small",
    "short_text",
    "storage_of",
    "store_errors",
    "without_litter",
    "write_error",
]
