"""Blocks: they tile, hold whole chunks on both sides, and obey their limit."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import converter.axes.blocking
from converter.axes.axis_map import AxisMap
from converter.axes.blocking import (
    GROUPED_BLOCK,
    MAX_TARGET_CHUNK,
    SLAB,
    Blocking,
    BlockTooLarge,
    Span,
    block_map,
    block_slabs,
    blocks,
    count_blocks,
    groups,
    plan_blocks,
    source_box,
    target_box,
)
from converter.axes.expression import Expression

EXPRESSIONS = {
    "experts": "layers experts embed mlp -> experts layers embed mlp",
    "out": "layers embed heads (pair 2) -> heads layers (pair 2) embed",
    "qkv": "layers embed (heads + kv + kv) (pair 2) -> embed layers heads (2 pair) | embed layers kv (2 pair) | "
    "embed layers kv (pair 2)",
    "norm": "(pair 2) -> (2 pair)",
}


def sized(name: str, size: int = 6) -> AxisMap:
    expression = Expression.parse(EXPRESSIONS[name])
    return AxisMap(expression, dict.fromkeys(expression.names(), size))


def check(axis_map: AxisMap, chunks: Sequence[tuple[int, ...]], blocking: Blocking) -> None:
    """Every element of every tensor lies in one block; blocks start and end on chunk boundaries, on both sides."""
    counted = 0
    target_seen = [0] * len(axis_map.target_shapes)
    source_seen = [0] * len(axis_map.source_shapes)
    for group in groups(axis_map, blocking):
        for number, shape in enumerate(axis_map.source_shapes):
            on_boundaries(source_box(axis_map, group, number), chunks[number], shape)
        for span in blocks(group, blocking):
            counted += 1
            part = block_map(axis_map, span)
            for number, shape in enumerate(axis_map.target_shapes):
                box = target_box(axis_map, span, number)
                on_boundaries(box, blocking.target_chunks[number], shape)
                assert tuple(high - low for low, high in box) == part.target_shapes[number]
                target_seen[number] += math.prod(part.target_shapes[number])
            for number in range(len(axis_map.source_shapes)):
                source_seen[number] += math.prod(part.source_shapes[number])
        if blocking.slab is not None and not blocking.streamed:
            check_slabs(axis_map, chunks[0], blocking, group)
    assert counted == count_blocks(axis_map, blocking.step) or blocking.streamed
    assert target_seen == [math.prod(shape) for shape in axis_map.target_shapes]
    assert source_seen == [math.prod(shape) for shape in axis_map.source_shapes]


def check_slabs(axis_map: AxisMap, chunk: tuple[int, ...], blocking: Blocking, group: Span) -> None:
    """Slabs cover their group once, in the order in which its one chunk is decoded, each a run of it."""
    box = source_box(axis_map, group, 0)
    assert all(a // n == (b - 1) // n for (a, b), n in zip(box, chunk, strict=True))
    numbers = np.arange(math.prod(chunk)).reshape(chunk)
    seen: list[int] = []
    for span in block_slabs(group, blocking):
        part = [slice(a % n, a % n + b - a) for (a, b), n in zip(source_box(axis_map, span, 0), chunk, strict=True)]
        seen += numbers[tuple(part)].ravel().tolist()
    assert seen == sorted(set(seen))
    assert len(seen) == math.prod(b - a for a, b in box)


def on_boundaries(box: Sequence[tuple[int, int]], chunks: Sequence[int], shape: Sequence[int]) -> None:
    for (low, high), chunk, length in zip(box, chunks, shape, strict=True):
        assert low % chunk == 0
        assert high % chunk == 0 or high == length


@pytest.mark.parametrize("name", EXPRESSIONS)
@given(data=st.data())
def test_blocks_tile_in_whole_chunks(name: str, data: st.DataObject) -> None:
    axis_map = sized(name, data.draw(st.integers(1, 6)))
    chunks = [tuple(data.draw(st.integers(1, n)) for n in shape) for shape in axis_map.source_shapes]
    limit = data.draw(st.sampled_from([1 << 30, 4096, 512, 100]))
    streamable = data.draw(st.booleans())
    smallest, blocking = 0, None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converter.axes.blocking, "SLAB", data.draw(st.sampled_from([SLAB, 64])))
        try:
            blocking = plan_blocks(axis_map, chunks, 4, limit, streamable=streamable and len(chunks) == 1)
        except BlockTooLarge as refusal:
            smallest = refusal.smallest
    if blocking is None:
        assert smallest > limit
        return
    assert blocking.block_bytes <= limit
    assert streamable or not blocking.streamed
    check(axis_map, chunks, blocking)


def test_small_chunks_are_handled_together_but_never_too_many() -> None:
    axis_map = AxisMap(Expression.parse(EXPRESSIONS["experts"]), {"layers": 4, "experts": 64, "embed": 128, "mlp": 256})
    blocking = plan_blocks(axis_map, [(1, 1, 128, 256)], 4, 1 << 30, streamable=True)
    assert 128 * 256 * 4 < blocking.block_bytes <= GROUPED_BLOCK
    assert blocking.target_chunks == ((1, 1, 128, 256),)


def test_a_giant_chunk_becomes_slabs() -> None:
    # One host's save of Switch-Base: wi_0 as a single chunk of 27 GiB.
    axis_map = AxisMap(
        Expression.parse(EXPRESSIONS["experts"]), {"layers": 6, "experts": 128, "embed": 1536, "mlp": 6144}
    )
    blocking = plan_blocks(axis_map, [(6, 128, 1536, 6144)], 4, 1 << 28, streamable=True)
    assert blocking.streamed
    assert blocking.step == {"layers": 1, "experts": 2, "embed": 1536, "mlp": 6144}
    assert blocking.block_bytes <= MAX_TARGET_CHUNK
    assert math.prod(blocking.target_chunks[0]) * 4 <= MAX_TARGET_CHUNK
    assert len(list(groups(axis_map, blocking))) == 1


def test_target_chunks_are_no_larger_than_the_sources() -> None:
    axis_map = sized("qkv", 8)
    blocking = plan_blocks(axis_map, [(8, 2, 24, 16)], 4, 1 << 30, streamable=True)
    assert [chunks[:2] for chunks in blocking.target_chunks] == [(2, 8), (2, 8), (2, 8)]


def test_too_large() -> None:
    axis_map = sized("qkv", 8)
    with pytest.raises(BlockTooLarge) as caught:
        plan_blocks(axis_map, [(8, 8, 24, 16)], 4, 1000, streamable=False)
    assert caught.value.smallest == 8 * 8 * 24 * 16 * 4
    with pytest.raises(BlockTooLarge) as caught:
        plan_blocks(axis_map, [(8, 8, 24, 16)], 4, 1000, streamable=True)
    assert caught.value.smallest == 24 * 16 * 4
