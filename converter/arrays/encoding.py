"""How the chunks of a target leaf are stored: the codecs, the keys, and the array metadata that says so.

The stores:

* `files`: each leaf is a plain zarr v3 directory, each chunk a file.
* `ocdbt`: zarr v3 in an OCDBT database, MaxText's own default.
* `zarr2`: plain zarr v2 directories, for readers that know neither zarr v3 nor OCDBT.

Every chunk carries a checksum (zarr v3: a `crc32c` codec behind the compressor; zarr v2: zstd's own), so that any
reader, a plain Orbax restore included, refuses a damaged chunk instead of returning wrong weights. Orbax itself writes
none. Only linked chunks have none: they are the source's own files.
"""

from dataclasses import dataclass
from typing import Any

LEVEL = 1
"""zstd's level for chunks that we encode. Weights are noise to a compressor: higher levels only take longer."""

_ZARR2_DTYPES = {
    "bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4",
    "int64": "<i8", "uint64": "<u8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a leaf's chunks are stored.

    Attributes:
      zarr_format: 2 or 3.
      order: zarr3's transpose: the encoded chunk's dimension i is the array's dimension order[i]; empty for none.
      level: zstd's level; None for uncompressed chunks.
      checksum: whether the chunk can tell that it is damaged.
      flat_keys: chunk keys like `0.1` instead of `c/0/1`.
    """

    zarr_format: int
    order: tuple[int, ...]
    level: int | None
    checksum: bool
    flat_keys: bool

    @classmethod
    def rewritten(cls, store: str) -> "Encoding":
        """For chunks that we encode."""
        zarr_format = 2 if store == "zarr2" else 3
        return cls(zarr_format, (), LEVEL, checksum=True, flat_keys=zarr_format == 2)

    @classmethod
    def passed(cls, store: str, order: tuple[int, ...], level: int | None, *, checksum: bool) -> "Encoding":
        """For chunks that are the source's; their keys stay as they are, dimension by dimension."""
        assert store in ("files", "ocdbt")
        return cls(3, order, level, checksum, flat_keys=True)

    @property
    def crc32c(self) -> bool:
        """Whether four bytes of CRC-32C follow the encoded chunk."""
        return self.checksum and self.zarr_format == 3

    @property
    def metadata_name(self) -> str:
        return "zarr.json" if self.zarr_format == 3 else ".zarray"

    def chunk_key(self, index: tuple[int, ...]) -> str:
        """The name of a chunk below its array."""
        if self.flat_keys:
            return ".".join(map(str, index)) or "0"
        return "/".join(("c", *map(str, index)))

    def metadata(self, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str) -> dict[str, Any]:
        """The array's metadata document."""
        if self.zarr_format == 2:
            return {
                "zarr_format": 2,
                "shape": list(shape),
                "chunks": list(chunks),
                "dtype": _ZARR2_DTYPES.get(dtype, dtype),
                "compressor": None if self.level is None else {"id": "zstd", "level": self.level},
                "fill_value": None,
                "filters": None,
                "order": "C",
                "dimension_separator": ".",
            }
        keys = {
            "name": "v2" if self.flat_keys else "default",
            "configuration": {"separator": "." if self.flat_keys else "/"},
        }
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
            "chunk_key_encoding": keys,
            "fill_value": {"bool": False, "complex64": [0, 0]}.get(dtype, 0),
            "codecs": self._codecs(),
            "attributes": {},
        }

    def _codecs(self) -> list[dict[str, Any]]:
        codecs: list[dict[str, Any]] = []
        if self.order and self.order != tuple(range(len(self.order))):
            codecs.append({"name": "transpose", "configuration": {"order": list(self.order)}})
        codecs.append({"name": "bytes", "configuration": {"endian": "little"}})
        if self.level is not None:
            codecs.append({"name": "zstd", "configuration": {"level": self.level}})
        if self.crc32c:
            codecs.append({"name": "crc32c"})
        return codecs
