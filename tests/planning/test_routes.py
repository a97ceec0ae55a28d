"""Which arrays are passed through, linked or rewritten, the reason for each, and how their chunks are then stored."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays.array import Array
from converter.arrays.encoding import FLAT_KEYS, LEVEL, NESTED_KEYS, Encoding
from converter.axes.axis_map import AxisMap
from converter.axes.expression import Expression
from converter.planning.routes import LINK, MAX_PASSED_CHUNK, PASS, REWRITE, choose_route
from tests.helpers.arrays import zarr2_array

ZSTD = {"id": "zstd", "level": 3}
SIZES = {"a": 2, "b": 3, "c": 5, "x": 4}


def axis_map(text: str) -> AxisMap:
    expression = Expression.parse(text)
    return AxisMap(expression, {name: SIZES[name] for name in expression.names()})


def arrays(moved: AxisMap, **changes: Any) -> list[Array]:
    return [zarr2_array(shape, **{"compressor": ZSTD, **changes}) for shape in moved.source_shapes]


MOVED = axis_map("a b c -> b c a")


def test_moved_axes_are_passed_through_with_the_sources_level() -> None:
    for store in ("files", "ocdbt"):
        route = choose_route(MOVED, arrays(MOVED), store=store)
        assert (route.name, route.reason) == (PASS, "")
        # Source dimension 0 (a) is the target's dimension 2, and so on.
        assert route.encoding == Encoding(zarr_format=3, order=(2, 0, 1), compressor=ZSTD, checksum=True)


def test_links_have_no_checksum_that_is_ours() -> None:
    route = choose_route(MOVED, arrays(MOVED), store="files", link=True)
    assert (route.name, route.reason) == (LINK, "")
    assert route.encoding == Encoding(zarr_format=3, order=(2, 0, 1), compressor=ZSTD)


@pytest.mark.parametrize(
    ("compressor", "level"), [(None, None), ({"id": "zstd"}, 1), ({"id": "zstd", "level": -7}, -7)]
)
def test_the_level_is_the_sources(compressor: Any, level: int | None) -> None:
    route = choose_route(MOVED, arrays(MOVED, compressor=compressor), store="files")
    assert (route.name, route.encoding.level) == (PASS, level)


REASONS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "asked": ("a b -> b a", {}, {"rewrite": True}, "asked for"),
    "zarr2": ("a b -> a b", {}, {"store": "zarr2"}, "zarr v2 cannot store moved axes"),
    "split": ("a (b + c) -> a b | a c", {}, {}, "split into 2 leaves"),
    "joined": ("a b | a c -> a (b + c)", {}, {}, "joined from 2 arrays"),
    "re-ordered": ("a (x 2) -> a (2 x)", {}, {}, "re-ordered inside an axis"),
    "merged": ("a b c -> (a b) c", {}, {}, "re-ordered inside an axis"),
    "order": ("a b -> b a", {"fortran": True}, {}, "chunks in order F"),
    "compressor": ("a b -> b a", {"compressor": {"id": "blosc"}}, {}, "compressor blosc"),
    "large": ("a b -> b a", {"chunks": (1 << 20, 1 << 10)}, {}, "chunks of 4096 MiB are cut into smaller ones"),
}


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("case", REASONS)
def test_why_an_array_is_rewritten(case: str, link: bool) -> None:
    text, changes, options, reason = REASONS[case]
    moved = axis_map(text)
    options = {"store": "files", "link": link, **options}
    route = choose_route(moved, arrays(moved, **changes), **options)
    assert (route.name, route.reason) == (REWRITE, reason)
    zarr2 = options["store"] == "zarr2"
    assert route.encoding == Encoding(
        zarr_format=2 if zarr2 else 3,
        compressor={"id": "zstd", "level": LEVEL},
        checksum=True,
        keys=FLAT_KEYS if zarr2 else NESTED_KEYS,
    )


def test_the_largest_chunk_that_is_passed_through() -> None:
    rows = MAX_PASSED_CHUNK // 4
    moved = AxisMap(Expression.parse("a b -> b a"), {"a": 2 * rows, "b": 1})
    for length, name in ((rows, PASS), (rows + 1, REWRITE)):
        assert choose_route(moved, arrays(moved, chunks=(length, 1)), store="files").name == name


@given(data=st.data())
def test_the_order_leads_each_dimension_to_its_place(data: st.DataObject) -> None:
    names = data.draw(st.permutations("abcx"))[: data.draw(st.integers(1, 4))]
    target = data.draw(st.permutations(names))
    moved = axis_map(f"{' '.join(names)} -> {' '.join(target)}")
    order = choose_route(moved, arrays(moved), store="files").encoding.order
    assert [target[place] for place in order] == list(names)
