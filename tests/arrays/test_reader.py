"""Blocks, parts and slabs of arrays, compared with the arrays that TensorStore wrote, whatever their codecs are."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays import reader as array_reader
from converter.arrays.array import Array, slices
from converter.arrays.opened import new_context, open_stored_array
from converter.arrays.reader import ArrayReader
from converter.arrays.zarr import read_array
from converter.errors import SourceError
from tests.helpers.arrays import ZSTD

BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
CODECS: dict[str, dict[str, Any]] = {
    "zstd": {"compressor": ZSTD},
    "raw": {"compressor": None},
    "blosc": {"compressor": BLOSC},
    "order F": {"compressor": ZSTD, "order": "F"},
}


def written(place: Path, values: np.ndarray, chunks: tuple[int, ...], codecs: str) -> Array:
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{place}/"}, "create": True}
    metadata = {"shape": values.shape, "chunks": chunks, "dtype": values.dtype.str, **CODECS[codecs]}
    if values.ndim < 2:
        metadata.pop("order", None)  # TensorStore writes "C" there
    store = ts.open({**spec, "metadata": metadata, "store_data_equal_to_fill_value": True}).result()
    store.write(values).result()
    return read_array("a/b", str(place))


@st.composite
def cut_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and chunks, edge chunks among them."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    return shape, tuple(draw(st.integers(max(1, n // 4), n)) for n in shape)


@pytest.mark.parametrize("codecs", CODECS)
@given(cut=cut_shapes(), streamed=st.booleans(), data=st.data())
def test_blocks_and_parts(
    codecs: str, cut: Any, streamed: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape, chunks = cut
    values = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    array = written(tmp_path_factory.mktemp("array"), values, chunks, codecs)
    reader = ArrayReader(array)
    assert reader.read_whole().tolist() == values.tolist()
    grid = [data.draw(st.tuples(st.integers(0, n - 1), st.integers(1, n)).map(sorted)) for n in array.grid]
    box = tuple(
        (low * chunk, min(max(high, low + 1) * chunk, length))
        for (low, high), chunk, length in zip(grid, chunks, shape, strict=True)
    )
    assert reader.read(box).tolist() == values[slices(box)].tolist()
    index = data.draw(st.sampled_from(list(array.chunk_indices())))
    wanted = [
        sorted(data.draw(st.sets(st.integers(low, high - 1), min_size=1))) for low, high in array.chunk_box(index)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_reader, "STREAMED_CHUNK", 0 if streamed else 1 << 40)
        assert reader.read_part(index, wanted).tolist() == values[np.ix_(*wanted)].tolist()


@pytest.mark.parametrize("codecs", ["zstd", "raw", "blosc"])
def test_a_scalar(codecs: str, tmp_path: Path) -> None:
    assert ArrayReader(written(tmp_path, np.array(7, np.float32), (), codecs)).read_whole() == 7


@pytest.mark.parametrize("codecs", ["zstd", "raw"])
@pytest.mark.parametrize(
    ("shape", "chunks", "slab"),
    [
        ((6, 5), (6, 5), (2, 5)),
        ((7, 5), (4, 5), (2, 5)),
        ((5, 7, 3), (2, 4, 3), (1, 2, 3)),
        ((4, 6), (4, 2), (2, 2)),
        ((3, 5, 7), (2, 4, 3), (1, 4, 3)),
    ],
    ids=["one chunk", "padded", "two cut", "side by side", "padded, side by side"],
)
def test_slabs_cover_a_block_in_the_order_of_its_elements(
    shape: tuple[int, ...], chunks: tuple[int, ...], slab: tuple[int, ...], codecs: str, tmp_path: Path
) -> None:
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    array = written(tmp_path, values, chunks, codecs)
    cut = [part < chunk for part, chunk in zip(slab, chunks, strict=True)]
    found = np.full(shape, -1, np.float32)
    firsts = [
        tuple(at if is_cut else 0 for at, is_cut in zip(index, cut, strict=True)) for index in array.chunk_indices()
    ]
    for first in dict.fromkeys(firsts):
        whole = zip(array.chunk_box(first), cut, shape, strict=True)
        box = tuple(part if is_cut else (0, length) for part, is_cut, length in whole)
        steps = [part if is_cut else high - low for (low, high), part, is_cut in zip(box, slab, cut, strict=True)]
        counts = [-(-(high - low) // step) for (low, high), step in zip(box, steps, strict=True)]
        places = itertools.product(*map(range, counts))
        for place, part in zip(places, ArrayReader(array).slabs(box, slab), strict=True):
            start = [low + at * step for (low, _), at, step in zip(box, place, steps, strict=True)]
            target = tuple(slice(low, low + length) for low, length in zip(start, part.shape, strict=True))
            assert (found[target] == -1).all()
            found[target] = part
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize("codecs", CODECS)
def test_a_missing_chunk_is_an_error_of_the_source(codecs: str, tmp_path: Path) -> None:
    array = written(tmp_path, np.ones((4, 2), np.float32), (2, 2), codecs)
    (tmp_path / "1.0").unlink()
    reader = ArrayReader(array)
    assert reader.read(((0, 2), (0, 2))).tolist() == [[1, 1], [1, 1]]
    for read in (reader.read_whole, lambda: reader.read_part((1, 0), [[2], [0, 1]])):
        with pytest.raises(SourceError, match=r"a/b: (a chunk|chunk 1\.0)"):
            read()


FOREIGN: dict[str, list[dict[str, Any]]] = {
    "gzip": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}],
    "big endian": [{"name": "bytes", "configuration": {"endian": "big"}}],
    "shards": [
        {"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 1], "codecs": [{"name": "bytes"}]}}
    ],
    "transposed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}],
}  # fmt: skip


@pytest.mark.parametrize("database", [False, True], ids=["files", "ocdbt"])
@pytest.mark.parametrize("codecs", FOREIGN)
def test_what_others_wrote_is_read_through_tensorstore(codecs: str, database: bool, tmp_path: Path) -> None:
    values = np.arange(30, dtype=np.float32).reshape(6, 5)
    place: dict[str, Any] = {"driver": "file", "path": f"{tmp_path}/"}
    if database:
        place = {"driver": "ocdbt", "base": place, "path": "w/"}
    metadata = {
        "shape": [6, 5], "data_type": "float32", "codecs": FOREIGN[codecs],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
    }  # fmt: skip
    spec = {"driver": "zarr3", "kvstore": place, "metadata": metadata, "create": True}
    ts.open({**spec, "store_data_equal_to_fill_value": True}).result().write(values).result()
    opened = open_stored_array(
        "a/b", directory=str(tmp_path), database_key="w" if database else None, zarr_format=3, context=new_context(),
        error=SourceError,
    )  # fmt: skip
    array = opened.array
    assert (array.dtype, array.shape, array.chunks, array.chunk_key((1, 2))) == ("float32", (6, 5), (4, 2), "c.1.2")
    assert array.read_chunks == ((2, 1) if codecs == "shards" else (4, 2))
    assert opened.missing_chunks() == []
    assert opened.list_keys() == {"zarr.json", *map(array.chunk_key, array.chunk_indices())}
    for reader in (ArrayReader(array), ArrayReader(array, opened)):
        assert reader.read_whole().tolist() == values.tolist()
        index = tuple(at // part for at, part in zip((5, 3), array.read_chunks, strict=True))
        assert reader.read_part(index, [[5], [3]]).tolist() == [[values[5, 3]]]
