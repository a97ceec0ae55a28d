"""An axis expression with sizes: moves whole arrays or blocks, and says which source elements a target block holds.

The same map works on blocks: an axis that is a dimension of its own in every tensor (a *free* axis) can be cut
anywhere, and the map of the piece is `AxisMap.cut({axis: length})`. That is what lets the streaming engine treat an
array of any size as a row of small ones.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from converter.axes.expression import Branch, Expression, Factor, Product
from converter.axes.sizes import factor_size, product_size, tensor_shape

Box = tuple[tuple[int, int], ...]
"""Start and stop for each dimension."""


@dataclass(frozen=True, slots=True)
class FreeAxis:
    """An axis that is one whole dimension in every tensor that has it, and is in every tensor.

    Attributes:
      name: the axis.
      source_dims: its dimension in each source tensor.
      target_dims: its dimension in each target tensor.
    """

    name: str
    source_dims: tuple[int, ...]
    target_dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a target block that is one strided region of one source tensor.

    Attributes:
      source: index of the source tensor.
      source_slices: where the elements are.
      target_slices: where they go, in coordinates of the whole target.
      order: transposition of the source region, after its dimensions of length 1 are dropped.
    """

    source: int
    source_slices: tuple[slice, ...]
    target_slices: tuple[slice, ...]
    order: tuple[int, ...]

    def rearrange(self, region: np.ndarray) -> np.ndarray:
        """Turns the region read from the source into the shape of the target's slices."""
        shape = tuple(len(range(s.start, s.stop, s.step)) for s in self.target_slices)
        return region.squeeze().transpose(self.order).reshape(shape)


