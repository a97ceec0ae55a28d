"""The axis-expression language: what parses, what does not and where the caret stands, printing, inverting."""

import pytest
from hypothesis import given

from converter.axes.expression import Branch, Dim, Expression, ExpressionError, format_tensor
from tests.helpers.expressions import expressions

QKV = (
    "embed (heads + kv_heads + kv_heads) (pair 2) -> "
    "embed heads (2 pair) | embed kv_heads (2 pair) | embed kv_heads (pair 2)"
)


def test_parse() -> None:
    expression = Expression.parse("a (b 2) -> (2 b) a")
    assert expression.sources == ((Dim((("a",),)), Dim((("b", 2),))),)
    assert expression.targets == ((Dim(((2, "b"),)), Dim((("a",),))),)
    assert expression.names() == ("a", "b")
    assert expression.sum_position() is None


def test_parse_a_split() -> None:
    expression = Expression.parse(QKV)
    assert len(expression.targets) == 3
    assert expression.sources[0][1].terms == (("heads",), ("kv_heads",), ("kv_heads",))
    assert expression.sum_position() == ("source", 1)
    assert expression.names() == ("embed", "heads", "kv_heads", "pair")
    assert expression.branches()[0] == Branch(
        0, 0, (("embed",), ("heads",), ("pair", 2)), (("embed",), ("heads",), (2, "pair"))
    )
    assert [(branch.source, branch.target) for branch in expression.branches()] == [(0, 0), (0, 1), (0, 2)]


def test_the_inverse_swaps_sides_and_joins() -> None:
    inverse = Expression.parse(QKV).inverse()
    assert str(inverse).endswith("-> embed (heads + kv_heads + kv_heads) (pair 2)")
    assert inverse.sum_position() == ("target", 1)
    assert [(branch.source, branch.target) for branch in inverse.branches()] == [(0, 0), (1, 0), (2, 0)]
    assert inverse.inverse() == Expression.parse(QKV)


@pytest.mark.parametrize("text", [QKV, "a->a", " a\n  (b  1) ->(b 1) a ", "(a b) -> a b", "(a + b) c -> a c | b c"])
def test_print_then_parse(text: str) -> None:
    expression = Expression.parse(text)
    assert Expression.parse(str(expression)) == expression


@given(expressions())
def test_print_then_parse_any(text: str) -> None:
    expression = Expression.parse(text)
    assert Expression.parse(str(expression)) == expression
    assert Expression.parse(str(expression.inverse())) == expression.inverse()
    assert expression.inverse().inverse() == expression


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("(pair 2) -> (2 pair)", "(pair 2) -> (pair 2)"),
        (QKV, QKV.replace("(2 pair)", "(pair 2)")),
        ("(1 + 1) a (b 2) -> (2 b) a | a (b 2)", "(1 + 1) a (b 2) -> (b 2) a | a (b 2)"),
        ("a (heads pair 2) -> heads (2 pair) a", "a (heads pair 2) -> heads (pair 2) a"),
        ("a (b 2) -> (2 a b)", "a (b 2) -> (b a 2)"),  # what comes from two dimensions stays where it is
        ("(a b) | (b a) -> (b a + b a)", "(a b) | (b a) -> (a b + b a)"),
        ("(a 1 b) -> (b 1 a)", "(a 1 b) -> (a 1 b)"),
        ("a b -> b a", "a b -> b a"),
    ],
)
def test_the_order_of_the_source(text: str, kept: str) -> None:
    assert str(Expression.parse(text).in_source_order()) == kept


@given(expressions())
def test_the_order_of_the_source_is_one_that_parses(text: str) -> None:
    expression = Expression.parse(text)
    kept = expression.in_source_order()
    assert Expression.parse(str(kept)) == kept
    assert kept.in_source_order() == kept
    assert kept.sources == expression.sources
    assert [len(tensor) for tensor in kept.targets] == [len(tensor) for tensor in expression.targets]


def test_with_axis() -> None:
    expression = Expression.parse("embed heads -> heads embed").with_axis("layers", source_at=0, target_at=1)
    assert str(expression) == "layers embed heads -> heads layers embed"
    only_source = Expression.parse("a -> a").with_axis("layers", source_at=0, target_at=None)
    assert (format_tensor(only_source.sources[0]), format_tensor(only_source.targets[0])) == ("layers a", "a")


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "an axis is expected here"),
        ("a b", 3, "'->' is expected here"),
        ("a -> ", 4, "an axis is expected here"),
        ("-> a", 0, "an axis is expected here"),
        ("a (b -> a b", 5, "')' is expected here"),
        ("a () -> a", 3, "an axis is expected here"),
        ("a b) -> a b", 3, "'->' is expected here"),
        ("a -> a -> a", 7, "unexpected '->'"),
        ("a | -> a", 4, "an axis is expected here"),
        ("(a + ) -> a", 5, "an axis is expected here"),
        ("(a + (b c)) -> a", 5, "an axis is expected here"),
        ("a % b -> a b", 2, "unexpected character '%'"),
        ("a -> a ä", 7, "unexpected character 'ä'"),
        ("a 0 -> a 0", 2, "a fixed size must be between 1 and 999999999"),
        ("a 1234567890 -> a", 2, "a fixed size must be between 1 and 999999999"),
        ("a b -> a", 4, "each axis must be on both sides: b (only on the left)"),
        ("a -> a b", 2, "each axis must be on both sides: b (only on the right)"),
        ("a (b 2) -> a (b 3)", 8, "each axis must be on both sides: 2 (only on the left), 3 (only on the right)"),
        ("a a -> a a", 4, "axis a is used twice in one tensor"),
        ("(a + b) -> a", 8, "a sum needs as many tensors on the other side as it has terms"),
        ("a b -> a | b", 4, "2 tensors need one sum of 2 terms on the other side, found no sum"),
        ("(a + b) (c + d) -> a c | b d", 16, "2 tensors need one sum of 2 terms"),
        ("a | b -> a | b", 6, "several tensors on both sides"),
        ("(a + b + c) -> a | b", 12, "2 tensors need one sum of 2 terms"),
        ("(a + b) -> (a + b) | a", 8, "a sum needs as many tensors on the other side as it has terms"),
    ],
)
def test_faults(text: str, position: int, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression.parse(text)
    error = caught.value
    assert reason in error.reason
    assert error.position == position
    assert error.details == (text, " " * position + "^")
    assert error.exit_code == 4
