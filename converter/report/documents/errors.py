"""The document of any command that has no result."""

from operator import itemgetter

from converter.report.documents.common import itself
from converter.report.fields import COUNT, TEXT, TEXTS, Field, Record, choice, group

ERROR_KINDS = (
    "usage", "source", "mapping", "destination", "verification", "inexact", "interrupted", "resources", "environment",
    "internal",
)  # fmt: skip

ERROR = Record(
    "error",
    (
        group(
            "error",
            "why there is no result",
            Field(
                "kind",
                choice(*ERROR_KINDS),
                "what is at fault",
                itemgetter("kind"),
            ),
            Field("exit_code", COUNT, "of the process", itemgetter("exit_code")),
            Field("message", TEXT, "one line", itemgetter("message")),
            Field("details", TEXTS, "further lines, one a finding", itemgetter("details")),
            source=itself,
        ),
    ),
)
