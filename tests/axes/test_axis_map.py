"""Moving elements: expected bijections on running numbers, and the laws that must hold for every expression."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.axes.axis_map import AxisMap, Box
from converter.axes.expression import Expression
from converter.mapping.file import load_bundled
from converter.mapping.table import LAYER_AXIS
from tests.helpers.expressions import expressions, sizes

ROWS = [
    pytest.param(
        row.expression.with_axis(LAYER_AXIS, source_at=0, target_at=1) if row.in_layer else row.expression,
        id=f"{table.name}-{row.maxtext[0]}-{row.when}",
    )
    for table in load_bundled()
    for row in table.rows
]
QKV = (
    "layers embed (heads + kv_heads + kv_heads) (pair 2) -> "
    "embed layers heads (2 pair) | embed layers kv_heads (2 pair) | embed layers kv_heads (pair 2)"
)


def running(axis_map: AxisMap) -> list[np.ndarray]:
    """Source arrays in which every element has a number of its own."""
    counter = itertools.count()
    return [
        np.array([next(counter) for _ in range(int(np.prod(shape)))]).reshape(shape) for shape in axis_map.source_shapes
    ]


@pytest.mark.parametrize(
    ("layers", "embed", "heads", "kv_heads", "head_dim"),
    [
        (2, 8, 4, 2, 6),  # GQA, head_dim is not embed / heads
        (2, 12, 3, 3, 4),  # MHA
        (4, 4, 4, 4, 4),  # all equal: a wrong transposition has the right shape
        (12, 5, 2, 1, 2),  # twelve layers, one pair a head
        (1, 1, 1, 1, 2),
    ],
)
def test_qkv_goes_where_it_should(layers: int, embed: int, heads: int, kv_heads: int, head_dim: int) -> None:
    axis_map = AxisMap(
        Expression.parse(QKV),
        {"layers": layers, "embed": embed, "heads": heads, "kv_heads": kv_heads, "pair": head_dim // 2},
    )
    all_heads = heads + 2 * kv_heads

    def number(layer: int, row: int, head: int, element: int) -> int:
        """Place of an element in the fused tensor, counted in C order."""
        return ((layer * embed + row) * all_heads + head) * head_dim + element

    def interleaved(element: int) -> int:
        """Where the element of a half layout stands among interleaved pairs."""
        half = head_dim // 2
        return 2 * element if element < half else 2 * (element - half) + 1

    query, key, value = axis_map.forward(running(axis_map))
    for row, layer, element in itertools.product(range(embed), range(layers), range(head_dim)):
        for head in range(heads):
            assert query[row, layer, head, element] == number(layer, row, head, interleaved(element))
        for head in range(kv_heads):
            assert key[row, layer, head, element] == number(layer, row, heads + head, interleaved(element))
            assert value[row, layer, head, element] == number(layer, row, heads + kv_heads + head, element)
    assert query.shape == (embed, layers, heads, head_dim)
    assert key.shape == value.shape == (embed, layers, kv_heads, head_dim)


def test_square_matrices_are_transposed_in_value() -> None:
    axis_map = AxisMap(
        Expression.parse("layers embed heads (pair 2) -> heads layers (pair 2) embed"),
        {"layers": 4, "embed": 4, "heads": 4, "pair": 2},
    )
    (source,) = running(axis_map)
    (target,) = axis_map.forward([source])
    for layer, row, head, element in itertools.product(range(4), repeat=4):
        assert target[head, layer, element, row] == ((layer * 4 + row) * 4 + head) * 4 + element


def test_a_pair_becomes_halves() -> None:
    axis_map = AxisMap(Expression.parse("(pair 2) -> (2 pair)"), {"pair": 4})
    (target,) = axis_map.forward([np.arange(8)])
    assert target.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_forward_refuses_other_shapes() -> None:
    axis_map = AxisMap(Expression.parse("a b -> b a"), {"a": 2, "b": 3})
    with pytest.raises(ValueError, match=r"expected shape \(2, 3\), got \(3, 2\)"):
        axis_map.forward([np.zeros((3, 2))])


def check_laws(axis_map: AxisMap, box_of: "BoxOf") -> None:
    sources = running(axis_map)
    targets = axis_map.forward(sources)
    for target, shape in zip(targets, axis_map.target_shapes, strict=True):
        assert target.shape == shape
    numbers = np.concatenate([target.reshape(-1) for target in targets])
    assert sorted(numbers.tolist()) == list(range(sum(source.size for source in sources)))
    for back, source in zip(axis_map.inverse().forward(targets), sources, strict=True):
        assert np.array_equal(back, source)
    for number, target in enumerate(targets):
        check_pieces(axis_map, sources, number, target, tuple((0, length) for length in target.shape))
        check_pieces(axis_map, sources, number, target, box_of(target.shape))


def check_pieces(axis_map: AxisMap, sources: list[np.ndarray], number: int, target: np.ndarray, box: Box) -> None:
    """The pieces fill the block exactly once, touch nothing else, and agree with the whole map."""
    filled = np.full(target.shape, -1)
    for piece in axis_map.pieces(number, box):
        assert (filled[piece.target_slices] == -1).all()
        filled[piece.target_slices] = piece.rearrange(sources[piece.source][piece.source_slices])
    inside = tuple(slice(low, high) for low, high in box)
    assert np.array_equal(filled[inside], target[inside])
    filled[inside] = -1
    assert (filled == -1).all()


class BoxOf:
    """Draws a block of a tensor."""

    def __init__(self, data: st.DataObject):
        self.data = data

    def __call__(self, shape: tuple[int, ...]) -> Box:
        box = []
        for length in shape:
            low = self.data.draw(st.integers(0, length - 1))
            box.append((low, self.data.draw(st.integers(low + 1, length))))
        return tuple(box)


@pytest.mark.parametrize("expression", ROWS)
@settings(max_examples=30)
@given(data=st.data())
def test_laws_on_every_bundled_row(expression: Expression, data: st.DataObject) -> None:
    check_laws(AxisMap(expression, data.draw(sizes(expression.names(), 3))), BoxOf(data))


@given(st.data())
def test_laws_on_any_expression(data: st.DataObject) -> None:
    expression = Expression.parse(data.draw(expressions()))
    check_laws(AxisMap(expression, data.draw(sizes(expression.names(), 3))), BoxOf(data))


@given(st.data())
def test_a_cut_block_agrees_with_the_whole(data: st.DataObject) -> None:
    expression = Expression.parse(data.draw(expressions()))
    whole = AxisMap(expression, data.draw(sizes(expression.names(), 4)))
    sources = running(whole)
    targets = whole.forward(sources)
    span = {}
    for axis in whole.free_axes:
        low = data.draw(st.integers(0, whole.sizes[axis.name] - 1))
        span[axis.name] = (low, data.draw(st.integers(low + 1, whole.sizes[axis.name])))
    block = whole.cut({name: high - low for name, (low, high) in span.items()})

    def region(array: np.ndarray, dims: dict[str, int]) -> np.ndarray:
        index = [slice(None)] * array.ndim
        for name, dim in dims.items():
            index[dim] = slice(*span[name])
        return array[tuple(index)]

    parts = [region(s, {a.name: a.source_dims[i] for a in whole.free_axes}) for i, s in enumerate(sources)]
    for i, (part, target) in enumerate(zip(block.forward(parts), targets, strict=True)):
        assert np.array_equal(part, region(target, {a.name: a.target_dims[i] for a in whole.free_axes}))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (QKV, ["layers", "embed"]),
        ("layers embed heads (pair 2) -> heads layers (pair 2) embed", ["layers", "embed", "heads"]),
        ("(a b) c -> a b c", ["c"]),
        ("2 a -> a 2", ["a"]),
        ("(pair 2) -> (2 pair)", []),
    ],
)
def test_free_axes(text: str, names: list[str]) -> None:
    expression = Expression.parse(text)
    assert [axis.name for axis in AxisMap(expression, dict.fromkeys(expression.names(), 2)).free_axes] == names


@pytest.mark.parametrize(
    ("text", "permutation"),
    [
        ("layers experts embed mlp -> experts layers embed mlp", (1, 0, 2, 3)),
        ("layers embed heads (pair 2) -> heads layers (pair 2) embed", (2, 0, 3, 1)),
        ("a b -> a b", (0, 1)),
        ("(pair 2) -> (2 pair)", None),
        (QKV, None),
        ("a b -> (a b)", None),
    ],
)
def test_axis_permutation(text: str, permutation: tuple[int, ...] | None) -> None:
    expression = Expression.parse(text)
    assert AxisMap(expression, dict.fromkeys(expression.names(), 2)).axis_permutation() == permutation
