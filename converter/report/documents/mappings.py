"""The documents of `mappings list`, `show` and `check`."""

from converter.report.documents.common import itself
from converter.report.fields import COUNT, TEXT, TEXTS, Field, Kind, Record, group, objects, optional

TABLE_FIELDS = (
    Field("name", TEXT, "of the table"),
    Field("title", TEXT, "what it is for"),
    Field("path", TEXT, "its file"),
    Field("digest", TEXT, "hash of its text"),
    Field("rows", COUNT, "number of rows", lambda table: len(table.rows)),
    Field("models", TEXTS, "published sizes", lambda table: [model.name for model in table.models]),
)

MAPPINGS = Record(
    "mappings list",
    (
        objects(
            "mappings",
            "the bundled tables",
            *TABLE_FIELDS,
            source=itself,
        ),
    ),
)

MAPPING = Record(
    "mappings show",
    (
        *TABLE_FIELDS,
        Field("options", TEXTS, "names for `--option`", lambda table: sorted(table.options)),
        group(
            "checked",
            "versions of the frameworks in which `conform` found no difference",
            Field("maxtext", TEXTS, "of MaxText"),
            Field("axlearn", TEXTS, "of AXLearn, or commits"),
            source="conformance",
        ),
        objects(
            "tensors",
            "the rows",
            Field("axlearn", TEXTS, "paths"),
            Field("maxtext", TEXTS, "paths"),
            Field("axes", TEXT, "the axis expression", lambda row: str(row.expression)),
            Field("group", TEXT, "part of the model; may be empty"),
            Field("note", TEXT, "why; may be empty"),
            Field("when", optional(TEXT), "only in layers of this kind"),
            Field("option", optional(TEXT), "only with this option"),
            Field("unpermuted", optional(TEXT), "the option that leaves axes in AXLearn's order"),
            source="rows",
        ),
        objects(
            "drops",
            "what is left behind",
            Field("axlearn", TEXT, "pattern of paths", "pattern"),
            Field("reason", TEXT, "what the tensors are"),
            Field("note", optional(TEXT), "what to tell the user"),
        ),
    ),
)

MAPPING_CHECK = Record(
    "mappings check",
    (Field("valid", Kind(name="true", schema={"const": True}), "always", lambda _: True), *TABLE_FIELDS),
)
