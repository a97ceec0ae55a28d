"""AXLearn's checkpoints on disk: which step a path means, what an index says, and what does not fit together."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.axlearn import (
    IndexEntry,
    find_step,
    is_committed,
    list_steps,
    read_arrays,
    read_checkpoint,
    step_number,
)
from converter.errors import SourceError
from tests.conftest import AXLEARN
from tests.helpers.axlearn_checkpoint import write_checkpoint


def make_steps(place: Path, *committed: int, uncommitted: tuple[int, ...] = ()) -> Path:
    for number in (*committed, *uncommitted):
        (place / f"step_{number:08d}" / "gda").mkdir(parents=True)
        if number in committed:
            (place / f"step_{number:08d}" / "index").write_text("[]")
    return place


def refusal(path: object, step: int | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        find_step(str(path), step)
    return caught.value.message


def test_every_path_that_may_mean_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = make_steps(tmp_path / "trainer" / "checkpoints", 100, 90, uncommitted=(200,))
    latest = str(checkpoints / "step_00000100")
    assert find_step(str(tmp_path / "trainer")) == latest
    assert find_step(str(checkpoints)) == latest
    assert find_step(str(checkpoints), 90) == str(checkpoints / "step_00000090")
    assert find_step(latest) == find_step(latest, 100) == latest
    assert find_step(latest + "/", 100) == latest + "/"
    (tmp_path / "link").symlink_to(latest)
    assert find_step(str(tmp_path / "link"), 100) == str(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    assert find_step("trainer") == os.path.join("trainer", "checkpoints", "step_00000100")


def test_steps_are_ordered_by_number_not_by_name(tmp_path: Path) -> None:
    make_steps(tmp_path, 99_999_999, 100_000_000, 7)
    (tmp_path / "step_7").mkdir()
    (tmp_path / "step_00000300.tmp").mkdir()
    (tmp_path / "step_00000400").write_text("a file")
    assert list(list_steps(str(tmp_path))) == [7, 99_999_999, 100_000_000]
    assert find_step(str(tmp_path)) == str(tmp_path / "step_100000000")
    assert list_steps(str(tmp_path / "nothing")) == {}


def test_what_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    make_steps(tmp_path / "begun", uncommitted=(5, 6))
    expected = "expected an AXLearn step or trainer directory"
    assert refusal(tmp_path / "gone") == f"{tmp_path}/gone does not exist; {expected}"
    assert refusal(tmp_path / "file") == f"{tmp_path}/file is no directory; {expected}"
    assert refusal(tmp_path / "empty") == (
        f"{tmp_path}/empty: no AXLearn checkpoint here; expected step_* directories, or index and gda/"
    )
    assert refusal(tmp_path / "begun") == (
        f"{tmp_path}/begun: none of the steps 5, 6 is committed (none has an index file); "
        "the training was stopped before a save finished"
    )
    assert refusal(tmp_path / "begun", 6) == (
        f"{tmp_path}/begun/step_00000006: not committed, it has no index file; the save was interrupted or is under way"
    )


def test_a_step_that_is_not_there(tmp_path: Path) -> None:
    make_steps(tmp_path, *range(1, 12))
    assert refusal(tmp_path, 12) == f"{tmp_path}: no step 12; there are ... 4, 5, 6, 7, 8, 9, 10, 11"
    step = tmp_path / "step_00000003"
    hint = "pass the directory above it, or drop --step"
    assert refusal(step, 4) == f"{step} is step 3, not step 4; {hint}"
    step.rename(tmp_path / "best")
    assert find_step(str(tmp_path / "best")) == str(tmp_path / "best")
    assert refusal(tmp_path / "best", 3) == f"{tmp_path}/best has no step in its name; {hint}"


def test_a_newer_step_in_orbaxs_format_is_not_passed_over(tmp_path: Path) -> None:
    make_steps(tmp_path, 100)
    for number in (50, 200):
        (tmp_path / f"step_{number:08d}" / "index").mkdir(parents=True)
    message = (
        f"{tmp_path}/step_00000200: this step was saved by AXLearn's OrbaxCheckpointer (index is a directory); "
        "only the native format is supported, re-save it with the default Checkpointer"
    )
    assert refusal(tmp_path) == refusal(tmp_path / "step_00000200") == message
    assert find_step(str(tmp_path), 100) == str(tmp_path / "step_00000100")
    (tmp_path / "step_00000200" / "index").rmdir()
    assert find_step(str(tmp_path)) == str(tmp_path / "step_00000100")  # an older one of that kind does not matter


def test_numbers_and_markers(tmp_path: Path) -> None:
    step = make_steps(tmp_path, 123) / "step_00000123"
    assert (step_number(str(step)), step_number(str(tmp_path))) == (123, None)
    assert is_committed(str(step))
    (step / "index").unlink()
    (step / "index").symlink_to("nowhere")
    assert not is_committed(str(step))


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
    with pytest.raises(SourceError) as caught:
        read_checkpoint(directory)
    assert caught.value.message == f"{directory}/index: w: expected a shape like '(6, 1536)', found {text!r}"


@given(shape=st.lists(st.integers(1, 2**40), max_size=8).map(tuple))
def test_every_shape_that_python_writes(shape: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = with_index(tmp_path_factory.mktemp("step"), ["w", tensor("float32", str(shape))])
    assert read_checkpoint(directory).tensors["w"].shape == shape


names = st.lists(st.sampled_from(["a", "b", "a-", "a0", "ab"]), min_size=1, max_size=3).map("/".join)


@given(paths=st.lists(names, min_size=1, max_size=5, unique=True))
def test_no_tensor_lies_inside_another(paths: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = with_index(tmp_path_factory.mktemp("step"), *([path, tensor("int8", "(1,)")] for path in paths))
    inside = {(o, i) for o, i in itertools.permutations(paths, 2) if i.startswith(o + "/")}
    if not inside:
        assert list(read_checkpoint(directory).tensors) == paths
        return
    with pytest.raises(SourceError) as caught:
        read_checkpoint(directory)
    assert caught.value.message in {f"{directory}/index: {i} lies inside the tensor {o}" for o, i in inside}


def test_all_that_the_index_and_the_arrays_disagree_on(tmp_path: Path) -> None:
    values = np.zeros((2, 3), np.float32)
    step = write_checkpoint(tmp_path / "step", {"a": values, "b": values, "c": values, "d": values})
    index = json.loads((step / "index").read_text())
    dict(index)["b"]["dtype"] = "int32"
    dict(index)["c"]["shape"] = "(3, 2)"
    (step / "index").write_text(json.dumps(index))
    (step / "gda" / "d" / ".zarray").unlink()
    checkpoint = read_checkpoint(str(step))
    assert list(read_arrays(checkpoint, ["a"])) == ["a"]
    with pytest.raises(SourceError) as caught:
        read_arrays(checkpoint, ["a", "b", "c", "d"])
    assert caught.value.message == f"{step}: array metadata of 3 tensors is wrong"
    assert caught.value.details == (
        "b: index says int32[2, 3], .zarray says float32[2, 3]",
        "c: index says float32[3, 2], .zarray says float32[2, 3]",
        f"d: {step}/gda/d/.zarray is missing",
    )
    with pytest.raises(SourceError, match="array metadata of 1 tensor is wrong"):
        read_arrays(checkpoint, ["a", "b"])


@pytest.mark.parametrize("name", ["envy-test", "envy-test-bf16", "micro-hybrid-sharded"])
def test_every_tensor_that_the_real_axlearn_wrote_is_read(name: str) -> None:
    checkpoint = read_checkpoint(find_step(str(AXLEARN / name)))
    assert checkpoint.step == 100
    model = [path for path in checkpoint.tensors if path.startswith("model/")]
    assert len(model) == {"envy-test": 21}.get(name, len(model)) > 0
    assert list(read_arrays(checkpoint, model)) == model
