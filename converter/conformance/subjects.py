"""What is compared with the frameworks: a checkpoint, a published size, or the model of an AXLearn configuration."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from converter.axes import AxisMap
from converter.checkpoints import TrainerConfig
from converter.choices import LAYOUTS
from converter.conformance.result import Leaf
from converter.errors import UsageError
from converter.mapping import (
    Configuration,
    MappingTable,
    Match,
    Shape,
    check_model,
    choose_table,
    configure,
    find_published,
    match_table,
    stack_parts,
)
from converter.planning import check_options, open_source

PARAMETER_DTYPE = "float32"
"""What AXLearn's published configurations keep their parameters in."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model as the mapping table sees it.

    Attributes:
      name: for reports.
      table: the mapping table.
      shapes: path to shape of every tensor that a row converts, as AXLearn has them.
      dtypes: path of a tensor to its dtype.
      matches: MaxText's layer layout to the match that produces it.
      published: MaxText's name of a model file for it; empty for none.
      trained: what the training's own configuration says; None where there is none.
      settings: the user's `KEY=VALUE` texts.
      notes: what the user has to know about the source.
    """

    name: str
    table: MappingTable
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    matches: Mapping[str, Match]
    published: str = ""
    trained: TrainerConfig | None = None
    settings: Sequence[str] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)

    def configuration(self, layout: str) -> Configuration:
        """MaxText's configuration in a layout, as `convert` writes it to maxtext.yml.

        Raises:
          UsageError, MappingError: see `mapping.configure`.
        """
        trained = self.trained
        return configure(
            self.matches[layout],
            self.settings,
            trained=trained.learner if trained is not None else None,
            lines=trained.lines if trained is not None else None,
        )

    def only(self, layout: str) -> "Subject":
        """The same model in one of its layouts.

        Raises:
          UsageError: the table does not have that layout.
        """
        if layout not in self.matches:
            raise UsageError(f"--layout {layout}: mapping '{self.table.name}' has {', '.join(self.matches)} only")
        return dataclasses.replace(self, matches={layout: self.matches[layout]})

    def source_leaves(self) -> dict[str, Leaf]:
        """The tensors that AXLearn has to have."""
        return {path: Leaf(shape=shape, dtype=self.dtypes[path]) for path, shape in self.shapes.items()}

    def target_leaves(self, layout: str) -> dict[str, Leaf]:
        """The leaves that MaxText has to have, by their paths below the table's prefix."""
        match = self.matches[layout]
        prefix = f"{match.table.maxtext.prefix}/" if match.table.maxtext.prefix else ""
        leaves: dict[str, Leaf] = {}
        for row in match.rows:
            axis_map = AxisMap(row.expression, {name: match.sizes[name] for name in row.expression.names()})
            dtype = self.dtypes[match.parts(row.sources[0])[0]]
            for target, shape in zip(row.targets, axis_map.target_shapes, strict=True):
                parts = stack_parts(target)
                leaf = Leaf(shape=shape[1:] if parts else shape, dtype=dtype)
                leaves |= {path.removeprefix(prefix): leaf for path in parts or (target,)}
        return leaves


def checkpoint_subject(
    source: str,
    tables: Sequence[MappingTable],
    *,
    model: str | None,
    step: int | None,
    mapping: str | None,
    options: Collection[str],
    settings: Sequence[str],
) -> Subject:
    """The model of a checkpoint, read from its metadata.

    Raises:
      SourceError, MappingError: the checkpoint cannot be read, no table fits it, or it is not of the named size.
    """
    opened = open_source(source, step=step, mapping=mapping, options=options, metadata_only=True)
    table, checkpoint = opened.match.table, opened.checkpoint
    published = ""
    if model is not None:
        check_model(opened.match, find_published(list(tables), model)[0], model)
        published = _published_name(tables, model)
    matches = _matches(table, checkpoint.shapes, options)
    paths = _converted(next(iter(matches.values())))
    return Subject(
        name=f"{opened.shown} (step {checkpoint.step})",
        table=table,
        shapes={path: checkpoint.shapes[path] for path in paths},
        dtypes=_part_dtypes(opened.match, {path: array.dtype for path, array in opened.arrays.items()}),
        matches=matches,
        published=published,
        trained=opened.trained,
        settings=settings,
        notes=opened.notes,
    )


def published_subject(
    tables: Sequence[MappingTable], model: str, *, options: Collection[str], settings: Sequence[str]
) -> Subject:
    """A published size, from the mapping table alone.

    Raises:
      MappingError: no table has such a model, or the options are not for it.
    """
    match, shapes = find_published(list(tables), model)
    return shapes_subject(
        model, match.table, shapes, published=_published_name(tables, model), options=options, settings=settings
    )


def config_subject(
    name: str,
    tables: Sequence[MappingTable],
    leaves: Mapping[str, Leaf],
    trained: TrainerConfig,
    *,
    options: Collection[str],
    settings: Sequence[str],
) -> Subject:
    """The model of an AXLearn configuration, by the parameters that AXLearn says it has.

    Raises:
      MappingError: no table fits them.
    """
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    check_options(tables, options)
    table = choose_table(list(tables), shapes, options, trained.lines).table
    dtypes = {path: leaf.dtype for path, leaf in leaves.items()}
    return shapes_subject(name, table, shapes, dtypes, trained=trained, options=options, settings=settings)


def shapes_subject(
    name: str,
    table: MappingTable,
    shapes: Mapping[str, Shape],
    dtypes: Mapping[str, str] | None = None,
    *,
    published: str = "",
    trained: TrainerConfig | None = None,
    options: Collection[str] = (),
    settings: Sequence[str] = (),
) -> Subject:
    """The model that tensors of these shapes make; without dtypes, those of AXLearn's parameters.

    Raises:
      MappingError: the table does not fit them, or does not have the options.
    """
    check_options([table], options)
    matches = _matches(table, shapes, options)
    paths = _converted(next(iter(matches.values())))
    return Subject(
        name=name,
        table=table,
        shapes={path: shapes[path] for path in paths},
        dtypes={path: (dtypes or {}).get(path, PARAMETER_DTYPE) for path in paths},
        matches=matches,
        published=published,
        trained=trained,
        settings=settings,
    )


def _matches(table: MappingTable, shapes: Mapping[str, Shape], options: Collection[str]) -> dict[str, Match]:
    """The match for each layout that the table has; one match for a table without layers."""
    layouts = [layout.name for layout in table.maxtext.layers if layout.name in LAYOUTS] or [LAYOUTS[0]]
    return {name: match_table(table, shapes, options=options, target_layout=name) for name in layouts}


def _converted(match: Match) -> list[str]:
    """Paths of the tensors that rows convert, each once, those of a stack one by one."""
    return list(dict.fromkeys(part for row in match.rows for path in row.sources for part in match.parts(path)))


def _part_dtypes(match: Match, dtypes: Mapping[str, Any]) -> dict[str, str]:
    """Path of each tensor to its dtype, the parts of a stack included."""
    return {part: str(dtype) for path, dtype in dtypes.items() for part in match.parts(path)}


def _published_name(tables: Sequence[MappingTable], model: str) -> str:
    return next((one.maxtext for table in tables for one in table.models if one.name == model), "")
