"""Trees beside the parameters: the same rows under other paths, and what a value rule does to moments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.axes import Expression
from converter.mapping import COPY, Fit, MatchedRow, Tree, moved_row
from converter.mapping.table import TensorRow
from converter.mapping.values import Scale, ValueRule, scaled

PARAMETERS = Tree(name="params", source="model", target="params/params")
MOMENTS = [
    Tree(name=name, source=f"learner/x/{name}", target=f"opt_state/0/{name}/params", order=order)
    for name, order in (("mu", 1), ("nu", 2))
]
SIZES = {"embed": 32}
SCALES = st.builds(
    Scale,
    constant=st.floats(0.01, 100) | st.floats(-100, -0.01),
    size=st.sampled_from(["", "embed"]),
    times=st.integers(1, 4),
    power=st.sampled_from([-2.0, -0.5, 0.5, 1.0]),
)


def row(value: ValueRule) -> MatchedRow:
    expression = Expression.parse("embed -> embed")
    table_row = TensorRow(("a/w",), ("b/w",), expression, "", "", "", "", (), value, 1)
    return MatchedRow(
        table_row, ("model/a/w",), ("params/params/b/w",), expression, value, "model/a", "params/params/b"
    )


@pytest.mark.parametrize("tree", MOMENTS, ids=lambda tree: tree.name)
def test_paths_and_places_move(tree: Tree) -> None:
    moved = moved_row(row(COPY), PARAMETERS, tree)
    assert moved.sources == (f"learner/x/{tree.name}/a/w",)
    assert moved.targets == (f"opt_state/0/{tree.name}/params/b/w",)
    assert (moved.source_place, moved.target_place) == (f"learner/x/{tree.name}/a", f"opt_state/0/{tree.name}/params/b")
    assert moved.value == COPY


def test_the_parameters_stay_where_they_are() -> None:
    assert moved_row(row(COPY), PARAMETERS, PARAMETERS) == row(COPY)


def test_a_moment_of_fitted_values_is_copied() -> None:
    assert {moved_row(row(Fit(name="qk_norm")), PARAMETERS, tree).value for tree in MOMENTS} == {COPY}
    assert moved_row(row(Fit(name="qk_norm")), PARAMETERS, PARAMETERS).value == Fit(name="qk_norm")


@given(SCALES, st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8))
def test_moments_of_scaled_values_are_those_of_their_gradients(rule: Scale, gradients: list[float]) -> None:
    mu, nu = (moved_row(row(rule), PARAMETERS, tree).value for tree in MOMENTS)
    gradient = np.array(gradients)
    there = gradient / rule.factor(SIZES)
    np.testing.assert_allclose(mu.apply(gradient, SIZES), there, rtol=1e-12)  # pyright: ignore
    np.testing.assert_allclose(nu.apply(np.square(gradient), SIZES), np.square(there), rtol=1e-12)  # pyright: ignore


@given(SCALES, st.floats(0.5, 50))
def test_a_further_factor_multiplies(rule: Scale, factor: float) -> None:
    assert scaled(rule, factor).factor(SIZES) == pytest.approx(rule.factor(SIZES) * factor)  # pyright: ignore
    assert scaled(COPY, factor) == Scale(constant=factor) or factor == 1
    assert scaled(rule, 1.0) is rule
