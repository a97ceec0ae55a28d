"""The document of `conform`."""

from converter.choices import LAYOUTS
from converter.report.documents.common import NOTES, SECONDS_TAKEN
from converter.report.fields import (
    ANY_OBJECT,
    COUNT,
    FLAG,
    SHAPE,
    TEXT,
    TEXTS,
    Field,
    Record,
    choice,
    objects,
    optional,
    record,
)

LEAF = optional(
    record(
        Field("shape", SHAPE, "in elements"),
        Field("dtype", TEXT, "its dtype"),
        Field("axes", TEXTS, "MaxText's logical names of its dimensions; empty texts where one has none"),
    )
)
FLAGS = (
    Field("key", TEXT, "MaxText's name, or the path of a line of AXLearn's configuration"),
    Field("status", choice("equal", "other", "unknown"), "whether it differs, or is not known to MaxText"),
    Field("kind", choice("written", "default", "axlearn"), "in maxtext.yml, left to MaxText, or AXLearn's"),
    Field("expected", TEXT, "the value that the weights need"),
    Field("found", TEXT, "the framework's; empty where it has none"),
    Field("consequence", TEXT, "what the difference does, by the mapping table; may be empty"),
)

CONFORM = Record(
    "conform",
    (
        Field("ok", FLAG, "no difference; otherwise the exit code is 6"),
        Field("differences", COUNT, "leaves and flags that differ, and models that cannot be made"),
        objects(
            "installed",
            "the frameworks",
            Field("framework", choice("MaxText", "AXLearn"), "which one"),
            Field("interpreter", TEXT, "the Python that was asked"),
            Field("python", TEXT, "its version"),
            Field("version", optional(TEXT), "the framework's; null for a source tree without one"),
            Field("checked", ANY_OBJECT, "mapping table to the versions that it was checked with"),
        ),
        objects(
            "models",
            "each model in each framework and layout",
            Field("framework", choice("MaxText", "AXLearn"), "which one"),
            Field("model", TEXT, "the checkpoint, published size or configuration"),
            Field("mapping", TEXT, "name of the mapping table"),
            Field("layout", optional(choice(*LAYOUTS)), "MaxText's layer layout"),
            Field("differences", COUNT, "of this model"),
            Field("problem", optional(TEXT), "why the framework cannot make the model"),
            objects(
                "leaves",
                "of either side",
                Field("path", TEXT, "of the leaf, for MaxText below `params/params`"),
                Field("status", choice("equal", "missing", "extra", "shape", "dtype"), "what is different"),
                Field("expected", LEAF, "by the mapping; null for a leaf that only the framework has"),
                Field("found", LEAF, "in the framework; null for a leaf that it lacks"),
            ),
            objects("flags", "that are compared", *FLAGS),
        ),
        objects(
            "published",
            "MaxText's own model files; they do not count",
            Field("model", TEXT, "the published size"),
            Field("name", TEXT, "MaxText's `model_name`"),
            Field("present", FLAG, "this MaxText has the file"),
            objects("differences", "keys whose effective value is not what the weights need", *FLAGS),
        ),
        NOTES,
        SECONDS_TAKEN,
        Field("peak_memory", COUNT, "the largest resident set of a framework's process, in bytes"),
    ),
)
