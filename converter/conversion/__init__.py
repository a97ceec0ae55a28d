"""Runs a plan: stage, stream, rewrite, copy, publish."""

from converter.conversion.destination import resolve_destination
from converter.conversion.pipeline import BeamResult, run_pipeline
from converter.conversion.run import Request, Result, convert
from converter.conversion.status import Status, conversion_status

__all__ = [
    "BeamResult",
    "Request",
    "Result",
    "Status",
    "conversion_status",
    "convert",
    "resolve_destination",
    "run_pipeline",
]
