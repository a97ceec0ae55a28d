"""Arrays that are the parts of one: the stack has the chunks of its parts, and they are read and written as its own."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays import ArrayReader, Encoding, read_array, split, stack
from converter.arrays.array import Array
from converter.errors import SourceError
from converter.mapping.stacks import numbers_text, stack_name, stack_parts
from tests.helpers.arrays import zarr2_array
from tests.helpers.axlearn_checkpoint import write_array


@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 200))
def test_the_name_of_a_stack_tells_its_parts(first: int, step: int, count: int) -> None:
    numbers = range(first, first + step * count, step)
    name = stack_name("decoder/layers_{layer}/mlp/wo", numbers)
    assert stack_parts(name) == tuple(f"decoder/layers_{number}/mlp/wo" for number in numbers)
    assert numbers_text(numbers) in name


def test_a_path_without_numbers_is_no_stack() -> None:
    assert stack_parts("decoder/layers_3/mlp/wo") == ()


def test_a_stack_is_read_as_its_parts(tmp_path: Path) -> None:
    values = np.arange(3 * 5 * 7, dtype=np.float32).reshape(3, 5, 7)
    for number, part in enumerate(values):
        write_array(tmp_path / str(number), part, (2, 4))
    whole = stack("w", [read_array(f"w{number}", str(tmp_path / str(number))) for number in range(3)])
    assert (whole.shape, whole.chunks, whole.grid) == ((3, 5, 7), (1, 2, 4), (3, 3, 2))
    np.testing.assert_array_equal(ArrayReader(whole).read_whole(), values)
    np.testing.assert_array_equal(ArrayReader(whole).read(((1, 3), (2, 5), (4, 7))), values[1:3, 2:5, 4:7])
    assert whole.chunk_file((2, 1, 0)) == str(tmp_path / "2" / "1.0")
    assert whole.chunk_label((2, 1, 0)) == "w2: chunk 1.0"


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (zarr2_array((4, 6), path="b"), "shape"),
        (zarr2_array((4, 5), dtype="bfloat16", path="b"), "dtype"),
        (zarr2_array((4, 5), (2, 5), path="b"), "chunks"),
        (zarr2_array((4, 5), compressor={"id": "zstd", "level": 1}, path="b"), "encoding"),
        (zarr2_array((4, 5), fortran=True, path="b"), "encoding"),
    ],
)
def test_parts_that_differ(other: Array, what: str) -> None:
    first = zarr2_array((4, 5), path="a")
    with pytest.raises(SourceError, match=rf"^b: {what} .*, but a has "):
        stack("w", [first, first, other])


def test_a_split_leaf_has_the_order_of_the_whole() -> None:
    encoding = Encoding.passed("files", (0, 3, 1, 2), 1, checksum=True)
    leaf = Array(path="w{0..1}", dtype="float32", shape=(2, 4, 5, 6), chunks=(1, 4, 5, 3), encoding=encoding)
    parts = split(leaf, ["w0", "w1"]).parts
    assert [part.path for part in parts] == ["w0", "w1"]
    assert {(part.shape, part.chunks, part.encoding.order) for part in parts} == {((4, 5, 6), (4, 5, 3), (2, 0, 1))}