@dataclass(frozen=True)
class AxisMap:
    """An expression whose axes all have a size."""

    expression: Expression
    sizes: Mapping[str, int]

    @cached_property
    def source_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tensor_shape(tensor, self.sizes) for tensor in self.expression.sources)

    @cached_property
    def target_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tensor_shape(tensor, self.sizes) for tensor in self.expression.targets)

    def inverse(self) -> "AxisMap":
        """The map that leads back."""
        return AxisMap(self.expression.inverse(), self.sizes)

    def cut(self, lengths: Mapping[str, int]) -> "AxisMap":
        """The map of a block in which the given free axes have other lengths."""
        return AxisMap(self.expression, {**self.sizes, **lengths})

    @cached_property
    def free_axes(self) -> tuple[FreeAxis, ...]:
        """The axes along which arrays can be cut, in the order of the first source tensor's dimensions."""
        found: list[FreeAxis] = []
        for dim in self.expression.sources[0]:
            name = dim.terms[0][0] if not dim.is_sum and len(dim.terms[0]) == 1 else None
            if not isinstance(name, str):
                continue
            sides = [
                [[index for index, other in enumerate(tensor) if other == dim] for tensor in tensors]
                for tensors in (self.expression.sources, self.expression.targets)
            ]
            if all(len(hits) == 1 for side in sides for hits in side):
                found.append(FreeAxis(name, tuple(h[0] for h in sides[0]), tuple(h[0] for h in sides[1])))
        return tuple(found)

    def axis_permutation(self) -> tuple[int, ...] | None:
        """For a map that only moves axes: the source dimension of each target dimension; None for any other map."""
        if len(self.expression.sources) != 1 or len(self.expression.targets) != 1:
            return None
        source, target = self.expression.sources[0], self.expression.targets[0]
        if sorted(map(str, source)) != sorted(map(str, target)) or len(set(source)) != len(source):
            return None
        return tuple(source.index(dim) for dim in target)

    def forward(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Applies the map.

        Args:
          arrays: one array for each source, of exactly `source_shapes`.

        Returns:
          One array for each target; a view of the source where no element has to be copied.

        Raises:
          ValueError: an array has another shape.
        """
        for array, shape in zip(arrays, self.source_shapes, strict=True):
            if array.shape != shape:
                raise ValueError(f"expected shape {shape}, got {array.shape}")
        branches = self.expression.branches()
        position = self.expression.sum_position()
        results: list[np.ndarray] = []
        for branch, (source_start, _) in zip(branches, self._offsets, strict=True):
            array = arrays[branch.source]
            if position is not None and position[0] == "source":
                axis = position[1]
                length = product_size(branch.source_dims[axis], self.sizes)
                index = (slice(None),) * axis + (slice(source_start, source_start + length),)
                array = array[index]
            results.append(self._move(branch, array))
        if position is not None and position[0] == "target":
            return [np.concatenate(results, axis=position[1])]
        return results

    def pieces(self, target: int, box: Box) -> list[Piece]:
        """The source regions that fill a block of a target; together they cover it exactly once.

        Args:
          target: index of the target tensor.
          box: the block, in elements.
        """
        result: list[Piece] = []
        for branch, offsets in zip(self.expression.branches(), self._offsets, strict=True):
            if branch.target == target:
                result.extend(self._branch_pieces(branch, offsets, box))
        return result

    def source_box(self, branch: Branch) -> Box:
        """Where a branch's elements lie in its source tensor: all of it, or one term of its sum."""
        start = self._offsets[self.expression.branches().index(branch)][0]
        position = self.expression.sum_position()
        sum_dim = position[1] if position is not None and position[0] == "source" else None
        lengths = [product_size(product, self.sizes) for product in branch.source_dims]
        return tuple((start, start + length) if dim == sum_dim else (0, length) for dim, length in enumerate(lengths))

    @cached_property
    def _offsets(self) -> tuple[tuple[int, int], ...]:
        """For each branch where it starts in the sum, on the source side and on the target side."""
        branches = self.expression.branches()
        position = self.expression.sum_position()
        if position is None:
            return tuple((0, 0) for _ in branches)
        side, dim = position
        starts, at = [], 0
        for branch in branches:
            starts.append((at, 0) if side == "source" else (0, at))
            at += product_size((branch.source_dims if side == "source" else branch.target_dims)[dim], self.sizes)
        return tuple(starts)

    def _move(self, branch: Branch, array: np.ndarray) -> np.ndarray:
        source = [f for product in branch.source_dims for f in product if f != 1]
        target = [f for product in branch.target_dims for f in product if f != 1]
        shape = tuple(product_size(product, self.sizes) for product in branch.target_dims)
        split = array.reshape([factor_size(f, self.sizes) for f in source])
        return split.transpose([source.index(f) for f in target]).reshape(shape)

    def _branch_pieces(self, branch: Branch, offsets: tuple[int, int], box: Box) -> Iterator[Piece]:
        position = self.expression.sum_position()
        source_start, target_start = [0] * len(branch.source_dims), [0] * len(branch.target_dims)
        if position is not None:
            (source_start if position[0] == "source" else target_start)[position[1]] = offsets[position[0] == "target"]
        options: list[list[dict[Factor, range]]] = []
        for product, start, (low, high) in zip(branch.target_dims, target_start, box, strict=True):
            length = product_size(product, self.sizes)
            first, last = max(low - start, 0), min(high - start, length)
            options.append(list(_factor_ranges(product, self.sizes, first, last)) if first < last else [])
        for choice in itertools.product(*options):
            ranges = {factor: span for part in choice for factor, span in part.items()}
            for simple in self._single_factor_ranges(branch, ranges):
                yield self._piece(branch, simple, source_start, target_start)

    def _single_factor_ranges(self, branch: Branch, ranges: dict[Factor, range]) -> Iterator[dict[Factor, range]]:
        """Splits ranges until each dimension has at most one axis of more than one element, so that it is a slice."""
        for product in (*branch.source_dims, *branch.target_dims):
            long = [f for f in product if f != 1 and len(ranges[f]) > 1]
            if len(long) > 1:
                shortest = min(long, key=lambda factor: len(ranges[factor]))
                for value in ranges[shortest]:
                    yield from self._single_factor_ranges(branch, {**ranges, shortest: range(value, value + 1)})
                return
        yield ranges

    def _piece(self, branch: Branch, ranges: dict[Factor, range], source_start: list[int], target_start: list[int]):
        def long_factors(dims: tuple[Product, ...]) -> list[Factor]:
            return [f for product in dims for f in product if f != 1 and len(ranges[f]) > 1]

        source_long = long_factors(branch.source_dims)
        return Piece(
            branch.source,
            tuple(_slice(p, s, ranges, self.sizes) for p, s in zip(branch.source_dims, source_start, strict=True)),
            tuple(_slice(p, s, ranges, self.sizes) for p, s in zip(branch.target_dims, target_start, strict=True)),
            tuple(source_long.index(factor) for factor in long_factors(branch.target_dims)),
        )


def _factor_ranges(product: Product, sizes: Mapping[str, int], low: int, high: int) -> Iterator[dict[Factor, range]]:
    """Cuts [low, high) of a dimension into boxes over the axes it is made of (slowest axis first)."""
    factors = [factor for factor in product if factor != 1]
    if not factors:
        yield {}
        return
    first, rest = factors[0], tuple(factors[1:])
    inner = math.prod(factor_size(factor, sizes) for factor in rest)
    full = {factor: range(factor_size(factor, sizes)) for factor in rest}
    while low < high:
        row, column = divmod(low, inner)
        if column == 0 and high - low >= inner:
            rows = (high - low) // inner
            yield {first: range(row, row + rows), **full}
            low += rows * inner
        else:
            stop = min(high, (row + 1) * inner)
            for part in _factor_ranges(rest, sizes, column, column + stop - low):
                yield {first: range(row, row + 1), **part}
            low = stop


def _slice(product: Product, start: int, ranges: Mapping[Factor, range], sizes: Mapping[str, int]) -> slice:
    """The strided slice that a dimension's axes ranges make up; at most one of them has several elements."""
    first, count, step, stride = start, 1, 1, 1
    for factor in reversed(product):
        if factor == 1:
            continue
        span = ranges[factor]
        first += span.start * stride
        if len(span) > 1:
            count, step = len(span), stride
        stride *= factor_size(factor, sizes)
    return slice(first, first + (count - 1) * step + 1, step)
