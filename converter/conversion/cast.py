"""Casts weights to a shorter dtype: to the nearest value, and of two that are equally near to the even one."""

import numpy as np

from converter.dtypes import storage_dtype
from converter.errors import MappingError


def cast(values: np.ndarray, dtype: str, path: str) -> np.ndarray:
    """Rounds values once.

    Args:
      values: floating-point numbers.
      dtype: numpy's name of the new dtype.
      path: the leaf, for messages.

    Raises:
      MappingError: a finite value is beyond the new dtype's range.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        narrow = _float32(values) if values.dtype == np.float64 else values
        result = narrow.astype(storage_dtype(dtype))
    lost = np.isinf(result) & np.isfinite(values)
    if lost.any():
        first = values[lost][0]
        raise MappingError(
            f"{path}: {np.count_nonzero(lost):,} values are too large for {dtype}, the first is {first}; convert "
            "without --dtype"
        )
    return result


def _float32(values: np.ndarray) -> np.ndarray:
    """float64 as float32 that rounds on to bfloat16 as the float64 itself would.

    What the first rounding makes a tie of two bfloat16 values is moved by one step towards the exact value.
    """
    narrow = values.astype(np.float32)
    tie = (narrow.view(np.uint32) & 0xFFFF == 0x8000) & (narrow != values)
    towards = np.where(values > narrow, np.float32(np.inf), np.float32(-np.inf))
    return np.where(tie, np.nextafter(narrow, towards), narrow)
