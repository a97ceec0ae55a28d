"""Arrays of zarr v2, as AXLearn's metadata describes them, and those of .npz files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.arrays.array import Array
from converter.arrays.encoding import Encoding

ZSTD = {"id": "zstd", "level": 1}


def zarr2_array(
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None = None,
    *,
    dtype: str = "float32",
    directory: str | Path = "nowhere",
    path: str = "w",
    compressor: Mapping[str, Any] | None = None,
    fortran: bool = False,
) -> Array:
    """An array in one chunk, where nothing else is said."""
    order = tuple(reversed(range(len(shape)))) if fortran else ()
    return Array(
        path=path,
        dtype=dtype,
        shape=shape,
        chunks=shape if chunks is None else chunks,
        encoding=Encoding(zarr_format=2, order=order, compressor=compressor),
        directory=str(directory),
    )


def read_npz(file: str | Path) -> dict[str, np.ndarray]:
    """All arrays of a file; `np.load` alone leaves it open."""
    with np.load(file) as arrays:
        return dict(arrays)
