"""The axis language: parse and invert expressions, solve sizes, move arrays and blocks."""

from converter.axes.axis_map import AxisMap, Box
from converter.axes.blocking import (
    Blocking,
    BlockTooLarge,
    Span,
    block_map,
    block_slabs,
    blocks,
    count_blocks,
    groups,
    is_one_chunk,
    plan_blocks,
    slab_moving_elements,
    source_box,
    target_box,
)
from converter.axes.expression import Branch, Dim, Expression, ExpressionError, Product, Tensor
from converter.axes.sizes import ShapeFact, product_size, solve_sizes, tensor_shape

__all__ = [
    "AxisMap",
    "BlockTooLarge",
    "Blocking",
    "Box",
    "Branch",
    "Dim",
    "Expression",
    "ExpressionError",
    "Product",
    "ShapeFact",
    "Span",
    "Tensor",
    "block_map",
    "block_slabs",
    "blocks",
    "count_blocks",
    "groups",
    "is_one_chunk",
    "plan_blocks",
    "product_size",
    "slab_moving_elements",
    "solve_sizes",
    "source_box",
    "target_box",
    "tensor_shape",
]
