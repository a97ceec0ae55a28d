"""The JSON documents of all commands, field by field. Imports nothing of what they are about."""

from converter.report.documents.conformance import CONFORM
from converter.report.documents.conversions import BEAM, CONVERT, PLAN, STATUS
from converter.report.documents.errors import ERROR
from converter.report.documents.evidence import REPORT
from converter.report.documents.logits import COMPARISON, LOGITS
from converter.report.documents.mappings import MAPPING, MAPPING_CHECK, MAPPINGS
from converter.report.documents.parameters import INSPECTION, PARAMETERS
from converter.report.documents.verification import VERIFY
from converter.report.fields import Record

__all__ = [
    "BEAM",
    "COMPARISON",
    "CONFORM",
    "CONVERT",
    "DOCUMENTS",
    "ERROR",
    "INSPECTION",
    "LOGITS",
    "MAPPING",
    "MAPPINGS",
    "MAPPING_CHECK",
    "PARAMETERS",
    "PLAN",
    "REPORT",
    "STATUS",
    "VERIFY",
]

DOCUMENTS: dict[str, Record] = {
    kind.name: kind
    for kind in (
        ERROR, PLAN, CONVERT, BEAM, STATUS, VERIFY, COMPARISON, LOGITS, PARAMETERS, CONFORM, REPORT, INSPECTION,
        MAPPINGS, MAPPING, MAPPING_CHECK,
    )
}  # fmt: skip
"""Name of a command to its document; `error` is any command's."""
