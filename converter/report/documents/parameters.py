"""The documents of `params` and `inspect`."""

from operator import itemgetter
from typing import Any

from converter.report.documents.common import NOTES, itself
from converter.report.fields import (
    ANY_OBJECT,
    COUNT,
    FLAG,
    INTEGER,
    SHAPE,
    TEXT,
    TEXTS,
    Field,
    Record,
    group,
    objects,
    optional,
)

SHAPED = (
    Field("path", TEXT, "of the tensor or leaf", itemgetter(0)),
    Field("shape", SHAPE, "in elements", itemgetter(1)),
)


def _targets(row: Any) -> list[tuple[Any, ...]]:
    found = row.found_shapes or (None,) * len(row.targets)
    return list(zip(row.targets, row.target_shapes, found, strict=True))


PARAMETERS = Record(
    "params",
    (
        Field("title", TEXT, "the source, or the published model"),
        Field("destination", optional(TEXT), "the checkpoint that was looked at"),
        Field("mapping", TEXT, "name of the mapping table", "table"),
        Field("equivalent", FLAG, "counts and shapes agree; otherwise the exit code is 6"),
        group(
            "totals",
            "sums",
            Field("axlearn", COUNT, "parameters in AXLearn", "source_total"),
            Field("maxtext", COUNT, "parameters in MaxText", "target_total"),
            Field("added", COUNT, "those that are copies made on request", "added_total"),
            Field("difference", INTEGER, "0 where both sides agree"),
            Field("experts", COUNT, "parameters in experts", "expert_total"),
            Field("active_per_token", COUNT, "parameters that one token meets", "active_total"),
            source=itself,
        ),
        Field("experts", COUNT, "experts of a layer; 0 without any"),
        Field("experts_per_token", COUNT, "experts that each token is sent to"),
        objects(
            "rows",
            "in the order of the model",
            Field("group", TEXT, "part of the model"),
            objects(
                "axlearn",
                "tensors",
                *SHAPED,
                source=lambda row: list(zip(row.sources, row.source_shapes, strict=True)),
            ),
            objects(
                "maxtext",
                "leaves",
                *SHAPED,
                Field("found", optional(SHAPE), "in the checkpoint", itemgetter(2)),
                source=_targets,
            ),
            Field("relation", TEXT, "what becomes of the elements, in words"),
            Field("axes", TEXT, "the same as an axis expression"),
            Field("note", TEXT, "why; may be empty"),
            Field("axlearn_parameters", COUNT, "elements", "source_parameters"),
            Field("maxtext_parameters", COUNT, "elements", "target_parameters"),
            Field("added", FLAG, "a copy made on request"),
            Field("expert", FLAG, "the tensors belong to single experts"),
            Field("fits", FLAG, "the checkpoint has the planned shapes"),
        ),
        objects(
            "extra",
            "leaves that no row produces",
            *SHAPED,
            source=lambda r: list(r.extra.items()),
        ),
        NOTES,
    ),
)


INSPECTION = Record(
    "inspect",
    (
        Field("path", TEXT, "as it was given"),
        Field(
            "kind",
            TEXT,
            "axlearn-trainer, axlearn-step, axlearn-step-uncommitted, axlearn-orbax-step, "
            "maxtext-checkpoint, half-written, directory, no-directory, unreadable or absent",
        ),
        Field("title", TEXT, "the kind in words"),
        Field(
            "facts",
            ANY_OBJECT,
            "named values that depend on the kind; `litter` counts entries that systems and tools left",
        ),
        objects(
            "leaves",
            "the arrays",
            Field("path", TEXT, "of the array"),
            Field("dtype", TEXT, "its dtype"),
            Field("shape", SHAPE, "in elements"),
            Field("chunks", SHAPE, "shape of a chunk, in elements"),
            Field("problem", optional(TEXT), "what is wrong with it"),
        ),
        Field("missing", TEXTS, "what a whole checkpoint would have, and what is wrong"),
    ),
)
