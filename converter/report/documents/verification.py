"""The document of `verify`."""

from converter.report.documents.common import NOTES, PEAK_MEMORY, SECONDS_TAKEN, STEP
from converter.report.fields import COUNT, FLAG, NUMBER, SHAPE, TEXT, Field, Record, choice, objects, optional, record

VERIFY = Record(
    "verify",
    (
        Field("ok", FLAG, "nothing is wrong; otherwise the exit code is 6"),
        Field("method", choice("source", "digests"), "what the checkpoint was compared with"),
        Field("source", TEXT, "the step directory; empty where it is not known"),
        STEP,
        Field("destination", TEXT, "the checkpoint"),
        Field("leaves", COUNT, "compared"),
        Field("stored_leaves", COUNT, "of them by their chunks as they are stored, without decoding"),
        Field("elements", COUNT, "compared"),
        Field("bytes", COUNT, "their size, decoded", "compared_bytes"),
        Field("sample", optional(NUMBER), "the fraction of blocks that was compared; null for all"),
        Field(
            "process",
            optional(
                record(Field("index", COUNT, "number of the share, from 0"), Field("count", COUNT, "of all shares"))
            ),
            "the share that was compared; null for all",
            "share",
        ),
        objects(
            "findings",
            "all that is wrong",
            Field(
                "check",
                TEXT,
                "coverage, shape, dtype, chunks, values, cast, digest, receipt, metadata, "
                "markers, scan_layers or config",
            ),
            Field("place", TEXT, "leaf or file"),
            Field("message", TEXT, "one line"),
            Field("elements", optional(COUNT), "how many differ"),
            Field("first_index", optional(SHAPE), "of the first one"),
            Field("expected", optional(TEXT), "its value in the source"),
            Field("found", optional(TEXT), "its value in the checkpoint"),
            Field("diagnosis", optional(TEXT), "what the wrong values are"),
        ),
        NOTES,
        Field(
            "cast",
            optional(
                record(
                    Field("dtype", TEXT, "of the checkpoint"),
                    Field("max_absolute_error", NUMBER, "of a finite element", "max_absolute"),
                    Field("max_relative_error", NUMBER, "of a finite element that is not zero", "max_relative"),
                    Field("overflows", COUNT, "finite elements that became infinite"),
                )
            ),
            "errors of the cast; null where no leaf was cast",
        ),
        SECONDS_TAKEN,
        PEAK_MEMORY,
    ),
)
