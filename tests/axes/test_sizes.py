"""Solving the sizes of axes across tensors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.axes.expression import Expression, Tensor
from converter.axes.sizes import ShapeFact, solve_sizes, tensor_shape
from converter.errors import MappingError
from tests.helpers.expressions import expressions, sizes


def axes(text: str) -> Tensor:
    return Expression.parse(f"{text} -> {text}").sources[0]


QKV = Expression.parse("embed (heads + kv + kv) (pair 2) -> embed heads pair 2 | embed kv pair 2 | embed kv pair 2")
OUT = ShapeFact("out", axes("embed heads (pair 2)"), (1536, 12, 128))


def qkv(*shape: int) -> ShapeFact:
    return ShapeFact("qkv", QKV.sources[0], shape)


@pytest.mark.parametrize("order", [1, -1])
def test_one_tensor_fixes_what_another_leaves_open(order: int) -> None:
    # 16 = heads + 2 kv says nothing alone; it must wait for heads, wherever that stands.
    found = solve_sizes([qkv(1536, 16, 128), OUT][::order])
    assert found == {"embed": 1536, "heads": 12, "kv": 2, "pair": 64}


def test_shapes_follow_from_sizes() -> None:
    found = {"embed": 6, "heads": 4, "kv": 1, "pair": 3}
    assert tensor_shape(QKV.sources[0], found) == (6, 6, 6)
    assert [tensor_shape(tensor, found) for tensor in QKV.targets] == [(6, 4, 3, 2), (6, 1, 3, 2), (6, 1, 3, 2)]


@given(st.data())
def test_solving_finds_the_sizes_that_made_the_shapes(data: st.DataObject) -> None:
    expression = Expression.parse(data.draw(expressions()))
    wanted = data.draw(sizes(expression.names()))
    facts = [ShapeFact(name, axes(name), (size,)) for name, size in wanted.items()]
    for number, tensor in enumerate((*expression.sources, *expression.targets)):
        facts.append(ShapeFact(f"tensor {number}", tensor, tensor_shape(tensor, wanted)))
    assert solve_sizes(data.draw(st.permutations(facts))) == wanted


def test_a_contradiction_names_both_tensors() -> None:
    with pytest.raises(MappingError) as caught:
        solve_sizes([OUT, ShapeFact("norm", axes("embed"), (2048,))])
    assert caught.value.details == (
        "norm [2048]: dimension 0 is 2048, which does not fit embed with embed = 1536 from out",
    )


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (qkv(1536, 15, 128), "dimension 1 is 15, which does not fit (heads + kv + kv) with heads = 12 from out"),
        (qkv(1536, 12, 128), "dimension 1 is 12"),
        (qkv(1536, 11, 128), "dimension 1 is 11"),
        (ShapeFact("odd", axes("(pair 2)"), (127,)), "dimension 0 is 127, which does not fit (pair 2) with pair = 64"),
    ],
    ids=["no whole number", "nothing left", "negative", "odd"],
)
def test_no_whole_size_fits(fact: ShapeFact, text: str) -> None:
    with pytest.raises(MappingError) as caught:
        solve_sizes([OUT, fact])
    assert len(caught.value.details) == 1
    assert text in caught.value.details[0]


def test_an_odd_head_dimension_alone() -> None:
    with pytest.raises(MappingError, match=r"scale \[7\]: dimension 0 is 7, which does not fit \(pair 2\)$"):
        solve_sizes([ShapeFact("scale", axes("(pair 2)"), (7,))])


def test_all_contradictions_are_listed() -> None:
    facts = [OUT, ShapeFact("one", axes("embed"), (1,)), ShapeFact("two", axes("heads"), (2,))]
    with pytest.raises(MappingError) as caught:
        solve_sizes(facts)
    assert [line.split(" ")[0] for line in caught.value.details] == ["one", "two"]


def test_an_open_size() -> None:
    with pytest.raises(MappingError, match="do not determine the size of an axis") as caught:
        solve_sizes([qkv(8, 6, 4)])
    assert caught.value.details == ("qkv: heads, kv in (heads + kv + kv) = 6",)


def test_another_number_of_dimensions() -> None:
    with pytest.raises(MappingError) as caught:
        solve_sizes([ShapeFact("norm", axes("layers embed"), (8,)), OUT])
    assert caught.value.details == ("norm: shape [8] has 1 dimensions, the mapping's 'layers embed' has 2",)


def test_a_fixed_size_must_be_met() -> None:
    with pytest.raises(MappingError, match="which does not fit 3"):
        solve_sizes([ShapeFact("qkv", axes("3 embed"), (4, 8))])
