"""The axis-expression language of the mapping tables: parse, check, print, invert.

An expression says how the axes of one or more source tensors become the axes of one or more target tensors:

    embed (heads + kv_heads + kv_heads) (pair 2)
        -> embed heads (2 pair) | embed kv_heads (2 pair) | embed kv_heads (pair 2)

* Names stand for axes, in the order of the tensor's dimensions. A number is an axis of that fixed size.
* `(a b)` is one dimension read as two axes, `a` the slower: `(pair 2)` on the left and `(2 pair)` on the right turns
  interleaved pairs into halves.
* `()` alone is a tensor without dimensions, a scalar.
* `(a + b)` is one dimension in which the tensors of the other side lie one after the other; the first term belongs to
  the first tensor, and so on. `|` separates tensors.

The left and right side have the same standing: `Expression.inverse` swaps them. Nothing here knows a size; see
`axis_sizes` for solving them and `axis_map` for moving data.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from converter.errors import MappingError

Factor = str | int
Product = tuple[Factor, ...]
Side = Literal["source", "target"]

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9]+)|(?P<mark>->|[()+|]))")


class ExpressionError(MappingError):
    """An expression that does not parse or contradicts itself.

    Attributes:
      text: the whole expression.
      position: 0-based column where the trouble is.
      reason: the bare complaint, without the quotation.
    """

    def __init__(self, reason: str, text: str, position: int):
        super().__init__(f"axis expression: {reason}", [text, " " * position + "^"])
        self.reason = reason
        self.text = text
        self.position = position


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a tensor: a sum of products of axes (most often one term with one axis)."""

    terms: tuple[Product, ...]

    @property
    def is_sum(self) -> bool:
        return len(self.terms) > 1

    def __str__(self) -> str:
        text = " + ".join(" ".join(map(str, term)) for term in self.terms)
        return text if len(self.terms) == 1 and len(self.terms[0]) == 1 else f"({text})"


