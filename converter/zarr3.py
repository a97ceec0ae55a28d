"""zarr v3 arrays as we write them: metadata and TensorStore specifications.

Every chunk carries a checksum: a `crc32c` codec follows the compressor, so that any reader, a plain Orbax restore
included, refuses a damaged chunk instead of returning wrong weights. Orbax itself writes none.
"""

from collections.abc import Mapping
from typing import Any

from converter.plan import Leaf

ZSTD_LEVEL = 1


def array_metadata(leaf: Leaf) -> dict[str, Any]:
    """The zarr.json of a leaf whose chunks we encode ourselves."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(leaf.shape),
        "data_type": leaf.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(leaf.chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if leaf.dtype == "bool" else 0,
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": ZSTD_LEVEL}},
            {"name": "crc32c"},
        ],
        "attributes": {},
    }


def write_spec(leaf: Leaf, kvstore: Mapping[str, Any]) -> dict[str, Any]:
    """TensorStore's specification to create and write a leaf.

    Chunks that hold only zeros are stored too: Orbax treats a chunk that is not there as an error.
    """
    return {
        "driver": "zarr3",
        "kvstore": dict(kvstore),
        "metadata": array_metadata(leaf),
        "store_data_equal_to_fill_value": True,
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
    }
