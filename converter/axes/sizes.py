"""Solves the sizes of named axes from the shapes of tensors.

A kernel with axes `embed heads (pair 2)` and shape (1536, 12, 128) fixes heads = 12 and pair = 64; then another with
`(heads + kv_heads + kv_heads)` and length 36 leaves kv_heads = 12. Nothing is configured, and a size that two tensors
give differently is an error that names both.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from converter.axes.expression import Dim, Factor, Product, Tensor, format_tensor
from converter.errors import MappingError


@dataclass(frozen=True, slots=True)
class ShapeFact:
    """A tensor whose shape is known.

    Attributes:
      name: the tensor's path, for messages.
      axes: its dimensions in axis notation.
      shape: its dimensions in elements.
    """

    name: str
    axes: Tensor
    shape: tuple[int, ...]


def product_size(product: Product, sizes: Mapping[str, int]) -> int:
    """Elements along a product of axes."""
    return math.prod(factor_size(factor, sizes) for factor in product)


def factor_size(factor: Factor, sizes: Mapping[str, int]) -> int:
    """Elements along one axis."""
    return factor if isinstance(factor, int) else sizes[factor]


def dim_size(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Elements along one dimension."""
    return sum(product_size(term, sizes) for term in dim.terms)


def tensor_shape(axes: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor once all its axes have a size."""
    return tuple(dim_size(dim, sizes) for dim in axes)


def solve_sizes(facts: Iterable[ShapeFact]) -> dict[str, int]:
    """Finds the one size of each named axis that fits all facts.

    Raises:
      MappingError: a tensor has another number of dimensions than its axes, a size contradicts another tensor's, or the
        facts leave a size open. All contradictions found are listed.
    """
    equations = _equations(facts)
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    problems: list[str] = []
    pending = equations
    progress = True
    while pending and progress:
        progress = False
        still_open: list[_Equation] = []
        for equation in pending:
            unknown = equation.unknowns(sizes)
            if len(unknown) > 1:
                still_open.append(equation)
                continue
            progress = True
            if not unknown:
                if dim_size(equation.dim, sizes) != equation.length:
                    problems.append(equation.contradiction(sizes, origin))
                continue
            size = equation.solve(unknown[0], sizes)
            if size is None:
                problems.append(equation.contradiction(sizes, origin))
            else:
                sizes[unknown[0]] = size
                origin[unknown[0]] = equation.fact.name
        pending = still_open
    if problems:
        raise MappingError("the sizes of the checkpoint's tensors contradict the mapping", problems)
    if pending:
        raise MappingError(
            "the checkpoint's shapes do not determine the size of an axis",
            [f"{e.fact.name}: {', '.join(e.unknowns(sizes))} in {e.dim} = {e.length}" for e in pending],
        )
    return sizes


@dataclass(frozen=True, slots=True)
class _Equation:
    fact: ShapeFact
    index: int

    @property
    def dim(self) -> Dim:
        return self.fact.axes[self.index]

    @property
    def length(self) -> int:
        return self.fact.shape[self.index]

    def unknowns(self, sizes: Mapping[str, int]) -> list[str]:
        names = dict.fromkeys(f for term in self.dim.terms for f in term if isinstance(f, str) and f not in sizes)
        return list(names)

    def solve(self, name: str, sizes: Mapping[str, int]) -> int | None:
        """The size of the only unknown axis, or None where no whole positive number fits."""
        trial = {**sizes, name: 1}
        coefficient = sum(product_size(term, trial) for term in self.dim.terms if name in term)
        rest = self.length - sum(product_size(term, sizes) for term in self.dim.terms if name not in term)
        return rest // coefficient if rest > 0 and rest % coefficient == 0 else None

    def contradiction(self, sizes: Mapping[str, int], origin: Mapping[str, str]) -> str:
        known = dict.fromkeys(f for term in self.dim.terms for f in term if isinstance(f, str) and f in sizes)
        reasons = ", ".join(f"{name} = {sizes[name]} from {origin[name]}" for name in known)
        return (
            f"{self.fact.name} {list(self.fact.shape)}: dimension {self.index} is {self.length}, "
            f"which does not fit {self.dim}" + (f" with {reasons}" if reasons else "")
        )


def _equations(facts: Iterable[ShapeFact]) -> list[_Equation]:
    equations: list[_Equation] = []
    problems: list[str] = []
    for fact in facts:
        if len(fact.axes) != len(fact.shape):
            problems.append(
                f"{fact.name}: shape {list(fact.shape)} has {len(fact.shape)} dimensions, "
                f"the mapping's '{format_tensor(fact.axes)}' has {len(fact.axes)}"
            )
        equations.extend(_Equation(fact, index) for index in range(min(len(fact.axes), len(fact.shape))))
    if problems:
        raise MappingError("tensors whose number of dimensions differs from the mapping's", problems)
    return equations
