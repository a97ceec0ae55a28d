"""The document of `report`."""

from converter.report.documents.common import NOTES, PEAK_MEMORY, SECONDS_TAKEN, STEP
from converter.report.documents.conversions import PAIRS
from converter.report.documents.logits import COMPARISON
from converter.report.documents.parameters import PARAMETERS
from converter.report.documents.verification import VERIFY
from converter.report.fields import (
    ANY,
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    Field,
    Record,
    choice,
    embedded,
    group,
    objects,
    optional,
)

STATE = choice("passed", "failed", "caution", "open")

REPORT = Record(
    "report",
    (
        Field("passed", FLAG, "everything that was checked holds; otherwise the exit code is 6", "evidence.passed"),
        Field("title", TEXT, "the verdict in a few words"),
        Field("summary", TEXT, "the verdict in a sentence or two"),
        Field("tool", TEXT, "program and version", "evidence.tool"),
        Field("source", TEXT, "the step directory", "evidence.source"),
        STEP.at("plan").at("evidence"),
        Field("destination", TEXT, "the checkpoint", "evidence.destination"),
        objects(
            "proofs",
            "what was proved",
            Field("name", TEXT, "of the proof"),
            Field("state", STATE, "what came of it; caution: it holds, with something to know; open: not asked for"),
            Field("lines", TEXTS, "in words"),
        ),
        objects(
            "groups",
            "the parts of the model",
            Field("name", TEXT, "of the part"),
            Field("tensors", COUNT, "AXLearn's"),
            Field("leaves", COUNT, "MaxText's"),
            Field("axlearn", COUNT, "parameters", "source"),
            Field("maxtext", COUNT, "parameters", "target"),
            Field("experts", COUNT, "AXLearn's parameters that are in experts"),
        ),
        Field("params", embedded(PARAMETERS), "see [params](#params)", "evidence.parameters"),
        Field("verify", embedded(VERIFY), "see [verify](#verify)", "evidence.bits"),
        Field("logits", optional(embedded(COMPARISON)), "see [verify --logits](#verify---logits)", "evidence.logits"),
        Field("logits_problem", optional(TEXT), "why the logits could not be computed", "evidence.logits_problem"),
        PAIRS.at("evidence"),
        objects(
            "configuration",
            "the keys of `maxtext.yml`",
            Field("key", TEXT, "its name", "name"),
            Field("value", ANY, "what the weights need, or the training"),
            Field("origin", TEXT, "where that is known from"),
            Field("problem", optional(TEXT), "what is different in the file"),
            source="evidence.configuration",
        ),
        group(
            "receipt",
            "what the checkpoint says of itself",
            Field("problem", optional(TEXT), "why there is no receipt"),
            Field("tool", TEXT, "program and version that wrote it"),
            Field("mapping", TEXT, "name of the mapping table"),
            Field("mapping_digest", TEXT, "hash of the table"),
            Field("patches", TEXTS, "changes to MaxText that the checkpoint needs"),
            objects(
                "leaves",
                "digests of the leaves",
                Field("path", TEXT, "of the leaf"),
                Field("kind", choice("stored", "sums", "none"), "what the digest is made of"),
                Field("xxh3", TEXT, "the digest; empty without one"),
                Field("chunks", COUNT, "number of chunks"),
            ),
            objects(
                "files",
                "digests of the other files",
                Field("path", TEXT, "below the checkpoint"),
                Field("bytes", COUNT, "its size"),
                Field("xxh3", TEXT, "XXH3 of 128 bits"),
            ),
            source="evidence.receipt",
        ),
        objects(
            "commands",
            "commands that reproduce the report",
            Field("purpose", TEXT, "what it does"),
            Field("line", TEXT, "for a shell"),
            source="evidence.commands",
        ),
        NOTES,
        Field("html", optional(TEXT), "the page that was written"),
        SECONDS_TAKEN.at("evidence"),
        PEAK_MEMORY.at("evidence"),
    ),
)
