"""Compares blocks of elements bit for bit, and with a cast: exactly the round-to-nearest-even cast."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How a leaf differs.

    Attributes:
      elements: how many elements differ.
      first_index: the first of them in C order.
      expected: its value in the source.
      found: its value in the checkpoint.
    """

    elements: int
    first_index: tuple[int, ...]
    expected: str
    found: str


class LeafComparison:
    """Collects what the blocks of one leaf show; `add` may be called from several threads."""

    def __init__(self) -> None:
        self.compared = 0
        self.max_absolute = 0.0
        self.max_relative = 0.0
        self.overflows = 0
        self._different = 0
        self._first: tuple[tuple[int, ...], str, str] | None = None
        self._lock = threading.Lock()

    def add(self, starts: Sequence[int], steps: Sequence[int], source: np.ndarray, found: np.ndarray) -> None:
        """Compares a block.

        Args:
          starts: the block's first element in the leaf, along each dimension.
          steps: distance of the block's elements in the leaf, along each dimension.
          source: the expected elements, in the source's dtype; cast to the other dtype where that differs.
          found: the checkpoint's elements.
        """
        cast = source.dtype != found.dtype
        expected = cast_exactly(source, found.dtype) if cast else source
        different = bits(expected) != bits(found)
        count = int(np.count_nonzero(different))
        first = None
        if count:
            at = tuple(int(n) for n in np.unravel_index(int(np.argmax(different)), different.shape))
            index = tuple(low + n * step for low, n, step in zip(starts, at, steps, strict=True))
            first = (index, value_text(expected[at]), value_text(found[at]))
        absolute, relative, overflows = cast_errors(source, expected) if cast else (0.0, 0.0, 0)
        with self._lock:
            self.compared += found.size
            self._different += count
            self.overflows += overflows
            self.max_absolute = max(self.max_absolute, absolute)
            self.max_relative = max(self.max_relative, relative)
            if first is not None and (self._first is None or first[0] < self._first[0]):
                self._first = first

    def add_equal(self, count: int) -> None:
        """Counts elements that are known to be equal."""
        with self._lock:
            self.compared += count

    @property
    def mismatch(self) -> Mismatch | None:
        """What differs, or None."""
        return None if self._first is None else Mismatch(self._different, *self._first)


def bits(array: np.ndarray) -> np.ndarray:
    """The same elements as unsigned integers of their size, so that NaN payloads and the sign of zero count."""
    if array.dtype == np.complex64:
        return array.view(np.uint64)
    return array.view(f"u{array.dtype.itemsize}")


def cast_exactly(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The round-to-nearest-even cast; what it overflows to is reported by `cast_errors`, not by numpy's warnings."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if array.dtype == np.float64 and np.dtype(dtype).isbuiltin == 2:
            array = _round_to_odd(array)
        return array.astype(dtype)


def _round_to_odd(array: np.ndarray) -> np.ndarray:
    """float64 as float32 that rounds on to anything shorter as the float64 itself would.

    ml_dtypes goes by way of float32, which rounds twice: what the first rounding makes a tie loses its direction. An
    inexact result that is cut off and made odd is never a tie.
    """
    narrow = array.astype(np.float32)
    wide = narrow.astype(np.float64)
    inexact = (wide != array) & ~np.isnan(array)
    cut = narrow.view(np.uint32) - (np.abs(wide) > np.abs(array))
    return np.where(inexact, cut | 1, cut).astype(np.uint32).view(np.float32)


def cast_errors(source: np.ndarray, cast: np.ndarray) -> tuple[float, float, int]:
    """Largest absolute and relative error of a cast over finite results, and how many finite values became infinite."""
    exact, rounded = source.astype(np.float64), cast.astype(np.float64)
    finite = np.isfinite(exact)
    overflows = int(np.count_nonzero(finite & np.isinf(rounded)))
    both = finite & np.isfinite(rounded)
    error = np.where(both, np.abs(np.where(both, exact, 0) - np.where(both, rounded, 0)), 0.0)
    size = np.where(both & (exact != 0), np.abs(exact), np.inf)
    return float(error.max(initial=0.0)), float((error / size).max(initial=0.0)), overflows


def value_text(value: Any) -> str:
    """A value for people; the bits are added where decimal digits would hide what differs."""
    number = value.item() if value.dtype.kind in "biufc" else float(value)
    text = repr(number)
    if isinstance(number, float) and number != number:
        width = value.dtype.itemsize
        return f"{text} (0x{int(bits(np.asarray(value))):0{2 * width}x})"
    return text
