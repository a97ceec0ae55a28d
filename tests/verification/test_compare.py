"""The comparison of blocks bit for bit, and the cast held against exact rounding."""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.verification.compare import LeafComparison, Mismatch, bits, cast_errors, cast_exactly, value_text

F32 = np.float32


def floats(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint32).view(F32)


def compared(source: np.ndarray, found: np.ndarray) -> LeafComparison:
    comparison = LeafComparison()
    comparison.add([0] * source.ndim, [1] * source.ndim, source, found)
    return comparison


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0x00000000, 0x80000000), (0x7FC00000, 0x7FC00001), (0x7FC00000, 0xFFC00000), (0x3F800000, 0x3F800001),
        (0x7F800000, 0xFF800000), (0x00000001, 0x00000000),
    ],
    ids=["zeros", "NaN payloads", "NaN signs", "neighbours", "infinities", "subnormal"],
)  # fmt: skip
def test_values_are_equal_only_where_all_bits_are(one: int, other: int) -> None:
    source = floats(one, one)
    same = compared(source, source.copy())
    assert (same.mismatch, same.overflows, same.max_absolute, same.max_relative) == (None, 0, 0.0, 0.0)
    mismatch = compared(source, floats(one, other)).mismatch
    assert mismatch is not None
    assert (mismatch.elements, mismatch.first_index) == (1, (1,))
    assert mismatch.expected != mismatch.found


@pytest.mark.parametrize("dtype", ["bool", "int4", "int8", "uint16", "float16", "bfloat16", "int64", "complex64"])
def test_bits_of_every_size(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(kind)
    assert bits(values).dtype == np.dtype(f"u{kind.itemsize}")
    assert bits(values).tobytes() == values.tobytes()
    assert bits(values.T).shape == (3, 2)
    changed = values.copy()
    changed[1, 1] = 1
    mismatch = compared(values, changed).mismatch
    assert mismatch is not None
    assert (mismatch.elements, mismatch.first_index) == (1, (1, 1))


def test_the_first_difference_is_the_first_of_the_leaf_whatever_comes_first() -> None:
    leaf = np.arange(60, dtype=F32).reshape(6, 10)
    found = leaf.copy()
    found[1, 7] = found[4, 2] = found[4, 4] = -1.0
    # Blocks of every other row and column, last ones first, from several threads.
    blocks = [(row, column) for row in (1, 0) for column in (1, 0)]
    comparison = LeafComparison()

    def add(at: tuple[int, int]) -> None:
        part = (slice(at[0], None, 2), slice(at[1], None, 2))
        comparison.add(at, (2, 2), leaf[part], found[part])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(add, blocks))
    assert comparison.mismatch == Mismatch(3, (1, 7), "17.0", "-1.0")
    assert comparison.compared == 60


def test_a_scalar() -> None:
    assert compared(np.array(3, np.int32), np.array(3, np.int32)).mismatch is None
    assert compared(np.array(3, np.int32), np.array(4, np.int32)).mismatch == Mismatch(1, (), "3", "4")


def test_a_cast_and_what_it_costs() -> None:
    source = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 3.4e38, -np.inf, np.nan, 0.0], F32)
    due = cast_exactly(source, ml_dtypes.bfloat16)
    # Ties go to the even neighbour, once down and once up; 3.4e38 is beyond bfloat16's largest number.
    assert due.astype(F32)[:5].tolist() == [1.0, 1.0, 1.015625, math.inf, -math.inf]
    comparison = compared(source, due)
    assert comparison.mismatch is None
    assert (comparison.overflows, comparison.max_absolute) == (1, 2**-8)
    assert comparison.max_relative == 2**-8 / (1 + 2**-8)
    away = due.copy()
    away[1] = 1.0078125  # as near, but odd
    assert compared(source, away).mismatch == Mismatch(1, (1,), "1.0", "1.0078125")


def test_errors_of_what_is_not_finite_do_not_count() -> None:
    source = np.array([np.nan, np.inf, 0.0, 2.0, 1e300])
    assert cast_errors(source, np.array([np.nan, np.inf, 0.0, 2.5, np.inf], F32)) == (0.5, 0.25, 1)
    assert cast_errors(source[:0], np.zeros(0, F32)) == (0.0, 0.0, 0)


def nearest_even(value: float, mantissa: int, least: int) -> Fraction:
    """The nearest number of `mantissa` bits, ties to even; `least` is the exponent of the smallest subnormal."""
    exact = Fraction(value)
    unit = Fraction(2) ** max(math.frexp(value)[1] - mantissa, least)
    return round(exact / unit) * unit  # Python rounds ties to even


near_ties = st.builds(
    lambda high, low, sign, exponent: sign * math.ldexp(high + low, exponent),
    st.integers(128, 1023),
    st.sampled_from([0.0, 0.5, 0.25, 0.5 + 2**-20, 0.5 - 2**-20, 0.5 + 2**-40, 0.5 - 2**-40, 2**-42]),
    st.sampled_from([1, -1]),
    st.integers(-140, 100),
)
kinds: dict[str, tuple[Any, int, int]] = {
    "bfloat16": (ml_dtypes.bfloat16, 8, -133),
    "float16": (np.float16, 11, -24),
    "float32": (F32, 24, -149),
}


@pytest.mark.parametrize("kind", kinds)
@given(value=st.one_of(near_ties, st.floats(-6e4, 6e4)))
def test_a_cast_is_rounded_once(kind: str, value: float) -> None:
    dtype, mantissa, least = kinds[kind]
    found = float(cast_exactly(np.array([value]), dtype)[0])
    due = nearest_even(value, mantissa, least)
    if abs(due) > Fraction(float(ml_dtypes.finfo(dtype).max)):
        assert found == math.copysign(math.inf, value)
    else:
        assert Fraction(found) == due
        assert math.copysign(1, found) == math.copysign(1, value)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@given(data=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8))
def test_a_float32_is_cast_like_the_float64_that_equals_it(dtype: Any, data: list[int]) -> None:
    values = floats(*data)
    number = ~np.isnan(values)
    wide = cast_exactly(values.astype(np.float64), dtype)
    narrow = cast_exactly(values, dtype)
    assert bits(wide[number]).tolist() == bits(narrow[number]).tolist()
    assert np.isnan(wide[~number].astype(F32)).all()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.1), "0.10000000149011612"), (np.float32(-0.0), "-0.0"), (np.int32(-7), "-7"),
        (np.bool_(1), "True"),
        (np.complex64(1 - 2j), "(1-2j)"), (ml_dtypes.bfloat16(1.5), "1.5"), (np.float32("inf"), "inf"),
        (floats(0x7FC00123)[0], "nan (0x7fc00123)"), (np.array([0xFFC1], np.uint16).view(ml_dtypes.bfloat16)[0],
        "nan (0xffc1)"),
    ],
)  # fmt: skip
def test_values_for_people(value: Any, text: str) -> None:
    assert value_text(value) == text
