"""Value rules: exact values on small arrays, and the laws of inverse and moments."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.mapping.values import Copy, Scale

SIZES = {"pair": 32, "heads": 3}
SCALES = st.builds(
    Scale,
    constant=st.floats(0.01, 100) | st.floats(-100, -0.01),
    size=st.sampled_from(["", "pair", "heads"]),
    times=st.integers(1, 4),
    power=st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0]),
)


def test_factors() -> None:
    assert Scale(size="pair", times=2, power=-0.5).factor(SIZES) == 0.125
    assert Scale(constant=3.0).factor(SIZES) == 3.0
    assert Scale(constant=3.0, size="heads", power=2.0).factor(SIZES) == 27.0


def test_a_scale_rounds_once() -> None:
    values = np.array([1.0, 1 / 3, -7e-45, np.inf], np.float32)
    third = Scale(constant=1 / 3).apply(values, {})
    assert third.dtype == np.float32
    np.testing.assert_array_equal(third, (values.astype(np.float64) / 3).astype(np.float32))
    rounded = Scale(constant=3.0).apply(np.array([1.0, 0.1], ml_dtypes.bfloat16), {})
    assert rounded.dtype == ml_dtypes.bfloat16
    assert rounded.astype(np.float32).tolist() == [3.0, 0.30078125]


def test_a_copy_has_no_effect_on_moments() -> None:
    assert Copy().inverse() == Copy().moment(1) == Copy().moment(2) == Copy()


@given(SCALES)
def test_the_inverse_leads_back(rule: Scale) -> None:
    assert rule.inverse().factor(SIZES) * rule.factor(SIZES) == pytest.approx(1)
    assert rule.inverse().inverse().factor(SIZES) == pytest.approx(rule.factor(SIZES))


@given(SCALES, st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8))
def test_moments_are_those_of_the_scaled_gradient(rule: Scale, gradient: list[float]) -> None:
    # w' = s w, so the gradient by w' is the gradient by w over s; mu is linear in it, nu in its square.
    there = np.array(gradient) / rule.factor(SIZES)
    first = np.array(gradient) * rule.moment(1).factor(SIZES)
    second = np.square(gradient) * rule.moment(2).factor(SIZES)
    np.testing.assert_allclose(first, there, rtol=1e-12)
    np.testing.assert_allclose(second, np.square(there), rtol=1e-12)


@given(SCALES)
def test_moments_and_inverse_commute(rule: Scale) -> None:
    for order in (1, 2):
        assert rule.inverse().moment(order).factor(SIZES) == pytest.approx(rule.moment(order).inverse().factor(SIZES))
