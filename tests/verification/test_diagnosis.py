"""What wrong values are told to be: each rule on small arrays, its limits, and silence about what fits no rule."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from converter.axes.expression import Expression, Tensor
from converter.checkpoints.maxtext import open_target
from converter.planning.options import Options
from converter.planning.plan import make_plan
from converter.planning.source import open_source
from converter.verification.diagnosis import Diagnostician, explain
from tests.conftest import AXLEARN

F32 = np.float32


def axes(text: str) -> Tensor:
    return Expression.parse(f"{text} -> {text}").targets[0]


HALVES, PLAIN = axes("layers (2 pair)"), axes("layers embed")
GRID = np.arange(1, 25, dtype=F32).reshape(3, 8)


def halves(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values[..., 0::2], values[..., 1::2]], axis=-1)


def interleaved(values: np.ndarray) -> np.ndarray:
    return np.stack(np.split(values, 2, axis=-1), axis=-1).reshape(values.shape)


def flipped(values: np.ndarray, at: int, mask: int) -> np.ndarray:
    changed = values.copy()
    changed.reshape(-1).view(f"u{values.dtype.itemsize}")[at] ^= mask
    return changed


CASES: dict[str, tuple[np.ndarray, Tensor, Callable[[np.ndarray], np.ndarray], str]] = {
    "left out": (GRID, HALVES, interleaved, "the RoPE permutation was left out"),
    "four": (GRID[:, :4], HALVES, interleaved, "the RoPE permutation was left out"),
    "three pairs": (GRID[:, :6], HALVES, halves, "the RoPE permutation was applied twice"),
    "one pair": (GRID[:, :2], HALVES, lambda v: v[:, ::-1], "elements of (2 pair) 0 and 1 are swapped"),
    "twice": (GRID, HALVES, halves, "the RoPE permutation was applied twice"),
    "none due": (GRID, PLAIN, halves, "the RoPE permutation was applied where none is due"),
    "inverse": (GRID, PLAIN, interleaved, "equal after the inverse RoPE permutation"),
    "swapped": (GRID, PLAIN, lambda v: v[[2, 1, 0]], "layers of the cycle 0 and 2 are swapped"),
    "reversed": (GRID.T, axes("heads layers"), lambda v: v[::-1], "the order of heads is reversed"),
    "shuffled": (GRID, PLAIN, lambda v: v[:, [1, 2, 0, 3, 4, 5, 6, 7]], "embed are shuffled (3 of 8 out of place)"),
    "inside an axis": (
        GRID, HALVES, lambda v: v[:, [0, 2, 1, 3, 4, 5, 6, 7]], "elements of (2 pair) 1 and 2 are swapped"
    ),
    "transposed": (
        np.arange(18, dtype=F32).reshape(3, 2, 3), axes("a b c"), lambda v: v.transpose(2, 1, 0),
        "transposed: dimensions 0 and 2 are exchanged",
    ),
    "zero": (GRID, PLAIN, np.zeros_like, "all zero"),
    "bfloat16": (
        GRID / 7, PLAIN, lambda v: v.astype(ml_dtypes.bfloat16).astype(F32), "rounded to bfloat16 and back"
    ),
    "float16": (GRID / 7, PLAIN, lambda v: v.astype(np.float16).astype(F32), "rounded to float16 and back"),
    "a bit": (GRID, PLAIN, lambda v: flipped(v, 13, 1 << 30), "a single bit is flipped (bit 30)"),
    "the sign": (GRID, PLAIN, lambda v: flipped(v, 0, 1 << 31), "a single bit is flipped (bit 31)"),
    "zeros' sign": (
        np.zeros((2, 2), F32), PLAIN, lambda v: flipped(flipped(v, 0, 1 << 31), 3, 1 << 31),
        "only the sign of zero differs (-0.0 for 0.0)",
    ),
    "one zero's sign": (
        np.zeros((2, 2), F32), PLAIN, lambda v: flipped(v, 2, 1 << 31), "only the sign of zero differs (-0.0 for 0.0)"
    ),
    "a bit of bfloat16": (
        GRID.astype(ml_dtypes.bfloat16), PLAIN, lambda v: flipped(v, 5, 1), "a single bit is flipped (bit 0)"
    ),
    "two bits": (GRID, PLAIN, lambda v: flipped(v, 5, 3), ""),
    "two elements": (GRID, PLAIN, lambda v: flipped(flipped(v, 5, 1), 6, 1), ""),
    "other values": (GRID, PLAIN, lambda v: v + 0.5, ""),
    "rounded integers": (np.arange(1000, 1024, dtype=np.int32).reshape(3, 8), PLAIN, lambda v: v // 8 * 8, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_explanations(case: str) -> None:
    expected, tensor, change, text = CASES[case]
    assert explain(expected, np.ascontiguousarray(change(expected)), tensor) == text


def test_rope_in_front_of_other_axes() -> None:
    # A norm scale of MaxText: the pairs are the first dimension, the layers the second.
    values = np.arange(16, dtype=F32).reshape(8, 2)
    found = np.ascontiguousarray(interleaved(values.T).T)
    assert explain(values, found, axes("(2 pair) layers")) == "the RoPE permutation was left out"


def test_equal_slices_are_no_difference() -> None:
    values = np.array([[1, 1], [2, 2], [2, 2], [3, 3]], F32)
    assert explain(values, values[[3, 1, 2, 0]], axes("experts embed")) == "experts 0 and 3 are swapped"


@given(seed=st.integers(0), data=st.data())
def test_any_other_order_of_an_axis_is_recognised(seed: int, data: st.DataObject) -> None:
    shape = (5, 3, 7)
    values = np.random.default_rng(seed).standard_normal(shape).astype(F32)
    dim = data.draw(st.integers(0, 2))
    order = data.draw(st.permutations(range(shape[dim])))
    moved = [place for place, number in enumerate(order) if place != number]
    name = ("experts", "heads", "embed")[dim]
    text = explain(values, np.take(values, order, dim), axes("experts heads embed"))
    if not moved:
        assert text == ""
    elif len(moved) == 2:
        assert text == f"{name} {moved[0]} and {moved[1]} are swapped"
    elif list(order) == list(range(shape[dim]))[::-1]:
        assert text == f"the order of {name} is reversed"
    else:
        assert text == f"{name} are shuffled ({len(moved)} of {shape[dim]} out of place)"


@given(seed=st.integers(0))
def test_noise_is_not_explained(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.integers(2, 5, 3))
    expected, found = (random.standard_normal(shape).astype(F32) for _ in range(2))
    assert explain(expected, found, axes("a b (2 c)")) == ""


LAYER = "params/params/decoder/layers/layers_"


@pytest.fixture
def doctor(converted: Callable[..., Path]) -> Callable[..., Diagnostician]:
    """Makes one for a sound checkpoint; leaves can be replaced by others, as if they were stored wrongly."""

    def make(max_memory: int = 1 << 30, **stored_as: str) -> Diagnostician:
        plan = make_plan(open_source(str(AXLEARN / "micro-hybrid")), Options())
        target = open_target(str(converted("micro-hybrid")))
        arrays = {leaf.path: target.open(leaf.path) for leaf in plan.leaves}
        replaced: dict[str, Any] = {f"{LAYER}{path}": arrays[f"{LAYER}{other}"] for path, other in stored_as.items()}
        return Diagnostician(plan, {**arrays, **replaced}, max_memory)

    return make


KEY, VALUE = "0/self_attention/key/kernel", "0/self_attention/value/kernel"


def test_another_leaf_in_its_place(doctor: Callable[..., Diagnostician]) -> None:
    assert doctor(**{KEY: VALUE}).diagnose(LAYER + KEY) == f"equal to the expected values of {LAYER}{VALUE}"
    swapped = doctor(**{KEY: VALUE, VALUE: KEY})
    for one, other in ((KEY, VALUE), (VALUE, KEY)):
        expected = f"equal to the expected values of {LAYER}{other}; the two are swapped"
        assert swapped.diagnose(LAYER + one) == expected


def test_a_leaf_that_does_not_fit_the_budget_is_not_read(doctor: Callable[..., Diagnostician]) -> None:
    # The three kernels' common source has 16 KiB, and six times as much is held.
    assert doctor(6 * (16 << 10), **{KEY: VALUE}).diagnose(LAYER + KEY).startswith("equal to the expected values of")
    expected = "not diagnosed: the leaf does not fit the memory budget (--max-memory)"
    assert doctor(6 * (16 << 10) - 1, **{KEY: VALUE}).diagnose(LAYER + KEY) == expected


def test_what_cannot_be_read_is_said_to_be_so(doctor: Callable[..., Diagnostician], tmp_path: Path) -> None:
    healthy, path = doctor(), LAYER + KEY
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}, "fill_missing_data_reads": False}
    metadata = {"shape": list(healthy.arrays[path].array.shape), "data_type": "float32"}
    without_chunks = ts.open({**spec, "metadata": metadata, "create": True}).result()
    broken = dataclasses.replace(healthy.arrays[path], store=without_chunks)
    healthy.arrays = {**healthy.arrays, path: broken}
    assert healthy.diagnose(path).startswith(f"not diagnosed: {path}: a chunk cannot be read: ")
