"""How the chunks of an array are stored: the codecs and the keys.

The stores of a target:

* `files`: each leaf is a plain zarr v3 directory, each chunk a file.
* `ocdbt`: zarr v3 in an OCDBT database, MaxText's own default.
* `zarr2`: plain zarr v2 directories, for readers that know neither zarr v3 nor OCDBT.

Every chunk that we store carries a checksum (zarr v3: a `crc32c` codec behind the compressor; zarr v2: zstd's own), so
that any reader, a plain Orbax restore included, refuses a damaged chunk instead of returning wrong weights. Orbax
itself writes none. Only linked chunks have none: they are the source's own files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

LEVEL = 1
"""zstd's level for chunks that we encode. Weights are noise to a compressor: higher levels only take longer."""

ZSTD = "zstd"


class ChunkKeys(NamedTuple):
    """How chunks are named: the numbers of their place in the grid, and what stands before and between them."""

    prefix: str
    separator: str

    def key(self, index: tuple[int, ...]) -> str:
        """The name of a chunk below its array; the only chunk of a scalar has no numbers."""
        return self.separator.join((*([self.prefix] if self.prefix else []), *map(str, index))) or "0"


FLAT_KEYS = ChunkKeys("", ".")
"""`0.1`: zarr v2's keys."""

NESTED_KEYS = ChunkKeys("c", "/")
"""`c/0/1`: zarr v3's default."""


def target_index(index: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Where a source chunk stands in the target's grid, when source dimension i is target dimension order[i]."""
    result = [0] * len(index)
    for source_dim, target_dim in enumerate(order):
        result[target_dim] = index[source_dim]
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How an array's chunks are stored.

    Attributes:
      zarr_format: 2 or 3.
      order: the encoded chunk's dimension i is the array's dimension order[i], as zarr v3's `transpose` has it; empty
        for none moved.
      compressor: the compressor's JSON as zarr v2 has it, an `id` and settings; None for uncompressed chunks.
      checksum: whether the chunk can tell that it is damaged.
      keys: how chunks are named.
      inner_chunks: a chunk is a shard of chunks of this shape, each decoded by itself; empty for no shards.
      foreign: codecs take part that only TensorStore can decode.
    """

    zarr_format: int
    order: tuple[int, ...] = ()
    compressor: Mapping[str, Any] | None = None
    checksum: bool = False
    keys: ChunkKeys = FLAT_KEYS
    inner_chunks: tuple[int, ...] = ()
    foreign: bool = False

    @classmethod
    def rewritten(cls, store: str, *, compress: bool = True) -> "Encoding":
        """For chunks that we encode; those of zarr v2 are compressed, for their checksum is in the frame."""
        zarr2 = store == "zarr2"
        return cls(
            zarr_format=2 if zarr2 else 3,
            compressor={"id": ZSTD, "level": LEVEL} if compress or zarr2 else None,
            checksum=True,
            keys=FLAT_KEYS if zarr2 else NESTED_KEYS,
        )

    @classmethod
    def passed(cls, store: str, order: tuple[int, ...], level: int | None, *, checksum: bool) -> "Encoding":
        """For chunks that are the source's; their keys stay as they are, dimension by dimension."""
        assert store in ("files", "ocdbt")
        compressor = None if level is None else {"id": ZSTD, "level": level}
        return cls(zarr_format=3, order=order, compressor=compressor, checksum=checksum)

    @property
    def level(self) -> int | None:
        """The compressor's level; None for uncompressed chunks."""
        return None if self.compressor is None else int(self.compressor.get("level", LEVEL))

    @property
    def is_transposed(self) -> bool:
        """Whether the elements of a chunk lie in another order than C."""
        return self.order != tuple(range(len(self.order)))

    @property
    def crc32c(self) -> bool:
        """Whether four bytes of CRC-32C follow the encoded chunk."""
        return self.checksum and self.zarr_format == 3

    @property
    def metadata_name(self) -> str:
        return "zarr.json" if self.zarr_format == 3 else ".zarray"

    def chunk_key(self, index: tuple[int, ...]) -> str:
        """The name of a chunk below its array."""
        return self.keys.key(index)
