"""Writes the index of an OCDBT database whose values are files of their own.

OCDBT is a B+tree over data files in any place below the database's directory (tensorstore/kvstore/ocdbt/index.rst,
"Storage format"). TensorStore writes it too, but takes a whole value into memory to do so, and a chunk can be larger
than memory. Here the chunks are files already, and one tree node and the manifest that points to it are all that is
missing. TensorStore reads them, and merges them in Orbax's commit.
"""

import os
import secrets
import struct
import time
from collections.abc import Iterable, Mapping, Sequence

from crc32c import crc32c

from converter.storage import storage_of

MANIFEST_NAME = "manifest.ocdbt"
CHUNKS = "chunks"
"""Where our databases have their chunks; any place below the database will do."""

NODES = "d"
"""Where they have their tree and what else is small, as TensorStore's own have."""

MANIFEST_MAGIC = 0x0CDB3A2A
NODE_MAGIC = 0x0CDB20DE
MAX_INLINE_BYTES = 100
MAX_NODE_BYTES = 8 << 20
VERSION_ARITY_LOG2 = 4
OUT_OF_LINE = 1


def write_index(
    directory: str, node_path: str, values: Mapping[str, str], sizes: Mapping[str, int] | None = None
) -> None:
    """Makes a database of files that hold one value each.

    Args:
      directory: the database's directory.
      node_path: where its one tree node goes, below the directory.
      values: key to path of its file, below the directory; the files are not empty.
      sizes: path to size of the files that are not there, because they are kept elsewhere.

    Raises:
      OSError: a file is missing, or cannot be written.
    """
    keys = sorted(values, key=str.encode)
    storage = storage_of(directory)
    known = sizes or {}
    paths = [values[key] for key in keys]
    lengths = [known.get(path) or storage.stat(os.path.join(directory, path)).size for path in paths]
    node = _node([key.encode() for key in keys], [path.encode() for path in paths], lengths)
    storage.make_directory(os.path.dirname(os.path.join(directory, node_path)))
    storage.write(os.path.join(directory, node_path), node)
    manifest = _manifest(node_path.encode(), len(node), len(keys), sum(lengths))
    storage.write(os.path.join(directory, MANIFEST_NAME), manifest)


def _node(keys: Sequence[bytes], paths: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    """A leaf node of the tree: the keys in order, and for each the file that is its value."""
    files = sorted(set(paths))
    number = {path: index for index, path in enumerate(files)}
    shared = _shared_prefixes(keys)
    suffixes = [key[length:] for key, length in zip(keys, shared, strict=True)]
    height = 0
    body = bytes([height]) + _file_table(files) + _varint(len(keys))
    body += _varints(shared[1:]) + _varints(map(len, suffixes)) + b"".join(suffixes)
    body += _varints(sizes) + bytes([OUT_OF_LINE]) * len(keys)
    body += _varints(number[path] for path in paths) + _varints(0 for _ in paths)
    return _framed(NODE_MAGIC, body)


def _manifest(node_path: bytes, node_size: int, keys: int, value_bytes: int) -> bytes:
    """The configuration, and one version whose root is the node."""
    single_file, no_compression, root_height, older_versions = 0, 0, 0, 0
    config = secrets.token_bytes(16) + bytes([single_file])
    config += _varints([MAX_INLINE_BYTES, MAX_NODE_BYTES]) + bytes([VERSION_ARITY_LOG2]) + _varint(no_compression)
    versions, generation, file, offset = 1, 1, 0, 0
    version = _varints([versions, generation]) + bytes([root_height])
    version += _varints([file, offset, node_size]) + _varints([keys, node_size, value_bytes])
    version += struct.pack("<Q", time.time_ns())
    return _framed(MANIFEST_MAGIC, config + _file_table([node_path]) + version + _varint(older_versions))


def _file_table(paths: Sequence[bytes]) -> bytes:
    """The data files that a node refers to, in order, each without what it shares with the one before."""
    shared = _shared_prefixes(paths)
    suffixes = [path[length:] for path, length in zip(paths, shared, strict=True)]
    base_lengths = [0] * len(paths)
    table = _varint(len(paths)) + _varints(shared[1:]) + _varints(map(len, suffixes)) + _varints(base_lengths)
    return table + b"".join(suffixes)


def _framed(magic: int, body: bytes) -> bytes:
    """A body with its header (magic number, length, version 0, not compressed) and its checksum."""
    version, uncompressed, header, trailer = 0, 0, 14, 4
    data = struct.pack(">I", magic) + struct.pack("<Q", header + len(body) + trailer)
    data += _varints([version, uncompressed]) + body
    return data + struct.pack("<I", crc32c(data))


def _shared_prefixes(texts: Sequence[bytes]) -> list[int]:
    """How many bytes each text shares with the one before; 0 for the first."""
    before: Iterable[bytes] = (b"", *texts)
    return [_shared(text, last) for text, last in zip(texts, before, strict=False)]


def _shared(first: bytes, second: bytes) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def _varint(value: int) -> bytes:
    """LEB128: seven bits a byte, the lowest first."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _varints(values: Iterable[int]) -> bytes:
    return b"".join(map(_varint, values))
