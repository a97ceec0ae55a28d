"""What the documents of several commands share."""

from typing import Any

from converter.report.fields import COUNT, INTEGER, SECONDS, TEXTS, Field, optional


def itself(value: Any) -> Any:
    return value


def fit(fitted: Any) -> str:
    return "fit" if fitted else "plain"


STEP = Field("step", optional(INTEGER), "the training step; null where it is not known")
NOTES = Field("notes", TEXTS, "remarks that are not errors: steps that were skipped, an EMA that is left behind")
PEAK_MEMORY = Field("peak_memory", COUNT, "the largest resident set, in bytes")
SECONDS_TAKEN = Field("seconds", SECONDS, "since the start of the process")
QK_NORM = "plain: q/k norm scales are copies, fit: they were fitted"
