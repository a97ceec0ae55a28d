"""Recognises what the wrong values of a leaf are: another leaf's, another order, another precision, one bit.

Works on whole leaves that fit the memory budget; a larger leaf gets none of this, and the report says so. Rules are
tried from the most to the least specific, and the first that explains every element is the diagnosis.
"""

import itertools
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import xxhash

from converter.arrays import ArrayReader, OpenArray
from converter.axes import Dim, Tensor
from converter.errors import Ax2mtError
from converter.mapping import LAYER_AXIS, Scale
from converter.planning import Plan
from converter.verification.compare import bits, cast_exactly

COPIES = 6
"""Bytes held for each byte of a leaf: both sides, a candidate, its bits, and what reading them takes."""

MAX_CANDIDATES = 32
"""Other leaves that a wrong leaf is compared with."""


class Diagnostician:
    """Diagnoses the leaves of one checkpoint; reads leaves again as it needs them, one pair at a time."""

    def __init__(self, plan: Plan, arrays: Mapping[str, OpenArray], max_memory: int):
        self.arrays = arrays
        self.max_memory = max_memory
        self.owner = {
            part.path: (task, number, layer)
            for task in plan.tasks
            for number, leaf in enumerate(task.leaves)
            for layer, part in enumerate(leaf.each)
        }

    def diagnose(self, path: str) -> str:
        """Says in words what the leaf holds; empty where nothing fits."""
        if path not in self.owner:
            return ""  # one number, which speaks for itself
        task, number, _ = self.owner[path]
        if sum(array.bytes for array in task.sources) * COPIES > self.max_memory:
            return "not diagnosed: the leaf does not fit the memory budget (--max-memory)"
        try:
            found = self.arrays[path].read(self.arrays[path].array.whole)
            source = self._expected(path)
            expected = cast_exactly(source, found.dtype)
            tensor = task.axis_map.expression.targets[number]
            tensor = tensor[1:] if task.leaves[number].parts else tensor
            return explain(expected, found, tensor) or self._other_leaf(path, found)
        except Ax2mtError as error:
            return f"not diagnosed: {error.message}"

    def _expected(self, path: str) -> np.ndarray:
        task, number, layer = self.owner[path]
        values = task.axis_map.forward([ArrayReader(array).read_whole() for array in task.sources])[number]
        values = values[layer] if task.leaves[number].parts else values
        return task.value.apply(values, task.axis_map.sizes) if isinstance(task.value, Scale) else values

    def _other_leaf(self, path: str, found: np.ndarray) -> str:
        """Whether the values belong to another leaf of the same shape; neighbours of the same layer first."""
        shape = found.shape
        others = [p for p, a in self.arrays.items() if p != path and a.array.shape == shape and p in self.owner]
        others.sort(key=lambda other: -len(_common(other, path)))
        for other in others[:MAX_CANDIDATES]:
            task = self.owner[other][0]
            if sum(array.bytes for array in task.sources) * COPIES > self.max_memory:
                continue
            if _same(cast_exactly(self._expected(other), found.dtype), found):
                swapped = ""
                own = cast_exactly(self._expected(path), found.dtype)
                if _same(self.arrays[other].read(self.arrays[other].array.whole), own):
                    swapped = "; the two are swapped"
                return f"equal to the expected values of {other}{swapped}"
        return ""


def explain(expected: np.ndarray, found: np.ndarray, tensor: Tensor) -> str:
    """What the found values are in terms of the expected ones.

    Args:
      expected: the leaf as it should be.
      found: the leaf as it is, of the same shape and dtype.
      tensor: its axes in the mapping's expression.

    Returns:
      One phrase; empty where nothing fits.
    """
    rules: tuple[Callable[[], str], ...] = (
        lambda: _few(expected, found),
        lambda: "all zero" if not bits(found).any() else "",
        lambda: _rope(expected, found, tensor),
        lambda: _permuted(expected, found, tensor),
        lambda: _transposed(expected, found),
        lambda: _rounded(expected, found),
    )
    return next((text for rule in rules if (text := rule())), "")


def _few(expected: np.ndarray, found: np.ndarray) -> str:
    difference = bits(expected) ^ bits(found)
    changed = difference[difference != 0]
    where = difference != 0
    if changed.size and (expected[where] == 0).all() and (found[where] == 0).all():
        return "only the sign of zero differs (-0.0 for 0.0)"
    if changed.size == 1 and int(changed[0]).bit_count() == 1:
        return f"a single bit is flipped (bit {int(changed[0]).bit_length() - 1})"
    return ""


def _rope(expected: np.ndarray, found: np.ndarray, tensor: Tensor) -> str:
    """Interleaved pairs against halves, along the dimension of pairs; the last one where no dimension is of pairs."""
    paired = [dim for dim, axis in enumerate(tensor) if len(axis.terms[0]) == 2 and 2 in axis.terms[0]]
    dim = paired[0] if paired else expected.ndim - 1
    if not expected.ndim or expected.shape[dim] % 2 or expected.shape[dim] < 4:
        return ""
    due = tensor[dim].terms[0][0] == 2
    moved = np.moveaxis(expected, dim, -1)
    halves = moved.reshape(*moved.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(moved.shape)
    pairs = moved.reshape(*moved.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(moved.shape)
    if _same(np.moveaxis(halves, -1, dim), found):
        return "the RoPE permutation was left out" if due else "equal after the inverse RoPE permutation"
    if _same(np.moveaxis(pairs, -1, dim), found):
        return "the RoPE permutation was applied " + ("twice" if due else "where none is due")
    return ""


def _permuted(expected: np.ndarray, found: np.ndarray, tensor: Tensor) -> str:
    """Slices of one axis in another order."""
    for dim, axis in enumerate(tensor):
        wanted, got = _slice_hashes(expected, dim), _slice_hashes(found, dim)
        if wanted == got or sorted(wanted) != sorted(got):
            continue
        name = _axis_name(axis)
        moved = [at for at, (one, other) in enumerate(zip(wanted, got, strict=True)) if one != other]
        if len(moved) == 2:
            return f"{name} {moved[0]} and {moved[1]} are swapped"
        if got == wanted[::-1]:
            return f"the order of {name} is reversed"
        return f"{name} are shuffled ({len(moved)} of {len(wanted)} out of place)"
    return ""


def _transposed(expected: np.ndarray, found: np.ndarray) -> str:
    for one, other in itertools.combinations(range(expected.ndim), 2):
        if expected.shape[one] == expected.shape[other] and _same(expected.swapaxes(one, other), found):
            return f"transposed: dimensions {one} and {other} are exchanged"
    return ""


def _rounded(expected: np.ndarray, found: np.ndarray) -> str:
    if expected.dtype not in (np.float32, np.float64):
        return ""
    for name, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        if _same(cast_exactly(cast_exactly(expected, dtype), expected.dtype), found):
            return f"rounded to {name} and back"
    return ""


def _axis_name(axis: Dim) -> str:
    text = str(axis)
    return "layers of the cycle" if text == LAYER_AXIS else text if text.isidentifier() else f"elements of {text}"


def _slice_hashes(array: np.ndarray, dim: int) -> list[int]:
    return [
        xxhash.xxh3_128_intdigest(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        for part in np.moveaxis(array, dim, 0)
    ]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = np.ascontiguousarray(one), np.ascontiguousarray(other)
    return one.shape == other.shape and bool(np.array_equal(bits(one), bits(other)))


def _common(one: str, other: str) -> list[str]:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.split("/"), other.split("/"), strict=False))
    return [name for name, _ in pairs]
