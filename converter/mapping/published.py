"""The published sizes of a model family: its tensors and their shapes, from the mapping table alone."""

from collections.abc import Sequence

from converter.axes import tensor_shape
from converter.errors import MappingError
from converter.mapping.match import Match, Shape, join, match_table
from converter.mapping.table import LAYER_AXIS, LAYER_FIELD, MappingTable


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


def find_published(tables: Sequence[MappingTable], name: str) -> tuple[Match, dict[str, Shape]]:
    """The table's match and the tensors' shapes of a published model.

    Raises:
      MappingError: no table has such a model; the message names those there are.
    """
    for table in tables:
        if any(model.name == name for model in table.models):
            return published_shapes(table, name)
    known = ", ".join(model.name for table in tables for model in table.models)
    raise MappingError(f"no published model {name!r}; there are {known}")


def check_model(match: Match, wanted: Match, name: str) -> None:
    """Refuses a checkpoint that is not of a published size.

    Args:
      match: the checkpoint's.
      wanted: the published model's.
      name: its name.

    Raises:
      MappingError: with a table of the dimensions that differ.
    """
    rows = [
        (axis, str(wanted.sizes.get(axis, "none")), str(match.sizes.get(axis, "none")))
        for axis in dict.fromkeys((*wanted.sizes, *match.sizes))
        if wanted.sizes.get(axis) != match.sizes.get(axis)
    ]
    rows += [(f"{kind} layers", "yes", "no") for kind in sorted(wanted.kinds - match.kinds)]
    rows += [(f"{kind} layers", "no", "yes") for kind in sorted(match.kinds - wanted.kinds)]
    if match.table.name != wanted.table.name:
        rows.append(("mapping", wanted.table.name, match.table.name))
    if rows:
        lines = [("dimension", name, "checkpoint"), *rows]
        widths = [max(len(line[column]) for line in lines) for column in range(2)]
        raise MappingError(
            f"the checkpoint is not {name}: {len(rows)} dimensions differ",
            [f"{one:<{widths[0]}}  {two:>{widths[1]}}  {three}" for one, two, three in lines],
        )