Tensor = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """The part of an expression that ties one source tensor to one target tensor.

    Attributes:
      source: index of the source tensor.
      target: index of the target tensor.
      source_dims: for each source dimension the axes it is made of, in this branch.
      target_dims: the same for the target.
    """

    source: int
    target: int
    source_dims: tuple[Product, ...]
    target_dims: tuple[Product, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed and checked axis expression; see the module's docstring for the notation."""

    sources: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    @classmethod
    def parse(cls, text: str) -> "Expression":
        """Parses an expression.

        Raises:
          ExpressionError: with the column of the fault.
        """
        parser = _Parser(text)
        expression = cls(*parser.expression())
        try:
            expression.branches()
        except ValueError as error:
            raise ExpressionError(str(error), text, parser.arrow) from None
        return expression

    def inverse(self) -> "Expression":
        """The expression that leads from the targets back to the sources."""
        return Expression(self.targets, self.sources)

    def in_source_order(self) -> "Expression":
        """The same expression, with axes that come from one source dimension in its order wherever they are together.

        `(pair 2) -> (2 pair)` becomes `(pair 2) -> (pair 2)`. Dimensions move as before.
        """
        targets = [list(tensor) for tensor in self.targets]
        position = self.sum_position()
        for number, branch in enumerate(self.branches()):
            for dim, product in enumerate(_source_order(branch)):
                terms = targets[branch.target][dim].terms
                place = number if position == ("target", dim) else 0
                targets[branch.target][dim] = Dim((*terms[:place], product, *terms[place + 1 :]))
        return Expression(self.sources, tuple(map(tuple, targets)))

    def with_axis(self, name: str, *, source_at: int | None, target_at: int | None) -> "Expression":
        """The same expression with one more axis in every tensor, at the given positions (None: not on that side)."""

        def insert(tensor: Tensor, at: int | None) -> Tensor:
            return tensor if at is None else (*tensor[:at], Dim(((name,),)), *tensor[at:])

        return Expression(
            tuple(insert(tensor, source_at) for tensor in self.sources),
            tuple(insert(tensor, target_at) for tensor in self.targets),
        )

    def branches(self) -> tuple[Branch, ...]:
        """The pairs of one source and one target tensor, in the order of the terms of the sum.

        Raises:
          ValueError: the sides do not fit each other; the message says how.
        """
        splits = len(self.targets) > 1
        joined, parts = (self.sources, self.targets) if splits else (self.targets, self.sources)
        if len(joined) != 1:
            raise ValueError("several tensors on both sides; one side must be a single tensor")
        (whole_tensor,) = joined
        sums = [index for index, dim in enumerate(whole_tensor) if dim.is_sum]
        if any(dim.is_sum for tensor in parts for dim in tensor):
            raise ValueError("a sum needs as many tensors on the other side as it has terms")
        if len(parts) == 1 and not sums:
            return (_branch(0, 0, parts[0], whole_tensor),)
        if len(sums) != 1 or len(whole_tensor[sums[0]].terms) != len(parts):
            found = " and ".join(str(whole_tensor[index]) for index in sums) or "no sum"
            raise ValueError(
                f"{len(parts)} tensors need one sum of {len(parts)} terms on the other side, found {found}"
            )
        result: list[Branch] = []
        for number, term in enumerate(whole_tensor[sums[0]].terms):
            whole = tuple(Dim((term,)) if index == sums[0] else dim for index, dim in enumerate(whole_tensor))
            if splits:
                result.append(_branch(0, number, whole, parts[number]))
            else:
                result.append(_branch(number, 0, parts[number], whole))
        return tuple(result)

    def names(self) -> tuple[str, ...]:
        """All named axes, in the order in which they first appear."""
        factors = (f for t in (*self.sources, *self.targets) for dim in t for term in dim.terms for f in term)
        return tuple(dict.fromkeys(factor for factor in factors if isinstance(factor, str)))

    def sum_position(self) -> tuple[Side, int] | None:
        """The side and the dimension of the sum, or None where the expression has none."""
        sides: tuple[tuple[Side, tuple[Tensor, ...]], ...] = (("source", self.sources), ("target", self.targets))
        for side, tensors in sides:
            for dim_index, dim in enumerate(tensors[0]):
                if dim.is_sum:
                    return side, dim_index
        return None

    def __str__(self) -> str:
        return " -> ".join(
            " | ".join(format_tensor(tensor) for tensor in side) for side in (self.sources, self.targets)
        )


def format_tensor(tensor: Tensor) -> str:
    """A tensor's axes as they are written in an expression."""
    return " ".join(map(str, tensor)) or "()"


def _branch(source: int, target: int, source_tensor: Tensor, target_tensor: Tensor) -> Branch:
    branch = Branch(
        source, target, tuple(dim.terms[0] for dim in source_tensor), tuple(dim.terms[0] for dim in target_tensor)
    )
    left, right = (
        Counter(factor for product in dims for factor in product if factor != 1)
        for dims in (branch.source_dims, branch.target_dims)
    )
    for counts in (left, right):
        for factor, count in counts.items():
            if count > 1:
                raise ValueError(f"axis {factor!s} is used twice in one tensor")
    if left != right:
        only = [f"{factor!s} (only on the left)" for factor in left if factor not in right]
        only += [f"{factor!s} (only on the right)" for factor in right if factor not in left]
        raise ValueError("each axis must be on both sides: " + ", ".join(only))
    return branch


def _source_order(branch: Branch) -> list[Product]:
    """The target's dimensions, with the axes that come from one source dimension in that dimension's order."""
    places = {factor: (dim, at) for dim, product in enumerate(branch.source_dims) for at, factor in enumerate(product)}
    result: list[Product] = []
    for product in branch.target_dims:
        waiting = sorted((factor for factor in product if factor != 1), key=places.__getitem__)
        queues: dict[int, list[Factor]] = {}
        for factor in waiting:
            queues.setdefault(places[factor][0], []).append(factor)
        result.append(tuple(1 if factor == 1 else queues[places[factor][0]].pop(0) for factor in product))
    return result


class _Parser:
    """Recursive descent over the token list; `arrow` is the column of `->` once it was met."""

    def __init__(self, text: str):
        self.text = text
        self.arrow = 0
        self.tokens: list[tuple[str, str, int]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                at = position + len(text[position:]) - len(text[position:].lstrip())
                raise ExpressionError(f"unexpected character {text[at]!r}", text, at)
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind)))
            position = match.end()
        self.tokens.append(("end", "", end))

    def expression(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        sources = self._side()
        self.arrow = self.tokens[0][2]
        self._expect("->")
        targets = self._side()
        if self.tokens[0][0] != "end":
            self._fail(f"unexpected {self.tokens[0][1]!r}")
        return sources, targets

    def _side(self) -> tuple[Tensor, ...]:
        tensors = [self._tensor()]
        while self.tokens[0][1] == "|":
            self.tokens.pop(0)
            tensors.append(self._tensor())
        return tuple(tensors)

    def _tensor(self) -> Tensor:
        if [value for _, value, _ in self.tokens[:2]] == ["(", ")"]:
            del self.tokens[:2]
            return ()
        dims: list[Dim] = []
        while True:
            kind, value, _ = self.tokens[0]
            if kind in ("name", "number"):
                dims.append(Dim(((self._factor(),),)))
            elif value == "(":
                self.tokens.pop(0)
                terms = [self._product()]
                while self.tokens[0][1] == "+":
                    self.tokens.pop(0)
                    terms.append(self._product())
                self._expect(")")
                dims.append(Dim(tuple(terms)))
            else:
                break
        if not dims:
            self._fail("an axis is expected here")
        return tuple(dims)

    def _product(self) -> Product:
        factors: list[Factor] = []
        while self.tokens[0][0] in ("name", "number"):
            factors.append(self._factor())
        if not factors:
            self._fail("an axis is expected here")
        return tuple(factors)

    def _factor(self) -> Factor:
        kind, value, _ = self.tokens[0]
        if kind == "number" and (len(value) > 9 or int(value) == 0):
            self._fail("a fixed size must be between 1 and 999999999")
        self.tokens.pop(0)
        return int(value) if kind == "number" else value

    def _expect(self, mark: str) -> None:
        if self.tokens[0][1] != mark:
            self._fail(f"{mark!r} is expected here")
        self.tokens.pop(0)

    def _fail(self, reason: str) -> None:
        raise ExpressionError(reason, self.text, self.tokens[0][2])
