"""Views read block by block what TensorStore reads at once, also from chunks that are decoded as streams."""

import itertools

import numpy as np
import pytest
import tensorstore as ts

from converter.arrays import ArrayReader, reader
from converter.arrays.zarr import read_array
from converter.errors import SourceError
from converter.forward.views import View


def write(path, values, chunks, compressor):
    metadata = {"shape": values.shape, "chunks": chunks, "dtype": values.dtype.str, "compressor": compressor}
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": metadata}
    ts.open(spec, create=True).result().write(values).result()
    return read_array("a/b", str(path))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("compressor", [None, {"id": "zstd", "level": 1}])
def test_boxes_orders_and_rows(tmp_path, monkeypatch, streamed, compressor):
    values = np.arange(5 * 6 * 7 * 4, dtype=np.float32).reshape(5, 6, 7, 4)
    spec = write(tmp_path, values, (5, 4, 3, 4), compressor)
    monkeypatch.setattr(reader, "STREAMED_CHUNK", 0 if streamed else 1 << 40)
    array = ArrayReader(spec)
    assert (array.part_memory == 0) == streamed
    boxes = [((r, r + 1), (0, 6), (0, 7), (0, 4)) for r in range(5)] + [((2, 3), (1, 6), (2, 5), (1, 3))]
    for box, order in itertools.product(boxes, [(1, 2, 3), (3, 1, 2), (2, 3, 1)]):
        wanted = values[tuple(slice(*edge) for edge in box)][0].transpose([dim - 1 for dim in order])
        view = View(array, box, order)
        assert view.shape == wanted.shape
        np.testing.assert_array_equal(view.read(), wanted)
        rows = [row for row in (0, 2, 3) if row < wanted.shape[0]]
        covered = np.zeros((len(rows), *wanted.shape[1:]))
        for block in view.blocks(rows):
            part = tuple(slice(a, a + n) for a, n in zip(block.start, block.values.shape[1:], strict=True))
            at = [rows.index(row) for row in block.rows]
            np.testing.assert_array_equal(block.values, wanted[(block.rows, *part)])
            covered[(at, *part)] += 1
        assert (covered == 1).all()


def test_row_groups_follow_the_chunks(tmp_path):
    array = ArrayReader(write(tmp_path, np.zeros((2, 7, 2), np.float32), (2, 3, 2), None))
    assert View(array, ((0, 1), (0, 7), (0, 2)), (1, 2)).row_groups == [range(3), range(3, 6), range(6, 7)]


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"\0" * len(data), lambda _: b""])
def test_a_damaged_stream_is_an_error(tmp_path, monkeypatch, damage):
    rng = np.random.default_rng(0)
    spec = write(tmp_path, rng.standard_normal((4, 50), np.float32), (4, 50), {"id": "zstd", "level": 1})
    file = tmp_path / "0.0"
    file.write_bytes(damage(file.read_bytes()))
    monkeypatch.setattr(reader, "STREAMED_CHUNK", 0)
    with pytest.raises(SourceError, match=r"a/b: chunk 0\.0"):
        View(ArrayReader(spec), ((0, 4), (0, 50)), (0, 1)).read()
