"""The words for what a row does: every kind of axis expression, with and without roles."""

import pytest

from converter.axes import AxisMap, Expression
from converter.mapping import COPY, Fit, MatchedRow, Scale, ValueRule
from converter.mapping.table import TensorRow
from converter.planning.relation import relation

SIZES = {"layers": 6, "embed": 32, "mlp": 48, "heads": 4, "kv_heads": 2, "pair": 8, "vocab": 64, "a": 3, "b": 5, "c": 7}
ROPE = "RoPE pairs re-ordered (interleaved to halves)"
BACK = "RoPE pairs re-ordered (halves to interleaved)"


def words(axes: str, *roles: str, value: ValueRule = COPY) -> str:
    expression = Expression.parse(axes)
    sources = tuple(f"source{number}/weight" for number in range(len(expression.sources)))
    names = ("query", "key", "value") if len(expression.targets) > 1 else ("leaf",)
    targets = tuple(f"{name}/kernel" for name, _ in zip(names, expression.targets, strict=False))
    row = TensorRow(sources, targets, expression, "", "", "", "", roles, value, 1)
    return relation(MatchedRow(row, sources, targets, expression, value), AxisMap(expression, SIZES))


@pytest.mark.parametrize(
    ("axes", "roles", "expected"),
    [
        ("vocab embed -> vocab embed", (), "identical"),
        ("embed -> embed", ("final_norm",), "identical"),
        ("vocab embed -> embed vocab", ("unembedding",), "transposed (vocab, embed to embed, vocab)"),
        ("a b c -> c a b", (), "axes re-ordered (a, b, c to c, a, b)"),
        ("layers embed mlp -> embed layers mlp", (), "layer axis moved (0 to 1)"),
        ("layers mlp embed -> embed layers mlp", (),
         "layer axis moved (0 to 1); transposed (mlp, embed to embed, mlp)"),
        ("embed (heads pair) -> embed heads pair", (), "dimension split (embed, heads pair to embed, heads, pair)"),
        ("heads pair embed -> (heads pair) embed", (), "dimensions merged (heads, pair, embed to heads pair, embed)"),
        ("a (b c) -> (a b) c", (), "dimension split, dimensions merged (a, b c to a b, c)"),
        ("(heads pair) embed -> embed heads pair", (),
         "dimension split, axes re-ordered (heads pair, embed to embed, heads, pair)"),
        ("(a b c) -> (a c) b", (), "dimension split, axes re-ordered (a b c to a c, b)"),
        ("(a b) c -> (b a) c", (), "re-ordered inside an axis"),
        ("embed -> embed 1", (), "dimension of 1 added (embed to embed, 1)"),
        ("1 embed -> embed", (), "dimension of 1 removed (1, embed to embed)"),
        # The head dimension turns whatever else happens to it.
        ("embed heads (pair 2) -> embed heads (2 pair)", ("query",), ROPE),
        ("embed heads (2 pair) -> embed heads (pair 2)", ("key",), BACK),
        ("embed (heads pair 2) -> embed heads (2 pair)", ("query",),
         f"dimension split (embed, heads head dim to embed, heads, head dim); {ROPE}"),
        ("(heads pair 2) embed -> embed heads (2 pair)", ("query",),
         f"dimension split, axes re-ordered (heads head dim, embed to embed, heads, head dim); {ROPE}"),
        ("embed (heads pair 2) -> embed heads (2 pair)", (),
         "dimension split (embed, heads pair 2 to embed, heads, pair 2); re-ordered inside an axis"),
        ("embed (pair heads 2) -> embed heads (2 pair)", ("query",),
         f"dimension split, axes re-ordered (embed, pair heads 2 to embed, heads, head dim); {ROPE}"),
        ("(pair 2) -> (2 pair)", ("query_scale",), ROPE),
        ("embed heads (pair 2) -> embed heads (2 pair)", ("value",), "re-ordered inside an axis"),
        ("embed (heads + kv_heads + kv_heads) (pair 2) -> "
         "embed heads (2 pair) | embed kv_heads (2 pair) | embed kv_heads (pair 2)", ("query", "key", "value"),
         f"query, key, value split 4 + 2 + 2 of 8 heads; {ROPE} on query and key"),
        ("embed (mlp + mlp) -> embed mlp | mlp embed", (),
         "split 48 + 48 (query, key); transposed (embed, mlp to mlp, embed) on key"),
        ("embed (mlp + vocab) -> mlp embed | vocab embed", (),
         "split 48 + 64 (query, key); transposed (embed, mlp to mlp, embed)"),
        ("(pair 2) embed | (pair 2) embed -> (2 pair + 2 pair) embed", (),
         "joined 16 + 16 into 32; re-ordered inside an axis"),
        ("(pair 2) embed | (2 pair) embed -> (2 pair + 2 pair) embed", (),
         "joined 16 + 16 into 32; re-ordered inside an axis on source0"),
        ("mlp embed | mlp embed -> embed (mlp + mlp)", (),
         "joined 48 + 48 into 96; transposed (mlp, embed to embed, mlp)"),
    ],
)  # fmt: skip
def test_words(axes: str, roles: tuple[str, ...], expected: str) -> None:
    assert words(axes, *roles) == expected


def test_words_of_values() -> None:
    assert words("embed -> embed", value=Scale(constant=0.5)) == "values times 0.5"
    assert words("a b -> b a", value=Scale(size="b", power=2)) == "transposed (a, b to b, a); values times 25"
    fitted = words("(pair 2) -> (2 pair)", "key_scale", value=Fit(name="qk_norm"))
    assert fitted == f"{ROPE}; values fitted"
