"""The element types of arrays: one table of their names, sizes and spellings."""

from collections.abc import Mapping
from typing import Any

import numpy as np

_TABLE: Mapping[str, tuple[int, str]] = {
    "bool": (1, "|b1"), "int4": (1, "int4"), "int8": (1, "|i1"), "uint8": (1, "|u1"), "int16": (2, "<i2"),
    "uint16": (2, "<u2"), "int32": (4, "<i4"), "uint32": (4, "<u4"), "int64": (8, "<i8"), "uint64": (8, "<u8"),
    "float16": (2, "<f2"), "bfloat16": (2, "bfloat16"), "float32": (4, "<f4"), "float64": (8, "<f8"),
    "complex64": (8, "<c8"), "float8_e4m3fn": (1, "float8_e4m3fn"), "float8_e5m2": (1, "float8_e5m2"),
    "float8_e4m3b11fnuz": (1, "float8_e4m3b11fnuz"), "float8_e4m3fnuz": (1, "float8_e4m3fnuz"),
    "float8_e5m2fnuz": (1, "float8_e5m2fnuz"),
}  # fmt: skip
"""Name to bytes an element and zarr v2's spelling; zarr v3 spells a dtype as numpy does."""

ITEM_SIZES: Mapping[str, int] = {name: size for name, (size, _) in _TABLE.items()}
"""Bytes an element; the dtypes that TensorStore stores in zarr and JAX computes with."""

ZARR2_NAMES: Mapping[str, str] = {name: spelling for name, (_, spelling) in _TABLE.items()}
"""zarr v2's spelling of each dtype; TensorStore has its own for those that numpy lacks."""

NAMES_OF_ZARR2: Mapping[str, str] = {spelling: name for name, spelling in ZARR2_NAMES.items()}


def storage_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype for a dtype name; the ones numpy lacks come from ml_dtypes.

    Raises:
      TypeError: neither knows it.
    """
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name, name))


def item_size(name: str) -> int:
    """Bytes an element, also of a dtype that no weights have.

    Raises:
      TypeError: no such dtype is known.
    """
    return ITEM_SIZES.get(name) or storage_dtype(name).itemsize
