"""Trees of a checkpoint that have a tensor for each parameter: the parameters, their average, an optimizer's moments.

All of them use the same rows, each below a prefix of its own.
"""

import dataclasses
from dataclasses import dataclass

from converter.mapping.match import MatchedRow, join
from converter.mapping.values import COPY, Fit, ValueRule, scaled

PARAMS, EMA = "params", "ema"
"""The trees whose values can become MaxText's parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree with a tensor for each parameter.

    Attributes:
      name: PARAMS, EMA, or the name of a moment.
      source: what stands before every path on AXLearn's side.
      target: the same on MaxText's.
      order: 0 for values of the parameters' own kind; for an optimizer's moment its order.
      factor: what all values are multiplied by, beside the rows' own rules.
    """

    name: str
    source: str
    target: str
    order: int = 0
    factor: float = 1.0


def moved_row(row: MatchedRow, parameters: Tree, tree: Tree) -> MatchedRow:
    """A row of the parameters, applied to another tree: the same axes, other paths, and its rule for moments.

    A moment of values that are fitted is copied: there is no moment of the fitted ones.
    """
    return dataclasses.replace(
        row,
        sources=tuple(_moved(path, parameters.source, tree.source) for path in row.sources),
        targets=tuple(_moved(path, parameters.target, tree.target) for path in row.targets),
        value=scaled(_moment(row.value, tree.order), tree.factor),
        source_place=_moved(row.source_place, parameters.source, tree.source) if row.source_place else "",
        target_place=_moved(row.target_place, parameters.target, tree.target) if row.target_place else "",
    )


def _moment(value: ValueRule, order: int) -> ValueRule:
    if not order:
        return value
    return COPY if isinstance(value, Fit) else value.moment(order)


def _moved(path: str, old: str, new: str) -> str:
    return join(new, path.removeprefix(join(old, "")))
