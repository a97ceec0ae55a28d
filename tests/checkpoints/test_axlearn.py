"""An AXLearn step on disk: what an index says, and what does not fit together."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.checkpoints.axlearn import IndexEntry, read_checkpoint
from converter.checkpoints.axlearn_steps import open_step
from converter.errors import SourceError
from tests.conftest import AXLEARN
from tests.helpers.axlearn_checkpoint import write_checkpoint


def with_index(place: Path, *entries: Any) -> str:
    place.mkdir(exist_ok=True)
    (place / "index").write_text(json.dumps(list(entries)))
    return str(place)


def tensor(dtype: str, shape: str) -> dict[str, str]:
    return {"dtype": dtype, "shape": shape}


def test_an_index_by_the_letter(tmp_path: Path) -> None:
    directory = with_index(
        tmp_path / "step",
        ["step", 100], ["input_iter/0", "iterator state"], ["model/b", tensor("bfloat16", "(6, 1536)")],
        ["model/a/w", tensor("float32", "(3,)")], ["count", tensor("int32", "()")], ["input_iter/1", 7],
    )  # fmt: skip
    checkpoint = read_checkpoint(directory)
    assert (checkpoint.directory, checkpoint.step) == (directory, 100)
    assert list(checkpoint.tensors.items()) == [
        ("model/b", IndexEntry("bfloat16", (6, 1536))),
        ("model/a/w", IndexEntry("float32", (3,))),
        ("count", IndexEntry("int32", ())),
    ]
    assert checkpoint.others == ("input_iter/0", "input_iter/1")
    assert checkpoint.array_directory("model/a/w") == f"{directory}/gda/model/a/w"


@pytest.mark.parametrize(("entry", "step"), [(None, None), (True, None), ("100", None), (0, 0), (10**12, 10**12)])
def test_the_step_of_an_index(entry: Any, step: int | None, tmp_path: Path) -> None:
    assert read_checkpoint(with_index(tmp_path / "step", ["step", entry])).step == step
    assert read_checkpoint(with_index(tmp_path / "step")).step is None


SHAPES = {
    "()": (), "(5,)": (5,), "(5)": (5,), "(2, 3)": (2, 3), "(2,3,)": (2, 3), " ( 2 , 3 ) ": (2, 3), "( )": (),
    f"({2**62 - 1},)": (2**62 - 1,), "(1, " * 1 + "1, " * 30 + "1)": (1,) * 32,
}  # fmt: skip


@pytest.mark.parametrize("text", SHAPES)
def test_shapes(text: str, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(with_index(tmp_path / "step", ["w", tensor("float32", text)]))
    assert checkpoint.tensors["w"].shape == SHAPES[text]


@pytest.mark.parametrize("text", ["", "5", "(,)", "(2 3)", "(2,,3)", "(2.5,)", "(2, 3", "2, 3", "((2,),)", "(2, )x"])
def test_what_is_no_shape(text: str, tmp_path: Path) -> None:
    directory = with_index(tmp_path / "step", ["w", tensor("float32", text)])
    entry = read_checkpoint(directory).tensors["w"]
    assert entry.shape is None
    assert entry.problem == f"{directory}/index: w: expected a shape like '(6, 1536)', found {text!r}"


@given(shape=st.lists(st.integers(1, 2**40), max_size=8).map(tuple))
def test_every_shape_that_python_writes(shape: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = with_index(tmp_path_factory.mktemp("step"), ["w", tensor("float32", str(shape))])
    assert read_checkpoint(directory).tensors["w"].shape == shape


names = st.lists(st.sampled_from(["a", "b", "a-", "a0", "ab"]), min_size=1, max_size=3).map("/".join)


@given(paths=st.lists(names, min_size=1, max_size=5, unique=True))
def test_no_tensor_lies_inside_another(paths: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = with_index(tmp_path_factory.mktemp("step"), *([path, tensor("int8", "(1,)")] for path in paths))
    inside = {(o, i) for o, i in itertools.permutations(paths, 2) if i.startswith(o + "/")}
    tensors = read_checkpoint(directory).tensors
    assert list(tensors) == paths
    assert {path for path in paths if tensors[path].problem} == {path for pair in inside for path in pair}
    for path in paths:
        found = tensors[path].problem
        assert not found or found in {f"{directory}/index: {i} is inside the tensor {o}" for o, i in inside}


def test_all_that_the_index_and_the_arrays_disagree_on(tmp_path: Path) -> None:
    values = np.zeros((2, 3), np.float32)
    step = write_checkpoint(tmp_path / "step", {"a": values, "b": values, "c": values, "d": values})
    index = json.loads((step / "index").read_text())
    dict(index)["b"]["dtype"] = "int32"
    dict(index)["c"]["shape"] = "(3, 2)"
    (step / "index").write_text(json.dumps(index))
    (step / "gda" / "d" / ".zarray").unlink()
    checkpoint = read_checkpoint(str(step))
    assert list(checkpoint.read_arrays(["a"])) == ["a"]
    with pytest.raises(SourceError) as caught:
        checkpoint.read_arrays(["a", "b", "c", "d"])
    assert caught.value.message == f"{step}: array metadata of 3 tensors is wrong"
    assert caught.value.details == (
        "b: index says int32[2, 3], .zarray says float32[2, 3]",
        "c: index says float32[3, 2], .zarray says float32[2, 3]",
        f"d: {step}/gda/d/.zarray: is missing",
    )
    with pytest.raises(SourceError, match="array metadata of 1 tensor is wrong"):
        checkpoint.read_arrays(["a", "b"])


@pytest.mark.parametrize("name", ["envy-test", "envy-test-bf16", "micro-hybrid-sharded"])
def test_every_tensor_that_the_real_axlearn_wrote_is_read(name: str) -> None:
    checkpoint = open_step(str(AXLEARN / name))
    assert checkpoint.step == 100
    model = [path for path in checkpoint.tensors if path.startswith("model/")]
    assert len(model) == {"envy-test": 21}.get(name, len(model)) > 0
    assert list(checkpoint.read_arrays(model)) == model
