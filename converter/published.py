"""The published sizes of a model family: its tensors and their shapes, from the mapping table alone."""

from converter.axis_sizes import tensor_shape
from converter.errors import MappingError
from converter.mapping import LAYER_AXIS, LAYER_FIELD, MappingTable
from converter.matching import Match, Shape, join, match_table


def published_shapes(table: MappingTable, name: str) -> tuple[Match, dict[str, Shape]]:
    """The tensors of a published size of a family, without a checkpoint.

    Returns:
      The match and the shape of every AXLearn tensor.

    Raises:
      MappingError: the table has no such model; the message names those it has.
    """
    model = next((model for model in table.models if model.name == name), None)
    if model is None:
        known = ", ".join(model.name for model in table.models)
        raise MappingError(f"no published model {name!r} in mapping '{table.name}'; it has {known}")
    source = table.axlearn.layers[0] if table.axlearn.layers else None
    shapes: dict[str, Shape] = {}
    for row in table.rows:
        if row.option:
            continue
        for block, kind in enumerate(table.axlearn.cycle or [""]) if row.in_layer else [(0, "")]:
            kinds = {*model.kinds, kind}
            if row.when and row.when not in kinds:
                continue
            place = source.path.replace("{block}", str(block)) if source else ""
            expression = row.expression
            if row.in_layer and source:
                expression = expression.with_axis(LAYER_AXIS, source_at=source.axis, target_at=0)
            for path, axes in zip(row.axlearn, expression.sources, strict=True):
                full = join(table.axlearn.prefix, path.replace(LAYER_FIELD, place))
                shapes[full] = tensor_shape(axes, model.sizes)
    return match_table(table, shapes), shapes
